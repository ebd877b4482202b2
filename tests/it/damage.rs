//! Damage: bytes on disk that nobody wrote. Whatever they are, the store says
//! so, or answers as it did before; it never gives another answer, and never
//! takes a completed key for a new one without having been told not to look.
//!
//! Damage that is made by hand is here, damage at random in [`copies`].

mod copies;

use crate::support::{clock, fresh, key, print, quietly};
use keyonce::{Begin, ErrorKind, Key, ManualClock, Store};
use redb::{Database, ReadableTable as _, TableDefinition};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("keyonce.meta");
const CLAIMS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("keyonce.claims");
const RECORDS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("keyonce.records");
const PAYLOADS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("keyonce.payloads");

const KEYS: usize = 120;

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
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    refused: usize,
    failed_reads: usize,
    harmless: usize,
    forgotten: usize,
    replays: usize,
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

// The check of this module itself: an undamaged copy is harmless throughout.
#[test]
fn an_undamaged_store_replays_all() {
    let tally = with_tables("nothing", |_| {});
    assert_eq!((tally.harmless, tally.replays, tally.refused), (1, KEYS, 0));
}
