//! Every limit: what it refuses, in which words, and how room comes back.

use crate::support::{builder, clock, fresh, key, open, print, replay};
use keyonce::{Begin, ErrorKind, Fingerprint, Key, Resolution, Stats, Store};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

const NONE: Fingerprint = Fingerprint::NONE;

fn scoped(scope: &str, key: &str) -> Key {
    Key::scoped(scope, key).unwrap()
}

/// Live keys, completed, open, interrupted.
fn counts(store: &Store) -> (usize, usize, usize, usize) {
    let Stats { live_keys, completed, open_claims, interrupted, .. } = store.stats().unwrap();
    (live_keys, completed, open_claims, interrupted)
}

#[track_caller]
fn refused(store: &Store, key: &Key, message: &str) {
    let before = counts(store);
    let error = store.begin(key, &NONE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitReached);
    assert_eq!(error.to_string(), message);
    assert_eq!(counts(store), before, "a refusal changes nothing");
    assert!(store.get(key).unwrap().is_none());
}

#[test]
fn open_claims_are_limited_and_every_end_gives_room_back() {
    let clock = clock();
    let store = builder(&clock).open_claims_max(2).open_in_memory().unwrap();
    let over = "2 claims are open or interrupted: open_claims_max is 2";
    let begin = |name: &str| fresh(store.begin(&key(name), &NONE).unwrap());
    let (a, b) = (begin("a"), begin("b"));
    refused(&store, &key("c"), over);

    a.complete("done").unwrap();
    let c = begin("c");
    refused(&store, &key("d"), over);
    // A completed key needs no claim.
    replay(store.begin(&key("a"), &NONE).unwrap());

    b.abandon().unwrap();
    drop(begin("d"));
    // Interrupted is not ended; but its next attempt takes its place.
    refused(&store, &key("e"), over);
    let d = begin("d");
    assert_eq!(d.attempt(), 2);
    refused(&store, &key("e"), over);

    drop(d);
    assert!(store.forget(&key("d")).unwrap());
    drop(begin("e"));
    refused(&store, &key("f"), over);
    store.resolve(&key("e"), Resolution::Complete("looked up".into())).unwrap();
    drop(begin("f"));
    refused(&store, &key("g"), over);
    store.resolve(&key("f"), Resolution::Free).unwrap();
    drop(begin("g"));
    refused(&store, &key("h"), over);
    // What is interrupted and forgotten makes room by itself.
    clock.advance(Duration::from_secs(24 * 3600));
    let h = begin("h");
    c.abandon().unwrap();
    h.abandon().unwrap();
    assert_eq!(counts(&store), (0, 0, 0, 0));
}

#[test]
fn live_keys_are_limited_and_room_comes_back() {
    let clock = clock();
    let store = builder(&clock).live_keys_max(2).open_in_memory().unwrap();
    let over = "2 keys are remembered: live_keys_max is 2";
    let begin = |name: &str| fresh(store.begin(&key(name), &NONE).unwrap());
    begin("a").complete("done").unwrap();
    let b = begin("b");
    refused(&store, &key("c"), over);
    assert_eq!(counts(&store), (2, 1, 1, 0));
    replay(store.begin(&key("a"), &NONE).unwrap());
    assert!(matches!(store.begin(&key("a"), &print("other")).unwrap(), Begin::Mismatch(_)));

    b.abandon().unwrap();
    begin("c").complete("done").unwrap();
    refused(&store, &key("d"), over);
    assert!(store.forget(&key("a")).unwrap());
    begin("d").complete("done").unwrap();
    refused(&store, &key("e"), over);
    // What has expired makes room without a sweep.
    clock.advance(Duration::from_secs(24 * 3600));
    assert_eq!(counts(&store), (0, 0, 0, 0));
    begin("e").complete("done").unwrap();
    begin("f").complete("done").unwrap();
    refused(&store, &key("g"), over);
    // A key that has expired and comes again needs no more room than it has.
    clock.advance(Duration::from_secs(24 * 3600));
    let again = fresh(store.begin(&key("e"), &print("other")).unwrap());
    assert_eq!(again.attempt(), 1);
    again.abandon().unwrap();
    assert_eq!(counts(&store), (0, 0, 0, 0));
}

// A tenant that uses up its own limit does not starve another.
#[test]
fn keys_of_a_scope_are_limited_for_each_scope_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.keyonce");
    let clock = clock();
    let open = || builder(&clock).scope_keys_max(2).open(&path).unwrap();
    let store = open();
    let done = |store: &Store, key: &Key| {
        fresh(store.begin(key, &NONE).unwrap()).complete("done").unwrap();
    };
    done(&store, &scoped("a", "1"));
    drop(fresh(store.begin(&scoped("a", "2"), &NONE).unwrap()));
    let over = "2 keys are remembered in the scope of a/3: scope_keys_max is 2";
    refused(&store, &scoped("a", "3"), over);
    done(&store, &scoped("b", "1"));
    done(&store, &key("1"));
    done(&store, &key("2"));
    // No scope is a scope like others.
    refused(&store, &key("3"), "2 keys are remembered in the scope of 3: scope_keys_max is 2");
    let b = fresh(store.begin(&scoped("b", "2"), &NONE).unwrap());
    store.close().unwrap();
    drop(b);

    let store = open();
    refused(&store, &scoped("a", "3"), over);
    refused(&store, &scoped("b", "3"), "2 keys are remembered in the scope of b/3: scope_keys_max is 2");
    done(&store, &scoped("c", "1"));
    assert!(store.forget(&scoped("a", "1")).unwrap());
    let third = fresh(store.begin(&scoped("a", "3"), &NONE).unwrap());
    refused(&store, &scoped("a", "4"), "2 keys are remembered in the scope of a/4: scope_keys_max is 2");
    third.abandon().unwrap();
    done(&store, &scoped("a", "4"));
    clock.advance(Duration::from_secs(24 * 3600));
    for n in 5..7 {
        done(&store, &scoped("a", &n.to_string()));
    }
    assert_eq!(counts(&store).0, 2);
}

#[test]
fn the_message_has_the_true_count_when_a_limit_was_lowered() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.keyonce");
    let clock = clock();
    let store = open(&path, &clock);
    for name in ["1", "2", "3"] {
        drop(fresh(store.begin(&scoped("a", name), &NONE).unwrap()));
    }
    store.close().unwrap();
    let refusal = |builder: keyonce::StoreBuilder| {
        let store = builder.open(&path).unwrap();
        store.begin(&scoped("a", "4"), &NONE).unwrap_err().to_string()
    };
    assert_eq!(
        refusal(builder(&clock).open_claims_max(1)),
        "3 claims are open or interrupted: open_claims_max is 1"
    );
    assert_eq!(refusal(builder(&clock).live_keys_max(2)), "3 keys are remembered: live_keys_max is 2");
    assert_eq!(
        refusal(builder(&clock).scope_keys_max(1)),
        "3 keys are remembered in the scope of a/4: scope_keys_max is 1"
    );
}

#[test]
fn a_response_over_the_limit_gives_the_claim_back_and_a_shorter_one_completes_it() {
    let store = builder(&clock()).response_bytes_max(3).open_in_memory().unwrap();
    let claim = fresh(store.begin(&key("k"), &NONE).unwrap());
    let fence = claim.fence();
    let error = claim.complete("four").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitReached);
    assert_eq!(error.to_string(), "the response has 4 bytes: response_bytes_max is 3");
    assert!(matches!(store.begin(&key("k"), &NONE).unwrap(), Begin::InProgress(_)));
    assert_eq!(counts(&store), (1, 0, 1, 0));
    let claim = error.into_claim();
    assert_eq!(claim.fence(), fence);
    claim.complete("abc").unwrap();
    assert_eq!(replay(store.begin(&key("k"), &NONE).unwrap()).as_bytes(), b"abc");

    drop(fresh(store.begin(&key("r"), &NONE).unwrap()));
    let error = store.resolve(&key("r"), Resolution::Complete("four".into())).unwrap_err();
    assert_eq!(error.to_string(), "the response has 4 bytes: response_bytes_max is 3");
    assert_eq!(counts(&store), (2, 1, 0, 1));

    let store = builder(&clock()).response_bytes_max(0).open_in_memory().unwrap();
    let claim = fresh(store.begin(&key("k"), &NONE).unwrap());
    let claim = claim.complete("x").unwrap_err().into_claim();
    claim.complete("").unwrap();
}

#[test]
fn limits_out_of_their_range_are_refused_by_name() {
    let clock = clock();
    let refusals = [
        (builder(&clock).open_claims_max(0), "open_claims_max is 0: it must be from 1 to 4294967296"),
        (builder(&clock).live_keys_max(0), "live_keys_max is 0: it must be from 1 to 4294967296"),
        (builder(&clock).scope_keys_max(0), "scope_keys_max is 0: it must be from 1 to 4294967296"),
        (
            builder(&clock).response_bytes_max((1 << 30) + 1),
            "response_bytes_max is 1073741825: it must be from 0 to 1073741824",
        ),
    ];
    for (builder, message) in refusals {
        let error = builder.open_in_memory().unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::InvalidInput, message));
    }
}

#[test]
fn counts_stay_exact_and_limits_hold_under_eight_threads() {
    const CLAIMS_MAX: usize = 5;
    const SCOPE_MAX: usize = 6;
    let store =
        builder(&clock()).open_claims_max(CLAIMS_MAX).scope_keys_max(SCOPE_MAX).open_in_memory().unwrap();
    let held = AtomicUsize::new(0);
    let (refusals, completions) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let start = Barrier::new(8);
    thread::scope(|scope| {
        for worker in 0..8_u32 {
            let (store, held, start) = (&store, &held, &start);
            let (refusals, completions) = (&refusals, &completions);
            scope.spawn(move || {
                start.wait();
                for round in 0..200_u32 {
                    let step = worker.wrapping_mul(2_654_435_761).wrapping_add(round.wrapping_mul(40_503));
                    let key = scoped(["a", "b"][(step >> 3) as usize % 2], &format!("{}", (step >> 5) % 9));
                    match store.begin(&key, &NONE) {
                        Ok(Begin::Fresh(claim)) => {
                            assert!(held.fetch_add(1, Ordering::SeqCst) < CLAIMS_MAX, "over the limit");
                            // Counted out before the room is given back.
                            held.fetch_sub(1, Ordering::SeqCst);
                            match (step >> 9) % 4 {
                                0 => drop(claim.complete("x").unwrap()),
                                1 => claim.abandon().unwrap(),
                                _ => drop(claim),
                            }
                            completions.fetch_add(1, Ordering::Relaxed);
                        }
                        Ok(_) => {}
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::LimitReached);
                            refusals.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    if (step >> 11) % 3 == 0 {
                        // A live holder's key may not be forgotten.
                        let _ = store.forget(&key);
                    }
                }
            });
        }
    });
    assert!(refusals.load(Ordering::Relaxed) > 0 && completions.load(Ordering::Relaxed) > 0);
    // What is counted is what is there; and all of it can be taken out again.
    let all: Vec<Key> = ["a", "b"].iter().flat_map(|s| (0..9).map(|n| scoped(s, &n.to_string()))).collect();
    let there = all.iter().filter(|key| store.get(key).unwrap().is_some()).count();
    assert_eq!(counts(&store).0, there);
    for key in &all {
        store.forget(key).unwrap();
    }
    assert_eq!(counts(&store), (0, 0, 0, 0));
    for scope in ["a", "b"] {
        let claims: Vec<_> = (0..CLAIMS_MAX)
            .map(|n| fresh(store.begin(&scoped(scope, &n.to_string()), &NONE).unwrap()))
            .collect();
        claims.into_iter().for_each(|claim| claim.abandon().unwrap());
    }
}
