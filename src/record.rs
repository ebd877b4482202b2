//! The state of a key, as a value.

use crate::fingerprint::Fingerprint;
use crate::time::{Timestamp, millis_up};
use bytes::Bytes;
use std::fmt;
use std::time::Duration;

/// A fencing token: the number of a claim. It only grows, across restarts too.
///
/// Hand it to the system that does the work (as a version column, or a
/// condition on a write), and that system can refuse a claim that was lost.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(u64);

impl Fence {
    /// The fence with this number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fence({})", self.0)
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What happens to a key whose holder ended without a verdict: the claim was
/// dropped, or the process died. Nobody knows whether the work was done.
///
/// Exhaustive on purpose: whoever handles one must think of the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnInterrupt {
    /// The next `begin` with the same fingerprint gets the key, and
    /// [`Claim::interrupted`](crate::Claim::interrupted) tells it that an
    /// earlier attempt may have done the work. The default. For work that can
    /// be looked up first (ask the gateway by the order's number) or that is
    /// harmless to do again.
    #[default]
    Retry,
    /// Nobody gets the key until somebody who knows calls
    /// [`Store::resolve`](crate::Store::resolve); it does not expire meanwhile.
    /// For work that must not be done twice and cannot be looked up.
    Hold,
}

/// What was agreed when a key was claimed, and holds for it until its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How long a completed response is replayed, and how long an interrupted
    /// key is remembered under [`OnInterrupt::Retry`]. In milliseconds.
    pub retention_ms: u64,
    /// What an interruption does.
    pub on_interrupt: OnInterrupt,
}

impl Terms {
    /// Terms with this retention, rounded up to whole milliseconds.
    #[must_use]
    pub fn new(retention: Duration, on_interrupt: OnInterrupt) -> Self {
        Self { retention_ms: millis_up(retention), on_interrupt }
    }

    pub(crate) fn expiry_from(&self, start: Timestamp) -> Timestamp {
        start.saturating_add(Duration::from_millis(self.retention_ms))
    }
}

/// A key that is not absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What the first request was.
    pub fingerprint: Fingerprint,
    /// The fence of the latest attempt.
    pub fence: Fence,
    /// The number of the latest attempt, from 1.
    pub attempt: u32,
    /// The latest attempt's terms.
    pub terms: Terms,
    /// How the latest attempt stands.
    pub state: State,
}

/// How the latest attempt on a key stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// A live holder has it.
    InProgress {
        /// When it was claimed.
        since: Timestamp,
        /// Whether the attempt before this one was interrupted.
        after_interruption: bool,
    },
    /// Its holder ended without a verdict.
    Interrupted {
        /// When that was noticed.
        since: Timestamp,
        /// When the key is forgotten; [`Timestamp::MAX`] under
        /// [`OnInterrupt::Hold`].
        expires_at: Timestamp,
    },
    /// It was done.
    Completed {
        /// The first answer.
        response: Bytes,
        /// When it was completed.
        completed_at: Timestamp,
        /// When the key is forgotten.
        expires_at: Timestamp,
    },
}

impl Record {
    /// When this record is forgotten. A holder that lives keeps its key for
    /// ever: no time-out is taken.
    #[must_use]
    pub fn expires_at(&self) -> Timestamp {
        match self.state {
            State::InProgress { .. } => Timestamp::MAX,
            State::Interrupted { expires_at, .. } | State::Completed { expires_at, .. } => expires_at,
        }
    }

    /// Whether this record is forgotten: dead to everybody, swept or not.
    /// [`Timestamp::MAX`] is never reached.
    #[must_use]
    pub fn is_expired(&self, now: Timestamp) -> bool {
        is_past(self.expires_at(), now)
    }
}

/// Whether what expires at `expires_at` is dead at `now`.
pub(crate) fn is_past(expires_at: Timestamp, now: Timestamp) -> bool {
    expires_at <= now && expires_at != Timestamp::MAX
}
