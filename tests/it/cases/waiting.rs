//! Callers of `begin_wait`: who is woken, in which order, and that nobody is
//! forgotten.

use crate::support::{builder, clock, fresh, key, print, until};
use keyonce::{Begin, Claim, ErrorKind, Fingerprint, Key, OnInterrupt, Resolution, Result, Store};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::Duration;

const NONE: Fingerprint = Fingerprint::NONE;
const LONG: Duration = Duration::from_secs(120);

fn held(store: &Store, key: &Key) -> Claim {
    fresh(store.begin(key, &NONE).unwrap())
}

/// Starts one caller that waits, and sees it in the queue.
fn waiter<'scope, 'env, T: Send + 'scope>(
    scope: &'scope Scope<'scope, 'env>,
    store: &'env Store,
    key: &'env Key,
    then: impl FnOnce(Result<Begin>) -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    let before = store.stats().unwrap().waiting;
    let handle = scope.spawn(move || then(store.begin_wait(key, &NONE, LONG)));
    until(|| store.stats().unwrap().waiting == before + 1);
    handle
}

#[track_caller]
fn at_rest(store: &Store) {
    let stats = store.stats().unwrap();
    assert_eq!((stats.waiting, stats.open_claims), (0, 0), "{stats:?}");
}

// C4: the holder panics while others wait.
#[test]
fn of_those_who_wait_for_a_holder_that_panics_one_gets_the_key_and_all_are_woken() {
    let store = Store::in_memory().unwrap();
    let key = key("k");
    let claim = held(&store, &key);
    let (winners, replays) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..8 {
            waiter(scope, &store, &key, |begun| match begun.unwrap() {
                Begin::Fresh(claim) => {
                    assert_eq!((claim.attempt(), claim.interrupted()), (2, true));
                    winners.fetch_add(1, Ordering::Relaxed);
                    claim.complete("done").unwrap();
                }
                Begin::Replay(response) => {
                    assert_eq!(response.as_bytes(), b"done");
                    replays.fetch_add(1, Ordering::Relaxed);
                }
                other => panic!("{other:?}"),
            });
        }
        let panicked = scope.spawn(move || {
            let _claim = claim;
            std::panic::resume_unwind(Box::new("the holder panics"));
        });
        assert!(panicked.join().is_err());
    });
    assert_eq!((winners.into_inner(), replays.into_inner()), (1, 7));
    at_rest(&store);
    assert_eq!(store.stats().unwrap().interrupted, 0);
}

#[test]
fn those_who_wait_get_the_key_in_the_order_in_which_they_came() {
    for how in ["abandon", "drop", "free", "forget"] {
        let policy = if how == "free" || how == "forget" { OnInterrupt::Hold } else { OnInterrupt::Retry };
        let store = builder(&clock()).on_interrupt(policy).open_in_memory().unwrap();
        let key = key("k");
        let order = Mutex::new(Vec::new());
        let end = |claim: Claim| match how {
            "abandon" => claim.abandon().unwrap(),
            "drop" => drop(claim),
            "free" => {
                drop(claim);
                store.resolve(&key, Resolution::Free).map(drop).unwrap();
            }
            _ => {
                drop(claim);
                assert!(store.forget(&key).unwrap());
            }
        };
        let claim = held(&store, &key);
        thread::scope(|scope| {
            for n in 0..10 {
                let (order, end) = (&order, &end);
                waiter(scope, &store, &key, move |begun| {
                    let claim = fresh(begun.unwrap());
                    order.lock().unwrap().push(n);
                    end(claim);
                });
            }
            end(claim);
        });
        assert_eq!(order.into_inner().unwrap(), (0..10).collect::<Vec<_>>(), "{how}");
        at_rest(&store);
    }
}

#[test]
fn a_completion_answers_everyone_who_waits() {
    let store = Store::in_memory().unwrap();
    let key = key("k");
    let claim = held(&store, &key);
    thread::scope(|scope| {
        for _ in 0..10 {
            waiter(scope, &store, &key, |begun| {
                assert!(matches!(begun.unwrap(), Begin::Replay(answer) if answer.as_bytes() == b"x"));
            });
        }
        claim.complete("x").unwrap();
    });
    at_rest(&store);
}

#[test]
fn a_resolution_answers_everyone_who_waits_for_a_held_key() {
    let store = builder(&clock()).on_interrupt(OnInterrupt::Hold).open_in_memory().unwrap();
    let key = key("k");
    let claim = held(&store, &key);
    thread::scope(|scope| {
        let waiters: Vec<_> = (0..4).map(|_| waiter(scope, &store, &key, |begun| begun.unwrap())).collect();
        // Under Hold an interruption gives them nothing.
        drop(claim);
        assert_eq!(store.stats().unwrap().waiting, 4);
        store.resolve(&key, Resolution::Complete("x".into())).unwrap();
        for waiter in waiters {
            assert!(matches!(waiter.join().unwrap(), Begin::Replay(answer) if answer.as_bytes() == b"x"));
        }
    });
    at_rest(&store);
}

#[test]
fn one_whose_time_runs_out_leaves_and_does_not_take_the_turn_of_the_next() {
    let store = Store::in_memory().unwrap();
    let key = key("k");
    let claim = held(&store, &key);
    thread::scope(|scope| {
        let first = scope.spawn(|| store.begin_wait(&key, &NONE, Duration::from_millis(300)).unwrap());
        until(|| store.stats().unwrap().waiting == 1);
        let second = waiter(scope, &store, &key, |begun| begun.unwrap());
        assert!(matches!(first.join().unwrap(), Begin::InProgress(_)));
        assert_eq!(store.stats().unwrap().waiting, 1);
        claim.abandon().unwrap();
        fresh(second.join().unwrap()).abandon().unwrap();
    });
    at_rest(&store);
    assert_eq!(store.stats().unwrap().live_keys, 0);
}

// Who is woken for a key that it cannot take must wake the next.
#[test]
fn one_who_cannot_take_the_key_wakes_the_next() {
    let store = builder(&clock()).open_claims_max(1).open_in_memory().unwrap();
    let key = key("k");
    let claim = held(&store, &key);
    thread::scope(|scope| {
        let waiters: Vec<_> = (0..4)
            .map(|_| {
                waiter(scope, &store, &key, |begun| match begun {
                    Ok(Begin::Fresh(claim)) => claim.abandon().map_err(keyonce::Error::from),
                    Ok(other) => panic!("{other:?}"),
                    Err(error) => Err(error),
                })
            })
            .collect();
        claim.abandon().unwrap();
        // Whether another key takes the only place meanwhile or not, each of
        // the four is told something.
        let other = store.begin(&crate::support::key("other"), &print("o"));
        for waiter in waiters {
            if let Err(error) = waiter.join().unwrap() {
                assert_eq!(error.kind(), ErrorKind::LimitReached);
            }
        }
        drop(other);
    });
    assert_eq!(store.stats().unwrap().waiting, 0);
}

// A wake that meets a time-out at the same instant must not get lost.
#[test]
fn no_turn_is_lost_where_time_outs_and_ends_meet() {
    let store = Store::in_memory().unwrap();
    let key = key("k");
    let (patient, hasty) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for n in 0..3_u64 {
            let (store, key, hasty) = (&store, &key, &hasty);
            scope.spawn(move || {
                for round in 0..700_u64 {
                    let timeout = Duration::from_micros((round * 7 + n * 13) % 120);
                    if let Begin::Fresh(claim) = store.begin_wait(key, &NONE, timeout).unwrap() {
                        hasty.fetch_add(1, Ordering::Relaxed);
                        claim.abandon().unwrap();
                    }
                }
            });
        }
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..100 {
                    // Nobody holds the key for long, so this never runs out.
                    fresh(store.begin_wait(&key, &NONE, LONG).unwrap()).abandon().unwrap();
                    patient.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(patient.into_inner(), 300);
    assert!(hasty.into_inner() > 0);
    at_rest(&store);
}

#[test]
fn closing_wakes_everyone_who_waits() {
    for policy in [OnInterrupt::Retry, OnInterrupt::Hold] {
        let store = builder(&clock()).on_interrupt(policy).open_in_memory().unwrap();
        let (open, cut) = (key("open"), key("cut"));
        let claim = held(&store, &open);
        let interrupted = held(&store, &cut);
        thread::scope(|scope| {
            let closed = |begun: Result<Begin>| begun.unwrap_err().kind();
            let mut waiters: Vec<_> = (0..4).map(|_| waiter(scope, &store, &open, closed)).collect();
            if policy == OnInterrupt::Hold {
                drop(interrupted);
                waiters.extend((0..4).map(|_| waiter(scope, &store, &cut, closed)));
            }
            store.clone().close().unwrap();
            for waiter in waiters {
                assert_eq!(waiter.join().unwrap(), ErrorKind::Closed);
            }
        });
        drop(claim);
    }
}

#[test]
fn every_call_on_a_closed_store_is_told_so() {
    let store = Store::in_memory().unwrap();
    for (name, end) in [("done", true), ("open", false)] {
        let claim = held(&store, &key(name));
        if end {
            claim.complete("x").unwrap();
        } else {
            std::mem::forget(claim);
        }
    }
    drop(held(&store, &key("cut")));
    store.clone().close().unwrap();
    for name in ["done", "open", "cut", "new"] {
        let key = key(name);
        let calls: [(&str, keyonce::Error); 5] = [
            ("begin", store.begin(&key, &NONE).unwrap_err()),
            ("begin_wait", store.begin_wait(&key, &NONE, LONG).unwrap_err()),
            ("get", store.get(&key).unwrap_err()),
            ("forget", store.forget(&key).unwrap_err()),
            ("resolve", store.resolve(&key, Resolution::Free).unwrap_err()),
        ];
        for (call, error) in calls {
            assert_eq!(error.kind(), ErrorKind::Closed, "{call} of {name}");
        }
        assert_eq!(store.begin(&key, &print("b")).unwrap_err().kind(), ErrorKind::Closed);
    }
    assert_eq!(store.sweep().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(store.compact().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(store.stats().unwrap_err().kind(), ErrorKind::Closed);
    store.close().unwrap();
}
