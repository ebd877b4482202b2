//! Group commit: whoever comes first commits for all that wait.
//!
//! A caller that changes a key puts an [`Entry`] into the queue while it holds
//! the key's shard, so that entries are in the order of decisions, and then
//! waits. If nobody is committing, it commits what is in the queue by itself,
//! without another thread; otherwise it sleeps until the one who commits tells
//! it the result, or that it is its turn to commit what came meanwhile. Each
//! sleeper is woken once, by itself.

use crate::checkpoint::{self, Applied, Sweep, Swept, Write};
use crate::codec::Marks;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::parker::Parker;
use crate::position::{Home, Position};
use crate::record::Record;
use crate::storage::Storage;
use crate::time::Timestamp;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many fences are reserved on disk at a time.
pub(crate) const FENCE_BLOCK: u64 = 1 << 20;

/// A decided change of a key, on its way to the disk.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) hash: u64,
    pub(crate) key: Key,
    pub(crate) before: Home,
    /// `None`: the key is removed.
    pub(crate) after: Option<Record>,
    pub(crate) change: Change,
    /// Who waits for it. Nobody waits for what is noted.
    pub(crate) waiter: Option<Waiter>,
}

/// What is to be done in the table when the entry is on disk, or is not.
#[derive(Debug)]
pub(crate) enum Change {
    /// A claim: seen already; taken back if it cannot be written. Holds what
    /// the key was before.
    Claim(Option<(Record, Home)>),
    /// An end of the key's present state: seen only when it is on disk.
    End,
    /// Seen already, and true whether it is written or not.
    Note,
}

pub(crate) type Waiter = Arc<Parker<Told>>;

/// What a sleeper is told.
#[derive(Debug)]
pub(crate) enum Told {
    Written(Result<()>),
    YourTurn,
}

/// What the commit is made for and with: the engine, seen from here.
pub(crate) trait Commits {
    fn storage(&self) -> &Storage;
    fn now(&self) -> Timestamp;
    /// A fence greater than every one that was handed out.
    fn next_fence(&self) -> u64;
    /// Brings the table up to date with an entry that is on disk (a completed
    /// record at this position), or was not written for all that is known.
    fn settle(&self, entry: Entry, written: Result<Option<Position>, ()>);
    /// Takes swept records out of the table.
    fn forget_swept(&self, swept: &Swept);
}

#[derive(Debug)]
pub(crate) struct Committer {
    queue: Mutex<Queue>,
    /// Held by whoever commits; for the length of the commit.
    marks: Mutex<Marks>,
    pub(crate) commits: AtomicU64,
    pub(crate) entries: AtomicU64,
    pub(crate) swept: AtomicU64,
}

#[derive(Debug)]
struct Queue {
    entries: Vec<Entry>,
    /// Those who wait to commit with a sweep of their own.
    turns: VecDeque<Waiter>,
    committing: bool,
    state: Health,
}

#[derive(Debug)]
enum Health {
    Well,
    /// A write failed; the message of that failure.
    Failed(String),
    Closed,
}

impl Committer {
    pub(crate) fn new(marks: Marks) -> Self {
        Self {
            queue: Mutex::new(Queue {
                entries: Vec::new(),
                turns: VecDeque::new(),
                committing: false,
                state: Health::Well,
            }),
            marks: Mutex::new(marks),
            commits: AtomicU64::new(0),
            entries: AtomicU64::new(0),
            swept: AtomicU64::new(0),
        }
    }

    /// Sets the marks that an opening store has written.
    pub(crate) fn reset(&self, marks: Marks) {
        *self.marks.lock() = marks;
    }

    /// Queues an entry; to be called with the key's shard locked, and followed
    /// by [`wait`](Self::wait), without the lock, if it has a waiter.
    pub(crate) fn submit(&self, entry: Entry) -> Result<()> {
        let mut queue = self.queue.lock();
        queue.state.check()?;
        queue.entries.push(entry);
        Ok(())
    }

    /// Whether writes are accepted.
    pub(crate) fn check(&self) -> Result<()> {
        self.queue.lock().state.check()
    }

    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.queue.lock().state, Health::Failed(_))
    }

    /// Waits until the entry with this waiter is on disk, or has failed.
    pub(crate) fn wait(&self, waiter: &Waiter, engine: &impl Commits) -> Result<()> {
        let lead = {
            let mut queue = self.queue.lock();
            !mem::replace(&mut queue.committing, true)
        };
        if lead {
            // Somebody may have written the entry meanwhile, and gone.
            if let Some(Told::Written(result)) = waiter.heard() {
                self.pass_on();
                return result;
            }
        } else if let Told::Written(result) = waiter.wait() {
            return result;
        }
        // Its error, if any, is told to every waiter in the batch, this one too.
        let _ = self.lead(engine, None);
        match waiter.heard() {
            Some(Told::Written(result)) => result,
            Some(Told::YourTurn) | None => unreachable!("a commit tells everyone whose entry was queued"),
        }
    }

    /// Commits what is queued, with a sweep of up to `records_max` records, and
    /// says how many were swept.
    pub(crate) fn commit_and_sweep(&self, engine: &impl Commits, records_max: usize) -> Result<usize> {
        self.with_turn(|| self.lead(engine, Some(records_max)))
    }

    /// Commits what is queued, accepts nothing more, and runs `last` when
    /// nobody commits.
    pub(crate) fn close(&self, engine: &impl Commits, last: impl FnOnce() -> Result<()>) -> Result<()> {
        let flushed = self.commit_and_sweep(engine, 0).map(drop);
        self.with_turn(|| {
            let refused = {
                let mut queue = self.queue.lock();
                queue.state = Health::Closed;
                mem::take(&mut queue.entries)
            };
            self.refuse(refused, engine);
            let closed = last();
            self.pass_on();
            closed
        })
        .and(match flushed {
            // A store that failed, or was closed before, may be closed.
            Err(error) if matches!(error.kind(), ErrorKind::StorageFailed | ErrorKind::Closed) => Ok(()),
            flushed => flushed,
        })
    }

    /// Runs `body` while nobody else commits. `body` must pass the turn on.
    fn with_turn<T>(&self, body: impl FnOnce() -> T) -> T {
        let waiter = {
            let mut queue = self.queue.lock();
            if mem::replace(&mut queue.committing, true) {
                let waiter = Waiter::new(Parker::new());
                queue.turns.push_back(Arc::clone(&waiter));
                Some(waiter)
            } else {
                None
            }
        };
        if let Some(waiter) = waiter {
            match waiter.wait() {
                Told::YourTurn => {}
                Told::Written(_) => unreachable!("nobody writes for one who waits for a turn"),
            }
        }
        body()
    }

    /// Commits what is queued; to be called by the one whose turn it is, which
    /// then passes the turn on. `sweep`: how many records to sweep, read one by
    /// one where that must be; otherwise a slice in proportion to the batch.
    fn lead(&self, engine: &impl Commits, sweep: Option<usize>) -> Result<usize> {
        let (entries, accepted) = {
            let mut queue = self.queue.lock();
            (mem::take(&mut queue.entries), queue.state.check())
        };
        let result = match accepted {
            Ok(()) => self.commit(entries, engine, sweep),
            Err(error) => {
                self.refuse(entries, engine);
                Err(error)
            }
        };
        self.pass_on();
        result
    }

    fn commit(&self, entries: Vec<Entry>, engine: &impl Commits, sweep: Option<usize>) -> Result<usize> {
        let writes: Vec<Write<'_>> = entries
            .iter()
            .map(|entry| Write { key: &entry.key, before: entry.before, after: entry.after.as_ref() })
            .collect();
        let sweep = Sweep {
            now: engine.now(),
            records_max: sweep.unwrap_or(64 + 4 * writes.len()),
            exact: sweep.is_some(),
        };
        let mut marks = self.marks.lock();
        let mut wanted = *marks;
        wanted.clock_ms = wanted.clock_ms.max(sweep.now.as_millis());
        let next_fence = engine.next_fence();
        if next_fence + FENCE_BLOCK / 2 > wanted.fences_reserved {
            wanted.fences_reserved = next_fence + FENCE_BLOCK;
        }
        let forget = |swept: &Swept| engine.forget_swept(swept);
        let applied = checkpoint::apply(engine.storage(), &writes, &mut marks, wanted, sweep, forget);
        drop(marks);
        drop(writes);
        match applied {
            Ok(Applied { positions, swept }) => {
                self.commits.fetch_add(1, Ordering::Relaxed);
                self.entries.fetch_add(entries.len() as u64, Ordering::Relaxed);
                self.swept.fetch_add(swept as u64, Ordering::Relaxed);
                for (entry, position) in entries.into_iter().zip(positions) {
                    end(entry, engine, Ok(position), Ok(()));
                }
                Ok(swept)
            }
            Err(failure) => {
                let name = engine.storage().name();
                // First, so that nobody who is told can write again.
                self.queue.lock().state = Health::Failed(failure.error.to_string());
                for entry in entries {
                    end(entry, engine, Err(()), Err(failure.for_caller(name)));
                }
                Err(failure.for_caller(name))
            }
        }
    }

    fn refuse(&self, entries: Vec<Entry>, engine: &impl Commits) {
        for entry in entries {
            let refusal = self.check().err().unwrap_or_else(Error::closed);
            end(entry, engine, Err(()), Err(refusal));
        }
    }

    /// Gives the turn to the next who waits, if anybody does.
    fn pass_on(&self) {
        let mut queue = self.queue.lock();
        let next =
            queue.turns.pop_front().or_else(|| queue.entries.iter().find_map(|entry| entry.waiter.clone()));
        match next {
            Some(waiter) => waiter.tell(Told::YourTurn),
            None => queue.committing = false,
        }
    }
}

/// Settles an entry, then tells who waits for it: in this order, so that the
/// caller finds the table as its answer says.
fn end(entry: Entry, engine: &impl Commits, settled: Result<Option<Position>, ()>, told: Result<()>) {
    let waiter = entry.waiter.clone();
    engine.settle(entry, settled);
    if let Some(waiter) = waiter {
        waiter.tell(Told::Written(told));
    }
}

impl Health {
    fn check(&self) -> Result<()> {
        match self {
            Self::Well => Ok(()),
            Self::Closed => Err(Error::closed()),
            Self::Failed(why) => Err(Error::new(
                ErrorKind::StorageFailed,
                format!("nothing was written, because a write failed earlier; reopen the store ({why})"),
            )),
        }
    }
}
