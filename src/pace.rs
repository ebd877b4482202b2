//! How long this store's claims take, for telling callers when to come back.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The least and the greatest advice.
const LEAST: Duration = Duration::from_millis(100);
const GREATEST: Duration = Duration::from_secs(60);
/// The advice before any claim has ended.
const FIRST: Duration = Duration::from_secs(1);

/// A moving mean: each claim that ends counts for an eighth.
#[derive(Debug)]
pub(crate) struct Pace {
    /// In microseconds; 0 before the first claim ended.
    mean_us: AtomicU64,
}

impl Pace {
    pub(crate) fn new() -> Self {
        Self { mean_us: AtomicU64::new(0) }
    }

    pub(crate) fn learn(&self, held: Duration) {
        let held = u64::try_from(held.as_micros()).unwrap_or(u64::MAX).clamp(1, 1 << 40);
        let mean = self.mean_us.load(Ordering::Relaxed);
        let mean = if mean == 0 { held } else { mean - mean / 8 + held / 8 };
        // A sample that another thread's store overwrites is no loss.
        self.mean_us.store(mean.max(1), Ordering::Relaxed);
    }

    pub(crate) fn retry_after(&self) -> Duration {
        match self.mean_us.load(Ordering::Relaxed) {
            0 => FIRST,
            mean => Duration::from_micros(mean).clamp(LEAST, GREATEST),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_follows_the_claims_and_stays_in_bounds() {
        let pace = Pace::new();
        assert_eq!(pace.retry_after(), FIRST);
        pace.learn(Duration::from_micros(3));
        assert_eq!(pace.retry_after(), LEAST);
        for _ in 0..100 {
            pace.learn(Duration::from_secs(2));
        }
        let advice = pace.retry_after();
        assert!(advice > Duration::from_millis(1_900) && advice <= Duration::from_secs(2), "{advice:?}");
        for _ in 0..100 {
            pace.learn(Duration::MAX);
        }
        assert_eq!(pace.retry_after(), GREATEST);
    }
}
