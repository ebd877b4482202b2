//! Bytes on disk: how a key's state is written, and how it is read back when
//! nothing about the bytes can be trusted.
//!
//! Every row is
//!
//! ```text
//! [version: u8][body][checksum: u64, little endian]
//! ```
//!
//! The body of a claim or record is bincode (variable-length integers, borrowed
//! byte strings, a limit on the whole); that of a payload is the response. The
//! checksum is XXH3, seeded with the store's id, over the body and the row's
//! place (its table and key there), so that a valid row that stands in the wrong
//! place, or comes from another store, is refused. It guards against damage, not
//! against somebody who can write the file.
//!
//! Rows of every version that was ever released stay readable: see
//! `tests/fixtures`. Nothing outside this module knows of bincode.

use crate::error::{Error, Result};
use crate::fingerprint::Fingerprint;
use crate::key::Key;
use crate::position::Position;
use crate::record::{Fence, OnInterrupt, Record, State, Terms};
use crate::time::Timestamp;
use bytes::Bytes;
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The version of the file's format: the tables there are, and what they hold.
pub(crate) const FORMAT: u32 = 1;
/// The version of a row.
const ROW_VERSION: u8 = 1;
/// Responses up to this many bytes stand in the record; larger ones are a
/// payload of their own, so that the scan at open does not read them.
pub(crate) const INLINE_MAX: usize = 1024;
/// No claim or record is longer than this: two framed parts, an inline
/// response, and fixed fields.
const ROW_MAX: usize = 4096;
const CHECKSUM_LEN: usize = 8;

/// The random number that tells one store's rows from another's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoreId([u8; 16]);

impl StoreId {
    pub(crate) fn random() -> Result<Self> {
        let mut id = [0; 16];
        getrandom::fill(&mut id).map_err(|error| {
            Error::new(
                crate::ErrorKind::Io,
                format!("the system gave no random bytes for the store's id: {error}"),
            )
        })?;
        Ok(Self(id))
    }

    #[cfg(any(test, fuzzing))]
    pub(crate) fn fixed() -> Self {
        Self(*b"0123456789abcdef")
    }

    fn seed(self) -> u64 {
        let (low, high) = self.0.split_at(8);
        let word = |half: &[u8]| u64::from_le_bytes(half.try_into().expect("half of 16 bytes is 8"));
        word(low) ^ word(high)
    }
}

impl fmt::Debug for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// A completed record as it stands in its row; the key and an inline response
/// are borrowed from the row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredRecord<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) fence: Fence,
    pub(crate) expires_at: Timestamp,
    fingerprint: Fingerprint,
    body: RecordBody<'a>,
}

impl StoredRecord<'_> {
    /// How long the response is, if it stands in a payload of its own.
    pub(crate) fn payload_len(&self) -> Option<u64> {
        match self.body.response {
            StoredResponse::Inline(_) => None,
            StoredResponse::Payload(len) => Some(len),
        }
    }

    /// The record as a value. `payload` is the response if it stands apart.
    pub(crate) fn to_record(self, payload: Option<Bytes>) -> Record {
        let body = &self.body;
        let response = match (body.response, payload) {
            (StoredResponse::Inline(Raw(bytes)), _) => Bytes::copy_from_slice(bytes),
            (StoredResponse::Payload(_), payload) => payload.unwrap_or_default(),
        };
        Record {
            fingerprint: self.fingerprint,
            fence: self.fence,
            attempt: body.attempt,
            terms: body.terms.into(),
            state: State::Completed {
                response,
                completed_at: Timestamp::from_millis(body.completed_at_ms),
                expires_at: self.expires_at,
            },
        }
    }
}

/// Encodes and decodes the rows of one store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Codec {
    seed: u64,
}

impl Codec {
    pub(crate) fn new(id: StoreId) -> Self {
        Self { seed: id.seed() }
    }

    /// The row of an open or interrupted claim, for the place `record.fence`.
    pub(crate) fn encode_claim(self, key: &Key, record: &Record) -> Vec<u8> {
        let state = match record.state {
            State::InProgress { since, after_interruption } => {
                ClaimState::Open { since_ms: since.as_millis(), after_interruption }
            }
            State::Interrupted { since, expires_at } => {
                ClaimState::Interrupted { since_ms: since.as_millis(), expires_at_ms: expires_at.as_millis() }
            }
            State::Completed { .. } => unreachable!("a completed key is a record, not a claim"),
        };
        let body = ClaimBody {
            key: Raw(key.as_framed()),
            fingerprint: Raw(record.fingerprint.as_bytes()),
            attempt: record.attempt,
            terms: record.terms.into(),
            state,
        };
        self.seal(body_bytes(&body), Place::Claim(record.fence))
    }

    pub(crate) fn decode_claim(self, fence: Fence, row: &[u8]) -> Result<(Key, Record)> {
        let place = Place::Claim(fence);
        let body: ClaimBody<'_> = self.open_body(row, place)?;
        let key = Key::from_framed(body.key.0).ok_or_else(|| bad(place, "its key is not framed"))?;
        let state = match body.state {
            ClaimState::Open { since_ms, after_interruption } => {
                State::InProgress { since: Timestamp::from_millis(since_ms), after_interruption }
            }
            ClaimState::Interrupted { since_ms, expires_at_ms } => State::Interrupted {
                since: Timestamp::from_millis(since_ms),
                expires_at: Timestamp::from_millis(expires_at_ms),
            },
        };
        let record = Record {
            fingerprint: fingerprint_of(body.fingerprint, place)?,
            fence,
            attempt: body.attempt,
            terms: body.terms.into(),
            state,
        };
        Ok((key, record))
    }

    /// The rows of a completed record, for the place `position`: the record,
    /// and its payload if the response is too long to stand in it.
    pub(crate) fn encode_record(
        self,
        position: Position,
        key: &Key,
        record: &Record,
    ) -> (Vec<u8>, Option<Vec<u8>>) {
        let State::Completed { ref response, completed_at, expires_at } = record.state else {
            unreachable!("only a completed key is a record")
        };
        let inline = response.len() <= INLINE_MAX;
        let body = RecordBody {
            key: Raw(key.as_framed()),
            fingerprint: Raw(record.fingerprint.as_bytes()),
            fence: record.fence.as_u64(),
            attempt: record.attempt,
            terms: record.terms.into(),
            completed_at_ms: completed_at.as_millis(),
            expires_at_ms: expires_at.as_millis(),
            response: if inline {
                StoredResponse::Inline(Raw(response))
            } else {
                StoredResponse::Payload(response.len() as u64)
            },
        };
        let row = self.seal(body_bytes(&body), Place::Record(position));
        let payload = (!inline).then(|| {
            let mut row = Vec::with_capacity(1 + response.len() + CHECKSUM_LEN);
            row.push(ROW_VERSION);
            row.extend_from_slice(response);
            self.seal(row, Place::Payload(position, record.fence, key.as_framed()))
        });
        (row, payload)
    }

    pub(crate) fn decode_record(self, position: Position, row: &[u8]) -> Result<StoredRecord<'_>> {
        let place = Place::Record(position);
        let body: RecordBody<'_> = self.open_body(row, place)?;
        let expires_at = Timestamp::from_millis(body.expires_at_ms);
        if !position.is_of(expires_at) {
            return Err(bad(place, "it stands where it does not expire"));
        }
        if !Key::is_framed(body.key.0) {
            return Err(bad(place, "its key is not framed"));
        }
        let fingerprint = fingerprint_of(body.fingerprint, place)?;
        Ok(StoredRecord { key: body.key.0, fence: Fence::new(body.fence), expires_at, fingerprint, body })
    }

    /// The framed key of the record at `position`, whose row is not damaged;
    /// nothing else in it is looked at.
    pub(crate) fn key_of_record(self, position: Position, row: &[u8]) -> Result<&[u8]> {
        let place = Place::Record(position);
        let body = &self.unseal(row, place)?[1..];
        let config = bincode::config::standard().with_limit::<ROW_MAX>();
        match bincode::serde::borrow_decode_from_slice(body, config) {
            Ok((Raw(key), _)) if Key::is_framed(key) => Ok(key),
            _ => Err(bad(place, "its key is not framed")),
        }
    }

    /// The response of `record`, whose payload stands at `position`.
    pub(crate) fn decode_payload(
        self,
        position: Position,
        record: &StoredRecord<'_>,
        row: &[u8],
    ) -> Result<Bytes> {
        let place = Place::Payload(position, record.fence, record.key);
        let response = &self.unseal(row, place)?[1..];
        match record.payload_len() {
            Some(len) if len == response.len() as u64 => Ok(Bytes::copy_from_slice(response)),
            _ => Err(bad(place, "it has not the length that its record says")),
        }
    }

    pub(crate) fn encode_marks(self, marks: Marks) -> Vec<u8> {
        self.seal(body_bytes(&marks), Place::Marks)
    }

    pub(crate) fn decode_marks(self, row: &[u8]) -> Result<Marks> {
        self.open_body(row, Place::Marks)
    }

    /// `row` with the checksum that it needs at `place`: as a claim if that is
    /// even, as a record if it is odd. No fuzzer finds a checksum by itself.
    #[cfg(fuzzing)]
    pub(crate) fn sealed_for_fuzzing(self, place: u64, row: &[u8]) -> Vec<u8> {
        let place = match place % 2 {
            0 => Place::Claim(Fence::new(place)),
            _ => Place::Record(Position(place)),
        };
        self.seal(row.to_vec(), place)
    }

    fn seal(self, mut row: Vec<u8>, place: Place<'_>) -> Vec<u8> {
        let checksum = self.checksum(&row, place);
        row.extend_from_slice(&checksum.to_le_bytes());
        row
    }

    /// Checks a row's checksum and version, and gives it without its checksum.
    fn unseal<'a>(self, row: &'a [u8], place: Place<'_>) -> Result<&'a [u8]> {
        let Some((sealed, checksum)) = row.split_last_chunk::<CHECKSUM_LEN>() else {
            return Err(bad(place, "it is too short"));
        };
        if self.checksum(sealed, place) != u64::from_le_bytes(*checksum) {
            return Err(bad(place, "its checksum does not match"));
        }
        match sealed.first() {
            Some(&ROW_VERSION) => Ok(sealed),
            Some(version) => Err(bad(place, &format!("its version is {version}, which is not known"))),
            None => Err(bad(place, "it is empty")),
        }
    }

    fn open_body<'a, T: Deserialize<'a>>(self, row: &'a [u8], place: Place<'_>) -> Result<T> {
        // The limit comes first, so that no length inside is believed.
        if row.len() > ROW_MAX {
            return Err(bad(place, &format!("it has {} bytes, more than {ROW_MAX}", row.len())));
        }
        let body = &self.unseal(row, place)?[1..];
        let config = bincode::config::standard().with_limit::<ROW_MAX>();
        match bincode::serde::borrow_decode_from_slice(body, config) {
            Ok((value, read)) if read == body.len() => Ok(value),
            Ok((_, read)) => Err(bad(place, &format!("{} bytes trail it", body.len() - read))),
            Err(error) => Err(bad(place, &error.to_string())),
        }
    }

    /// Over the bytes, then over that and the place: no copy of a long payload.
    fn checksum(self, sealed: &[u8], place: Place<'_>) -> u64 {
        let mut bound = [0; 33];
        bound[..8].copy_from_slice(&xxh3_64_with_seed(sealed, self.seed).to_le_bytes());
        let (table, words) = match place {
            Place::Claim(fence) => (1, [fence.as_u64(), 0, 0]),
            Place::Record(position) => (2, [position.0, 0, 0]),
            Place::Payload(position, fence, key) => {
                (3, [position.0, fence.as_u64(), xxh3_64_with_seed(key, self.seed)])
            }
            Place::Marks => (4, [0, 0, 0]),
        };
        bound[8] = table;
        for (to, word) in bound[9..].chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        xxh3_64_with_seed(&bound, self.seed)
    }
}

/// The first row that is read, laid out by hand so that every version of the
/// crate can read every other's: `[format: u32][store id: 16 bytes]`.
pub(crate) fn encode_header(id: StoreId) -> Vec<u8> {
    [&FORMAT.to_le_bytes()[..], &id.0].concat()
}

/// The format and, if the format is one that this version reads, the id.
pub(crate) fn decode_header(row: &[u8]) -> Result<StoreId> {
    let format = row.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
    match (format, row.get(4..).and_then(|id| id.try_into().ok())) {
        (Some(FORMAT), Some(id)) => Ok(StoreId(id)),
        (Some(format), _) if format > FORMAT => Err(Error::new(
            crate::ErrorKind::NewerFormat,
            format!("the store has format {format}: this version of keyonce reads formats up to {FORMAT}"),
        )),
        _ => Err(Error::corrupted("the store's header is damaged: keyonce.meta, row `header`")),
    }
}

/// How far the store has come: one row, rewritten by every commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Marks {
    /// The latest time that the store saw, in milliseconds.
    pub(crate) clock_ms: u64,
    /// Every fence below this may have been handed out.
    pub(crate) fences_reserved: u64,
    /// The sequence number of the next record's position.
    pub(crate) next_sequence: u64,
}

#[derive(Clone, Copy)]
enum Place<'a> {
    Claim(Fence),
    Record(Position),
    Payload(Position, Fence, &'a [u8]),
    Marks,
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim(fence) => write!(f, "keyonce.claims, row {fence}"),
            Self::Record(position) => write!(f, "keyonce.records, row {position:?}"),
            Self::Payload(position, ..) => write!(f, "keyonce.payloads, row {position:?}"),
            Self::Marks => write!(f, "keyonce.meta, row `marks`"),
        }
    }
}

#[cold]
fn bad(place: Place<'_>, what: &str) -> Error {
    Error::corrupted(format!("a damaged row in {place}: {what}"))
}

fn fingerprint_of(bytes: Raw<'_>, place: Place<'_>) -> Result<Fingerprint> {
    let bytes = bytes.0.try_into().map_err(|_| bad(place, "its fingerprint has not 32 bytes"))?;
    Ok(Fingerprint::from_bytes(bytes))
}

fn body_bytes(body: &impl Serialize) -> Vec<u8> {
    let mut row = Vec::with_capacity(384);
    row.push(ROW_VERSION);
    bincode::serde::encode_into_std_write(body, &mut row, bincode::config::standard())
        .expect("writing plain fields into memory cannot fail");
    row
}

#[derive(Serialize, Deserialize)]
struct ClaimBody<'a> {
    #[serde(borrow)]
    key: Raw<'a>,
    #[serde(borrow)]
    fingerprint: Raw<'a>,
    attempt: u32,
    terms: StoredTerms,
    state: ClaimState,
}

#[derive(Serialize, Deserialize)]
enum ClaimState {
    Open { since_ms: u64, after_interruption: bool },
    Interrupted { since_ms: u64, expires_at_ms: u64 },
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct RecordBody<'a> {
    #[serde(borrow)]
    key: Raw<'a>,
    #[serde(borrow)]
    fingerprint: Raw<'a>,
    fence: u64,
    attempt: u32,
    terms: StoredTerms,
    completed_at_ms: u64,
    expires_at_ms: u64,
    #[serde(borrow)]
    response: StoredResponse<'a>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum StoredResponse<'a> {
    #[serde(borrow)]
    Inline(Raw<'a>),
    Payload(u64),
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct StoredTerms {
    retention_ms: u64,
    hold: bool,
}

impl From<Terms> for StoredTerms {
    fn from(terms: Terms) -> Self {
        Self {
            retention_ms: terms.retention_ms,
            hold: match terms.on_interrupt {
                OnInterrupt::Retry => false,
                OnInterrupt::Hold => true,
            },
        }
    }
}

impl From<StoredTerms> for Terms {
    fn from(stored: StoredTerms) -> Self {
        let on_interrupt = if stored.hold { OnInterrupt::Hold } else { OnInterrupt::Retry };
        Self { retention_ms: stored.retention_ms, on_interrupt }
    }
}

/// A byte string that serde writes as one, not as a sequence of numbers.
///
/// Its `Deserialize` is `&[u8]`'s: borrowed from the row, never allocated.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(transparent)]
struct Raw<'a>(#[serde(borrow)] &'a [u8]);

impl Serialize for Raw<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

#[cfg(test)]
mod tests;
