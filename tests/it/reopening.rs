//! What a store remembers from one process to the next.

use crate::support::{builder, clock, fresh, key, open, print, replay};
use keyonce::{Begin, Clock as _, ErrorKind, Fingerprint, Key, OnInterrupt, Resolution, Status, Timestamp};
use std::collections::BTreeMap;
use std::time::Duration;

const DAY: Duration = Duration::from_secs(24 * 3600);

#[test]
fn completed_keys_stay_byte_for_byte() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.keyonce");
    let clock = clock();
    // Around the length at which a response gets a row of its own, and bytes
    // that a text would not survive.
    let responses: Vec<(Key, Vec<u8>)> = [0, 1, 1_023, 1_024, 1_025, 70_000, 1 << 20]
        .into_iter()
        .map(|len| {
            let bytes = (0..len).map(|i| u8::try_from(i % 251).unwrap()).collect();
            (Key::scoped("s", format!("{len}")).unwrap(), bytes)
        })
        .collect();
    let mut told = BTreeMap::new();
    let store = open(&path, &clock);
    for (key, bytes) in &responses {
        let claim = fresh(store.begin(key, &print("a")).unwrap());
        told.insert(key.clone(), claim.complete(bytes.clone()).unwrap());
        clock.advance(Duration::from_millis(1));
    }
    store.close().unwrap();
    for _ in 0..3 {
        let store = open(&path, &clock);
        for (key, bytes) in &responses {
            let response = replay(store.begin(key, &print("a")).unwrap());
            assert_eq!(response.as_bytes(), bytes);
            assert_eq!(response, told[key], "its times too");
            assert!(matches!(store.begin(key, &print("b")).unwrap(), Begin::Mismatch(_)));
        }
        store.close().unwrap();
    }
}

#[test]
fn open_claims_are_found_interrupted_with_one_attempt_more() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.keyonce");
    let clock = clock();
    for attempt in 1..=5 {
        let store = open(&path, &clock);
        let claim = fresh(store.begin(&key("k"), &print("a")).unwrap());
        assert_eq!((claim.attempt(), claim.interrupted()), (attempt, attempt > 1));
        store.close().unwrap();
        drop(claim);
        clock.advance(DAY / 2);
    }
    // Each attempt restarts the retention; after it, all is forgotten.
    let store = open(&path, &clock);
    let entry = store.get(&key("k")).unwrap().unwrap();
    assert_eq!((entry.status(), entry.attempt()), (Status::Interrupted, 5));
    clock.advance(DAY);
    assert!(store.get(&key("k")).unwrap().is_none());
    let claim = fresh(store.begin(&key("k"), &print("b")).unwrap());
    assert_eq!((claim.attempt(), claim.interrupted()), (1, false));
}

// C5, the part across processes.
#[test]
fn stale_claim_cannot_change_anything_after_reopen() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.keyonce");
    let clock = clock();
    let store = open(&path, &clock);
    let stale: Vec<_> =
        (0..3).map(|n| fresh(store.begin(&key(&format!("k{n}")), &print("a")).unwrap())).collect();
    store.close().unwrap();

    let store = open(&path, &clock);
    let current = fresh(store.begin(&key("k0"), &print("a")).unwrap());
    let mut stale = stale.into_iter();
    let refused = stale.next().unwrap().complete("stale").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Closed);
    let refused = refused.into_claim().abandon().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Closed);
    drop(refused);
    assert_eq!(stale.next().unwrap().abandon().unwrap_err().kind(), ErrorKind::Closed);
    drop(stale);

    assert!(matches!(store.begin(&key("k0"), &print("a")).unwrap(), Begin::InProgress(_)));
    for n in [1, 2] {
        let entry = store.get(&key(&format!("k{n}"))).unwrap().unwrap();
        assert_eq!((entry.status(), entry.attempt()), (Status::Interrupted, 1));
    }
    current.complete("current").unwrap();
    assert_eq!(replay(store.begin(&key("k0"), &print("a")).unwrap()).as_bytes(), b"current");
}

#[test]
fn interrupted_keys_keep_the_time_at_which_they_are_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.keyonce");
    let clock = clock();
    let store = open(&path, &clock);
    drop(fresh(store.begin(&key("k"), &print("a")).unwrap()));
    let before = store.get(&key("k")).unwrap().unwrap();
    store.close().unwrap();
    for _ in 0..3 {
        clock.advance(DAY / 4);
        let store = open(&path, &clock);
        let entry = store.get(&key("k")).unwrap().unwrap();
        assert_eq!(entry.status(), Status::Interrupted);
        assert_eq!((entry.since(), entry.expires_at()), (before.since(), before.expires_at()));
        assert_eq!((entry.attempt(), entry.fence()), (before.attempt(), before.fence()));
        store.close().unwrap();
    }
    clock.advance(DAY / 4);
    let store = open(&path, &clock);
    assert!(store.get(&key("k")).unwrap().is_none());
    let stats = store.stats().unwrap();
    assert_eq!((stats.live_keys, stats.interrupted), (0, 0));
    assert_eq!(store.sweep().unwrap(), 1);
}

#[test]
fn held_keys_stay_held_past_any_retention() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.keyonce");
    let clock = clock();
    let hold = || builder(&clock).on_interrupt(OnInterrupt::Hold);
    let store = hold().open(&path).unwrap();
    drop(fresh(store.begin(&key("dropped"), &print("a")).unwrap()));
    let open_claim = fresh(store.begin(&key("open"), &print("a")).unwrap());
    store.close().unwrap();
    drop(open_claim);
    for _ in 0..3 {
        clock.advance(100 * 366 * DAY);
        // Whatever the store is opened with now: it was agreed at the claim.
        let store = open(&path, &clock);
        store.sweep().unwrap();
        for name in ["dropped", "open"] {
            let Begin::InProgress(busy) = store.begin(&key(name), &print("a")).unwrap() else { panic!() };
            assert!(busy.interrupted());
            assert_eq!(store.get(&key(name)).unwrap().unwrap().expires_at(), Timestamp::MAX);
            assert!(matches!(store.begin(&key(name), &print("b")).unwrap(), Begin::Mismatch(_)));
        }
        store.close().unwrap();
    }
    let store = open(&path, &clock);
    store.resolve(&key("dropped"), Resolution::Complete("looked up".into())).unwrap();
    store.resolve(&key("open"), Resolution::Free).unwrap();
    store.close().unwrap();
    let store = open(&path, &clock);
    assert_eq!(replay(store.begin(&key("dropped"), &print("a")).unwrap()).as_bytes(), b"looked up");
    fresh(store.begin(&key("open"), &print("b")).unwrap()).abandon().unwrap();
}

#[test]
fn fences_keep_growing_over_reopens_and_crashes() {
    let folder = tempfile::tempdir().unwrap();
    let path = |n: usize| folder.path().join(format!("{n}.keyonce"));
    let clock = clock();
    let mut greatest = 0;
    for round in 0..20_u32 {
        let n = round as usize;
        let store = open(&path(n), &clock);
        for _ in 0..3 {
            let claim = fresh(store.begin(&key(&format!("r{round}")), &Fingerprint::NONE).unwrap());
            let fence = claim.fence().as_u64();
            assert!(fence > greatest, "{fence} after {greatest}, round {round}");
            greatest = fence;
            claim.abandon().unwrap();
        }
        // An abandoned claim leaves no row, so only the marks can know.
        if round % 2 == 0 {
            std::fs::copy(path(n), path(n + 1)).unwrap();
            store.close().unwrap();
        } else {
            store.close().unwrap();
            std::fs::rename(path(n), path(n + 1)).unwrap();
        }
    }
}

#[test]
fn existing_keys_keep_their_terms_in_a_store_with_other_options() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.keyonce");
    let clock = clock();
    let store = builder(&clock).retention(DAY).open(&path).unwrap();
    fresh(store.begin(&key("done"), &print("a")).unwrap()).complete("x".repeat(5_000)).unwrap();
    let claim = fresh(store.begin(&key("open"), &print("a")).unwrap());
    store.close().unwrap();
    drop(claim);

    let store = builder(&clock)
        .retention(Duration::from_millis(1))
        .on_interrupt(OnInterrupt::Hold)
        .response_bytes_max(10)
        .live_keys_max(1)
        .open_claims_max(1)
        .scope_keys_max(1)
        .open(&path)
        .unwrap();
    assert_eq!(store.stats().unwrap().live_keys, 2, "limits do not forget what is there");
    assert_eq!(replay(store.begin(&key("done"), &print("a")).unwrap()).as_bytes().len(), 5_000);
    assert_eq!(store.get(&key("open")).unwrap().unwrap().expires_at(), clock.now().saturating_add(DAY));
    let refused = store.begin(&key("new"), &print("a")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::LimitReached);
    // The next attempt on a key that is there needs no room, and has new terms.
    let again = fresh(store.begin(&key("open"), &print("a")).unwrap());
    assert_eq!((again.attempt(), again.interrupted()), (2, true));
    let response = again.complete("short").unwrap();
    assert_eq!(response.expires_at(), clock.now().saturating_add(Duration::from_millis(1)));
    clock.advance(DAY - Duration::from_millis(1));
    replay(store.begin(&key("done"), &print("a")).unwrap());
    assert!(store.get(&key("open")).unwrap().is_none());
    clock.advance(Duration::from_millis(1));
    assert!(store.get(&key("done")).unwrap().is_none());
}
