//! LMDB through heed, with its default flags: every commit writes its pages,
//! calls fdatasync, and writes the meta page through a synchronous descriptor.
//!
//! The flags that make it faster (`NO_META_SYNC`, `NO_SYNC`, `MAP_ASYNC`) give up
//! the durability of the last commits. `WRITE_MAP` made no difference. Writers come one at a time; LMDB has no
//! group commit.

use super::{CLAIMED, Caller, Engine, Store, answer_in, completed_value};
use crate::work::{Answer, Key};
use anyhow::{Result, ensure};
use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvOpenOptions, PutFlags};
use std::path::Path;

/// Address space, not disk: far more than any cell writes.
const MAP_BYTES: usize = 16 << 30;

pub(crate) struct Lmdb;

impl Engine for Lmdb {
    fn name(&self) -> &'static str {
        "LMDB"
    }

    fn open(&self, folder: &Path, callers: usize) -> Result<Box<dyn Store>> {
        let mut options = EnvOpenOptions::new();
        options.map_size(MAP_BYTES).max_readers(u32::try_from(callers + 16)?);
        #[expect(unsafe_code, reason = "heed has no other way to open: the file is mapped into memory")]
        // SAFETY: the folder is this cell's own, so nobody else changes the file under the map.
        let env = unsafe { options.open(folder)? };
        let keys = env
            .create_databases_and_commit(env.write_txn()?, |opener, creation| {
                opener.create_database(creation, None).map(CommitOrAbort::<_, ()>::Commit)
            })?
            .unwrap_commit();
        Ok(Box::new(Open { env, keys }))
    }
}

struct Open {
    env: Env,
    keys: Database<'static, Bytes, Bytes>,
}

impl Store for Open {
    fn caller(&self) -> Result<Box<dyn Caller + '_>> {
        Ok(Box::new(Thread(self)))
    }

    fn completed(&self) -> Result<u64> {
        let transaction = self.env.read_txn()?;
        Ok(self.keys.len(&transaction)?)
    }

    fn answers(&self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>> {
        let transaction = self.env.read_txn()?;
        keys.iter()
            .map(|key| {
                let value = self.keys.get(&transaction, key.as_bytes())?;
                Ok(value.and_then(answer_in).map(<[u8]>::to_vec))
            })
            .collect()
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.env.prepare_for_closing().wait();
        Ok(())
    }
}

struct Thread<'a>(&'a Open);

impl Caller for Thread<'_> {
    fn cycle(&mut self, key: &Key, answer: &Answer) -> Result<()> {
        let Open { env, keys } = self.0;
        let mut claim = env.write_txn()?;
        keys.put_with_flags(&mut claim, PutFlags::NO_OVERWRITE, key.as_bytes(), CLAIMED)?;
        claim.commit()?;

        let mut completion = env.write_txn()?;
        ensure!(keys.get(&completion, key.as_bytes())? == Some(CLAIMED), "{key} is not claimed");
        keys.put(&mut completion, key.as_bytes(), &completed_value(answer))?;
        Ok(completion.commit()?)
    }
}
