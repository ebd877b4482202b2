//! Threads against one store: what their work did, kept outside of it, is what
//! the store says.

use crate::support::{builder, clock, fresh, key, open, replay, until};
use keyonce::{Begin, Claim, ErrorKind, Fingerprint, Key, Status, Store, StoreBuilder};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

const NONE: Fingerprint = Fingerprint::NONE;

/// A generator of numbers that are the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((self.0 >> 33) % n).unwrap()
    }
}

/// Counts its thread out, however that ends.
struct CountedOut<'a>(&'a AtomicUsize);

impl Drop for CountedOut<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What the callers' work did: the effects, and who is at work.
struct Ledger {
    keys: Vec<Key>,
    effects: Mutex<Vec<usize>>,
    at_work: Vec<AtomicBool>,
    replays: AtomicUsize,
    interrupted: AtomicUsize,
}

fn answer(n: usize) -> Vec<u8> {
    // Some short, some with a row of their own.
    vec![u8::try_from(n % 251).unwrap(); (n * 97) % 1_500]
}

impl Ledger {
    fn new(keys: usize) -> Self {
        Self {
            keys: (0..keys).map(|n| Key::scoped(format!("{}", n % 3), format!("{n}")).unwrap()).collect(),
            effects: Mutex::default(),
            at_work: (0..keys).map(|_| AtomicBool::new(false)).collect(),
            replays: AtomicUsize::new(0),
            interrupted: AtomicUsize::new(0),
        }
    }

    /// One delivery of the request for key `n`.
    fn deliver(&self, store: &Store, n: usize, dice: &mut Dice) {
        let begun = match dice.below(3) {
            0 => store.begin_wait(&self.keys[n], &NONE, Duration::from_millis(dice.below(3) as u64)),
            _ => store.begin(&self.keys[n], &NONE),
        };
        match begun.unwrap() {
            Begin::Fresh(claim) => self.work(n, claim, dice.below(8)),
            Begin::Replay(response) => {
                assert_eq!(response.as_bytes(), answer(n));
                self.replays.fetch_add(1, Ordering::Relaxed);
            }
            Begin::InProgress(busy) => assert!(!busy.interrupted(), "the policy is Retry"),
            Begin::Mismatch(_) => panic!("there is one fingerprint"),
        }
    }

    fn work(&self, n: usize, claim: Claim, how: usize) {
        assert!(!self.at_work[n].swap(true, Ordering::SeqCst), "two hold key {n}");
        self.interrupted.fetch_add(usize::from(claim.interrupted()), Ordering::Relaxed);
        let done = self.effects.lock().unwrap().contains(&n);
        assert!(claim.interrupted() || !done, "an attempt that may have had an effect went unreported");
        assert_eq!(claim.interrupted(), claim.attempt() > 1);
        // Before it ends: afterwards another may have the key.
        let leave = || self.at_work[n].store(false, Ordering::SeqCst);
        if !done {
            match how {
                0 => {
                    leave();
                    return claim.abandon().unwrap();
                }
                1 => {
                    leave();
                    return drop(claim);
                }
                _ => self.effects.lock().unwrap().push(n),
            }
        }
        leave();
        if how == 2 {
            return drop(claim);
        }
        assert_eq!(claim.complete(answer(n)).unwrap().as_bytes(), answer(n));
    }
}

/// Eight threads deliver each key many times, while others sweep and compact.
fn every_effect_once(options: impl Fn() -> StoreBuilder) {
    const KEYS: usize = 150;
    const THREADS: usize = 8;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.keyonce");
    let store = options().open(&path).unwrap();
    let ledger = Ledger::new(KEYS);
    let working = AtomicUsize::new(THREADS);
    thread::scope(|scope| {
        for worker in 0..THREADS {
            let (store, ledger, working) = (&store, &ledger, &working);
            scope.spawn(move || {
                // A worker that panics ends the others' work too.
                let _done = CountedOut(working);
                let mut dice = Dice(worker as u64);
                for _ in 0..300 {
                    ledger.deliver(store, dice.below(KEYS as u64), &mut dice);
                }
            });
        }
        // Keys of its own are forgotten, each once it is completed.
        let (store, working) = (&store, &working);
        scope.spawn(move || {
            let mut dice = Dice(99);
            while working.load(Ordering::SeqCst) > 0 {
                let scratch = key(&format!("scratch {}", dice.below(20)));
                match store.begin(&scratch, &NONE).unwrap() {
                    Begin::Fresh(claim) => drop(claim.complete("x").unwrap()),
                    Begin::Replay(_) => assert!(store.forget(&scratch).unwrap()),
                    other => panic!("{other:?}"),
                }
            }
        });
        scope.spawn(move || {
            while working.load(Ordering::SeqCst) > 0 {
                store.sweep().unwrap();
                store.stats().unwrap();
                store.compact().unwrap();
            }
        });
    });
    let mut dice = Dice(7);
    for n in 0..KEYS {
        // A dozen deliveries more, and no delivery goes wrong for ever.
        (0..12).for_each(|_| ledger.deliver(&store, n, &mut dice));
        if let Begin::Fresh(claim) = store.begin(&ledger.keys[n], &NONE).unwrap() {
            ledger.work(n, claim, 7);
        }
    }
    let mut effects = ledger.effects.lock().unwrap().clone();
    effects.sort_unstable();
    assert_eq!(effects, (0..KEYS).collect::<Vec<_>>(), "each effect once");
    assert!(ledger.replays.load(Ordering::Relaxed) > KEYS);
    assert!(ledger.interrupted.load(Ordering::Relaxed) > 0);

    let stats = store.stats().unwrap();
    assert!(stats.commits < stats.writes, "commits are shared: {stats:?}");
    assert_eq!((stats.open_claims, stats.interrupted, stats.waiting), (0, 0, 0));
    store.close().unwrap();
    let store = options().open(&path).unwrap();
    for n in 0..KEYS {
        assert_eq!(replay(store.begin(&ledger.keys[n], &NONE).unwrap()).as_bytes(), answer(n));
    }
    assert_eq!(store.stats().unwrap().live_keys, stats.live_keys);
}

#[test]
fn effects_are_the_distinct_keys() {
    let clock = clock();
    every_effect_once(|| builder(&clock));
}

#[test]
fn effects_are_the_distinct_keys_where_all_hashes_collide_and_nothing_is_cached() {
    let clock = clock();
    every_effect_once(|| builder(&clock).replay_cache(0).key_hash_for_tests(|_| 3));
}

// A key's row that goes must not look like damage to a reader of another key
// with the same hash.
#[test]
fn forgetting_one_key_does_not_disturb_another_with_the_same_hash() {
    let store = builder(&clock()).replay_cache(0).key_hash_for_tests(|_| 3).open_in_memory().unwrap();
    fresh(store.begin(&key("stays"), &NONE).unwrap()).complete("here").unwrap();
    let working = AtomicUsize::new(12);
    thread::scope(|scope| {
        for worker in 0..12 {
            let (store, working) = (&store, &working);
            scope.spawn(move || {
                for _ in 0..60 {
                    let own = key(&format!("own {worker}"));
                    fresh(store.begin(&own, &NONE).unwrap()).complete("x").unwrap();
                    assert!(store.forget(&own).unwrap());
                }
                working.fetch_sub(1, Ordering::SeqCst);
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                while working.load(Ordering::SeqCst) > 0 {
                    let entry = store.get(&key("stays")).unwrap().unwrap();
                    assert_eq!(entry.response().unwrap().as_bytes(), b"here");
                    assert!(store.get(&key("never seen")).unwrap().is_none());
                }
            });
        }
    });
    assert_eq!(store.stats().unwrap().live_keys, 1);
}

// Everything at once, while time passes: records expire under those who claim,
// forget and sweep them.
#[test]
fn counts_and_holders_are_right_while_records_expire() {
    const KEYS: usize = 12;
    for collide in [false, true] {
        let clock = clock();
        let mut options = builder(&clock).retention(Duration::from_secs(20)).scope_keys_max(KEYS);
        if collide {
            options = options.key_hash_for_tests(|_| 3).replay_cache(0);
        }
        let store = options.open_in_memory().unwrap();
        let ledger = Ledger::new(KEYS);
        let (working, expired) = (AtomicUsize::new(6), AtomicUsize::new(0));
        thread::scope(|scope| {
            for worker in 0..6 {
                let (store, ledger, working, expired) = (&store, &ledger, &working, &expired);
                let clock = &clock;
                scope.spawn(move || {
                    let mut dice = Dice(worker);
                    for _ in 0..400 {
                        let n = dice.below(KEYS as u64);
                        let key = &ledger.keys[n];
                        match dice.below(8) {
                            0 => drop(store.forget(key)),
                            1 => drop(store.get(key).unwrap()),
                            2 => drop(store.sweep().unwrap()),
                            3 => clock.advance(Duration::from_secs(dice.below(30) as u64)),
                            _ => {
                                let Begin::Fresh(claim) = store.begin(key, &NONE).unwrap() else { continue };
                                assert!(!ledger.at_work[n].swap(true, Ordering::SeqCst), "two hold {n}");
                                expired.fetch_add(1, Ordering::Relaxed);
                                ledger.at_work[n].store(false, Ordering::SeqCst);
                                match dice.below(4) {
                                    0 => drop(claim),
                                    1 => claim.abandon().unwrap(),
                                    _ => drop(claim.complete(answer(n)).unwrap()),
                                }
                            }
                        }
                    }
                    working.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        assert!(expired.load(Ordering::Relaxed) > KEYS * 10, "keys came again and again");
        let alive = ledger.keys.iter().filter(|key| store.get(key).unwrap().is_some()).count();
        let stats = store.stats().unwrap();
        assert_eq!(stats.live_keys, alive, "{stats:?}");
        clock.advance(Duration::from_secs(60));
        store.sweep().unwrap();
        let stats = store.stats().unwrap();
        assert_eq!((stats.live_keys, stats.interrupted, stats.open_claims), (0, 0, 0), "{stats:?}");
        // The counters behind the limits are at zero too: each scope is empty.
        for scope in ["0", "1", "2"] {
            let keys: Vec<Key> =
                (0..=KEYS).map(|n| Key::scoped(scope, format!("after {n}")).unwrap()).collect();
            let claims: Vec<Claim> =
                keys[..KEYS].iter().map(|key| fresh(store.begin(key, &NONE).unwrap())).collect();
            let refused = store.begin(&keys[KEYS], &NONE).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::LimitReached);
            claims.into_iter().for_each(|claim| claim.abandon().unwrap());
        }
    }
}

// A close while callers work: each call succeeds, or says so; and what was
// acknowledged is there afterwards, and nothing else.
#[test]
fn closing_under_callers_loses_nothing_that_was_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let clock = clock();
    for round in 0..10 {
        let path = folder.path().join(format!("{round}.keyonce"));
        let store = open(&path, &clock);
        let (completed, claimed) = (Mutex::new(BTreeSet::new()), Mutex::new(BTreeSet::new()));
        thread::scope(|scope| {
            for worker in 0..8 {
                let (store, completed, claimed) = (&store, &completed, &claimed);
                scope.spawn(move || {
                    for n in 0.. {
                        let name = format!("{worker}-{n}");
                        let claim = match store.begin(&key(&name), &NONE) {
                            Ok(begun) => fresh(begun),
                            Err(error) => return assert_eq!(error.kind(), ErrorKind::Closed),
                        };
                        match claim.complete(name.clone()) {
                            Ok(_) => assert!(completed.lock().unwrap().insert(name)),
                            Err(error) => {
                                assert_eq!(error.kind(), ErrorKind::Closed);
                                assert!(claimed.lock().unwrap().insert(name));
                                return;
                            }
                        }
                    }
                });
            }
            until(|| completed.lock().unwrap().len() > 20 + 7 * round);
            store.clone().close().unwrap();
        });
        drop(store);
        let (completed, claimed) = (completed.into_inner().unwrap(), claimed.into_inner().unwrap());
        let store = open(&path, &clock);
        for name in &completed {
            assert_eq!(replay(store.begin(&key(name), &NONE).unwrap()).as_bytes(), name.as_bytes());
        }
        for name in &claimed {
            assert_eq!(store.get(&key(name)).unwrap().unwrap().status(), Status::Interrupted);
        }
        let stats = store.stats().unwrap();
        assert_eq!((stats.completed, stats.interrupted), (completed.len(), claimed.len()), "round {round}");
    }
}
