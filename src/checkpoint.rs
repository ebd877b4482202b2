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

/// A record that a sweep removes. `key` is `None` if its row is damaged.
#[derive(Debug)]
pub(crate) struct Swept {
    pub(crate) position: Position,
    pub(crate) key: Option<Key>,
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
    dead: impl FnOnce(&[Swept]),
) -> Result<Applied, Failure> {
    let not_written = |error| Failure { unknown: false, error };
    let database = storage.database().map_err(not_written)?;
    let mut unknown = false;
    let mut new_marks = wanted;
    let result = guarded(storage.name(), || {
        let failed = |error: redb::Error| storage_error(error, storage.name(), "write to");
        let transaction = database.begin_write().map_err(|error| failed(error.into()))?;
        let mut applied = Applied::default();
        let swept =
            write_rows(storage, &transaction, writes, &mut new_marks, sweep, &mut applied).map_err(failed)?;
        if writes.is_empty() && swept.is_empty() && new_marks == *marks {
            transaction.abort().map_err(|error| failed(error.into()))?;
            return Ok(applied);
        }
        dead(&swept);
        unknown = true;
        transaction.commit().map_err(|error| failed(error.into()))?;
        Ok(applied)
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
) -> Result<Vec<Swept>, redb::Error> {
    write_claims(storage, transaction, writes)?;
    let mut payloads = Payloads::default();
    let swept = {
        let mut records = transaction.open_table(RECORDS)?;
        let swept = sweep_slice(storage, &mut records, &mut payloads, sweep)?;
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
    payloads.write(transaction)?;
    applied.swept = swept.len();
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
    fn write(self, transaction: &WriteTransaction) -> Result<(), redb::Error> {
        // Opened in any case: a table that cannot be is found by every commit.
        let mut payloads = transaction.open_table(PAYLOADS)?;
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
    payloads: &mut Payloads,
    sweep: Sweep,
) -> Result<Vec<Swept>, redb::Error> {
    let mut swept = Vec::new();
    let passed = Position::unit_of(sweep.now);
    let end = if sweep.exact { Position::end_of_unit(sweep.now) } else { passed };
    let mut with_payload = false;
    for row in records.range(..=end.0)? {
        if swept.len() == sweep.records_max {
            break;
        }
        let (position, value) = row?;
        let position = Position(position.value());
        let stored = storage.codec.decode_record(position, value.value());
        let expired = match &stored {
            Ok(stored) => is_past(stored.expires_at, sweep.now),
            // Its place says that it has expired, whatever is left of it.
            Err(_) => position < passed,
        };
        if !expired || (!sweep.exact && position >= passed) {
            continue;
        }
        with_payload |= stored.as_ref().map_or(true, |stored| stored.payload_len().is_some());
        let key = stored.ok().and_then(|stored| Key::from_framed(stored.key));
        swept.push(Swept { position, key });
    }
    let Some(last) = swept.last().map(|swept| swept.position) else { return Ok(swept) };
    // One range delete; in the unit that is not over it steps over the living.
    let mut dying = swept.iter().peekable();
    let mut lives = |position, _: &[u8]| {
        let dies = dying.next_if(|swept| swept.position.0 == position).is_some();
        !dies
    };
    records.retain_in(..=last.0, &mut lives)?;
    if with_payload {
        payloads.changes.extend(swept.iter().map(|swept| (swept.position, None)));
    }
    Ok(swept)
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
