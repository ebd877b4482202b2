//! The claim: the right, and the duty, to do the work of one key.

use crate::engine::Engine;
use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::record::{Fence, Record, State};
use crate::time::Timestamp;
use crate::transition::Event;
use bytes::Bytes;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// The work of a key is yours to do, and yours alone, for as long as this value
/// lives. No time-out is taken.
///
/// End it with [`complete`](Self::complete) or [`abandon`](Self::abandon). A
/// claim that is dropped instead (an early return, a `?`, a panic, a cancelled
/// future) is *interrupted*: nobody knows whether the work was done, and
/// [`OnInterrupt`](crate::OnInterrupt) says what the next caller is told.
///
/// It can be sent to another thread, and has no lifetime.
#[must_use = "dropping a claim interrupts it: end it with `complete` or `abandon`"]
pub struct Claim {
    engine: Arc<Engine>,
    key: Key,
    hash: u64,
    fence: Fence,
    attempt: u32,
    interrupted: bool,
    began: Instant,
    /// Whether dropping this must interrupt the key.
    held: bool,
}

impl Claim {
    pub(crate) fn new(engine: Arc<Engine>, key: Key, opened: &crate::engine::Opened) -> Self {
        let hash = engine.table.hash(key.as_framed());
        Self {
            engine,
            key,
            hash,
            fence: opened.fence,
            attempt: opened.attempt,
            interrupted: opened.interrupted,
            began: Instant::now(),
            held: true,
        }
    }

    /// The key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The number of this attempt, from 1. It counts interrupted attempts: an
    /// abandoned one leaves no trace.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Whether the attempt before this one was interrupted. Then the work may
    /// have been done already: look, before doing it again.
    pub fn interrupted(&self) -> bool {
        self.interrupted
    }

    /// The claim's fencing token: greater than that of any claim before, of
    /// whatever key, across restarts too.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// Says that the work is done. From now until the retention runs out, every
    /// `begin` with the same fingerprint replays `response`.
    ///
    /// Once this returns `Ok`, the completion is on disk.
    ///
    /// # Errors
    ///
    /// The error gives the claim back ([`ClaimError::into_claim`]):
    ///
    /// - [`LimitReached`](ErrorKind::LimitReached): the response is longer than
    ///   [`response_bytes_max`](crate::StoreBuilder::response_bytes_max). Nothing
    ///   was changed; complete it with a shorter one.
    /// - [`OutcomeUnknown`](ErrorKind::OutcomeUnknown): the write failed and may
    ///   be on disk all the same. Reopen the store: the key is then completed,
    ///   or interrupted.
    /// - [`StorageFailed`](ErrorKind::StorageFailed),
    ///   [`Closed`](ErrorKind::Closed): nothing was written. When the store is
    ///   reopened, the key is interrupted.
    ///
    /// ```
    /// # let store = keyonce::Store::in_memory()?;
    /// use keyonce::{Begin, Fingerprint, Key};
    ///
    /// let key = Key::new("order-1042")?;
    /// let Begin::Fresh(claim) = store.begin(&key, &Fingerprint::NONE)? else { unreachable!() };
    /// claim.complete("receipt 17")?;
    ///
    /// let Begin::Replay(response) = store.begin(&key, &Fingerprint::NONE)? else { unreachable!() };
    /// assert_eq!(response.as_bytes(), b"receipt 17");
    /// # Ok::<(), keyonce::Error>(())
    /// ```
    pub fn complete(mut self, response: impl Into<Bytes>) -> Result<Response, ClaimError> {
        let response = response.into();
        if let Err(error) = self.engine.check_response(response.len()) {
            return Err(ClaimError { error, claim: self });
        }
        let event = Event::Complete { fence: self.fence, response };
        match self.engine.end_claim(&self.key, self.hash, &event) {
            Ok(record) => {
                self.held = false;
                self.engine.pace.learn(self.began.elapsed());
                Ok(Response::of(&record))
            }
            Err(error) => Err(ClaimError { error, claim: self }),
        }
    }

    /// Says that nothing happened. The key is free, for any fingerprint.
    ///
    /// Only say so when it is true: after a time-out at a gateway, for example,
    /// it is not known. Drop the claim then.
    ///
    /// Once this returns `Ok`, it is on disk.
    ///
    /// # Errors
    ///
    /// As for [`complete`](Self::complete), but for the limit.
    pub fn abandon(mut self) -> Result<(), ClaimError> {
        let event = Event::Abandon { fence: self.fence };
        match self.engine.end_claim(&self.key, self.hash, &event) {
            Ok(_) => {
                self.held = false;
                Ok(())
            }
            Err(error) => Err(ClaimError { error, claim: self }),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if std::mem::take(&mut self.held) {
            self.engine.interrupt(&self.key, self.hash, self.fence);
        }
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim")
            .field("key", &self.key)
            .field("fence", &self.fence)
            .field("attempt", &self.attempt)
            .field("interrupted", &self.interrupted)
            .finish_non_exhaustive()
    }
}

/// Why a claim could not be ended; with the claim, so that nothing is lost.
///
/// Where a function returns this crate's [`Error`], `?` drops the claim, which
/// interrupts it: right wherever the work was done and its completion could not
/// be stored. A `Box<dyn Error>` keeps the claim, and the key in progress, until
/// the box is dropped.
pub struct ClaimError {
    error: Error,
    claim: Claim,
}

impl ClaimError {
    /// What the caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        self.error.kind()
    }

    /// The error.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// The claim, to try again.
    pub fn into_claim(self) -> Claim {
        self.claim
    }

    /// Both.
    pub fn into_parts(self) -> (Claim, Error) {
        (self.claim, self.error)
    }
}

impl fmt::Display for ClaimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl fmt::Debug for ClaimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClaimError").field("error", &self.error).field("claim", &self.claim).finish()
    }
}

impl StdError for ClaimError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.error.source()
    }
}

impl From<ClaimError> for Error {
    fn from(error: ClaimError) -> Self {
        error.error
    }
}

/// The first answer, and until when it is kept.
#[derive(Clone, PartialEq, Eq)]
pub struct Response {
    bytes: Bytes,
    completed_at: Timestamp,
    expires_at: Timestamp,
}

impl Response {
    pub(crate) fn of(record: &Record) -> Self {
        match &record.state {
            State::Completed { response, completed_at, expires_at } => {
                Self { bytes: response.clone(), completed_at: *completed_at, expires_at: *expires_at }
            }
            State::InProgress { .. } | State::Interrupted { .. } => {
                unreachable!("only a completed key has a response")
            }
        }
    }

    /// The bytes that `complete` was given.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The same, without a copy.
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }

    /// When the key was completed.
    pub fn completed_at(&self) -> Timestamp {
        self.completed_at
    }

    /// Until when it is replayed: from this time on the key is unknown.
    pub fn expires_at(&self) -> Timestamp {
        self.expires_at
    }
}

impl fmt::Debug for Response {
    /// Without the bytes: an answer may hold what does not belong into a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response")
            .field("len", &self.bytes.len())
            .field("completed_at", &self.completed_at)
            .field("expires_at", &self.expires_at)
            .finish()
    }
}
