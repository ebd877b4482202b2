//! One shard of the claim table: plain data under one lock.

use crate::key::Key;
use crate::parker::Parker;
use crate::position::{Home, Position};
use crate::record::{Fence, Record, State};
use crate::time::Timestamp;
use hashbrown::HashTable;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// A key whose state is in memory.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) key: Key,
    pub(crate) hash: u64,
    /// What callers are told. A claim is seen before it is durable; everything
    /// else only afterwards.
    pub(crate) record: Record,
    /// Where the key's state stands on disk, once everything queued is written.
    pub(crate) home: Home,
    /// A write under way that must end before the key can change again.
    pub(crate) pending: Option<Pending>,
    /// Whether the replay cache owns this slot, and may drop it.
    cached: bool,
    /// Whether it was asked for since the cache last considered dropping it.
    used: bool,
}

/// Threads to wake when the write under way has ended.
#[derive(Debug, Default)]
pub(crate) struct Pending(Vec<Arc<Parker<()>>>);

impl Pending {
    pub(crate) fn add(&mut self) -> Arc<Parker<()>> {
        let parker = Arc::new(Parker::new());
        self.0.push(Arc::clone(&parker));
        parker
    }

    pub(crate) fn end(self) {
        for parker in self.0 {
            parker.tell(());
        }
    }
}

impl Slot {
    pub(crate) fn new(key: Key, hash: u64, record: Record, home: Home) -> Self {
        Self { key, hash, record, home, pending: None, cached: false, used: false }
    }

    /// What the cache counts it for: the response, the key, and about as much
    /// as a slot and its places in tables take.
    fn cost(&self) -> usize {
        let response = match &self.record.state {
            State::Completed { response, .. } => response.len(),
            State::InProgress { .. } | State::Interrupted { .. } => 0,
        };
        response + self.key.as_framed().len() + 320
    }
}

#[derive(Debug)]
pub(crate) struct Shard {
    slots: HashTable<Slot>,
    index: HashTable<(u64, Position)>,
    /// Cached slots, oldest first, by hash and fence. May name slots that are
    /// gone or not cached any more.
    cache: VecDeque<(u64, Fence)>,
    cached: usize,
    cache_bytes: usize,
    cache_bytes_max: usize,
    waiters: HashMap<Key, VecDeque<Arc<Parker<()>>>>,
}

impl Shard {
    pub(super) fn new(cache_bytes_max: usize) -> Self {
        Self {
            slots: HashTable::new(),
            index: HashTable::new(),
            cache: VecDeque::new(),
            cached: 0,
            cache_bytes: 0,
            cache_bytes_max,
            waiters: HashMap::new(),
        }
    }

    pub(crate) fn slot(&mut self, hash: u64, key: &Key) -> Option<&mut Slot> {
        let slot = self.slots.find_mut(hash, |slot| slot.hash == hash && slot.key == *key)?;
        slot.used = true;
        Some(slot)
    }

    /// Puts a slot in, in place of the key's old one.
    pub(crate) fn put(&mut self, slot: Slot) -> &mut Slot {
        self.take(slot.hash, &slot.key);
        self.slots.insert_unique(slot.hash, slot, |slot| slot.hash).into_mut()
    }

    /// Takes a slot out.
    pub(crate) fn take(&mut self, hash: u64, key: &Key) -> Option<Slot> {
        let entry = self.slots.find_entry(hash, |slot| slot.hash == hash && slot.key == *key).ok()?;
        let (slot, _) = entry.remove();
        if slot.cached {
            self.cached -= 1;
            self.cache_bytes -= slot.cost();
        }
        self.give_memory_back();
        Some(slot)
    }

    /// Takes out the slot of a record that is swept, unless a write of its key
    /// is under way.
    pub(crate) fn forget_record(&mut self, hash: u64, position: Position) {
        let is_swept =
            |slot: &Slot| slot.hash == hash && slot.home == Home::Record(position) && slot.pending.is_none();
        if let Some(slot) = self.slots.find(hash, is_swept) {
            let key = slot.key.clone();
            self.take(hash, &key);
        }
    }

    /// Gives a slot whose key is completed and on disk to the cache.
    pub(crate) fn cache(&mut self, hash: u64, key: &Key) {
        let Some(slot) = self.slots.find_mut(hash, |slot| slot.hash == hash && slot.key == *key) else {
            return;
        };
        debug_assert!(matches!(slot.home, Home::Record(_)), "only what is on disk can be dropped");
        if slot.cached {
            return;
        }
        slot.cached = true;
        slot.used = false;
        self.cached += 1;
        self.cache_bytes += slot.cost();
        let newest = (hash, slot.record.fence);
        self.trim();
        self.cache.push_back(newest);
    }

    /// Takes a slot from the cache, because its key is about to change.
    pub(crate) fn uncache(&mut self, hash: u64, key: &Key) {
        let Some(slot) = self.slots.find_mut(hash, |slot| slot.hash == hash && slot.key == *key) else {
            return;
        };
        if std::mem::take(&mut slot.cached) {
            self.cached -= 1;
            self.cache_bytes -= slot.cost();
        }
    }

    /// Drops the oldest cached slots until the rest fits. One that was asked
    /// for since gets a second chance. The newest is not in the queue yet, so
    /// it stays: its caller is about to look at it.
    fn trim(&mut self) {
        let mut chances = self.cache.len();
        while self.cache_bytes > self.cache_bytes_max {
            let Some((hash, fence)) = self.cache.pop_front() else { break };
            let found = self
                .slots
                .find_entry(hash, |slot| slot.hash == hash && slot.cached && slot.record.fence == fence);
            let Ok(mut entry) = found else { continue };
            if chances > 0 && std::mem::take(&mut entry.get_mut().used) {
                chances -= 1;
                self.cache.push_back((hash, fence));
                continue;
            }
            let (slot, _) = entry.remove();
            self.cached -= 1;
            self.cache_bytes -= slot.cost();
        }
        if self.cache.len() > 2 * self.cached + 64 {
            let slots = &self.slots;
            self.cache.retain(|&(hash, fence)| {
                slots.find(hash, |slot| slot.cached && slot.record.fence == fence).is_some()
            });
        }
    }

    pub(crate) fn cached_bytes(&self) -> usize {
        self.cache_bytes
    }

    /// The positions of the records with this hash: nearly always none or one.
    pub(crate) fn positions(&self, hash: u64) -> Vec<Position> {
        self.index.iter_hash(hash).filter(|entry| entry.0 == hash).map(|entry| entry.1).collect()
    }

    pub(crate) fn has_hash(&self, hash: u64) -> bool {
        self.index.iter_hash(hash).any(|entry| entry.0 == hash)
    }

    /// Whether the record at this position is that of a key with a slot.
    pub(crate) fn is_home(&self, hash: u64, position: Position) -> bool {
        self.slots.iter_hash(hash).any(|slot| slot.home == Home::Record(position))
    }

    pub(crate) fn has(&self, hash: u64, position: Position) -> bool {
        self.index.find(hash, |entry| *entry == (hash, position)).is_some()
    }

    pub(crate) fn index(&mut self, hash: u64, position: Position) {
        self.index.insert_unique(hash, (hash, position), |entry| entry.0);
    }

    /// Whether there was such an entry.
    pub(crate) fn unindex(&mut self, hash: u64, position: Position) -> bool {
        let found = self.index.find_entry(hash, |entry| *entry == (hash, position));
        let Ok(entry) = found else { return false };
        entry.remove();
        self.give_memory_back();
        true
    }

    pub(super) fn purge_position(&mut self, position: Position) -> bool {
        let before = self.index.len();
        self.index.retain(|entry| entry.1 != position);
        self.index.len() < before
    }

    /// A burst of keys must not hold its memory for ever.
    fn give_memory_back(&mut self) {
        if self.index.capacity() > 1024 && self.index.len() < self.index.capacity() / 8 {
            self.index.shrink_to(self.index.len() * 2, |entry| entry.0);
        }
        if self.slots.capacity() > 1024 && self.slots.len() < self.slots.capacity() / 8 {
            self.slots.shrink_to(self.slots.len() * 2, |slot| slot.hash);
        }
    }

    /// Joins the queue of those who wait for the key's holder to end.
    pub(crate) fn join(&mut self, key: &Key, front: bool, parker: &Arc<Parker<()>>) {
        let queue = self.waiters.entry(key.clone()).or_default();
        if front {
            queue.push_front(Arc::clone(parker));
        } else {
            queue.push_back(Arc::clone(parker));
        }
    }

    /// Leaves the queue. `false` if it was taken out, and so told, already.
    pub(crate) fn leave(&mut self, key: &Key, parker: &Arc<Parker<()>>) -> bool {
        let Some(queue) = self.waiters.get_mut(key) else { return false };
        let before = queue.len();
        queue.retain(|other| !Arc::ptr_eq(other, parker));
        let left = queue.len() < before;
        if queue.is_empty() {
            self.waiters.remove(key);
        }
        left
    }

    /// Wakes the first who waits for the key: it can be claimed.
    pub(crate) fn wake_first(&mut self, key: &Key) {
        if self.waiters.is_empty() {
            return;
        }
        let Some(queue) = self.waiters.get_mut(key) else { return };
        if let Some(parker) = queue.pop_front() {
            parker.tell(());
        }
        if queue.is_empty() {
            self.waiters.remove(key);
        }
    }

    /// Wakes all who wait for the key, in order: there is an answer for all.
    pub(crate) fn wake_all(&mut self, key: &Key) {
        if self.waiters.is_empty() {
            return;
        }
        for parker in self.waiters.remove(key).unwrap_or_default() {
            parker.tell(());
        }
    }

    /// Wakes all who wait, for whatever key: the store is closed.
    pub(crate) fn wake_everybody(&mut self) {
        for parker in self.waiters.drain().flat_map(|(_, queue)| queue) {
            parker.tell(());
        }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiters.values().map(VecDeque::len).sum()
    }

    /// How many completed records the index has.
    pub(crate) fn records(&self) -> usize {
        self.index.len()
    }

    /// How many interrupted claims have expired and are not swept yet.
    pub(crate) fn expired_claims(&self, now: Timestamp) -> usize {
        let expired = |slot: &&Slot| matches!(slot.home, Home::Claim(_)) && slot.record.is_expired(now);
        self.slots.iter().filter(expired).count()
    }

    /// Bytes that the index's table takes.
    pub(crate) fn index_bytes(&self) -> usize {
        self.index.allocation_size()
    }
}
