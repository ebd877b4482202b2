//! Time: milliseconds since 1970, from a [`Clock`] that a test can hold.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A point in time, in whole milliseconds since the start of 1970, UTC.
///
/// Arithmetic saturates at [`Timestamp::MAX`], which stands for "never".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The end of time: what expires then never expires.
    pub const MAX: Self = Self(u64::MAX);

    /// The point `ms` milliseconds after the start of 1970.
    #[must_use]
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms)
    }

    /// Milliseconds since the start of 1970.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// This point and `duration` more, rounded up to whole milliseconds, at
    /// most [`Timestamp::MAX`].
    #[must_use]
    pub fn saturating_add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(millis_up(duration)))
    }

    /// How long it was from `earlier` to this point; zero if `earlier` is later.
    #[must_use]
    pub fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// The same point for the standard library; `None` where it cannot hold it.
    #[must_use]
    pub fn to_system_time(self) -> Option<SystemTime> {
        UNIX_EPOCH.checked_add(Duration::from_millis(self.0))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::MAX => f.write_str("never"),
            Self(ms) => write!(f, "{ms} ms"),
        }
    }
}

/// A duration in whole milliseconds, rounded up (so that nothing ends early),
/// saturating.
pub(crate) fn millis_up(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Where a store gets the time from.
///
/// The store never lets time go backward: it remembers the latest time that it
/// saw, on disk too, and takes that while the clock says less. A clock that is
/// set back therefore makes records live longer, by as much as it was set
/// back, and never shorter. A clock that is set far forward expires records.
pub trait Clock: Send + Sync + fmt::Debug {
    /// The time now.
    fn now(&self) -> Timestamp;
}

/// The machine's wall clock. The default.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        // Before 1970 is a clock that was never set: time then starts at 0.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

/// A clock that stands still until it is moved: for tests of anything that
/// waits for a retention to run out. Clones share the time.
///
/// ```
/// use keyonce::{Clock, ManualClock, Timestamp};
/// use std::time::Duration;
///
/// let clock = ManualClock::new(Timestamp::from_millis(1_000));
/// clock.advance(Duration::from_secs(1));
/// assert_eq!(clock.now(), Timestamp::from_millis(2_000));
/// ```
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// A clock that says `start`.
    #[must_use]
    pub fn new(start: Timestamp) -> Self {
        Self(Arc::new(AtomicU64::new(start.0)))
    }

    /// Moves the time forward by `duration`.
    pub fn advance(&self, duration: Duration) {
        self.set(self.now().saturating_add(duration));
    }

    /// Sets the time, forward or backward.
    pub fn set(&self, to: Timestamp) {
        self.0.store(to.0, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_round_up_and_saturate() {
        assert_eq!(millis_up(Duration::ZERO), 0);
        assert_eq!(millis_up(Duration::from_nanos(1)), 1);
        assert_eq!(millis_up(Duration::from_millis(1)), 1);
        assert_eq!(millis_up(Duration::MAX), u64::MAX);
        assert_eq!(Timestamp(5).saturating_add(Duration::MAX), Timestamp::MAX);
        assert_eq!(Timestamp(5).saturating_since(Timestamp(9)), Duration::ZERO);
    }
}
