//! Applying a batch of writes to redb, and sweeping what has expired: one
//! transaction for both.
//!
//! This is the only place that writes rows. A batch is a sequence of new states
//! of keys, in the order in which they were decided; applying it moves redb from
//! one consistent state to the next, together with the marks (clock, fences,
//! sequence) that belong to it.

use crate::codec::Marks;
use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::position::{Home, Position};
use crate::record::{Record, State, is_past};
use crate::storage::{CLAIMS, MARKS, META, PAYLOADS, RECORDS, Storage, guarded, storage_error};
use crate::time::Timestamp;
use redb::{ReadableTable as _, Table, WriteTransaction};
use std::ops::{Bound, Range};

/// The new state of a key, and where the old one stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write<'a> {
    pub(crate) key: &'a Key,
    pub(crate) before: Home,
    /// `None`: the key is removed.
    pub(crate) after: Option<&'a Record>,
}

/// How much to sweep in the same transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sweep {
    pub(crate) now: Timestamp,
    /// At most this many records.
    pub(crate) records_max: usize,
    /// Whether to look into the unit of time that is not over yet, record by
    /// record. Otherwise only units that have passed are swept, unread.
    pub(crate) exact: bool,
}

/// The records that a sweep removes.
#[derive(Debug, Default)]
pub(crate) struct Swept {
    rows: Vec<SweptRow>,
    /// All keys, one after the other.
    keys: Vec<u8>,
}

#[derive(Debug)]
struct SweptRow {
    position: Position,
    /// Where its framed key stands in `keys`; `None` if the row is damaged.
    key: Option<Range<usize>>,
}

/// What was written.
#[derive(Debug, Default)]
pub(crate) struct Applied {
    /// For each write, where the completed record stands now.
    pub(crate) positions: Vec<Option<Position>>,
    pub(crate) swept: usize,
}

/// A batch that was not written, or may not have been.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Whether the failure came in the commit itself, so that the batch may be
    /// on disk all the same.
    pub(crate) unknown: bool,
    pub(crate) error: Error,
}

/// Applies `writes`, sweeps, and commits durably, all or nothing.
///
/// `marks` are those on disk, which become `wanted`, with the sequence numbers
/// that were used. `dead` is told of every swept record before the commit. They
/// have expired for good, so it does no harm if the commit then fails. With
/// nothing to write, nothing is written.
///
/// Commits in one phase: callers wait for this, a second sync would double what
/// they wait, and redb tells a whole one-phase commit by its checksum.
pub(crate) fn apply(
    storage: &Storage,
    writes: &[Write<'_>],
    marks: &mut Marks,
    wanted: Marks,
    sweep: Sweep,
    dead: impl FnOnce(&Swept),
) -> Result<Applied, Failure> {
    let not_written = |error| Failure { unknown: false, error };
    let database = storage.database().map_err(not_written)?;
    let mut unknown = false;
    let mut new_marks = wanted;
    let result = guarded(storage.name(), || {
        let failed = |error: redb::Error| storage_error(error, storage.name(), "write to");
        storage.drop_snapshot();
        let transaction = database.begin_write().map_err(|error| failed(error.into()))?;
        let mut applied = Applied::default();
        let swept =
            write_rows(storage, &transaction, writes, &mut new_marks, sweep, &mut applied).map_err(failed)?;
        if writes.is_empty() && swept.rows.is_empty() && new_marks == *marks {
            transaction.abort().map_err(|error| failed(error.into()))?;
            return Ok(applied);
        }
        dead(&swept);
        unknown = true;
        let committed = transaction.commit().map_err(|error| failed(error.into()));
        storage.drop_snapshot();
        committed.map(|()| applied)
    });
    match result {
        Ok(applied) => {
            *marks = new_marks;
            Ok(applied)
        }
        Err(error) => {
            storage.note(&error);
            Err(Failure { unknown, error })
        }
    }
}

/// Table by table, with one open at a time: opening a table of a damaged file
/// can panic in redb, and the destructor of another table that is open panics
/// on top of that, which ends the process.
fn write_rows(
    storage: &Storage,
    transaction: &WriteTransaction,
    writes: &[Write<'_>],
    marks: &mut Marks,
    sweep: Sweep,
    applied: &mut Applied,
) -> Result<Swept, redb::Error> {
    write_claims(storage, transaction, writes)?;
    let mut payloads = Payloads::default();
    let swept = {
        let mut records = transaction.open_table(RECORDS)?;
        let swept = sweep_slice(storage, &mut records, sweep)?;
        for write in writes {
            if let Home::Record(position) = write.before {
                drop(records.remove(position.0)?);
                payloads.changes.push((position, None));
            }
            let completed = write.after.filter(|record| is_completed(record));
            applied.positions.push(match completed {
                None => None,
                Some(record) => {
                    let position = free_position(&records, record.expires_at(), marks)?;
                    let (row, payload) = storage.codec.encode_record(position, write.key, record);
                    records.insert(position.0, &*row)?;
                    payloads.changes.extend(payload.map(|payload| (position, Some(payload))));
                    Some(position)
                }
            });
        }
        swept
    };
    payloads.write(transaction, &swept)?;
    applied.swept = swept.rows.len();
    transaction.open_table(META)?.insert(MARKS, &*storage.codec.encode_marks(*marks))?;
    Ok(swept)
}

fn write_claims(
    storage: &Storage,
    transaction: &WriteTransaction,
    writes: &[Write<'_>],
) -> Result<(), redb::Error> {
    let mut claims = transaction.open_table(CLAIMS)?;
    for write in writes {
        let claim = write.after.filter(|record| !is_completed(record));
        if let Home::Claim(fence) = write.before
            && claim.is_none_or(|record| record.fence != fence)
        {
            drop(claims.remove(fence.as_u64())?);
        }
        if let Some(record) = claim {
            claims.insert(record.fence.as_u64(), &*storage.codec.encode_claim(write.key, record))?;
        }
    }
    Ok(())
}

/// What is to be done in `keyonce.payloads`, in order: a new row, or none.
#[derive(Default)]
struct Payloads {
    changes: Vec<(Position, Option<Vec<u8>>)>,
}

impl Payloads {
    fn write(self, transaction: &WriteTransaction, swept: &Swept) -> Result<(), redb::Error> {
        // Opened in any case: a table that cannot be is found by every commit.
        let mut payloads = transaction.open_table(PAYLOADS)?;
        remove_all(&mut payloads, swept.rows.iter().map(|row| row.position), |_, _| {})?;
        for (position, payload) in self.changes {
            match payload {
                Some(payload) => drop(payloads.insert(position.0, &*payload)?),
                None => drop(payloads.remove(position.0)?),
            }
        }
        Ok(())
    }
}

fn is_completed(record: &Record) -> bool {
    matches!(record.state, State::Completed { .. })
}

/// The next position that no record has. Sequence numbers come round after
/// 2^36 records, so the first may still be taken by one that lives long.
fn free_position(
    records: &Table<'_, u64, &[u8]>,
    expires_at: Timestamp,
    marks: &mut Marks,
) -> Result<Position, redb::Error> {
    loop {
        let position = Position::new(expires_at, marks.next_sequence);
        marks.next_sequence = marks.next_sequence.wrapping_add(1);
        // Before the first round nothing can be in the way.
        let is_first_round = marks.next_sequence <= Position::SEQUENCES;
        if is_first_round || records.get(position.0)?.is_none() {
            return Ok(position);
        }
    }
}

/// Removes up to `records_max` expired records from the left edge.
fn sweep_slice(
    storage: &Storage,
    records: &mut Table<'_, u64, &[u8]>,
    sweep: Sweep,
) -> Result<Swept, redb::Error> {
    let passed = Position::unit_of(sweep.now);
    let end = if sweep.exact {
        Bound::Included(Position::end_of_unit(sweep.now).0)
    } else {
        Bound::Excluded(passed.0)
    };
    let mut dying = Vec::new();
    for row in records.range::<u64>((Bound::Unbounded, end))? {
        if dying.len() == sweep.records_max {
            break;
        }
        let (position, value) = row?;
        let position = Position(position.value());
        // In a unit that has passed its place says that a record has expired,
        // whatever is left of its row.
        let expired = position < passed
            || storage
                .codec
                .decode_record(position, value.value())
                .is_ok_and(|stored| is_past(stored.expires_at, sweep.now));
        if expired {
            dying.push(position);
        }
    }
    let mut swept = Swept::default();
    swept.rows.reserve(dying.len());
    remove_all(records, dying.into_iter(), |position, row| {
        let key = storage.codec.key_of_record(position, row).ok();
        swept.push(position, key);
    })?;
    Ok(swept)
}

/// Removes the rows at these positions, which are in order, and shows each to
/// `each`: one range delete, which steps over what lives in between.
fn remove_all(
    table: &mut Table<'_, u64, &[u8]>,
    positions: impl DoubleEndedIterator<Item = Position> + Clone,
    mut each: impl FnMut(Position, &[u8]),
) -> Result<(), redb::Error> {
    let Some(last) = positions.clone().next_back() else { return Ok(()) };
    let mut positions = positions.peekable();
    table.retain_in(..=last.0, |position, row| {
        while positions.next_if(|dying| dying.0 < position).is_some() {}
        let dies = positions.next_if(|dying| dying.0 == position).is_some();
        if dies {
            each(Position(position), row);
        }
        !dies
    })?;
    Ok(())
}

impl Swept {
    fn push(&mut self, position: Position, key: Option<&[u8]>) {
        let start = self.keys.len();
        self.keys.extend_from_slice(key.unwrap_or_default());
        self.rows.push(SweptRow { position, key: key.map(|_| start..self.keys.len()) });
    }

    /// Each record's position, and its framed key unless its row is damaged.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Position, Option<&[u8]>)> {
        self.rows.iter().map(|row| (row.position, row.key.clone().map(|range| &self.keys[range])))
    }
}

impl Failure {
    /// The error for a caller whose write was in the batch.
    pub(crate) fn for_caller(&self, name: &str) -> Error {
        if self.unknown {
            return Error::new(
                ErrorKind::OutcomeUnknown,
                format!(
                    "whether this write to {name} is on disk is unknown until it is reopened: {}",
                    self.error
                ),
            );
        }
        Error::new(ErrorKind::StorageFailed, format!("nothing was written: {}", self.error))
    }
}
