//! "Put if absent" for engines that have none.

use crate::work::Key;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Enough that two of a thousand callers seldom meet.
const STRIPES: usize = 1 << 14;

/// A lock for each key, near enough: held from the look to the write, it keeps
/// two callers from both finding the key absent. It costs less than the
/// transactions that these engines offer for it.
pub(super) struct Stripes(Vec<Mutex<()>>);

impl Stripes {
    pub(super) fn new() -> Self {
        Self((0..STRIPES).map(|_| Mutex::default()).collect())
    }

    pub(super) fn lock(&self, key: &Key) -> MutexGuard<'_, ()> {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(key.as_bytes());
        let stripe = usize::try_from(hash % STRIPES as u64).expect("a remainder of a usize is one");
        self.0[stripe].lock().unwrap_or_else(PoisonError::into_inner)
    }
}
