//! The claim table: the state of every key that is not simply on disk.
//!
//! It is split into shards by the key's hash, each under its own lock. A shard
//! holds
//!
//! - *slots*: keys that are claimed or interrupted, keys with a write under way,
//!   and the completed records that the replay cache keeps;
//! - the *index*: for every completed record, its hash and position, 16 bytes;
//! - *waiters*: callers of `begin_wait`.
//!
//! A key with neither a slot nor an index entry of its hash was never seen, and
//! that is known without touching the disk.
//!
//! **Lock order:** a shard's lock is taken before the commit queue's, the
//! expiry list's and the scope counts', never after; and no two shards' at once.

mod shard;

pub(crate) use shard::{Pending, Shard, Slot};

use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::options::StoreBuilder;
use crate::position::Position;
use crate::record::Fence;
use crate::time::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A power of two; enough that two cores seldom meet, few enough that a small
/// store is small.
pub(crate) const SHARDS: usize = 64;

/// Keeps a shard's lock from sharing a cache line (or the pair that is fetched
/// together) with the next one's.
#[repr(align(128))]
#[derive(Debug)]
struct Aligned(Mutex<Shard>);

#[derive(Debug)]
pub(crate) struct ClaimTable {
    shards: Box<[Aligned]>,
    hasher: KeyHasher,
    counts: Counts,
    /// When interrupted claims are forgotten. May name claims that are gone.
    expiring: Mutex<BTreeMap<(Timestamp, Fence), (u64, Key)>>,
}

#[derive(Debug)]
enum KeyHasher {
    /// Seeded anew in each process, so that nobody outside can make keys meet.
    Seeded(RandomState),
    Fixed(fn(&[u8]) -> u64),
}

#[derive(Debug)]
struct Counts {
    /// Keys that are claimed, interrupted, or completed and not yet swept.
    keys: AtomicUsize,
    /// Of those, how many are claimed or interrupted.
    claims: AtomicUsize,
    /// Of those, how many are interrupted.
    interrupted: AtomicUsize,
    keys_max: usize,
    claims_max: usize,
    scopes: Option<ScopeCounts>,
}

#[derive(Debug)]
struct ScopeCounts {
    keys_max: usize,
    keys: Mutex<HashMap<Box<[u8]>, usize>>,
}

/// Room that was made for a claim. Given back with [`ClaimTable::give_back`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) new_key: bool,
    pub(crate) new_claim: bool,
}

impl ClaimTable {
    pub(crate) fn new(options: &StoreBuilder) -> Self {
        let cache_bytes = options.replay_cache_bytes / SHARDS;
        Self {
            shards: (0..SHARDS).map(|_| Aligned(Mutex::new(Shard::new(cache_bytes)))).collect(),
            hasher: match options.key_hash {
                Some(hash) => KeyHasher::Fixed(hash),
                None => KeyHasher::Seeded(RandomState::new()),
            },
            counts: Counts {
                keys: AtomicUsize::new(0),
                claims: AtomicUsize::new(0),
                interrupted: AtomicUsize::new(0),
                keys_max: options.live_keys_max,
                claims_max: options.open_claims_max,
                scopes: options
                    .scope_keys_max
                    .map(|keys_max| ScopeCounts { keys_max, keys: Mutex::new(HashMap::new()) }),
            },
            expiring: Mutex::new(BTreeMap::new()),
        }
    }

    pub(crate) fn hash(&self, framed: &[u8]) -> u64 {
        match &self.hasher {
            KeyHasher::Seeded(state) => state.hash_one(framed),
            KeyHasher::Fixed(hash) => hash(framed),
        }
    }

    pub(crate) fn lock(&self, hash: u64) -> MutexGuard<'_, Shard> {
        self.lock_shard(self.shard_of(hash))
    }

    /// The number of the shard that a key with this hash is in.
    pub(crate) fn shard_of(&self, hash: u64) -> usize {
        // Neither the lowest bits nor the highest 7: the hash tables within the
        // shard go by those.
        usize::try_from(hash >> 40).unwrap_or(0) % self.shards.len()
    }

    pub(crate) fn lock_shard(&self, shard: usize) -> MutexGuard<'_, Shard> {
        self.shards[shard].0.lock()
    }

    /// Each shard in turn, locked while it is looked at.
    pub(crate) fn each_shard(&self, mut each: impl FnMut(&mut Shard)) {
        for shard in &self.shards {
            each(&mut shard.0.lock());
        }
    }

    pub(crate) fn keys(&self) -> usize {
        self.counts.keys.load(Ordering::Relaxed)
    }

    pub(crate) fn claims(&self) -> usize {
        self.counts.claims.load(Ordering::Relaxed)
    }

    pub(crate) fn interrupted(&self) -> usize {
        self.counts.interrupted.load(Ordering::Relaxed)
    }

    /// Makes room for a claim of `key`, or says which limit is in the way.
    pub(crate) fn make_room(&self, key: &Key, room: Room) -> Result<(), Error> {
        let counts = &self.counts;
        if room.new_claim {
            raise(&counts.claims, counts.claims_max).map_err(|claims| {
                limit(format!(
                    "{claims} claims are open or interrupted: open_claims_max is {}",
                    counts.claims_max
                ))
            })?;
        }
        if room.new_key {
            if let Err(keys) = raise(&counts.keys, counts.keys_max) {
                self.give_back(key, Room { new_key: false, ..room });
                return Err(limit(format!(
                    "{keys} keys are remembered: live_keys_max is {}",
                    counts.keys_max
                )));
            }
            if let Err(error) = counts.scopes.as_ref().map_or(Ok(()), |scopes| scopes.count_in(key)) {
                counts.keys.fetch_sub(1, Ordering::Relaxed);
                self.give_back(key, Room { new_key: false, ..room });
                return Err(error);
            }
        }
        Ok(())
    }

    pub(crate) fn give_back(&self, key: &Key, room: Room) {
        if room.new_claim {
            self.counts.claims.fetch_sub(1, Ordering::Relaxed);
        }
        if room.new_key {
            self.count_key_out(key);
        }
    }

    /// Counts what a store finds when it opens; no limit is applied.
    pub(crate) fn count_found(&self, key: &Key, interrupted_claim: bool) {
        self.count_key_in(key);
        if interrupted_claim {
            self.counts.claims.fetch_add(1, Ordering::Relaxed);
            self.counts.interrupted.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts records found when a store opens, whose scopes nobody asks for.
    pub(crate) fn count_found_records(&self, found: usize) {
        self.counts.keys.fetch_add(found, Ordering::Relaxed);
    }

    /// Counts a key in without asking for room.
    pub(crate) fn count_key_in(&self, key: &Key) {
        self.counts.keys.fetch_add(1, Ordering::Relaxed);
        if let Some(scopes) = &self.counts.scopes {
            scopes.add(key);
        }
    }

    pub(crate) fn count_key_out(&self, key: &Key) {
        self.counts.keys.fetch_sub(1, Ordering::Relaxed);
        if let Some(scopes) = &self.counts.scopes {
            scopes.count_out(key);
        }
    }

    /// Counts a record out whose framed key is known.
    pub(crate) fn count_record_out(&self, framed: &[u8]) {
        self.counts.keys.fetch_sub(1, Ordering::Relaxed);
        if let Some((scopes, key)) = self.counts.scopes.as_ref().zip(Key::from_framed(framed)) {
            scopes.count_out(&key);
        }
    }

    pub(crate) fn count_claim_out(&self) {
        self.counts.claims.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn count_interrupted(&self) {
        self.counts.interrupted.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_interrupted_out(&self) {
        self.counts.interrupted.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether an operator must ask for the keys of records too.
    pub(crate) fn counts_scopes(&self) -> bool {
        self.counts.scopes.is_some()
    }

    /// Notes when an interrupted claim is to be forgotten.
    pub(crate) fn expire_later(&self, expires_at: Timestamp, fence: Fence, hash: u64, key: &Key) {
        if expires_at != Timestamp::MAX {
            self.expiring.lock().insert((expires_at, fence), (hash, key.clone()));
        }
    }

    pub(crate) fn expire_no_more(&self, expires_at: Timestamp, fence: Fence) {
        self.expiring.lock().remove(&(expires_at, fence));
    }

    /// Takes the claims, at most `most`, that are to be forgotten by `now`.
    pub(crate) fn take_expired(&self, now: Timestamp, most: usize) -> Vec<(Fence, u64, Key)> {
        let mut expiring = self.expiring.lock();
        let mut taken = Vec::new();
        while taken.len() < most {
            match expiring.first_entry() {
                Some(first) if first.key().0 <= now => {
                    let ((_, fence), (hash, key)) = first.remove_entry();
                    taken.push((fence, hash, key));
                }
                _ => break,
            }
        }
        taken
    }

    /// Removes the index entry of a record whose key is not known any more.
    pub(crate) fn purge_position(&self, position: Position) {
        self.each_shard(|shard| {
            if shard.purge_position(position) {
                self.counts.keys.fetch_sub(1, Ordering::Relaxed);
            }
        });
    }
}

impl ScopeCounts {
    fn count_in(&self, key: &Key) -> Result<(), Error> {
        let mut keys = self.keys.lock();
        let scope = key.scope().unwrap_or_default();
        match keys.get_mut(scope) {
            Some(count) if *count >= self.keys_max => Err(limit(format!(
                "{count} keys are remembered in the scope of {key}: scope_keys_max is {}",
                self.keys_max
            ))),
            Some(count) => {
                *count += 1;
                Ok(())
            }
            None => {
                keys.insert(scope.into(), 1);
                Ok(())
            }
        }
    }

    fn add(&self, key: &Key) {
        *self.keys.lock().entry(key.scope().unwrap_or_default().into()).or_insert(0) += 1;
    }

    fn count_out(&self, key: &Key) {
        let mut keys = self.keys.lock();
        let scope = key.scope().unwrap_or_default();
        if let Some(count) = keys.get_mut(scope) {
            *count -= 1;
            if *count == 0 {
                keys.remove(scope);
            }
        }
    }
}

/// Adds one, unless that would pass `max`: then says what the count is.
fn raise(count: &AtomicUsize, max: usize) -> Result<(), usize> {
    count
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| (count < max).then_some(count + 1))
        .map(drop)
}

#[cold]
fn limit(message: String) -> Error {
    Error::new(ErrorKind::LimitReached, message)
}
