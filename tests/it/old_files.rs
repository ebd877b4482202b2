//! A store that an earlier version wrote opens, with every key as it was left.
//!
//! `KEYONCE_WRITE_FIXTURES=1 cargo test --test it old_files` writes the file
//! anew. That belongs into a change of the format and nowhere else, with a new
//! folder beside the old one.

use crate::support::{builder, clock, fresh, key, print, replay};
use keyonce::{Begin, ErrorKind, Fingerprint, Key, OnInterrupt, Resolution, Status, Store, Timestamp};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

fn fixture() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "fixtures", "v1", "store.keyonce"].iter().collect()
}

/// Bytes that differ from place to place, so that a shifted read shows.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251).to_le_bytes()[0]).collect()
}

/// The completed keys, with what they answer.
fn answers() -> Vec<(Key, Fingerprint, Vec<u8>)> {
    let mut answers = vec![
        (key("empty"), Fingerprint::NONE, Vec::new()),
        (key("short"), print("a"), b"receipt 17".to_vec()),
        (Key::scoped("merchant-7", "short").unwrap(), print("b"), b"receipt 18".to_vec()),
        (Key::scoped("merchant-8", "short").unwrap(), print("b"), b"receipt 19".to_vec()),
        (key("longest inline"), print("a"), pattern(1024)),
        (key("shortest payload"), print("a"), pattern(1025)),
        (key("many pages"), print("a"), pattern(60_000)),
        (Key::new([0, 1, 0xFE, 0xFF]).unwrap(), print("a"), b"any bytes".to_vec()),
        (Key::scoped([b's'; 255], [b'k'; 255]).unwrap(), print("a"), pattern(1024)),
    ];
    answers.extend((0..50_usize).map(|i| (key(&format!("many-{i}")), print("many"), pattern(i * 40))));
    answers
}

fn hold() -> keyonce::StoreBuilder {
    builder(&clock()).on_interrupt(OnInterrupt::Hold)
}

fn write_fixture(path: &Path) {
    let _ = fs::remove_file(path);
    let store = builder(&clock()).open(path).unwrap();
    for (key, print, answer) in answers() {
        fresh(store.begin(&key, &print).unwrap()).complete(answer).unwrap();
    }
    drop(store.begin(&key("interrupted"), &print("a")).unwrap());
    let again = fresh(store.begin(&key("interrupted"), &print("a")).unwrap());
    assert_eq!(again.attempt(), 2);
    drop(again);
    store.close().unwrap();

    let store = hold().open(path).unwrap();
    drop(store.begin(&key("held"), &print("a")).unwrap());
    store.close().unwrap();

    let store = builder(&clock()).retention(Duration::MAX).open(path).unwrap();
    fresh(store.begin(&key("for ever"), &print("a")).unwrap()).complete("always").unwrap();
    store.close().unwrap();

    let store = builder(&clock()).open(path).unwrap();
    let left_open = store.begin(&key("open"), &print("a")).unwrap();
    while store.compact().unwrap() {}
    store.close().unwrap();
    drop(left_open);
}

#[test]
fn a_store_of_format_1_opens_with_every_key_as_it_was_left() {
    if std::env::var_os("KEYONCE_WRITE_FIXTURES").is_some() {
        write_fixture(&fixture());
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.keyonce");
    fs::write(&path, fs::read(fixture()).unwrap()).unwrap();

    let store = builder(&clock()).open(&path).unwrap();
    let answers = answers();
    assert_eq!(store.stats().unwrap().live_keys, answers.len() + 4);
    let day = Timestamp::from_millis(1_780_000_000_000).saturating_add(Duration::from_secs(24 * 3600));
    for (key, print, answer) in &answers {
        let response = replay(store.begin(key, print).unwrap());
        assert!(response.as_bytes() == answer, "{key:?}");
        assert_eq!(response.completed_at(), Timestamp::from_millis(1_780_000_000_000));
        assert_eq!(response.expires_at(), day);
        assert!(matches!(store.begin(key, &Fingerprint::of("another")).unwrap(), Begin::Mismatch(_)));
    }
    let always = replay(store.begin(&key("for ever"), &print("a")).unwrap());
    assert_eq!((always.as_bytes(), always.expires_at()), (&b"always"[..], Timestamp::MAX));

    // Who held a key when the file was closed is gone.
    let mut fences = Vec::new();
    for (name, attempt) in [("open", 2), ("interrupted", 3)] {
        let before = store.get(&key(name)).unwrap().unwrap();
        assert_eq!(before.status(), Status::Interrupted);
        let claim = fresh(store.begin(&key(name), &print("a")).unwrap());
        assert_eq!((claim.attempt(), claim.interrupted()), (attempt, true));
        assert!(claim.fence() > before.fence());
        fences.push(claim.fence());
        claim.complete("at last").unwrap();
    }
    // Held, also by a store that would retry by itself.
    let held = store.begin(&key("held"), &print("a")).unwrap();
    assert!(matches!(held, Begin::InProgress(busy) if busy.interrupted()));
    store.resolve(&key("held"), Resolution::Complete("by hand".into())).unwrap();
    store.close().unwrap();

    // And it is a store like any other from then on.
    let store = builder(&clock()).open(&path).unwrap();
    for (name, answer) in [("open", "at last"), ("interrupted", "at last"), ("held", "by hand")] {
        assert_eq!(replay(store.begin(&key(name), &print("a")).unwrap()).as_bytes(), answer.as_bytes());
    }
    let next = fresh(store.begin(&key("new"), &print("a")).unwrap());
    assert!(fences.iter().all(|fence| next.fence() > *fence));
    assert_eq!(Store::open(&path).unwrap_err().kind(), ErrorKind::AlreadyOpen);
}
