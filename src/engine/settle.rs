//! What is done in the table once a change is on disk, or has failed.

use crate::checkpoint::Swept;
use crate::commit::{Change, Commits, Entry};
use crate::engine::Engine;
use crate::position::{Home, Position};
use crate::record::{Record, State};
use crate::storage::Storage;
use crate::table::{Room, Shard, Slot};
use crate::time::Timestamp;
use std::sync::atomic::Ordering;

impl Commits for Engine {
    fn storage(&self) -> &Storage {
        &self.storage
    }

    fn now(&self) -> Timestamp {
        self.now()
    }

    fn next_fence(&self) -> u64 {
        self.next_fence.load(Ordering::Relaxed)
    }

    fn settle(&self, entry: Entry, written: Result<Option<Position>, ()>) {
        let Entry { hash, key, before, after, change, .. } = entry;
        if matches!(change, Change::Note) {
            return;
        }
        let mut shard = self.table.lock(hash);
        let Some(slot) = shard.slot(hash, &key) else {
            unreachable!("a key with a write under way keeps its slot")
        };
        if let Some(pending) = slot.pending.take() {
            pending.end();
        }
        if let (Change::End, Ok(_), State::Interrupted { expires_at, .. }) =
            (&change, &written, &slot.record.state)
        {
            self.table.count_interrupted_out();
            self.table.expire_no_more(*expires_at, slot.record.fence);
        }
        match (change, written, after) {
            // Seen already; or as it was.
            (Change::Note, ..) | (Change::Claim(_), Ok(_), _) | (Change::End, Err(()), _) => {}
            (Change::Claim(prior), Err(()), _) => self.take_back(&mut shard, hash, &key, prior),
            (Change::End, Ok(_), None) => {
                shard.take(hash, &key);
                match before {
                    Home::Record(position) => {
                        if shard.unindex(hash, position) {
                            self.table.count_key_out(&key);
                        }
                    }
                    Home::Claim(_) | Home::Nowhere => {
                        self.table.give_back(&key, Room { new_key: true, new_claim: true });
                    }
                }
                shard.wake_first(&key);
            }
            (Change::End, Ok(position), Some(record)) => {
                let position = position.expect("what ends a claim and leaves a record is a completion");
                slot.record = record;
                slot.home = Home::Record(position);
                shard.index(hash, position);
                shard.cache(hash, &key);
                self.table.count_claim_out();
                shard.wake_all(&key);
            }
        }
    }

    fn forget_swept(&self, swept: &Swept) {
        for (position, key) in swept.iter() {
            let Some(key) = key else {
                self.table.purge_position(position);
                continue;
            };
            let hash = self.table.hash(key);
            let mut shard = self.table.lock(hash);
            if shard.unindex(hash, position) {
                self.table.count_record_out(key);
            }
            shard.forget_record(hash, position);
        }
    }
}

impl Engine {
    /// Undoes a claim that could not be written.
    fn take_back(&self, shard: &mut Shard, hash: u64, key: &crate::Key, prior: Option<(Record, Home)>) {
        shard.take(hash, key);
        match prior {
            Some((record, home @ Home::Claim(_))) => {
                if let State::Interrupted { expires_at, .. } = record.state {
                    self.table.count_interrupted();
                    self.table.expire_later(expires_at, record.fence, hash, key);
                }
                shard.put(Slot::new(key.clone(), hash, record, home));
            }
            // A record that had expired stays forgotten.
            Some((_, Home::Record(_) | Home::Nowhere)) | None => {
                self.table.give_back(key, Room { new_key: true, new_claim: true });
            }
        }
        shard.wake_first(key);
    }
}
