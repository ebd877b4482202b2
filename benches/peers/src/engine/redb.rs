//! redb as one would first use it: one write transaction for each call, each
//! committed with `Durability::Immediate` (the default: one fsync).
//!
//! Writers come one at a time; redb has no group commit of its own.

use super::{CLAIMED, Caller, Engine, Store, answer_in, completed_value};
use crate::work::{Answer, Key};
use anyhow::{Result, ensure};
use redb::{AccessGuard, Database, Durability, ReadableDatabase, ReadableTableMetadata, TableDefinition};
use std::path::Path;

const KEYS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("keys");

pub(crate) struct Redb;

impl Engine for Redb {
    fn name(&self) -> &'static str {
        "redb, naive"
    }

    fn open(&self, folder: &Path, _: usize) -> Result<Box<dyn Store>> {
        let database = Database::create(folder.join("store.redb"))?;
        let creation = database.begin_write()?;
        creation.open_table(KEYS)?;
        creation.commit()?;
        Ok(Box::new(Open(database)))
    }
}

struct Open(Database);

impl Store for Open {
    fn caller(&self) -> Result<Box<dyn Caller + '_>> {
        Ok(Box::new(Thread(&self.0)))
    }

    fn completed(&self) -> Result<u64> {
        Ok(self.0.begin_read()?.open_table(KEYS)?.len()?)
    }

    fn answers(&self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>> {
        let table = self.0.begin_read()?.open_table(KEYS)?;
        keys.iter()
            .map(|key| {
                let value = table.get(key.as_bytes())?;
                Ok(value.and_then(|value| answer_in(value.value()).map(<[u8]>::to_vec)))
            })
            .collect()
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

struct Thread<'a>(&'a Database);

impl Thread<'_> {
    /// One transaction: the key must have been in the state `before`.
    fn put(&self, key: &Key, before: Option<&[u8]>, value: &[u8]) -> Result<()> {
        let mut transaction = self.0.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        {
            let mut table = transaction.open_table(KEYS)?;
            let found = table.insert(key.as_bytes(), value)?;
            ensure!(found.as_ref().map(AccessGuard::value) == before, "{key} is in another state");
        }
        Ok(transaction.commit()?)
    }
}

impl Caller for Thread<'_> {
    fn cycle(&mut self, key: &Key, answer: &Answer) -> Result<()> {
        self.put(key, None, CLAIMED)?;
        self.put(key, Some(CLAIMED), &completed_value(answer))
    }
}
