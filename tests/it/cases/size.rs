//! Size: keys at their limits, memory and file after a burst, a long sweep.

use crate::support::{HookedClock, builder, clock, fresh, hooked, key, open, replay};
use keyonce::{Begin, ErrorKind, Fingerprint, Key, Store};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

const NONE: Fingerprint = Fingerprint::NONE;
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Completes `count` keys, by several threads, so that commits are shared.
fn fill(store: &Store, prefix: &str, count: usize, response: &[u8]) {
    const THREADS: usize = 16;
    thread::scope(|scope| {
        for worker in 0..THREADS {
            scope.spawn(move || {
                for n in (worker..count).step_by(THREADS) {
                    let claim = fresh(store.begin(&key(&format!("{prefix}{n}")), &NONE).unwrap());
                    claim.complete(response.to_vec()).unwrap();
                }
            });
        }
    });
}

// C3: many keys, each used once.
#[test]
fn memory_returns_to_what_live_keys_need() {
    const KEYS: usize = 6_000;
    let clock = clock();
    // All in one part of the table, which then has to grow and to shrink.
    let one_shard = |key: &[u8]| {
        let hash = key.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        hash & !(0xff << 40)
    };
    let store = builder(&clock).key_hash_for_tests(one_shard).replay_cache(1 << 20).open_in_memory().unwrap();
    let mut after = Vec::new();
    for burst in ["a", "b", "c"] {
        fill(&store, burst, KEYS, b"an answer");
        let full = store.stats().unwrap();
        assert_eq!(full.live_keys, KEYS);
        assert!(full.index_bytes <= 40 * KEYS, "{full:?}");
        clock.advance(DAY);
        store.sweep().unwrap();
        let empty = store.stats().unwrap();
        assert_eq!((empty.live_keys, empty.waiting, empty.replay_cache_bytes), (0, 0, 0), "{empty:?}");
        assert!(empty.index_bytes < full.index_bytes / 4, "{full:?} {empty:?}");
        after.push((full.index_bytes, empty.index_bytes));
    }
    assert!(after.iter().all(|bytes| *bytes == after[0]), "no burst leaves more than the last: {after:?}");
}

// The replay cache has its size, however many keys went through it.
#[test]
fn the_replay_cache_keeps_within_its_bytes() {
    let store = builder(&clock()).replay_cache(256 << 10).open_in_memory().unwrap();
    fill(&store, "k", 3_000, &[7; 300]);
    for n in 0..3_000 {
        let response = replay(store.begin(&key(&format!("k{n}")), &NONE).unwrap());
        assert_eq!(response.as_bytes(), [7; 300]);
    }
    let stats = store.stats().unwrap();
    assert!(stats.replay_cache_bytes > 100 << 10, "{stats:?}");
    // One that is just being asked for may be over it in each of 64 parts.
    assert!(stats.replay_cache_bytes <= (256 << 10) + 64 * 700, "{stats:?}");
}

// C33: a long sweep while callers work. Before each slice a caller claims and
// completes a key; within each, others are answered that write nothing.
#[test]
fn callers_go_on_in_the_middle_of_a_long_sweep() {
    const RECORDS: usize = 20_000;
    let clock = clock();
    let store = Store::builder().clock(HookedClock(clock.clone())).open_in_memory().unwrap();
    fill(&store, "old", RECORDS, b"x");
    clock.advance(DAY);
    fresh(store.begin(&key("replayed"), &NONE).unwrap()).complete("young").unwrap();
    let held = fresh(store.begin(&key("held"), &NONE).unwrap());
    let before = store.stats().unwrap();

    let (ask, asked) = mpsc::channel();
    let (answered, answer) = mpsc::channel();
    let mut swept = Vec::new();
    thread::scope(|scope| {
        let store = &store;
        let sweeper = scope.spawn(move || {
            // A slice asks for the time before its commit, then within it.
            let mut within_commit = [false, true].into_iter().cycle();
            let hook = move || {
                ask.send(within_commit.next().unwrap()).unwrap();
                answer.recv_timeout(Duration::from_secs(120)).expect("a caller waited for the sweep");
            };
            hooked(hook, || store.sweep().unwrap())
        });
        for (round, within_commit) in asked.iter().enumerate() {
            if within_commit {
                replay(store.begin(&key("replayed"), &NONE).unwrap());
                assert!(matches!(store.begin(&key("held"), &NONE).unwrap(), Begin::InProgress(_)));
                assert!(store.get(&key("nobody")).unwrap().is_none());
            } else {
                let claim = fresh(store.begin(&key(&format!("new{round}")), &NONE).unwrap());
                claim.complete("x").unwrap();
                swept.push(store.stats().unwrap().swept - before.swept);
            }
            answered.send(()).unwrap();
        }
        assert!(sweeper.join().unwrap() > RECORDS / 2);
    });
    // The caller's writes fell between slices, each a small part of the whole.
    let steps: Vec<u64> = swept.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(steps.iter().filter(|&&step| step > 0).count() >= 4, "{swept:?}");
    assert!(steps.iter().all(|&step| step < RECORDS as u64 / 4), "{swept:?}");
    held.complete("x").unwrap();
}

// C34: keys of 0, 1, 255 and 256 bytes, and with bytes that a terminal obeys.
#[test]
fn keys_at_their_limits_work_or_are_told_the_limit_and_print_as_one_plain_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.keyonce");
    let clock = clock();
    for (len, message) in [
        (0, "the key is empty: it must have 1 to 255 bytes"),
        (256, "the key has 256 bytes: it must have 1 to 255"),
    ] {
        let error = Key::scoped("s", vec![b'k'; len]).unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::InvalidInput, message));
        let error = Key::scoped(vec![b's'; len], "k").unwrap_err();
        assert_eq!(error.to_string(), message.replace("key", "scope"));
    }
    let (short, long) = (vec![b'x'; 1], vec![0xff; 255]);
    let keys = [
        Key::new(&short).unwrap(),
        Key::new(&long).unwrap(),
        Key::scoped(&long, &short).unwrap(),
        Key::scoped(&short, &long).unwrap(),
        Key::scoped(&long, &long).unwrap(),
        Key::scoped("a\0b", "line\nline\r\u{2028}\u{85}").unwrap(),
        Key::scoped("\u{1b}[2J", "\u{202e}evil 🦀 <b>").unwrap(),
    ];
    // With a payload of its own, and without.
    for len in [3, 2_000] {
        let store = open(&path, &clock);
        for key in &keys {
            fresh(store.begin(key, &NONE).unwrap()).complete(vec![9; len]).unwrap();
        }
        store.close().unwrap();
        let store = open(&path, &clock);
        for key in &keys {
            assert_eq!(replay(store.begin(key, &NONE).unwrap()).as_bytes(), vec![9; len]);
            for shown in [format!("{key}"), format!("{key:?}"), format!("{:?}", store.get(key).unwrap())] {
                let plain = |c: char| !c.is_control() && !matches!(c, '\u{2028}' | '\u{202e}' | '<');
                assert!(shown.chars().all(plain), "{shown}");
            }
            let error = store.resolve(key, keyonce::Resolution::Free).unwrap_err().to_string();
            assert!(error.contains(&key.to_string()) && !error.contains(char::is_control), "{error}");
        }
        for key in &keys {
            assert!(store.forget(key).unwrap());
        }
        store.close().unwrap();
    }
}

fn len(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().len()
}

// C35: the file has grown by a burst and is swept empty.
#[test]
fn a_second_burst_uses_the_pages_of_the_first_and_compact_gives_them_back() {
    const KEYS: usize = 3_000;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.keyonce");
    let clock = clock();
    let store = open(&path, &clock);
    let empty = len(&path);
    let mut bursts = Vec::new();
    for burst in ["a", "b", "c", "d", "e", "f"] {
        fill(&store, burst, KEYS, &[5; 3_000]);
        bursts.push(len(&path));
        clock.advance(DAY);
        assert!(store.sweep().unwrap() > 0);
        assert_eq!(store.stats().unwrap().live_keys, 0);
    }
    assert!(bursts[0] > empty + (KEYS * 3_000) as u64, "{bursts:?}");
    // It may grow once more, because free pages need not lie together.
    let (early, late) = bursts.split_at(3);
    assert!(bursts.iter().all(|len| *len < 2 * bursts[0]), "the file grew again: {bursts:?}");
    assert!(late.iter().max() <= early.iter().max(), "the file grew again: {bursts:?}");
    assert!(store.compact().unwrap());
    assert!(len(&path) < bursts[0] / 2, "{} of {bursts:?}", len(&path));
    assert!(!store.compact().unwrap(), "there is nothing more to give back");
    fill(&store, "d", 10, b"x");
    store.close().unwrap();
    let store = open(&path, &clock);
    assert_eq!(store.stats().unwrap().live_keys, 10);
}
