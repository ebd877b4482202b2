//! SQLite in WAL mode with `synchronous = FULL`: every commit is one write to
//! the WAL and one sync of it. (`NORMAL` syncs only at checkpoints, and can lose
//! what it acknowledged.)
//!
//! - `WITHOUT ROWID`: the key is the table's own B-tree, so a change touches one
//!   page and not also a page of an index.
//! - Each call is one prepared statement, which is one transaction that takes the
//!   write lock at its start. `BEGIN IMMEDIATE` and `COMMIT` around it do the same
//!   in two more statements, and are slower.
//! - `wal_autocheckpoint` as it is by default, 1,000 pages: the WAL soon starts
//!   again at its beginning and is written over. With 4,000 or 16,000 pages it
//!   grows longer, and each sync must record that: it was slower by a third or more.
//! - Compiled with `HAVE_FDATASYNC` (`.cargo/config.toml`), without which SQLite
//!   calls fsync.
//! - Two ways to share it: a connection for each thread, which SQLite makes wait
//!   for each other by sleeping and trying again; and one connection behind a
//!   mutex, with `locking_mode = EXCLUSIVE`, which saves the shared memory.

use super::{Caller, Engine, Store};
use crate::work::{Answer, Key};
use anyhow::{Context, Result, ensure};
use rusqlite::{Connection, OptionalExtension, params};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

const CLAIM: &str = "INSERT INTO keys (key) VALUES (?1) ON CONFLICT DO NOTHING";
const COMPLETE: &str = "UPDATE keys SET answer = ?2 WHERE key = ?1 AND answer IS NULL";

#[derive(Clone, Copy)]
pub(crate) enum Sqlite {
    /// A connection for each thread.
    ConnectionEach,
    /// One connection behind a mutex.
    Shared,
}

impl Engine for Sqlite {
    fn name(&self) -> &'static str {
        match self {
            Self::ConnectionEach => "SQLite, connection each",
            Self::Shared => "SQLite, one shared",
        }
    }

    fn missing(&self) -> Option<String> {
        option_env!("LIBSQLITE3_FLAGS").is_none_or(|flags| !flags.contains("HAVE_FDATASYNC")).then(|| {
            "not built as it is best: run cargo in benches/peers, whose .cargo/config.toml gives SQLite fdatasync"
                .into()
        })
    }

    fn open(&self, folder: &Path, _: usize) -> Result<Box<dyn Store>> {
        let path = folder.join("store.sqlite");
        let first = self.connect(&path)?;
        first.execute_batch(
            "CREATE TABLE IF NOT EXISTS keys (key TEXT PRIMARY KEY, answer BLOB) STRICT, WITHOUT ROWID",
        )?;
        Ok(match self {
            Self::ConnectionEach => Box::new(Each { path, first: Mutex::new(first) }),
            Self::Shared => Box::new(Shared(Mutex::new(first))),
        })
    }
}

impl Sqlite {
    fn connect(self, path: &Path) -> Result<Connection> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(Duration::from_secs(600))?;
        if matches!(self, Self::Shared) {
            connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
        }
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        let mode: String = connection.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
        let synchronous: i64 = connection.pragma_query_value(None, "synchronous", |row| row.get(0))?;
        ensure!((mode.as_str(), synchronous) == ("wal", 2), "SQLite is in {mode}, synchronous {synchronous}");
        Ok(connection)
    }
}

struct Each {
    path: PathBuf,
    /// Counts and reads; and is the last to go, so that the file is closed once.
    first: Mutex<Connection>,
}

impl Store for Each {
    fn caller(&self) -> Result<Box<dyn Caller + '_>> {
        Ok(Box::new(OwnConnection(Sqlite::ConnectionEach.connect(&self.path)?)))
    }

    fn completed(&self) -> Result<u64> {
        completed(&self.first)
    }

    fn answers(&self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>> {
        answers(&self.first, keys)
    }

    fn close(self: Box<Self>) -> Result<()> {
        close(self.first)
    }
}

struct OwnConnection(Connection);

impl OwnConnection {
    fn change(&self, statement: &str, key: &Key, parameters: impl rusqlite::Params) -> Result<()> {
        let changed = self.0.prepare_cached(statement)?.execute(parameters)?;
        ensure!(changed == 1, "{key} is in another state");
        Ok(())
    }
}

impl Caller for OwnConnection {
    fn cycle(&mut self, key: &Key, answer: &Answer) -> Result<()> {
        self.change(CLAIM, key, params![key.as_str()])?;
        self.change(COMPLETE, key, params![key.as_str(), answer])
    }
}

struct Shared(Mutex<Connection>);

impl Store for Shared {
    fn caller(&self) -> Result<Box<dyn Caller + '_>> {
        Ok(Box::new(SharedConnection(&self.0)))
    }

    fn completed(&self) -> Result<u64> {
        completed(&self.0)
    }

    fn answers(&self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>> {
        answers(&self.0, keys)
    }

    fn close(self: Box<Self>) -> Result<()> {
        close(self.0)
    }
}

struct SharedConnection<'a>(&'a Mutex<Connection>);

impl Caller for SharedConnection<'_> {
    fn cycle(&mut self, key: &Key, answer: &Answer) -> Result<()> {
        let change = |statement, parameters: &[&dyn rusqlite::ToSql]| {
            let connection = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let changed = connection.prepare_cached(statement)?.execute(parameters)?;
            ensure!(changed == 1, "{key} is in another state");
            Ok(())
        };
        change(CLAIM, params![key.as_str()])?;
        change(COMPLETE, params![key.as_str(), answer])
    }
}

fn completed(connection: &Mutex<Connection>) -> Result<u64> {
    let connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
    let sql = "SELECT COUNT(*) FROM keys WHERE answer IS NOT NULL";
    let count: i64 = connection.query_row(sql, [], |row| row.get(0))?;
    Ok(u64::try_from(count)?)
}

fn answers(connection: &Mutex<Connection>, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>> {
    let connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
    let mut select = connection.prepare_cached("SELECT answer FROM keys WHERE key = ?1")?;
    keys.iter()
        .map(|key| Ok(select.query_row([key.as_str()], |row| row.get(0)).optional()?.flatten()))
        .collect()
}

fn close(connection: Mutex<Connection>) -> Result<()> {
    let connection = connection.into_inner().unwrap_or_else(PoisonError::into_inner);
    connection.close().map_err(|(_, error)| error).context("closing SQLite")
}
