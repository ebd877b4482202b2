//! Races and claims; fingerprints and scopes.

use crate::support::{builder, clock, fresh, key, open, print, replay};
use keyonce::{Begin, ErrorKind, Fingerprint, Key, Status, Store};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

// C1: many callers start on one unseen key at the same instant.
#[test]
fn of_64_callers_at_one_instant_exactly_one_gets_the_key() {
    const CALLERS: usize = 64;
    const ROUNDS: usize = 1_000;
    let store = Store::in_memory().unwrap();
    let winners: Vec<AtomicUsize> = (0..ROUNDS).map(|_| AtomicUsize::new(0)).collect();
    let (busy, replays) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let start = Barrier::new(CALLERS);
    thread::scope(|scope| {
        for _ in 0..CALLERS {
            scope.spawn(|| {
                for (round, winner) in winners.iter().enumerate() {
                    let key = key(&format!("round {round}"));
                    start.wait();
                    match store.begin(&key, &Fingerprint::NONE).unwrap() {
                        Begin::Fresh(claim) => {
                            winner.fetch_add(1, Ordering::Relaxed);
                            claim.complete(round.to_string()).unwrap();
                        }
                        Begin::InProgress(who) => {
                            assert!(!who.interrupted());
                            busy.fetch_add(1, Ordering::Relaxed);
                        }
                        Begin::Replay(response) => {
                            assert_eq!(response.as_bytes(), round.to_string().as_bytes());
                            replays.fetch_add(1, Ordering::Relaxed);
                        }
                        Begin::Mismatch(_) => panic!("the fingerprint is the same"),
                    }
                }
            });
        }
    });
    assert!(winners.iter().all(|winner| winner.load(Ordering::Relaxed) == 1));
    let others = busy.into_inner() + replays.into_inner();
    assert_eq!(others, ROUNDS * (CALLERS - 1));
    assert_eq!(store.stats().unwrap().completed, ROUNDS);
}

// C2: a different body under a key whose first request still runs.
#[test]
fn another_request_under_a_running_key_is_a_mismatch() {
    let store = Store::in_memory().unwrap();
    let claim = fresh(store.begin(&key("k"), &print("a")).unwrap());
    let mismatch = || match store.begin(&key("k"), &print("b")).unwrap() {
        Begin::Mismatch(mismatch) => assert_eq!(mismatch.key(), &key("k")),
        other => panic!("{other:?}"),
    };
    mismatch();
    // One that would wait is told at once too.
    let told = store.begin_wait(&key("k"), &print("b"), Duration::MAX).unwrap();
    assert!(matches!(told, Begin::Mismatch(_)));
    drop(claim);
    mismatch();
    fresh(store.begin(&key("k"), &print("a")).unwrap()).complete("x").unwrap();
    mismatch();
}

// C5: with a live claim nobody else runs, however far the clock moves. (What
// becomes of it when the store is reopened: `reopening`.)
#[test]
fn a_live_claim_has_no_time_out() {
    let clock = clock();
    let store = builder(&clock).retention(Duration::from_millis(1)).open_in_memory().unwrap();
    let claim = fresh(store.begin(&key("k"), &print("a")).unwrap());
    for years in [0, 1, 100, 1_000_000, u64::from(u32::MAX)] {
        clock.advance(Duration::from_secs(years * 366 * 24 * 3600));
        store.sweep().unwrap();
        assert!(matches!(store.begin(&key("k"), &print("a")).unwrap(), Begin::InProgress(_)));
        assert!(matches!(store.begin(&key("k"), &print("b")).unwrap(), Begin::Mismatch(_)));
        assert_eq!(store.forget(&key("k")).unwrap_err().kind(), ErrorKind::WrongState);
        assert_eq!(store.stats().unwrap().open_claims, 1);
    }
    claim.complete("late, and right").unwrap();
    let told = store.begin(&key("k"), &print("a")).unwrap();
    assert_eq!(replay(told).as_bytes(), b"late, and right");
}

// C7: the handler fails after begin, and the clean-up fails too.
#[test]
fn a_key_whose_clean_up_failed_is_interrupted_not_stuck() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.keyonce");
    let clock = clock();
    let store = builder(&clock).response_bytes_max(8).open(&path).unwrap();
    // The answer cannot be stored, and the error is thrown away.
    let claim = fresh(store.begin(&key("long"), &print("a")).unwrap());
    drop(claim.complete("an error page").unwrap_err());
    let again = fresh(store.begin(&key("long"), &print("a")).unwrap());
    assert_eq!((again.attempt(), again.interrupted()), (2, true));
    again.complete("short").unwrap();

    // The store is gone when the handler wants to abandon.
    let claim = fresh(store.begin(&key("late"), &print("a")).unwrap());
    store.close().unwrap();
    let error = claim.abandon().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    drop(error);
    let store = open(&path, &clock);
    let entry = store.get(&key("late")).unwrap().unwrap();
    assert_eq!((entry.status(), entry.attempt()), (Status::Interrupted, 1));
    let again = fresh(store.begin(&key("late"), &print("a")).unwrap());
    assert!(again.interrupted());
    again.abandon().unwrap();
}

// C11: fields run together: ("ab", "c") and ("a", "bc").
#[test]
fn fields_that_run_together_are_a_mismatch() {
    let store = Store::in_memory().unwrap();
    let of = |a: &str, b: &str| Fingerprint::builder().field("", a).field("", b).finish();
    fresh(store.begin(&key("k"), &of("ab", "c")).unwrap()).complete("x").unwrap();
    assert!(matches!(store.begin(&key("k"), &of("a", "bc")).unwrap(), Begin::Mismatch(_)));
    assert!(matches!(store.begin(&key("k"), &of("abc", "")).unwrap(), Begin::Mismatch(_)));
    replay(store.begin(&key("k"), &of("ab", "c")).unwrap());
}

// C14: scope `1` with key `a:b` against scope `1:a` with key `b`. In memory, on
// disk, and where their hashes are the same.
#[test]
fn scope_and_key_do_not_run_together() {
    let pairs = [("1", "a:b"), ("1:a", "b"), ("1:a:b", "b"), ("1", "b")];
    let mut keys: Vec<Key> = pairs.iter().map(|(scope, key)| Key::scoped(scope, key).unwrap()).collect();
    keys.extend(["1a:b", "1:ab", "a:b", "b"].map(|key| Key::new(key).unwrap()));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.keyonce");
    let clock = clock();
    let open = || builder(&clock).key_hash_for_tests(|_| 1).open(&path).unwrap();
    let store = open();
    for key in &keys {
        fresh(store.begin(key, &Fingerprint::NONE).unwrap()).complete(key.to_string()).unwrap();
    }
    store.close().unwrap();
    let store = open();
    for key in &keys {
        let response = replay(store.begin(key, &Fingerprint::NONE).unwrap());
        assert_eq!(response.as_bytes(), key.to_string().as_bytes());
    }
}
