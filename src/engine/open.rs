//! Opening: what the file says becomes the table.

mod loader;

use crate::checkpoint::{self, Sweep, Write};
use crate::codec::Marks;
use crate::commit::FENCE_BLOCK;
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::options::StoreBuilder;
use crate::position::{Home, Position};
use crate::record::{Fence, Record, State, is_past};
use crate::storage::{Opened, Storage};
use crate::table::Slot;
use crate::time::Timestamp;
use crate::transition::{Event, Next, transition};
use loader::Loader;
use parking_lot::Mutex;
use std::path::Path;

impl Engine {
    pub(crate) fn open(path: &Path, options: &StoreBuilder) -> Result<Self> {
        options.check()?;
        let opened = Storage::open(path, options).and_then(|opened| Self::recover(opened, options));
        opened.map_err(|error| match error.kind() {
            // There is no store whose replays go on, and none to reopen.
            ErrorKind::StorageFailed => error.with_kind(ErrorKind::Io),
            _ => error,
        })
    }

    pub(crate) fn in_memory(options: &StoreBuilder) -> Result<Self> {
        options.check()?;
        Self::recover(Storage::in_memory(options)?, options)
    }

    fn recover(Opened { storage, marks }: Opened, options: &StoreBuilder) -> Result<Self> {
        let engine = Self::with(options, storage, marks);
        match engine.load(marks) {
            Ok(()) => Ok(engine),
            Err(error) => {
                engine.storage.give_up();
                Err(error)
            }
        }
    }

    fn load(&self, mut marks: Marks) -> Result<()> {
        let claims = self.storage.claims()?;
        let now = self.now();

        let beyond = Fence::new(marks.fences_reserved);
        if let Some((_, record)) = claims.iter().find(|(_, record)| record.fence >= beyond) {
            return Err(self.beyond(record.fence, beyond));
        }

        // Every claim found open belongs to a process that is gone.
        let interrupted: Vec<(Key, Record)> = claims
            .into_iter()
            .map(|(key, record)| {
                let event = Event::Interrupt { fence: record.fence };
                match transition(Some(&record), &event, now) {
                    (Next::Is(interrupted), _) => (key, interrupted),
                    _ => (key, record),
                }
            })
            .collect();

        // The claims as they are now, and fences that nobody had.
        let writes: Vec<Write<'_>> = interrupted
            .iter()
            .map(|(key, record)| Write { key, before: Home::Claim(record.fence), after: Some(record) })
            .collect();
        let wanted = Marks {
            clock_ms: now.as_millis(),
            fences_reserved: marks.fences_reserved.max(1) + FENCE_BLOCK,
            ..marks
        };
        let sweep = Sweep { now, records_max: 0, exact: false };
        checkpoint::apply(&self.storage, &writes, &mut marks, wanted, sweep, |_| {})
            .map_err(|failure| failure.error)?;
        self.committer.reset(marks);

        self.load_records(now, beyond)?;
        for (key, record) in interrupted {
            self.load_claim(key, record)?;
        }
        Ok(())
    }

    fn load_records(&self, now: Timestamp, beyond: Fence) -> Result<()> {
        let doubtful = Mutex::new(Vec::new());
        self.storage.scan(|| Loader::new(self, now, beyond, &doubtful))?;
        // Two live records of one hash: two keys, or a damaged file.
        for (one, other) in doubtful.into_inner() {
            if self.storage.key_at(one)? == self.storage.key_at(other)? {
                return Err(self.twice(&format!("rows {one:?} and {other:?} of keyonce.records")));
            }
        }
        Ok(())
    }

    fn load_claim(&self, key: Key, record: Record) -> Result<()> {
        let State::Interrupted { expires_at, .. } = record.state else {
            unreachable!("recovery interrupts every claim")
        };
        let hash = self.table.hash(key.as_framed());
        let home = Home::Claim(record.fence);
        let fence = record.fence;
        if self.lock_loaded(&key, hash)?.slot(hash, &key).is_some() {
            return Err(self.twice(&format!("row {fence} of keyonce.claims and another row")));
        }
        self.table.count_found(&key, true);
        self.table.expire_later(expires_at, fence, hash, &key);
        self.table.lock(hash).put(Slot::new(key, hash, record, home));
        Ok(())
    }

    /// Fences only grow: one that was never handed out is damage.
    #[cold]
    fn beyond(&self, fence: Fence, beyond: Fence) -> Error {
        Error::corrupted(format!(
            "a damaged store in {}: a row has the fence {fence}, and none from {beyond} on was handed out",
            self.storage.name()
        ))
    }

    #[cold]
    fn twice(&self, rows: &str) -> Error {
        Error::corrupted(format!("a damaged store in {}: {rows} are of one key", self.storage.name()))
    }

    /// For operators: how many of the records that the index has are expired.
    /// What had expired when the store opened is on disk, but not in the index.
    pub(crate) fn expired_records(&self) -> Result<usize> {
        let now = self.now();
        let passed = Position::unit_of(now);
        let mut expired = 0;
        self.storage.scan_to(Position::end_of_unit(now), |position, row| {
            let dead = match self.storage.codec.decode_record(position, row) {
                Ok(stored) if is_past(stored.expires_at, now) => {
                    let hash = self.table.hash(stored.key);
                    self.table.lock(hash).has(hash, position)
                }
                Ok(_) => false,
                Err(_) => position < passed,
            };
            expired += usize::from(dead);
            true
        })?;
        Ok(expired)
    }
}
