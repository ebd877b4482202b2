//! The store, and what `begin` answers.

use crate::claim::{Claim, Response};
use crate::engine::{Begun, Engine};
use crate::error::{Error, Result};
use crate::fingerprint::Fingerprint;
use crate::key::Key;
use crate::options::StoreBuilder;
use crate::record::{Record, State};
use crate::time::Timestamp;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An idempotency store: one file, open in one process, shared by all threads.
///
/// Cloning is cheap, and clones are the same store. It is closed by
/// [`close`](Self::close), or when the last clone and the last [`Claim`] are
/// gone.
///
/// ```
/// use keyonce::{Begin, Fingerprint, Key, Store};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("payments.keyonce");
/// let store = Store::open(path)?;
/// let key = Key::scoped("merchant-7", "order-1042")?;
/// let fingerprint = Fingerprint::builder().field("amount", "129.00 THB").finish();
///
/// let receipt = match store.begin(&key, &fingerprint)? {
///     Begin::Fresh(claim) => claim.complete("receipt 17")?, // after doing the work
///     Begin::Replay(response) => response,                  // it was done before
///     Begin::InProgress(busy) => panic!("come back in {:?}", busy.retry_after()),
///     Begin::Mismatch(_) => panic!("this key was used for another payment"),
/// };
/// assert_eq!(receipt.as_bytes(), b"receipt 17");
/// # Ok::<(), keyonce::Error>(())
/// ```
#[derive(Clone)]
pub struct Store {
    pub(crate) engine: Arc<Engine>,
}

impl Store {
    /// Opens the store at `path` with the default options, or creates it.
    ///
    /// What a process that died had claimed is interrupted at once: redb's file
    /// lock says that nobody else can be alive. The file is created readable by
    /// its owner alone, and only under its final name when it is whole.
    ///
    /// # Errors
    ///
    /// Each leaves the file as it was. [`NotFound`](crate::ErrorKind::NotFound):
    /// the folder does not exist. [`NotAFile`], [`SymbolicLink`],
    /// [`NotAStore`], [`ForeignDatabase`], [`NewerFormat`]: something else is
    /// there. [`AlreadyOpen`]: somebody has the store. [`Corrupted`]: its bytes
    /// are damaged. [`Io`]: anything else that the system refused.
    ///
    /// [`NotAFile`]: crate::ErrorKind::NotAFile
    /// [`SymbolicLink`]: crate::ErrorKind::SymbolicLink
    /// [`NotAStore`]: crate::ErrorKind::NotAStore
    /// [`ForeignDatabase`]: crate::ErrorKind::ForeignDatabase
    /// [`NewerFormat`]: crate::ErrorKind::NewerFormat
    /// [`AlreadyOpen`]: crate::ErrorKind::AlreadyOpen
    /// [`Corrupted`]: crate::ErrorKind::Corrupted
    /// [`Io`]: crate::ErrorKind::Io
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::builder().open(path)
    }

    /// A store that keeps everything in memory and is gone with the process:
    /// for tests, and for work whose repetition only matters while it runs.
    pub fn in_memory() -> Result<Self> {
        Self::builder().open_in_memory()
    }

    /// Options to open a store with.
    pub fn builder() -> StoreBuilder {
        StoreBuilder::default()
    }

    /// Asks whether the work of `key` is yours to do. Never waits for a holder;
    /// see [`begin_wait`](Self::begin_wait) for that.
    ///
    /// A `Fresh` claim is on disk before this returns: should the process die,
    /// the next attempt knows that this one was interrupted.
    ///
    /// # Errors
    ///
    /// - [`LimitReached`](crate::ErrorKind::LimitReached): too many claims or
    ///   keys. Nothing was changed.
    /// - [`OutcomeUnknown`](crate::ErrorKind::OutcomeUnknown): the claim could
    ///   not be written for certain. Do not do the work. Reopen the store: the
    ///   key is then unknown, or interrupted.
    /// - [`StorageFailed`](crate::ErrorKind::StorageFailed): an earlier write
    ///   failed, and this one was not tried.
    /// - [`Corrupted`](crate::ErrorKind::Corrupted): what is stored for this
    ///   key is damaged. Other keys are not affected.
    /// - [`Closed`](crate::ErrorKind::Closed).
    pub fn begin(&self, key: &Key, fingerprint: &Fingerprint) -> Result<Begin> {
        Ok(self.begun(key, self.engine.begin(key, *fingerprint)?))
    }

    /// Like [`begin`](Self::begin), but where that says `InProgress`, waits up
    /// to `timeout` for the holder to end.
    ///
    /// When the holder completes, everyone who waits gets the replay; when it
    /// abandons or is interrupted, the one who came first gets the key. What is
    /// held by [`OnInterrupt::Hold`](crate::OnInterrupt::Hold) is waited for
    /// too. If the time runs out, the answer is `InProgress`. The time is the
    /// machine's own, not the store's [`Clock`](crate::Clock).
    ///
    /// # Errors
    ///
    /// Those of [`begin`](Self::begin).
    ///
    /// ```
    /// use keyonce::{Begin, Fingerprint, Key, Store};
    /// use std::{thread, time::Duration};
    ///
    /// let store = Store::in_memory()?;
    /// let key = Key::new("order-1042")?;
    /// let Begin::Fresh(claim) = store.begin(&key, &Fingerprint::NONE)? else { unreachable!() };
    ///
    /// let double_click = thread::spawn({
    ///     let (store, key) = (store.clone(), key.clone());
    ///     move || store.begin_wait(&key, &Fingerprint::NONE, Duration::from_secs(60))
    /// });
    /// claim.complete("receipt 17")?;
    /// assert!(matches!(double_click.join().unwrap()?, Begin::Replay(_)));
    /// # Ok::<(), keyonce::Error>(())
    /// ```
    pub fn begin_wait(&self, key: &Key, fingerprint: &Fingerprint, timeout: Duration) -> Result<Begin> {
        // What cannot be added is further away than any machine runs.
        let forever = Duration::from_secs(100 * 365 * 24 * 3600);
        let now = Instant::now();
        let deadline = now.checked_add(timeout.min(forever)).unwrap_or(now);
        Ok(self.begun(key, self.engine.begin_wait(key, *fingerprint, deadline)?))
    }

    fn begun(&self, key: &Key, begun: Begun) -> Begin {
        match begun {
            Begun::Fresh(opened) => Begin::Fresh(Claim::new(Arc::clone(&self.engine), key.clone(), &opened)),
            Begun::InProgress(record) => {
                Begin::InProgress(Busy::new(&record, self.engine.pace.retry_after()))
            }
            Begun::Replay(record) => Begin::Replay(Response::of(&record)),
            Begun::Mismatch => Begin::Mismatch(Mismatch { key: key.clone() }),
        }
    }

    /// Writes what is left to write and closes the file, for every clone. Later
    /// calls get [`Closed`](crate::ErrorKind::Closed), and claims that are
    /// still open will be found interrupted.
    ///
    /// Dropping the last clone closes too, but cannot say whether it went well.
    ///
    /// # Errors
    ///
    /// What was acknowledged is on disk in any case.
    pub fn close(self) -> Result<()> {
        self.engine.close()
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("name", &self.engine.storage.name())
            .field("keys", &self.engine.table.keys())
            .field("claims", &self.engine.table.claims())
            .finish_non_exhaustive()
    }
}

impl StoreBuilder {
    /// Opens the store at `path`, or creates it. See [`Store::open`].
    ///
    /// # Errors
    ///
    /// Those of [`Store::open`], and
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) for an option that is
    /// out of its range.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Store> {
        let path = path.as_ref();
        if path.file_name().is_none() {
            return Err(Error::invalid(format!("{:?} does not name a file", path.display().to_string())));
        }
        Ok(Store { engine: Arc::new(Engine::open(path, self)?) })
    }

    /// Opens an empty store in memory. See [`Store::in_memory`].
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) for an option that is
    /// out of its range.
    pub fn open_in_memory(&self) -> Result<Store> {
        Ok(Store { engine: Arc::new(Engine::in_memory(self)?) })
    }
}

/// The answer to [`Store::begin`].
///
/// Exhaustive on purpose: a caller that forgets one of the four does the work
/// twice, or never.
#[derive(Debug)]
#[must_use = "a `Fresh` claim that is dropped is interrupted"]
pub enum Begin {
    /// The work is yours to do, and yours alone.
    Fresh(Claim),
    /// Somebody else is doing it, or left it with its outcome unknown. HTTP:
    /// 409 with `Retry-After`.
    InProgress(Busy),
    /// It was done; here is the first answer, byte for byte.
    Replay(Response),
    /// The key was used for a different request. HTTP: 422.
    Mismatch(Mismatch),
}

/// Somebody else has the key.
#[derive(Clone, Debug)]
pub struct Busy {
    interrupted: bool,
    attempt: u32,
    since: Timestamp,
    retry_after: Duration,
}

impl Busy {
    fn new(record: &Record, retry_after: Duration) -> Self {
        let (interrupted, since) = match record.state {
            State::InProgress { since, .. } => (false, since),
            State::Interrupted { since, .. } => (true, since),
            State::Completed { .. } => unreachable!("a completed key is replayed"),
        };
        Self { interrupted, attempt: record.attempt, since, retry_after }
    }

    /// Whether the holder is gone and the key is held until
    /// [`Store::resolve`], under [`OnInterrupt::Hold`](crate::OnInterrupt::Hold).
    pub fn interrupted(&self) -> bool {
        self.interrupted
    }

    /// The number of the attempt that has the key.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Since when it has it, or is interrupted.
    pub fn since(&self) -> Timestamp {
        self.since
    }

    /// When to ask again: as long as this store's claims took of late (a moving
    /// mean), at least 100 ms and at most a minute; a second before any ended.
    pub fn retry_after(&self) -> Duration {
        self.retry_after
    }
}

/// The key was used for a different request.
///
/// It says nothing of that request: whoever guesses keys must not learn what
/// they stand for.
#[derive(Clone, Debug)]
pub struct Mismatch {
    key: Key,
}

impl Mismatch {
    /// The key.
    pub fn key(&self) -> &Key {
        &self.key
    }
}
