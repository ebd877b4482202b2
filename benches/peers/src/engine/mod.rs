//! The engines, each behind the same small seam, and the list of them.
//!
//! How each is set, and why that is the best it has with nothing acknowledged
//! before it is on disk, stands at the head of its file and in `README.md`.

mod fjall;
mod keyonce;
mod lmdb;
#[cfg(feature = "postgres")]
mod postgres;
mod redb;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "rocksdb")]
mod rocksdb;
#[cfg(any(feature = "redis", feature = "postgres"))]
mod server;
mod sqlite;
mod stripes;

use crate::work::{Answer, Key};
use anyhow::Result;
use std::path::Path;

/// Something that can be measured.
pub(crate) trait Engine {
    /// The name in every report. The first engine of the list is the measure
    /// for the others.
    fn name(&self) -> &'static str;

    /// Why it cannot be measured here, in words for the table.
    fn missing(&self) -> Option<String> {
        None
    }

    /// Opens what is in the folder; creates it in an empty one.
    fn open(&self, folder: &Path, callers: usize) -> Result<Box<dyn Store>>;
}

/// An engine that is open.
pub(crate) trait Store: Sync {
    /// What one thread works with, from start to end.
    fn caller(&self) -> Result<Box<dyn Caller + '_>>;

    /// How many keys have an answer; or how many keys there are, where only that is
    /// known: when a cell is over, every one of them should have its answer.
    fn completed(&self) -> Result<u64>;

    /// The answers to these keys, read from the store.
    fn answers(&self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>>;

    /// Which process writes to the disk, if it is one.
    fn writer(&self) -> Writer {
        Writer::ThisProcess
    }

    /// Closes it, so that the folder can be opened again.
    fn close(self: Box<Self>) -> Result<()>;
}

/// One thread's way into a store.
pub(crate) trait Caller {
    /// Claims a key that must be new, durably; then stores the answer, durably.
    fn cycle(&mut self, key: &Key, answer: &Answer) -> Result<()>;
}

/// Whose `/proc/…/io` counts the bytes.
#[derive(Clone, Copy)]
pub(crate) enum Writer {
    ThisProcess,
    #[cfg_attr(not(feature = "redis"), expect(dead_code, reason = "only Redis is one other process"))]
    Process(u32),
    #[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "only Postgres is many processes"))]
    Many,
}

/// All engines, those that cannot be measured here too.
pub(crate) fn all() -> Vec<Box<dyn Engine>> {
    vec![
        Box::new(keyonce::FULL),
        Box::new(sqlite::Sqlite::ConnectionEach),
        Box::new(sqlite::Sqlite::Shared),
        Box::new(fjall::Fjall),
        #[cfg(feature = "rocksdb")]
        Box::new(rocksdb::RocksDb),
        #[cfg(not(feature = "rocksdb"))]
        Box::new(NotBuilt("rocksdb")),
        Box::new(lmdb::Lmdb),
        Box::new(redb::Redb),
        #[cfg(feature = "redis")]
        Box::new(redis::Redis::find()),
        #[cfg(not(feature = "redis"))]
        Box::new(NotBuilt("redis")),
        #[cfg(feature = "postgres")]
        Box::new(postgres::Postgres::find()),
        #[cfg(not(feature = "postgres"))]
        Box::new(NotBuilt("postgres")),
    ]
}

/// An engine whose feature is off: it is reported, not left out.
#[cfg(not(all(feature = "rocksdb", feature = "redis", feature = "postgres")))]
struct NotBuilt(&'static str);

#[cfg(not(all(feature = "rocksdb", feature = "redis", feature = "postgres")))]
impl Engine for NotBuilt {
    fn name(&self) -> &'static str {
        self.0
    }

    fn missing(&self) -> Option<String> {
        Some(format!("not built: the feature `{}` is off", self.0))
    }

    fn open(&self, _: &Path, _: usize) -> Result<Box<dyn Store>> {
        anyhow::bail!("{} is not built", self.0)
    }
}

/// A value as the engines without columns keep it: a claim is one byte, an
/// answer follows another.
const CLAIMED: &[u8] = b"c";

/// The value of a completed key.
fn completed_value(answer: &Answer) -> Vec<u8> {
    [b"a", answer.as_slice()].concat()
}

/// The answer in a value, if the key is completed.
fn answer_in(value: &[u8]) -> Option<&[u8]> {
    value.strip_prefix(b"a")
}
