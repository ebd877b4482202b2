//! Damage: bytes on disk that nobody wrote. Whatever they are, the store says
//! so, or answers as it did before; it never gives another answer, and never
//! takes a completed key for a new one without having been told not to look.
//!
//! `KEYONCE_DAMAGED_COPIES` sets how many damaged copies of a file are tried
//! (default: 300).

use crate::support::{clock, fresh, key, print, quietly};
use keyonce::{Begin, ErrorKind, Key, ManualClock, Store};
use redb::{Database, ReadableTable as _, TableDefinition};
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("keyonce.meta");
const CLAIMS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("keyonce.claims");
const RECORDS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("keyonce.records");
const PAYLOADS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("keyonce.payloads");

const KEYS: usize = 120;
const PAGE: usize = 4096;

fn name(n: usize) -> Key {
    key(&format!("key {n}"))
}

/// Every seventh answer has a payload of its own.
fn answer(salt: u8, n: usize) -> Vec<u8> {
    vec![salt.wrapping_add(u8::try_from(n).unwrap()); if n.is_multiple_of(7) { 3_000 } else { 40 }]
}

/// A closed store: completed keys, one interrupted.
fn make(path: &Path, salt: u8, clock: &ManualClock) {
    let store = Store::builder().clock(clock.clone()).open(path).unwrap();
    for n in 0..KEYS {
        fresh(store.begin(&name(n), &print("a")).unwrap()).complete(answer(salt, n)).unwrap();
    }
    drop(fresh(store.begin(&key("cut off"), &print("a")).unwrap()));
    store.close().unwrap();
}

/// What looking at a damaged store came to.
#[derive(Default)]
struct Tally {
    refused: usize,
    failed_reads: usize,
    harmless: usize,
    forgotten: usize,
    replays: usize,
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % n
    }
}

impl Tally {
    /// Opens the store and asks for every key. `may_forget`: whether a key that
    /// is not found is allowed.
    fn look(&mut self, path: &Path, clock: &ManualClock, check: bool, may_forget: bool, what: &str) {
        let opened = quietly(|| {
            catch_unwind(AssertUnwindSafe(|| {
                Store::builder().clock(clock.clone()).check_on_open(check).replay_cache(0).open(path)
            }))
        });
        let store = match opened.unwrap_or_else(|_| panic!("a panic escaped from open: {what}")) {
            Ok(store) => store,
            Err(error) => {
                assert!(
                    matches!(
                        error.kind(),
                        ErrorKind::Corrupted
                            | ErrorKind::NotAStore
                            | ErrorKind::ForeignDatabase
                            | ErrorKind::NewerFormat
                            | ErrorKind::StorageFailed
                            | ErrorKind::Io
                    ),
                    "{what}: {error:?}"
                );
                self.refused += 1;
                return;
            }
        };
        self.ask(&store, may_forget, what);
        quietly(|| catch_unwind(AssertUnwindSafe(|| drop(store.close()))))
            .unwrap_or_else(|_| panic!("a panic escaped from close: {what}"));
    }

    fn ask(&mut self, store: &Store, may_forget: bool, what: &str) {
        let (mut failed, mut forgotten) = (0, 0);
        for n in 0..KEYS {
            let begun = quietly(|| catch_unwind(AssertUnwindSafe(|| store.begin(&name(n), &print("a")))));
            match begun.unwrap_or_else(|_| panic!("a panic escaped from begin: {what}")) {
                Ok(Begin::Replay(response)) => {
                    assert_eq!(response.as_bytes(), answer(1, n), "another answer: {what}");
                    self.replays += 1;
                }
                Ok(Begin::Fresh(_)) => forgotten += 1,
                Ok(other) => panic!("{what}: key {n}: {other:?}"),
                Err(error) => {
                    assert!(
                        matches!(
                            error.kind(),
                            ErrorKind::Corrupted | ErrorKind::StorageFailed | ErrorKind::OutcomeUnknown
                        ),
                        "{what}: {error:?}"
                    );
                    failed += 1;
                }
            }
        }
        assert!(may_forget || forgotten == 0, "{forgotten} completed keys are taken for new ones: {what}");
        self.failed_reads += usize::from(failed > 0);
        self.forgotten += forgotten;
        self.harmless += usize::from(failed + forgotten == 0);
    }

    fn report(&self, what: &str) {
        println!(
            "{what}: {} refused at open, {} failed reads, {} harmless, {} keys forgotten, {} replays",
            self.refused, self.failed_reads, self.harmless, self.forgotten, self.replays
        );
    }
}

/// Changes a store's tables with plain redb, and looks at it.
fn with_tables(what: &str, change: impl FnOnce(&redb::WriteTransaction)) -> Tally {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.keyonce");
    let clock = clock();
    make(&path, 1, &clock);
    let database = Database::open(&path).unwrap();
    let transaction = database.begin_write().unwrap();
    change(&transaction);
    transaction.commit().unwrap();
    database.close().unwrap();
    let mut tally = Tally::default();
    tally.look(&path, &clock, true, false, what);
    tally
}

fn rows(transaction: &redb::WriteTransaction, table: TableDefinition<'_, u64, &[u8]>) -> Vec<(u64, Vec<u8>)> {
    let table = transaction.open_table(table).unwrap();
    let rows = table.iter().unwrap().map(|row| row.unwrap());
    rows.map(|(at, row)| (at.value(), row.value().to_vec())).collect()
}

fn put(transaction: &redb::WriteTransaction, table: TableDefinition<'_, u64, &[u8]>, at: u64, row: &[u8]) {
    transaction.open_table(table).unwrap().insert(at, row).unwrap();
}

fn take(transaction: &redb::WriteTransaction, table: TableDefinition<'_, u64, &[u8]>, at: u64) {
    transaction.open_table(table).unwrap().remove(at).unwrap();
}

#[test]
fn hostile_rows_in_any_table_are_refused() {
    let garbage: [&[u8]; 4] = [b"", b"\x01", &[0xff; 60], &[1; 5_000]];
    for (which, table) in [("claims", CLAIMS), ("records", RECORDS)] {
        for row in garbage {
            for extra in [false, true] {
                let tally = with_tables(&format!("{} bytes in {which}", row.len()), |transaction| {
                    let (at, _) = rows(transaction, table)[0];
                    put(transaction, table, if extra { at + 1 } else { at }, row);
                });
                assert_eq!((tally.refused, tally.replays), (1, 0), "{which}");
            }
        }
    }
    for what in ["garbage", "removed", "swapped", "of another record"] {
        let tally = with_tables(what, |transaction| {
            let payloads = rows(transaction, PAYLOADS);
            match what {
                "garbage" => put(transaction, PAYLOADS, payloads[0].0, &[1; 3_009]),
                "removed" => take(transaction, PAYLOADS, payloads[0].0),
                "swapped" => {
                    put(transaction, PAYLOADS, payloads[0].0, &payloads[1].1);
                    put(transaction, PAYLOADS, payloads[1].0, &payloads[0].1);
                }
                _ => put(transaction, PAYLOADS, payloads[0].0, &payloads[2].1),
            }
        });
        // Payloads are read when they are asked for, and only they are lost.
        assert_eq!((tally.refused, tally.failed_reads), (0, 1), "{what}");
        assert_eq!(tally.replays, KEYS - if what == "swapped" { 2 } else { 1 });
    }
}

#[test]
fn valid_rows_in_the_wrong_place_are_refused() {
    for what in ["swapped", "moved", "doubled", "a record as a claim", "a claim as a record"] {
        let tally = with_tables(what, |transaction| {
            let records = rows(transaction, RECORDS);
            let claim = &rows(transaction, CLAIMS)[0];
            let ((one, first), (other, second)) = (&records[3], &records[4]);
            match what {
                "swapped" => {
                    put(transaction, RECORDS, *one, second);
                    put(transaction, RECORDS, *other, first);
                }
                "moved" => {
                    take(transaction, RECORDS, *one);
                    put(transaction, RECORDS, one + (1 << 30), first);
                }
                "doubled" => put(transaction, RECORDS, one + (1 << 30), first),
                "a record as a claim" => put(transaction, CLAIMS, claim.0 + 1, first),
                _ => put(transaction, RECORDS, one + (1 << 30), &claim.1),
            }
        });
        assert_eq!((tally.refused, tally.replays), (1, 0), "{what}");
    }
}

#[test]
fn rows_of_another_store_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other.keyonce");
    make(&other, 100, &clock());
    let database = Database::open(&other).unwrap();
    let transaction = database.begin_write().unwrap();
    let theirs = rows(&transaction, RECORDS);
    transaction.abort().unwrap();
    let tally = with_tables("a row of another store", |transaction| {
        assert!(rows(transaction, RECORDS).iter().any(|(at, _)| *at == theirs[5].0), "the same place");
        put(transaction, RECORDS, theirs[5].0, &theirs[5].1);
    });
    assert_eq!((tally.refused, tally.replays), (1, 0));
}

#[test]
fn a_damaged_or_missing_table_is_refused() {
    for row in ["header", "marks"] {
        for bytes in [None, Some(&b"\x01"[..]), Some(&[0xff; 30])] {
            let tally = with_tables(&format!("{row}: {bytes:?}"), |transaction| {
                let mut meta = transaction.open_table(META).unwrap();
                match bytes {
                    None => drop(meta.remove(row).unwrap()),
                    Some(bytes) => drop(meta.insert(row, bytes).unwrap()),
                }
            });
            assert_eq!((tally.refused, tally.replays), (1, 0), "{row}");
        }
    }
    for table in [CLAIMS, RECORDS, PAYLOADS] {
        let tally = with_tables("missing", |transaction| assert!(transaction.delete_table(table).unwrap()));
        assert_eq!((tally.refused, tally.replays), (1, 0));
        let tally = with_tables("of another type", |transaction| {
            let wrong: TableDefinition<'_, &str, u32> = TableDefinition::new(redb::TableHandle::name(&table));
            transaction.delete_table(table).unwrap();
            transaction.open_table(wrong).unwrap().insert("a", 1).unwrap();
        });
        assert_eq!((tally.refused, tally.replays), (1, 0));
    }
}

fn copies() -> usize {
    std::env::var("KEYONCE_DAMAGED_COPIES").map_or(300, |copies| copies.parse().expect("a number of copies"))
}

/// Damages `bytes` in one of six ways; says how.
fn damage(bytes: &mut Vec<u8>, other: &[u8], dice: &mut Dice) -> String {
    let page = |dice: &mut Dice, bytes: &[u8]| dice.below(bytes.len() / PAGE) * PAGE;
    match dice.below(6) {
        0 => {
            let (at, bit) = (dice.below(bytes.len()), dice.below(8));
            bytes[at] ^= 1 << bit;
            format!("bit {bit} of byte {at}")
        }
        1 => {
            // Where something is: most of a small file is not in use.
            let used: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at] != 0).collect();
            let at = used[dice.below(used.len())];
            bytes[at] = bytes[at].wrapping_add(1 + u8::try_from(dice.below(255)).unwrap());
            format!("byte {at}")
        }
        2 => {
            let len = dice.below(bytes.len());
            bytes.truncate(len);
            format!("cut to {len} bytes")
        }
        3 => {
            let at = page(dice, bytes);
            bytes[at..at + PAGE].fill(0);
            format!("zeros at {at}")
        }
        4 => {
            let (one, two) = (page(dice, bytes), page(dice, bytes));
            let kept = bytes[one..one + PAGE].to_vec();
            bytes.copy_within(two..two + PAGE, one);
            bytes[two..two + PAGE].copy_from_slice(&kept);
            format!("pages at {one} and {two} swapped")
        }
        _ => {
            let at = page(dice, &bytes[..bytes.len().min(other.len())]);
            bytes[at..at + PAGE].copy_from_slice(&other[at..at + PAGE]);
            format!("the page at {at} of another store")
        }
    }
}

fn damaged_copies(check: bool, copies: usize) -> Tally {
    let folder = tempfile::tempdir().unwrap();
    let (path, copy) = (folder.path().join("s.keyonce"), folder.path().join("copy.keyonce"));
    let clock = clock();
    make(&path, 1, &clock);
    make(&folder.path().join("other"), 100, &clock);
    let (good, other) = (fs::read(&path).unwrap(), fs::read(folder.path().join("other")).unwrap());
    let mut dice = Dice(20);
    let mut tally = Tally::default();
    for number in 0..copies {
        let mut bytes = good.clone();
        let what = format!("copy {number}: {}", damage(&mut bytes, &other, &mut dice));
        fs::write(&copy, &bytes).unwrap();
        tally.look(&copy, &clock, check, !check, &what);
    }
    tally
}

#[test]
fn a_damaged_file_is_an_error_or_answers_as_before() {
    let tally = damaged_copies(true, copies());
    tally.report("checked");
    assert!(tally.refused > 0 && tally.harmless > 0 && tally.replays > 0);
    assert_eq!(tally.forgotten, 0);
}

#[test]
fn without_the_check_a_damaged_file_never_gives_another_answer() {
    let tally = damaged_copies(false, copies() / 2);
    tally.report("unchecked");
    assert!(tally.refused > 0 && tally.harmless > 0 && tally.replays > 0);
}

// Damage can come after the open. Nothing is in memory but the index.
#[test]
fn damage_under_an_open_store_never_gives_another_answer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.keyonce");
    let clock = clock();
    make(&path, 1, &clock);
    let good = fs::read(&path).unwrap();
    let (mut dice, mut tally) = (Dice(5), Tally::default());
    for round in 0..copies() / 10 {
        fs::write(&path, &good).unwrap();
        let options = Store::builder().clock(clock.clone()).replay_cache(0).storage_cache(0);
        let store = options.open(&path).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        let used: Vec<usize> = (PAGE..good.len()).filter(|&at| good[at] != 0).collect();
        for _ in 0..20 {
            let at = used[dice.below(used.len())];
            file.write_all_at(&[good[at] ^ (1 << dice.below(8))], at as u64).unwrap();
        }
        // A key is never taken for a new one: the index knows it.
        tally.ask(&store, false, &format!("round {round}"));
        assert!(matches!(store.get(&key("cut off")), Ok(Some(entry)) if entry.fingerprint() == print("a")));
        let _ = quietly(|| catch_unwind(AssertUnwindSafe(|| store.close())))
            .unwrap_or_else(|_| panic!("a panic escaped from close: round {round}"));
    }
    tally.report("while open");
    assert!(tally.failed_reads > 0 && tally.replays > 0);
}

// The check of this module itself: an undamaged copy is harmless throughout.
#[test]
fn an_undamaged_store_replays_all() {
    let tally = with_tables("nothing", |_| {});
    assert_eq!((tally.harmless, tally.replays, tally.refused), (1, KEYS, 0));
}
