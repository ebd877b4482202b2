//! Filling the index from the records on disk, with every core.

use crate::codec::StoredRecord;
use crate::engine::Engine;
use crate::error::Result;
use crate::key::Key;
use crate::position::Position;
use crate::record::{Fence, is_past};
use crate::storage::Visitor;
use crate::table::SHARDS;
use crate::time::Timestamp;
use parking_lot::Mutex;

/// How many entries wait for a shard. Put in together they find its table in
/// the processor's cache, and take its lock once.
const BATCH: usize = 256;

/// Two records whose hashes are the same.
type Pair = (Position, Position);

/// Gathers the index entries of the records that it is shown.
pub(super) struct Loader<'a> {
    engine: &'a Engine,
    now: Timestamp,
    /// No fence from here on was handed out.
    beyond: Fence,
    batches: Vec<Vec<(u64, Position)>>,
    doubtful: &'a Mutex<Vec<Pair>>,
}

impl<'a> Loader<'a> {
    pub(super) fn new(
        engine: &'a Engine,
        now: Timestamp,
        beyond: Fence,
        doubtful: &'a Mutex<Vec<Pair>>,
    ) -> Self {
        Self { engine, now, beyond, batches: vec![Vec::new(); SHARDS], doubtful }
    }

    fn put(&mut self, shard: usize) {
        let table = &self.engine.table;
        let batch = &mut self.batches[shard];
        let mut shard = table.lock_shard(shard);
        for &(hash, position) in &*batch {
            if shard.has_hash(hash) {
                let others = shard.positions(hash);
                self.doubtful.lock().extend(others.into_iter().map(|other| (other, position)));
            }
            shard.index(hash, position);
        }
        drop(shard);
        if !table.counts_scopes() {
            table.count_found_records(batch.len());
        }
        batch.clear();
    }
}

impl Visitor for Loader<'_> {
    fn visit(&mut self, position: Position, stored: &StoredRecord<'_>) -> Result<()> {
        // Swept or not, it is dead; its key may be claimed anew.
        if is_past(stored.expires_at, self.now) {
            return Ok(());
        }
        if stored.fence >= self.beyond {
            return Err(self.engine.beyond(stored.fence, self.beyond));
        }
        let table = &self.engine.table;
        if table.counts_scopes() {
            let key = Key::from_framed(stored.key).expect("decoding checks the frame");
            table.count_found(&key, false);
        }
        let hash = table.hash(stored.key);
        let shard = table.shard_of(hash);
        let batch = &mut self.batches[shard];
        batch.push((hash, position));
        if batch.len() == BATCH {
            self.put(shard);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        for shard in 0..SHARDS {
            self.put(shard);
        }
        Ok(())
    }
}
