//! What a store is opened with: [`StoreBuilder`].

use crate::disk::{Disk, RealDisk};
use crate::error::{Error, Result};
use crate::record::{OnInterrupt, Terms};
use crate::time::{Clock, SystemClock};
use std::sync::Arc;
use std::time::Duration;

/// The greatest limit on a response that can be set, in bytes: 1 GiB.
const RESPONSE_BYTES_CEILING: usize = 1 << 30;
/// The greatest number of live keys that can be asked for: what a position's
/// sequence number keeps apart, with room to spare.
const LIVE_KEYS_CEILING: usize = 1 << 32;

/// Options of a [`Store`](crate::Store), each with a default that suits a
/// service that takes payments. Made by [`Store::builder`](crate::Store::builder).
///
/// Values are checked when the store is opened, and refused by name.
///
/// ```
/// use keyonce::{OnInterrupt, Store};
/// use std::time::Duration;
///
/// let store = Store::builder()
///     .retention(Duration::from_secs(7 * 24 * 3600))
///     .on_interrupt(OnInterrupt::Hold)
///     .open_in_memory()?;
/// # Ok::<(), keyonce::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder opens nothing until `open` is called"]
pub struct StoreBuilder {
    pub(crate) retention: Duration,
    pub(crate) on_interrupt: OnInterrupt,
    pub(crate) response_bytes_max: usize,
    pub(crate) open_claims_max: usize,
    pub(crate) live_keys_max: usize,
    pub(crate) scope_keys_max: Option<usize>,
    pub(crate) replay_cache_bytes: usize,
    pub(crate) storage_cache_bytes: usize,
    pub(crate) check_on_open: bool,
    pub(crate) adopt: bool,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) key_hash: Option<fn(&[u8]) -> u64>,
}

impl Default for StoreBuilder {
    fn default() -> Self {
        Self {
            retention: Duration::from_secs(24 * 3600),
            on_interrupt: OnInterrupt::default(),
            response_bytes_max: 1 << 20,
            open_claims_max: 1_000_000,
            live_keys_max: 50_000_000,
            scope_keys_max: None,
            replay_cache_bytes: 32 << 20,
            storage_cache_bytes: 128 << 20,
            check_on_open: true,
            adopt: false,
            clock: Arc::new(SystemClock),
            disk: Arc::new(RealDisk),
            key_hash: None,
        }
    }
}

impl StoreBuilder {
    /// How long a response is replayed, from its completion; and how long an
    /// interrupted key is remembered under [`OnInterrupt::Retry`].
    ///
    /// Default: 24 hours, the time that Stripe documents. Make it longer than
    /// the longest time over which a client may retry. At least 1 ms; a part
    /// of a millisecond counts as a whole one; a value past the end of time
    /// means "for ever".
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// What an interruption does. Default: [`OnInterrupt::Retry`].
    pub fn on_interrupt(mut self, on_interrupt: OnInterrupt) -> Self {
        self.on_interrupt = on_interrupt;
        self
    }

    /// The greatest response that is stored, in bytes. Default: 1 MiB. From 0
    /// to 1 GiB.
    ///
    /// A longer one is refused by [`complete`](crate::Claim::complete), which
    /// gives the claim back.
    pub fn response_bytes_max(mut self, bytes: usize) -> Self {
        self.response_bytes_max = bytes;
        self
    }

    /// The greatest number of claims that are open or interrupted at once.
    /// Default: 1,000,000. At least 1.
    ///
    /// Each is in memory, at some 400 bytes and the key. A `begin` over it gets
    /// [`LimitReached`](crate::ErrorKind::LimitReached).
    pub fn open_claims_max(mut self, claims: usize) -> Self {
        self.open_claims_max = claims;
        self
    }

    /// The greatest number of keys that are remembered at once. Default:
    /// 50,000,000. From 1 to 2^32.
    ///
    /// Each costs at most 40 bytes of memory, so the default is 2 GB. A `begin`
    /// of a new key over it gets
    /// [`LimitReached`](crate::ErrorKind::LimitReached), after what has expired
    /// was swept (at most once a second).
    pub fn live_keys_max(mut self, keys: usize) -> Self {
        self.live_keys_max = keys;
        self
    }

    /// The greatest number of keys that are remembered at once in any one
    /// scope, so that one tenant cannot use up [`live_keys_max`] for all.
    /// Default: no such limit. At least 1. Keys without a scope count as one
    /// scope.
    ///
    /// Counting costs some 100 bytes of memory for each scope in use.
    ///
    /// [`live_keys_max`]: Self::live_keys_max
    pub fn scope_keys_max(mut self, keys: usize) -> Self {
        self.scope_keys_max = Some(keys);
        self
    }

    /// How many bytes of completed records are kept in memory, so that the
    /// newest replays do not read the file. Default: 32 MiB.
    ///
    /// Each of 64 parts of the cache keeps at least the record that it looked at
    /// last, with 0 too.
    pub fn replay_cache(mut self, bytes: usize) -> Self {
        self.replay_cache_bytes = bytes;
        self
    }

    /// How many bytes of the file's pages redb keeps in memory. Default:
    /// 128 MiB.
    pub fn storage_cache(mut self, bytes: usize) -> Self {
        self.storage_cache_bytes = bytes;
        self
    }

    /// Whether every page of the file is verified when the store opens.
    /// Default: yes.
    ///
    /// A damaged file is then an error. Without the check most damage is still
    /// found, because every row has a checksum of its own, but not where it
    /// makes a row unreachable: its key would be taken for a new one.
    ///
    /// The check reads the whole file: about 0.9 s for each GB of it while the
    /// system has it in memory (`docs/measurements.md`). A response of 16 KiB
    /// takes 32 KiB there or more, so that is about 2 s for each GB of those.
    pub fn check_on_open(mut self, check: bool) -> Self {
        self.check_on_open = check;
        self
    }

    /// Whether a redb file that has none of this crate's tables becomes a
    /// store. Default: no, such a file is a
    /// [`ForeignDatabase`](crate::ErrorKind::ForeignDatabase).
    ///
    /// Say yes when an application keeps its own tables in the same file. They
    /// are left as they are. Leave it out once the store exists: a file that
    /// lost its tables should be an error, not an empty store.
    pub fn adopt(mut self, adopt: bool) -> Self {
        self.adopt = adopt;
        self
    }

    /// Where the time comes from. Default: [`SystemClock`].
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// The disk that the store's file is on: for this project's own simulator.
    #[doc(hidden)]
    pub fn disk(mut self, disk: impl Disk + 'static) -> Self {
        self.disk = Arc::new(disk);
        self
    }

    /// Replaces the seeded hash, so that tests can make keys collide.
    #[doc(hidden)]
    pub fn key_hash_for_tests(mut self, hash: fn(&[u8]) -> u64) -> Self {
        self.key_hash = Some(hash);
        self
    }

    pub(crate) fn terms(&self) -> Terms {
        Terms::new(self.retention, self.on_interrupt)
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.retention.is_zero() {
            return Err(Error::invalid(
                "retention is 0: it must be at least 1 ms, or nothing could ever be replayed",
            ));
        }
        within("response_bytes_max", self.response_bytes_max, 0, RESPONSE_BYTES_CEILING)?;
        within("open_claims_max", self.open_claims_max, 1, LIVE_KEYS_CEILING)?;
        within("live_keys_max", self.live_keys_max, 1, LIVE_KEYS_CEILING)?;
        within("scope_keys_max", self.scope_keys_max.unwrap_or(1), 1, LIVE_KEYS_CEILING)
    }
}

fn within(name: &str, value: usize, least: usize, greatest: usize) -> Result<()> {
    if (least..=greatest).contains(&value) {
        return Ok(());
    }
    Err(Error::invalid(format!("{name} is {value}: it must be from {least} to {greatest}")))
}
