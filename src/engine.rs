//! What ties the table, the commits, the storage and the clock together.
//!
//! Every call goes the same way: lock the key's shard, apply the
//! [`transition`], queue the change, unlock; then wait until it is durable, and
//! only then answer.

mod open;
mod settle;

use crate::commit::{Change, Committer, Entry, Told, Waiter};
use crate::error::{Error, ErrorKind, Result};
use crate::fingerprint::Fingerprint;
use crate::key::Key;
use crate::options::StoreBuilder;
use crate::pace::Pace;
use crate::parker::Parker;
use crate::position::Home;
use crate::record::{Fence, OnInterrupt, Record, State, Terms};
use crate::storage::{Found, Storage};
use crate::table::{ClaimTable, Pending, Room, Shard, Slot};
use crate::time::{Clock, Timestamp};
use crate::transition::{Event, Next, Outcome, transition};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// One open store.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) table: ClaimTable,
    pub(crate) committer: Committer,
    pub(crate) storage: Storage,
    pub(crate) pace: Pace,
    terms: Terms,
    response_bytes_max: usize,
    clock: Arc<dyn Clock>,
    /// The latest time seen, in milliseconds: time never goes backward.
    latest_ms: AtomicU64,
    next_fence: AtomicU64,
    /// When room was last looked for among the expired. No other lock is held
    /// when this is taken.
    looked_for_room_at: Mutex<Option<Timestamp>>,
    closed: AtomicBool,
    pub(crate) replays: AtomicU64,
}

/// What `begin` found.
#[derive(Debug)]
pub(crate) enum Begun {
    Fresh(Opened),
    InProgress(Record),
    Replay(Record),
    Mismatch,
}

/// A claim that was just opened.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) fence: Fence,
    pub(crate) attempt: u32,
    pub(crate) interrupted: bool,
}

/// What stands in the way of a change for now.
enum Blocked {
    /// Another write of the same key is under way.
    Settling(Arc<Parker<()>>),
    /// A limit is reached.
    Full(Error),
    Refused(Error),
}

impl Engine {
    /// The time now, never earlier than any time said before.
    pub(crate) fn now(&self) -> Timestamp {
        let now = self.clock.now().as_millis();
        // Timestamp::MAX stands for "never", so time stops just before.
        let now = now.min(Timestamp::MAX.as_millis() - 1);
        let mut latest = self.latest_ms.load(Ordering::Acquire);
        if latest < now {
            latest = self.latest_ms.fetch_max(now, Ordering::AcqRel).max(now);
        }
        Timestamp::from_millis(latest)
    }

    pub(crate) fn begin(&self, key: &Key, fingerprint: Fingerprint) -> Result<Begun> {
        let hash = self.table.hash(key.as_framed());
        let mut looked_for_room = false;
        loop {
            let shard = self.lock_loaded(key, hash)?;
            match self.try_begin(shard, key, hash, fingerprint) {
                Ok((begun, None)) => {
                    if let Begun::Replay(_) = begun {
                        self.replays.fetch_add(1, Ordering::Relaxed);
                    }
                    return Ok(begun);
                }
                Ok((begun, Some(waiter))) => {
                    self.committer.wait(&waiter, self)?;
                    return Ok(begun);
                }
                Err(Blocked::Settling(parker)) => parker.wait(),
                Err(Blocked::Full(_)) if !looked_for_room => {
                    looked_for_room = true;
                    self.look_for_room()?;
                }
                Err(Blocked::Full(error) | Blocked::Refused(error)) => return Err(error),
            }
        }
    }

    fn try_begin(
        &self,
        mut shard: MutexGuard<'_, Shard>,
        key: &Key,
        hash: u64,
        fingerprint: Fingerprint,
    ) -> Result<(Begun, Option<Waiter>), Blocked> {
        let now = self.now();
        let slot = shard.slot(hash, key);
        let record = slot.as_ref().map(|slot| &slot.record);
        let (next, fence) = loop {
            let fence = self.next_fence.load(Ordering::Relaxed);
            let event = Event::Begin { fingerprint, fence: Fence::new(fence), terms: self.terms };
            let (next, outcome) = transition(record, &event, now);
            match (outcome, record) {
                (Outcome::Mismatch, _) => return Ok((Begun::Mismatch, None)),
                (Outcome::Replay, Some(record)) => return Ok((Begun::Replay(record.clone()), None)),
                (Outcome::InProgress, Some(record)) => return Ok((Begun::InProgress(record.clone()), None)),
                _ => {}
            }
            // The transition is pure: if another claim took this fence, it is
            // simply made again with the next.
            let taken =
                self.next_fence.compare_exchange(fence, fence + 1, Ordering::Relaxed, Ordering::Relaxed);
            if taken.is_ok() {
                break (next, Fence::new(fence));
            }
        };
        let Next::Is(record) = next else { unreachable!("begin leaves a key fresh, or as it was") };

        let mut prior = None;
        let mut before = Home::Nowhere;
        if let Some(slot) = slot {
            if let Some(pending) = &mut slot.pending {
                return Err(Blocked::Settling(pending.add()));
            }
            before = slot.home;
            prior = Some((slot.record.clone(), slot.home));
        }
        let was_claim = matches!(before, Home::Claim(_));
        // An interrupted claim makes way for its next attempt; an expired
        // record, counted until it is swept, for a new key.
        let room = Room { new_key: prior.is_none(), new_claim: !was_claim };
        self.table.make_room(key, room).map_err(Blocked::Full)?;

        let waiter = Waiter::new(Parker::new());
        let submitted = self.committer.submit(Entry {
            hash,
            key: key.clone(),
            before,
            after: Some(record.clone()),
            change: Change::Claim(prior.clone()),
            waiter: Some(Arc::clone(&waiter)),
        });
        if let Err(error) = submitted {
            self.table.give_back(key, room);
            return Err(Blocked::Refused(error));
        }
        if let Home::Record(position) = before {
            shard.uncache(hash, key);
            if !shard.unindex(hash, position) {
                // The sweep was faster, and has counted the key out.
                self.table.count_key_in(key);
            }
        }
        if let Some((Record { state: State::Interrupted { expires_at, .. }, fence, .. }, _)) = &prior {
            self.table.count_interrupted_out();
            self.table.expire_no_more(*expires_at, *fence);
        }
        let opened = Opened {
            fence,
            attempt: record.attempt,
            interrupted: matches!(record.state, State::InProgress { after_interruption: true, .. }),
        };
        let mut slot = Slot::new(key.clone(), hash, record, Home::Claim(fence));
        slot.pending = Some(Pending::default());
        shard.put(slot);
        Ok((Begun::Fresh(opened), Some(waiter)))
    }

    /// Like `begin`, but waits until `deadline` for a holder to end.
    pub(crate) fn begin_wait(&self, key: &Key, fingerprint: Fingerprint, deadline: Instant) -> Result<Begun> {
        let hash = self.table.hash(key.as_framed());
        let parker = Arc::new(Parker::new());
        // Whether this caller was told that the key is free. Then it must take
        // it, or tell the next.
        let mut woken = false;
        loop {
            let begun = self.begin(key, fingerprint);
            if !matches!(begun, Ok(Begun::InProgress(_))) {
                if woken && !matches!(begun, Ok(Begun::Fresh(_))) {
                    self.table.lock(hash).wake_first(key);
                }
                return begun;
            }
            {
                let mut shard = self.table.lock(hash);
                let waits = shard.slot(hash, key).is_some_and(|slot| must_wait(&slot.record));
                if !waits || self.closed.load(Ordering::Acquire) {
                    continue; // It ended just now.
                }
                shard.join(key, woken, &parker);
            }
            if parker.wait_until(deadline).is_some() {
                woken = true;
                continue;
            }
            // The time is over; unless the key came free at this very moment.
            if self.table.lock(hash).leave(key, &parker) {
                return begun;
            }
            // Heard now, so that it does not end the next wait as well.
            let _ = parker.heard();
            woken = true;
        }
    }

    /// Ends a claim with `event`. On an error the claim is as it was.
    pub(crate) fn end_claim(&self, key: &Key, hash: u64, event: &Event) -> Result<Record> {
        let mut shard = self.table.lock(hash);
        let lost = || {
            Error::new(
                ErrorKind::ClaimLost,
                format!("the claim of {key} is lost: it is not the holder's any more"),
            )
        };
        let slot = shard.slot(hash, key).ok_or_else(lost)?;
        let (next, outcome) = transition(Some(&slot.record), event, self.now());
        if outcome != Outcome::Done {
            return Err(lost());
        }
        let held = slot.record.clone();
        let after = match next {
            Next::Is(record) => Some(record),
            Next::Gone => None,
            Next::Same => unreachable!("an event that is done changes the key"),
        };
        let ended = after.clone().unwrap_or(held);
        let waiter = self.submit_end(slot, after)?;
        drop(shard);
        self.committer.wait(&waiter, self)?;
        Ok(ended)
    }

    /// Marks a claim interrupted: in memory at once, on disk with the next
    /// commit. Should the process die before that, the claim is found open, and
    /// that means the same.
    pub(crate) fn interrupt(&self, key: &Key, hash: u64, fence: Fence) {
        let mut shard = self.table.lock(hash);
        let Some(slot) = shard.slot(hash, key) else { return };
        let (next, outcome) = transition(Some(&slot.record), &Event::Interrupt { fence }, self.now());
        let (Next::Is(record), Outcome::Done) = (next, outcome) else { return };
        let _ = self.committer.submit(Entry {
            hash,
            key: key.clone(),
            before: slot.home,
            after: Some(record.clone()),
            change: Change::Note,
            waiter: None,
        });
        self.table.count_interrupted();
        self.table.expire_later(record.expires_at(), fence, hash, key);
        slot.record = record;
        // Under Hold there is nothing for a waiter to take; it waits on.
        if !must_wait(&slot.record) {
            shard.wake_first(key);
        }
    }

    /// Applies an operator's event: `resolve` or `forget`.
    pub(crate) fn operate(&self, key: &Key, event: &Event) -> Result<(Outcome, Option<Record>)> {
        let hash = self.table.hash(key.as_framed());
        loop {
            let mut shard = self.lock_loaded(key, hash)?;
            let now = self.now();
            let slot = shard.slot(hash, key);
            let (next, outcome) = transition(slot.as_ref().map(|slot| &slot.record), event, now);
            let (Some(slot), Outcome::Done) = (slot, outcome) else {
                return Ok((outcome, None));
            };
            if let Some(pending) = &mut slot.pending {
                let parker = pending.add();
                drop(shard);
                parker.wait();
                continue;
            }
            let after = match next {
                Next::Is(record) => Some(record),
                Next::Gone => None,
                Next::Same => unreachable!("an event that is done changes the key"),
            };
            let waiter = self.submit_end(slot, after.clone())?;
            shard.uncache(hash, key);
            drop(shard);
            self.committer.wait(&waiter, self)?;
            return Ok((outcome, after));
        }
    }

    fn submit_end(&self, slot: &mut Slot, after: Option<Record>) -> Result<Waiter> {
        let waiter = Waiter::new(Parker::<Told>::new());
        self.committer.submit(Entry {
            hash: slot.hash,
            key: slot.key.clone(),
            before: slot.home,
            after,
            change: Change::End,
            waiter: Some(Arc::clone(&waiter)),
        })?;
        debug_assert!(slot.pending.is_none(), "one write of a key at a time");
        slot.pending = Some(Pending::default());
        Ok(waiter)
    }

    /// What is known of a key, if it has not expired.
    pub(crate) fn look_up(&self, key: &Key) -> Result<Option<Record>> {
        let hash = self.table.hash(key.as_framed());
        let mut shard = self.lock_loaded(key, hash)?;
        let record = shard.slot(hash, key).map(|slot| slot.record.clone());
        drop(shard);
        Ok(record.filter(|record| !record.is_expired(self.now())))
    }

    /// Locks the key's shard, with the key's slot in it if the key is known at
    /// all: a record that is only on disk is read into the replay cache first.
    fn lock_loaded(&self, key: &Key, hash: u64) -> Result<MutexGuard<'_, Shard>> {
        loop {
            let mut shard = self.table.lock(hash);
            // With the lock held, so that no one who is told of the end later
            // joins a queue after it was woken.
            if self.closed.load(Ordering::Acquire) {
                return Err(Error::closed());
            }
            if shard.slot(hash, key).is_some() {
                return Ok(shard);
            }
            let candidates = shard.positions(hash);
            if candidates.is_empty() {
                return Ok(shard);
            }
            // Never read the disk with a shard locked.
            drop(shard);
            let mut found = None;
            let mut absent = None;
            for position in &candidates {
                match self.storage.record(*position, key)? {
                    Found::Record(record) => found = Some((record, *position)),
                    Found::Other => {}
                    // Another key's that is being removed, or damage.
                    Found::Absent => absent = Some(*position),
                }
            }
            let mut shard = self.table.lock(hash);
            if shard.slot(hash, key).is_some() || shard.positions(hash) != candidates {
                continue; // It changed meanwhile.
            }
            if let Some((record, position)) = found {
                shard.put(Slot::new(key.clone(), hash, record, Home::Record(position)));
                shard.cache(hash, key);
            } else if let Some(position) = absent.filter(|position| !shard.is_home(hash, *position)) {
                return Err(Error::corrupted(format!(
                    "a damaged store in {}: keyonce.records has no row {position:?}, which was there at open",
                    self.storage.name()
                )));
            }
            return Ok(shard);
        }
    }

    /// Sweeps everything that has expired; says how many keys.
    pub(crate) fn sweep(&self) -> Result<usize> {
        /// At less than 1 µs a record, callers wait a few milliseconds for a slice.
        const SLICE: usize = 4096;
        let mut swept = 0;
        loop {
            let claims = self.forget_expired_claims(SLICE);
            let records = self.committer.commit_and_sweep(self, SLICE)?;
            swept += claims + records;
            if claims + records == 0 {
                return Ok(swept);
            }
        }
    }

    /// Takes interrupted claims that are to be forgotten out of the table, and
    /// queues their removal.
    fn forget_expired_claims(&self, most: usize) -> usize {
        let now = self.now();
        let mut forgotten = 0;
        for (fence, hash, key) in self.table.take_expired(now, most) {
            let mut shard = self.table.lock(hash);
            let dead = shard.slot(hash, &key).is_some_and(|slot| {
                slot.record.fence == fence && slot.pending.is_none() && slot.record.is_expired(now)
            });
            if !dead {
                continue;
            }
            let submitted = self.committer.submit(Entry {
                hash,
                key: key.clone(),
                before: Home::Claim(fence),
                after: None,
                change: Change::Note,
                waiter: None,
            });
            if submitted.is_ok() {
                shard.take(hash, &key);
                self.table.count_interrupted_out();
                self.table.give_back(&key, Room { new_key: true, new_claim: true });
                forgotten += 1;
            }
        }
        forgotten
    }

    /// Sweeps because a limit is reached: at most once in a second of the
    /// store's time, so that those who are refused do not slow down those who
    /// work. Who comes meanwhile waits for the result.
    fn look_for_room(&self) -> Result<()> {
        const INTERVAL: Duration = Duration::from_secs(1);
        let mut looked_at = self.looked_for_room_at.lock();
        let now = self.now();
        if looked_at.is_none_or(|at| now.saturating_since(at) >= INTERVAL) {
            self.sweep()?;
            *looked_at = Some(now);
        }
        Ok(())
    }

    pub(crate) fn check_response(&self, len: usize) -> Result<()> {
        if len <= self.response_bytes_max {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::LimitReached,
            format!("the response has {len} bytes: response_bytes_max is {}", self.response_bytes_max),
        ))
    }

    /// Gives unused pages back to the file system, after a sweep.
    pub(crate) fn compact(&self) -> Result<bool> {
        self.committer.check()?;
        self.sweep()?;
        self.storage.compact()
    }

    pub(crate) fn close(&self) -> Result<()> {
        self.closed.store(true, Ordering::Release);
        self.table.each_shard(Shard::wake_everybody);
        self.committer.close(self, || self.storage.close())
    }
}

/// Whether a caller with the same fingerprint can only wait.
fn must_wait(record: &Record) -> bool {
    match record.state {
        State::InProgress { .. } => true,
        State::Interrupted { .. } => record.terms.on_interrupt == OnInterrupt::Hold,
        State::Completed { .. } => false,
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // What this would report, the next open finds.
        let _ = self.close();
    }
}

/// The options that an engine keeps.
impl Engine {
    fn with(options: &StoreBuilder, storage: Storage, marks: crate::codec::Marks) -> Self {
        Self {
            table: ClaimTable::new(options),
            committer: Committer::new(marks),
            storage,
            pace: Pace::new(),
            terms: options.terms(),
            response_bytes_max: options.response_bytes_max,
            clock: Arc::clone(&options.clock),
            latest_ms: AtomicU64::new(marks.clock_ms),
            next_fence: AtomicU64::new(marks.fences_reserved.max(1)),
            looked_for_room_at: Mutex::new(None),
            closed: AtomicBool::new(false),
            replays: AtomicU64::new(0),
        }
    }
}
