//! The contract of `begin`, end to end on one store.

use crate::support::{builder, clock, fresh, key, print, replay};
use keyonce::{Begin, ErrorKind, Fingerprint, Key, OnInterrupt, Resolution};
use std::time::Duration;

#[test]
fn a_completed_key_replays_its_bytes_and_when_they_expire() {
    let clock = clock();
    let store = builder(&clock).open_in_memory().unwrap();
    let claim = fresh(store.begin(&key("k"), &print("a")).unwrap());
    assert_eq!((claim.attempt(), claim.interrupted()), (1, false));
    assert!(
        matches!(store.begin(&key("k"), &print("a")).unwrap(), Begin::InProgress(busy) if !busy.interrupted())
    );
    claim.complete("answer").unwrap();
    let response = replay(store.begin(&key("k"), &print("a")).unwrap());
    assert_eq!(response.as_bytes(), b"answer");
    assert_eq!(response.expires_at(), response.completed_at().saturating_add(Duration::from_secs(24 * 3600)));
    clock.advance(Duration::from_millis(24 * 3600 * 1000 - 1));
    replay(store.begin(&key("k"), &print("a")).unwrap());
    clock.advance(Duration::from_millis(1));
    let claim = fresh(store.begin(&key("k"), &print("b")).unwrap());
    assert_eq!(claim.attempt(), 1);
    claim.abandon().unwrap();
    assert_eq!(store.stats().unwrap().live_keys, 0);
}

#[test]
fn dropped_claims_are_retried_or_held() {
    for policy in [OnInterrupt::Retry, OnInterrupt::Hold] {
        let store = builder(&clock()).on_interrupt(policy).open_in_memory().unwrap();
        let first = fresh(store.begin(&key("k"), &Fingerprint::NONE).unwrap());
        let fence = first.fence();
        drop(first);
        assert!(matches!(store.begin(&key("k"), &print("other")).unwrap(), Begin::Mismatch(_)));
        match policy {
            OnInterrupt::Retry => {
                let second = fresh(store.begin(&key("k"), &Fingerprint::NONE).unwrap());
                assert_eq!((second.attempt(), second.interrupted()), (2, true));
                assert!(second.fence() > fence);
                second.complete("").unwrap();
            }
            OnInterrupt::Hold => {
                assert!(matches!(
                    store.begin(&key("k"), &Fingerprint::NONE).unwrap(),
                    Begin::InProgress(busy) if busy.interrupted()
                ));
                store.resolve(&key("k"), Resolution::Complete("".into())).unwrap();
            }
        }
        assert_eq!(replay(store.begin(&key("k"), &Fingerprint::NONE).unwrap()).as_bytes(), b"");
        let again = store.resolve(&key("k"), Resolution::Free).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::WrongState);
        assert!(store.forget(&key("k")).unwrap());
        assert!(!store.forget(&key("k")).unwrap());
    }
}

#[test]
fn a_reopened_store_replays_and_knows_what_was_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.keyonce");
    let clock = clock();
    let store = builder(&clock).open(&path).unwrap();
    let long = vec![7; 100_000];
    fresh(store.begin(&Key::scoped("s", "done").unwrap(), &print("a")).unwrap())
        .complete(long.clone())
        .unwrap();
    let open = fresh(store.begin(&key("open"), &print("a")).unwrap());
    let fence = open.fence();
    store.close().unwrap();
    assert_eq!(open.complete("late").unwrap_err().kind(), ErrorKind::Closed);

    let store = builder(&clock).open(&path).unwrap();
    let response = replay(store.begin(&Key::scoped("s", "done").unwrap(), &print("a")).unwrap());
    assert_eq!(response.as_bytes(), long);
    let again = fresh(store.begin(&key("open"), &print("a")).unwrap());
    assert_eq!((again.attempt(), again.interrupted()), (2, true));
    assert!(again.fence() > fence);
}
