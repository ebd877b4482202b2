//! Where the state of a key stands on disk.

use crate::record::Fence;
use crate::time::Timestamp;
use std::fmt;

/// A place on disk, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    Nowhere,
    /// A row of `keyonce.claims`.
    Claim(Fence),
    /// A row of `keyonce.records`, and of `keyonce.payloads` if it is long.
    Record(Position),
}

/// Where a completed record stands: in the order in which records expire.
///
/// The upper 28 bits are the expiry in units of 2^14 ms (16.4 s), the lower 36
/// a sequence number. A whole position fits into 8 bytes of the index, and all
/// records of a unit that has passed are one range at the left edge. The unit
/// counts to the year 2109; what expires later has the last unit, which no
/// sweep ever takes for passed (the record itself has the exact expiry).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Position(pub(crate) u64);

const SEQUENCE_BITS: u32 = 36;
const UNIT_BITS: u32 = 14;
const UNIT_MAX: u64 = (1 << (64 - SEQUENCE_BITS)) - 1;

impl Position {
    /// How many sequence numbers there are before they come round.
    pub(crate) const SEQUENCES: u64 = 1 << SEQUENCE_BITS;

    pub(crate) fn new(expires_at: Timestamp, sequence: u64) -> Self {
        let unit = (expires_at.as_millis() >> UNIT_BITS).min(UNIT_MAX);
        Self((unit << SEQUENCE_BITS) | (sequence & ((1 << SEQUENCE_BITS) - 1)))
    }

    /// The first position of the unit that `now` is in: everything before it
    /// has expired, whatever its exact time.
    pub(crate) fn unit_of(now: Timestamp) -> Self {
        Self::new(now, 0)
    }

    /// Whether a record with this expiry may stand here.
    pub(crate) fn is_of(self, expires_at: Timestamp) -> bool {
        self.0 >> SEQUENCE_BITS == Self::new(expires_at, 0).0 >> SEQUENCE_BITS
    }

    /// The last position of the unit that `now` is in: everything after it is
    /// alive.
    pub(crate) fn end_of_unit(now: Timestamp) -> Self {
        Self::new(now, u64::MAX)
    }
}

impl fmt::Debug for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn positions_are_in_the_order_of_expiry() {
        let at = |ms, sequence| Position::new(Timestamp::from_millis(ms), sequence);
        assert!(at(0, 9) < at(16_384, 1));
        assert!(at(16_384, 1) < at(16_384, 2));
        assert_eq!(at(16_384, 1), at(32_767, 1));
        assert!(at(32_767, 1) < Position::unit_of(Timestamp::from_millis(32_768)));
        assert!(at(16_384, Position::SEQUENCES - 1) <= Position::end_of_unit(Timestamp::from_millis(16_384)));
    }

    #[test]
    fn the_far_future_is_one_unit_that_never_passes() {
        let never = Position::new(Timestamp::MAX, 3);
        let century = Timestamp::from_millis(0).saturating_add(Duration::from_secs(100 * 366 * 24 * 3600));
        assert!(never > Position::end_of_unit(century));
        assert!(never >= Position::unit_of(Timestamp::MAX));
        assert!(never.is_of(Timestamp::MAX));
        assert!(!never.is_of(century));
    }
}
