//! Time: retention, clocks that are set back, records that are not swept yet.

use crate::support::{builder, clock, fresh, key, open, print, replay};
use keyonce::{Begin, Clock as _, ErrorKind, Fingerprint, ManualClock, Timestamp};
use std::time::Duration;

const NONE: Fingerprint = Fingerprint::NONE;
const HOUR: Duration = Duration::from_secs(3600);

// C30: retention 0, 1 ms, and the greatest value.
#[test]
fn retention_0_is_refused_1_ms_works_and_the_greatest_does_not_wrap() {
    let clock = clock();
    let error = builder(&clock).retention(Duration::ZERO).open_in_memory().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().starts_with("retention is 0: it must be at least 1 ms"), "{error}");

    // A part of a millisecond is a whole one: nothing ends early.
    for least in [Duration::from_nanos(1), Duration::from_millis(1)] {
        let store = builder(&clock).retention(least).open_in_memory().unwrap();
        let response = fresh(store.begin(&key("k"), &NONE).unwrap()).complete("x").unwrap();
        assert_eq!(response.expires_at(), clock.now().saturating_add(Duration::from_millis(1)));
        replay(store.begin(&key("k"), &NONE).unwrap());
        clock.advance(Duration::from_millis(1));
        fresh(store.begin(&key("k"), &NONE).unwrap()).abandon().unwrap();
    }

    for greatest in [Duration::MAX, Duration::from_millis(u64::MAX)] {
        let clock = ManualClock::new(clock.now());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.keyonce");
        let open = || builder(&clock).retention(greatest).open(&path).unwrap();
        let store = open();
        let response = fresh(store.begin(&key("k"), &NONE).unwrap()).complete("x").unwrap();
        assert_eq!(response.expires_at(), Timestamp::MAX);
        drop(fresh(store.begin(&key("cut"), &NONE).unwrap()));
        clock.set(Timestamp::MAX);
        assert_eq!(store.sweep().unwrap(), 0);
        assert_eq!(replay(store.begin(&key("k"), &NONE).unwrap()).expires_at(), Timestamp::MAX);
        store.close().unwrap();
        let store = open();
        replay(store.begin(&key("k"), &NONE).unwrap());
        assert!(fresh(store.begin(&key("cut"), &NONE).unwrap()).interrupted());
    }
}

// C31: the clock goes back an hour, in a running store and between two.
#[test]
fn a_clock_that_goes_back_expires_nothing_early_nothing_twice_and_fences_grow() {
    for reopened in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.keyonce");
        let clock = clock();
        let true_time = ManualClock::new(clock.now());
        let mut store = open(&path, &clock);
        let before = fresh(store.begin(&key("before"), &NONE).unwrap());
        let fence = before.fence();
        before.complete("before").unwrap();

        clock.set(Timestamp::from_millis(clock.now().as_millis() - 3_600_000));
        if reopened {
            store.close().unwrap();
            store = open(&path, &clock);
        }
        assert_eq!(store.stats().unwrap().latest, true_time.now(), "time stands, it does not go back");
        assert_eq!(replay(store.begin(&key("before"), &NONE).unwrap()).as_bytes(), b"before");
        let after = fresh(store.begin(&key("after"), &NONE).unwrap());
        assert!(after.fence() > fence);
        let after = after.complete("after").unwrap();
        assert_eq!(after.completed_at(), true_time.now());
        assert!(fresh(store.begin(&key("third"), &NONE).unwrap()).fence().as_u64() > fence.as_u64() + 1);

        // An hour short of the retention, by the clock: both are there.
        for wait in [23 * HOUR, HOUR - Duration::from_millis(1)] {
            clock.advance(wait);
            true_time.advance(wait);
            replay(store.begin(&key("before"), &NONE).unwrap());
            replay(store.begin(&key("after"), &NONE).unwrap());
        }
        // And not longer than that hour.
        clock.advance(HOUR + Duration::from_millis(1));
        for name in ["before", "after"] {
            assert!(store.get(&key(name)).unwrap().is_none());
            fresh(store.begin(&key(name), &print("new")).unwrap()).abandon().unwrap();
        }
    }
}

// C31, the mark itself: the latest time is on disk, even if nothing else
// happened since.
#[test]
fn what_was_told_to_be_expired_stays_expired_in_the_next_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.keyonce");
    let clock = clock();
    let store = open(&path, &clock);
    fresh(store.begin(&key("k"), &NONE).unwrap()).complete("x").unwrap();
    clock.advance(24 * HOUR);
    assert!(store.get(&key("k")).unwrap().is_none());
    store.close().unwrap();
    clock.set(Timestamp::from_millis(clock.now().as_millis() - 3_600_000));
    let store = open(&path, &clock);
    assert!(store.get(&key("k")).unwrap().is_none());
}

// C32: a record past its retention, not yet swept.
#[test]
fn an_expired_record_is_dead_to_begin_get_and_counts_before_any_sweep() {
    for reopened in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.keyonce");
        let clock = clock();
        let mut store = builder(&clock).replay_cache(0).open(&path).unwrap();
        for name in ["a", "b", "c"] {
            fresh(store.begin(&key(name), &print("a")).unwrap()).complete("x").unwrap();
        }
        drop(fresh(store.begin(&key("cut"), &print("a")).unwrap()));
        clock.advance(12 * HOUR);
        fresh(store.begin(&key("young"), &print("a")).unwrap()).complete("x").unwrap();
        clock.advance(12 * HOUR - Duration::from_millis(1));
        assert_eq!(store.stats().unwrap().live_keys, 5);
        // To the millisecond, in the middle of what a sweep takes at a time.
        clock.advance(Duration::from_millis(1));
        if reopened {
            store.close().unwrap();
            store = open(&path, &clock);
        }
        let check = |left: usize| {
            let stats = store.stats().unwrap();
            assert_eq!((stats.live_keys, stats.completed), (left, left), "{stats:?}");
            assert_eq!((stats.interrupted, stats.open_claims), (0, 0), "{stats:?}");
        };
        check(1);
        for name in ["a", "b", "c", "cut"] {
            assert!(store.get(&key(name)).unwrap().is_none());
            assert!(!store.forget(&key(name)).unwrap(), "there is nothing to forget");
        }
        // Free for another request, as a first attempt.
        for name in ["a", "cut"] {
            let claim = fresh(store.begin(&key(name), &print("b")).unwrap());
            assert_eq!((claim.attempt(), claim.interrupted()), (1, false));
            claim.complete("y").unwrap();
        }
        check(3);
        store.sweep().unwrap();
        assert_eq!(store.sweep().unwrap(), 0);
        check(3);
        assert_eq!(replay(store.begin(&key("a"), &print("b")).unwrap()).as_bytes(), b"y");
        assert!(matches!(store.begin(&key("young"), &print("b")).unwrap(), Begin::Mismatch(_)));
    }
}
