//! What an operator asks of a store: look, resolve, forget, sweep, compact.

use crate::claim::Response;
use crate::error::{Error, ErrorKind, Result};
use crate::fingerprint::Fingerprint;
use crate::key::Key;
use crate::record::{Fence, Record, State};
use crate::store::Store;
use crate::time::Timestamp;
use crate::transition::{Event, Outcome, Resolution};
use std::sync::atomic::Ordering;

impl Store {
    /// What is known of a key; `None` if nothing is, or it has expired.
    ///
    /// # Errors
    ///
    /// [`Corrupted`](ErrorKind::Corrupted), [`StorageFailed`](ErrorKind::StorageFailed)
    /// or [`Closed`](ErrorKind::Closed).
    pub fn get(&self, key: &Key) -> Result<Option<Entry>> {
        Ok(self.engine.look_up(key)?.map(|record| Entry { key: key.clone(), record }))
    }

    /// Says what became of an interrupted attempt: the work was done and this
    /// is its answer, or nothing happened. Gives the answer that is now
    /// replayed, if there is one.
    ///
    /// For keys held by [`OnInterrupt::Hold`](crate::OnInterrupt::Hold) this is
    /// the only way on; for others it saves the next attempt. It is on disk
    /// before this returns.
    ///
    /// # Errors
    ///
    /// [`WrongState`](ErrorKind::WrongState) if the key is not interrupted;
    /// [`LimitReached`](ErrorKind::LimitReached) if the response is too long;
    /// otherwise those of [`Claim::complete`](crate::Claim::complete). The key
    /// is as it was.
    ///
    /// ```
    /// use keyonce::{Begin, Fingerprint, Key, OnInterrupt, Resolution, Store};
    ///
    /// let store = Store::builder().on_interrupt(OnInterrupt::Hold).open_in_memory()?;
    /// let key = Key::new("order-1042")?;
    /// drop(store.begin(&key, &Fingerprint::NONE)?); // the worker panicked
    ///
    /// let Begin::InProgress(busy) = store.begin(&key, &Fingerprint::NONE)? else { unreachable!() };
    /// assert!(busy.interrupted());
    ///
    /// // The gateway says that the money moved.
    /// store.resolve(&key, Resolution::Complete("paid".into()))?;
    /// assert!(matches!(store.begin(&key, &Fingerprint::NONE)?, Begin::Replay(_)));
    /// # Ok::<(), keyonce::Error>(())
    /// ```
    pub fn resolve(&self, key: &Key, resolution: Resolution) -> Result<Option<Response>> {
        if let Resolution::Complete(response) = &resolution {
            self.engine.check_response(response.len())?;
        }
        let (outcome, record) = self.engine.operate(key, &Event::Resolve(resolution))?;
        match outcome {
            Outcome::Done => Ok(record.as_ref().map(Response::of)),
            Outcome::Absent => Err(wrong_state(key, "nothing is known of it")),
            Outcome::Settled => Err(wrong_state(key, "it is completed")),
            _ => Err(wrong_state(key, "its holder is alive")),
        }
    }

    /// Removes what is known of a key, so that its next `begin` is `Fresh`.
    /// `false` if nothing was known. It is on disk before this returns.
    ///
    /// # Errors
    ///
    /// [`WrongState`](ErrorKind::WrongState) if the key's holder is alive: two
    /// would do the work. Otherwise those of
    /// [`Claim::complete`](crate::Claim::complete).
    pub fn forget(&self, key: &Key) -> Result<bool> {
        match self.engine.operate(key, &Event::Forget)?.0 {
            Outcome::Done => Ok(true),
            Outcome::Absent => Ok(false),
            _ => Err(wrong_state(key, "its holder is alive")),
        }
    }

    /// Removes everything that has expired from the file and from memory, and
    /// says how many keys that were.
    ///
    /// There is no need to call this while a store is in use: every commit
    /// sweeps a slice, and what has expired is unknown to `begin` at once,
    /// swept or not. It is for a store that stands still, and before
    /// [`compact`](Self::compact). It goes in slices of a few thousand records,
    /// so that no caller waits for all of it.
    ///
    /// # Errors
    ///
    /// [`StorageFailed`](ErrorKind::StorageFailed),
    /// [`OutcomeUnknown`](ErrorKind::OutcomeUnknown) or
    /// [`Closed`](ErrorKind::Closed). No key is affected.
    pub fn sweep(&self) -> Result<usize> {
        self.engine.sweep()
    }

    /// Sweeps, then gives pages that are not in use back to the file system.
    /// `false` if there were none to give.
    ///
    /// Callers that write or read the file wait meanwhile, so do this when
    /// little is going on. Pages are used again without it: it is for a file
    /// that a burst has made larger than it will ever need to be.
    ///
    /// # Errors
    ///
    /// [`StorageFailed`](ErrorKind::StorageFailed) or
    /// [`Closed`](ErrorKind::Closed). No key is affected.
    pub fn compact(&self) -> Result<bool> {
        self.engine.compact()
    }

    /// How the store stands, in numbers.
    ///
    /// Counts what has expired and is not swept yet on disk, so that it can
    /// leave it out: a few microseconds, and 0.2 for each of those.
    ///
    /// # Errors
    ///
    /// [`StorageFailed`](ErrorKind::StorageFailed) or
    /// [`Closed`](ErrorKind::Closed).
    pub fn stats(&self) -> Result<Stats> {
        let engine = &*self.engine;
        let committer = &engine.committer;
        let now = engine.now();
        let (mut waiting, mut cached_bytes, mut index_bytes, mut records, mut forgotten) = (0, 0, 0, 0, 0);
        engine.table.each_shard(|shard| {
            waiting += shard.waiting();
            cached_bytes += shard.cached_bytes();
            index_bytes += shard.index_bytes();
            records += shard.records();
            forgotten += shard.expired_claims(now);
        });
        let claims = engine.table.claims().saturating_sub(forgotten);
        let interrupted = engine.table.interrupted().saturating_sub(forgotten);
        let completed = records.saturating_sub(engine.expired_records()?);
        Ok(Stats {
            live_keys: completed + claims,
            completed,
            open_claims: claims.saturating_sub(interrupted),
            interrupted,
            waiting,
            replays: engine.replays.load(Ordering::Relaxed),
            commits: committer.commits.load(Ordering::Relaxed),
            writes: committer.entries.load(Ordering::Relaxed),
            swept: committer.swept.load(Ordering::Relaxed),
            index_bytes,
            replay_cache_bytes: cached_bytes,
            latest: now,
            storage_failed: committer.has_failed(),
        })
    }
}

#[cold]
fn wrong_state(key: &Key, why: &str) -> Error {
    Error::new(ErrorKind::WrongState, format!("{key} cannot be resolved or forgotten: {why}"))
}

/// What is known of a key. From [`Store::get`].
#[derive(Clone, Debug)]
pub struct Entry {
    key: Key,
    record: Record,
}

impl Entry {
    /// The key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The fingerprint of its first request.
    pub fn fingerprint(&self) -> Fingerprint {
        self.record.fingerprint
    }

    /// How its latest attempt stands.
    pub fn status(&self) -> Status {
        match self.record.state {
            State::InProgress { .. } => Status::InProgress,
            State::Interrupted { .. } => Status::Interrupted,
            State::Completed { .. } => Status::Completed,
        }
    }

    /// The number of its latest attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.record.attempt
    }

    /// The fence of its latest attempt.
    pub fn fence(&self) -> Fence {
        self.record.fence
    }

    /// Since when it stands so: claimed, interrupted or completed.
    pub fn since(&self) -> Timestamp {
        match self.record.state {
            State::InProgress { since, .. } | State::Interrupted { since, .. } => since,
            State::Completed { completed_at, .. } => completed_at,
        }
    }

    /// When it is forgotten; [`Timestamp::MAX`] for never.
    pub fn expires_at(&self) -> Timestamp {
        self.record.expires_at()
    }

    /// The answer, if it is completed.
    pub fn response(&self) -> Option<Response> {
        (self.status() == Status::Completed).then(|| Response::of(&self.record))
    }
}

/// How the latest attempt on a key stands.
///
/// Exhaustive on purpose: these are the states that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Its holder is alive.
    InProgress,
    /// Its holder ended without a verdict.
    Interrupted,
    /// It was done.
    Completed,
}

/// How a store stands. From [`Store::stats`].
///
/// The counts are taken one after the other while callers go on, so they may
/// disagree by what those did meanwhile.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// Keys that are remembered: completed, claimed or interrupted.
    pub live_keys: usize,
    /// Keys with a response to replay.
    pub completed: usize,
    /// Keys whose holder is alive.
    pub open_claims: usize,
    /// Keys whose holder ended without a verdict.
    pub interrupted: usize,
    /// Callers of `begin_wait` that wait for a holder.
    pub waiting: usize,
    /// Replays since the store was opened.
    pub replays: u64,
    /// Commits since the store was opened.
    pub commits: u64,
    /// Changes of keys in those commits.
    pub writes: u64,
    /// Completed records swept since the store was opened.
    pub swept: u64,
    /// Bytes of memory that the index of completed keys takes.
    pub index_bytes: usize,
    /// Bytes of memory that the replay cache takes.
    pub replay_cache_bytes: usize,
    /// The store's time: the latest that its clock ever said.
    pub latest: Timestamp,
    /// Whether a write has failed, so that writes are refused until the store
    /// is reopened.
    pub storage_failed: bool,
}
