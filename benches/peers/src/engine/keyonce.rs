//! keyonce itself, as an application uses it: one `Store`, shared by all threads.
//!
//! Default options. A claim and a completion are on disk before the call
//! returns. The fingerprint is that of the key's request, computed once for each
//! cycle, as a service would.

use super::{Caller, Engine, Store};
use crate::work::{Answer, Key};
use anyhow::{Result, bail};
use keyonce::{Begin, Fingerprint, StoreBuilder};
use std::path::Path;

/// A way to set the store, under its own name in the reports.
pub(crate) struct Keyonce {
    name: &'static str,
    options: fn() -> StoreBuilder,
}

/// Claim and completion are on disk before the call returns.
pub(crate) const FULL: Keyonce = Keyonce { name: "keyonce", options: keyonce::Store::builder };

impl Engine for Keyonce {
    fn name(&self) -> &'static str {
        self.name
    }

    fn open(&self, folder: &Path, _: usize) -> Result<Box<dyn Store>> {
        let store = (self.options)().open(folder.join("store.keyonce"))?;
        Ok(Box::new(Open(store)))
    }
}

struct Open(keyonce::Store);

impl Store for Open {
    fn caller(&self) -> Result<Box<dyn Caller + '_>> {
        Ok(Box::new(Thread(&self.0)))
    }

    fn completed(&self) -> Result<u64> {
        Ok(self.0.stats()?.completed as u64)
    }

    fn answers(&self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>> {
        keys.iter()
            .map(|key| match self.0.begin(&keyonce::Key::new(key.as_bytes())?, &request(key))? {
                Begin::Replay(response) => Ok(Some(response.as_bytes().to_vec())),
                _ => Ok(None),
            })
            .collect()
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.0.close()?)
    }
}

struct Thread<'a>(&'a keyonce::Store);

impl Caller for Thread<'_> {
    fn cycle(&mut self, key: &Key, answer: &Answer) -> Result<()> {
        match self.0.begin(&keyonce::Key::new(key.as_bytes())?, &request(key))? {
            Begin::Fresh(claim) => claim.complete(answer.to_vec())?,
            _ => bail!("{key} is not new"),
        };
        Ok(())
    }
}

fn request(key: &Key) -> Fingerprint {
    Fingerprint::of(key.as_bytes())
}
