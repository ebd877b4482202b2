//! fjall, its journal synced with fdatasync for each call (`PersistMode::SyncData`;
//! the journal is preallocated, so its length need not be synced too).
//!
//! fjall has no group commit: `persist` syncs the journal for one caller at a
//! time, but it makes durable what everybody wrote before. So callers write,
//! and one of them persists for all that wait, which is the best its interface
//! allows (with 64 callers a fifth more than a sync for each). `manual_journal_persist` saves the flush that a write otherwise does
//! by itself just before.

use super::stripes::Stripes;
use super::{CLAIMED, Caller, Engine, Store, answer_in, completed_value};
use crate::work::{Answer, Key};
use anyhow::{Result, ensure};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

pub(crate) struct Fjall;

impl Engine for Fjall {
    fn name(&self) -> &'static str {
        "fjall"
    }

    fn open(&self, folder: &Path, _: usize) -> Result<Box<dyn Store>> {
        let database = Database::builder(folder).manual_journal_persist(true).open()?;
        let options = || KeyspaceCreateOptions::default().manual_journal_persist(true);
        let keys = database.keyspace("keys", options)?;
        Ok(Box::new(Open {
            database,
            keys,
            stripes: Stripes::new(),
            written: AtomicU64::new(0),
            persisted: Mutex::new(0),
        }))
    }
}

struct Open {
    database: Database,
    keys: Keyspace,
    stripes: Stripes,
    /// How many writes are in the journal.
    written: AtomicU64,
    /// How many of them are known to be on disk.
    persisted: Mutex<u64>,
}

impl Open {
    fn put(&self, key: &Key, value: &[u8]) -> Result<()> {
        self.keys.insert(key.as_bytes(), value)?;
        let mine = self.written.fetch_add(1, Ordering::SeqCst) + 1;
        let mut persisted = self.persisted.lock().unwrap_or_else(PoisonError::into_inner);
        if *persisted < mine {
            // Every write counted by now was inserted before it was counted.
            let all = self.written.load(Ordering::SeqCst);
            self.database.persist(PersistMode::SyncData)?;
            *persisted = all;
        }
        Ok(())
    }
}

impl Store for Open {
    fn caller(&self) -> Result<Box<dyn Caller + '_>> {
        Ok(Box::new(Thread(self)))
    }

    fn completed(&self) -> Result<u64> {
        Ok(self.keys.len()? as u64)
    }

    fn answers(&self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>> {
        keys.iter()
            .map(|key| {
                let value = self.keys.get(key.as_bytes())?;
                Ok(value.and_then(|value| answer_in(&value).map(<[u8]>::to_vec)))
            })
            .collect()
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

struct Thread<'a>(&'a Open);

impl Caller for Thread<'_> {
    fn cycle(&mut self, key: &Key, answer: &Answer) -> Result<()> {
        {
            let _mine = self.0.stripes.lock(key);
            ensure!(self.0.keys.get(key.as_bytes())?.is_none(), "{key} is not new");
            self.0.put(key, CLAIMED)?;
        }
        self.0.put(key, &completed_value(answer))
    }
}
