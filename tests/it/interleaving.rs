//! Calls that meet in the middle of a commit, in an order that the test decides.
//!
//! A thread is stopped where it asks for the time: first within its call, with
//! the key's part of the table locked; then, if it is the one who commits,
//! before it writes.

use crate::support::{HookedClock, clock, fresh, hooked, key, print, replay};
use keyonce::{Begin, ErrorKind, Fingerprint, Key, ManualClock, Resolution, Store, StoreBuilder};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::Duration;

const NONE: Fingerprint = Fingerprint::NONE;
const DAY: Duration = Duration::from_secs(24 * 3600);
const LONG: Duration = Duration::from_secs(120);

fn builder(clock: &ManualClock) -> StoreBuilder {
    Store::builder().clock(HookedClock(clock.clone())).live_keys_max(8).open_claims_max(8)
}

/// Starts a call that commits, and stops it before it writes. It goes on when
/// something is sent.
fn committing<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    call: impl FnOnce() -> T + Send + 'scope,
) -> (ScopedJoinHandle<'scope, T>, Sender<()>) {
    let (arrive, there) = channel();
    let (go, wait) = channel();
    let mut asked = 0;
    let hook = move || {
        asked += 1;
        if asked == 2 {
            arrive.send(()).unwrap();
            wait.recv_timeout(LONG).expect("the test lets it go");
        }
    };
    let handle = scope.spawn(move || hooked(hook, call));
    there.recv_timeout(LONG).expect("the call comes to its commit");
    (handle, go)
}

/// Starts a call that changes `key`, and returns when that change is queued
/// behind the commit under way.
fn queued<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    store: &Store,
    key: &Key,
    call: impl FnOnce() -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    let (arrive, there) = channel();
    // Nobody listens to the later ones.
    let hook = move || arrive.send(()).unwrap_or_default();
    let handle = scope.spawn(move || hooked(hook, call));
    there.recv_timeout(LONG).expect("the call comes to its key");
    // It holds the key's lock until its change is queued, and this needs it.
    store.get(key).unwrap();
    handle
}

fn complete(store: &Store, name: &str, response: &str) {
    fresh(store.begin(&key(name), &NONE).unwrap()).complete(response.to_owned()).unwrap();
}

/// What is counted is `live`, by the statistics and by the limits.
#[track_caller]
fn counts(store: &Store, live: usize) {
    let stats = store.stats().unwrap();
    assert_eq!(stats.live_keys, live, "{stats:?}");
    let more: Vec<_> =
        (live..8).map(|n| fresh(store.begin(&key(&format!("more {n}")), &NONE).unwrap())).collect();
    let error = store.begin(&key("too many"), &NONE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitReached);
    more.into_iter().for_each(|claim| claim.abandon().unwrap());
}

#[test]
fn callers_that_wait_for_a_commit_share_the_next() {
    let store = builder(&clock()).live_keys_max(100).open_claims_max(100).open_in_memory().unwrap();
    let before = store.stats().unwrap();
    thread::scope(|scope| {
        let (leader, go) = committing(scope, || fresh(store.begin(&key("leader"), &NONE).unwrap()));
        let keys: Vec<Key> = (0..16).map(|n| key(&format!("{n}"))).collect();
        let waiting: Vec<_> = keys
            .iter()
            .map(|key| {
                let (store, own) = (&store, key.clone());
                queued(scope, store, key, move || fresh(store.begin(&own, &NONE).unwrap()))
            })
            .collect();
        go.send(()).unwrap();
        let mut claims = vec![leader.join().unwrap()];
        claims.extend(waiting.into_iter().map(|caller| caller.join().unwrap()));
        let after = store.stats().unwrap();
        assert_eq!((after.commits - before.commits, after.writes - before.writes), (2, 17));
        claims.into_iter().for_each(|claim| claim.abandon().unwrap());
    });
}

#[test]
fn a_claim_is_seen_by_others_before_it_is_on_disk() {
    let store = builder(&clock()).open_in_memory().unwrap();
    thread::scope(|scope| {
        let (leader, go) = committing(scope, || fresh(store.begin(&key("k"), &NONE).unwrap()));
        assert!(matches!(store.begin(&key("k"), &NONE).unwrap(), Begin::InProgress(_)));
        assert!(matches!(store.begin(&key("k"), &print("b")).unwrap(), Begin::Mismatch(_)));
        assert_eq!(store.forget(&key("k")).unwrap_err().kind(), ErrorKind::WrongState);
        go.send(()).unwrap();
        leader.join().unwrap().abandon().unwrap();
    });
    counts(&store, 0);
}

#[test]
fn a_completion_is_seen_only_when_it_is_on_disk() {
    let store = builder(&clock()).open_in_memory().unwrap();
    let claim = fresh(store.begin(&key("k"), &NONE).unwrap());
    thread::scope(|scope| {
        let (leader, go) = committing(scope, || claim.complete("x").unwrap());
        assert!(matches!(store.begin(&key("k"), &NONE).unwrap(), Begin::InProgress(_)));
        go.send(()).unwrap();
        leader.join().unwrap();
    });
    assert_eq!(replay(store.begin(&key("k"), &NONE).unwrap()).as_bytes(), b"x");
}

#[test]
fn a_key_that_comes_again_while_its_expired_record_is_swept_is_counted_once() {
    for cache in [0, 1 << 20] {
        let clock = clock();
        let store = builder(&clock).replay_cache(cache).open_in_memory().unwrap();
        complete(&store, "k", "old");
        clock.advance(DAY);
        thread::scope(|scope| {
            let (sweeper, go) = committing(scope, || store.sweep().unwrap());
            let again =
                queued(scope, &store, &key("k"), || fresh(store.begin(&key("k"), &print("b")).unwrap()));
            go.send(()).unwrap();
            sweeper.join().unwrap();
            again.join().unwrap().complete("new").unwrap();
        });
        counts(&store, 1);
        assert_eq!(replay(store.begin(&key("k"), &print("b")).unwrap()).as_bytes(), b"new");
        assert_eq!(store.sweep().unwrap(), 0);
        assert!(store.forget(&key("k")).unwrap());
        counts(&store, 0);
    }
}

#[test]
fn a_record_that_expires_while_it_is_being_forgotten_is_counted_out_once() {
    let clock = clock();
    let store = builder(&clock).open_in_memory().unwrap();
    complete(&store, "k", "old");
    thread::scope(|scope| {
        let (leader, go) = committing(scope, || fresh(store.begin(&key("other"), &NONE).unwrap()));
        let forget = queued(scope, &store, &key("k"), || store.forget(&key("k")).unwrap());
        // The leader's own slice of the sweep takes the record first.
        clock.advance(2 * DAY);
        go.send(()).unwrap();
        leader.join().unwrap().abandon().unwrap();
        assert!(forget.join().unwrap());
    });
    counts(&store, 0);
    complete(&store, "k", "new");
    counts(&store, 1);
}

#[test]
fn an_interrupted_key_that_is_taken_while_it_expires_is_not_forgotten() {
    let clock = clock();
    let store = builder(&clock).open_in_memory().unwrap();
    drop(fresh(store.begin(&key("k"), &NONE).unwrap()));
    thread::scope(|scope| {
        let (leader, go) = committing(scope, || fresh(store.begin(&key("other"), &NONE).unwrap()));
        let again = queued(scope, &store, &key("k"), || fresh(store.begin(&key("k"), &NONE).unwrap()));
        clock.advance(2 * DAY);
        // The sweep waits for its turn; the key is not what it was by then.
        let sweeper = queued(scope, &store, &key("k"), || store.sweep().unwrap());
        go.send(()).unwrap();
        sweeper.join().unwrap();
        leader.join().unwrap().abandon().unwrap();
        let again = again.join().unwrap();
        assert_eq!((again.attempt(), again.interrupted()), (2, true));
        assert!(matches!(store.begin(&key("k"), &NONE).unwrap(), Begin::InProgress(_)));
        again.complete("x").unwrap();
    });
    counts(&store, 1);
}

#[test]
fn two_who_resolve_and_forget_one_key_are_both_told_what_became_of_it() {
    let store = builder(&clock()).open_in_memory().unwrap();
    drop(fresh(store.begin(&key("k"), &NONE).unwrap()));
    thread::scope(|scope| {
        let (leader, go) = committing(scope, || fresh(store.begin(&key("other"), &NONE).unwrap()));
        let first = queued(scope, &store, &key("k"), || {
            store.resolve(&key("k"), Resolution::Complete("x".into())).unwrap()
        });
        // Each of these finds the write under way, and waits for its end.
        let forget = queued(scope, &store, &key("k"), || store.forget(&key("k")).unwrap());
        let begin = queued(scope, &store, &key("k"), || store.begin(&key("k"), &NONE).unwrap());
        go.send(()).unwrap();
        assert_eq!(first.join().unwrap().unwrap().as_bytes(), b"x");
        leader.join().unwrap().abandon().unwrap();
        assert!(forget.join().unwrap(), "it was completed, and is forgotten");
        match begin.join().unwrap() {
            Begin::Replay(response) => assert_eq!(response.as_bytes(), b"x"),
            Begin::Fresh(claim) => claim.abandon().unwrap(),
            other => panic!("{other:?}"),
        }
    });
    counts(&store, 0);
    assert_eq!(store.stats().unwrap().interrupted, 0);
}

#[test]
fn what_waits_when_the_store_is_closed_is_written_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.keyonce");
    let clock = clock();
    let store = builder(&clock).open(&path).unwrap();
    let held = fresh(store.begin(&key("held"), &NONE).unwrap());
    let (held, begun) = thread::scope(|scope| {
        let (leader, go) = committing(scope, || fresh(store.begin(&key("leader"), &NONE).unwrap()));
        let complete = queued(scope, &store, &key("held"), || held.complete("x"));
        let begin = queued(scope, &store, &key("new"), || store.begin(&key("new"), &NONE));
        let close = scope.spawn(|| store.clone().close());
        go.send(()).unwrap();
        close.join().unwrap().unwrap();
        drop(leader.join().unwrap());
        (complete.join().unwrap(), begin.join().unwrap())
    });
    drop(store);
    let held = held.map(drop).map_err(|error| error.kind());
    let begun = begun.map(drop).map_err(|error| error.kind());
    let store = builder(&clock).open(&path).unwrap();
    match held {
        Ok(()) => assert_eq!(replay(store.begin(&key("held"), &NONE).unwrap()).as_bytes(), b"x"),
        Err(kind) => {
            assert_eq!(kind, ErrorKind::Closed);
            assert!(fresh(store.begin(&key("held"), &NONE).unwrap()).interrupted());
        }
    }
    match begun {
        Ok(()) => assert!(fresh(store.begin(&key("new"), &NONE).unwrap()).interrupted()),
        Err(kind) => {
            assert_eq!(kind, ErrorKind::Closed);
            assert!(!fresh(store.begin(&key("new"), &NONE).unwrap()).interrupted());
        }
    }
    assert!(fresh(store.begin(&key("leader"), &NONE).unwrap()).interrupted());
}
