//! The redb file: its tables, how it is created and opened, and reads from it.
//!
//! | table | from | to |
//! |---|---|---|
//! | `keyonce.meta` | name | the header (format, store id) and the marks (clock, fences, sequence) |
//! | `keyonce.claims` | fence | an open or interrupted claim |
//! | `keyonce.records` | position | a completed record, a short response in it |
//! | `keyonce.payloads` | position | a long response |
//!
//! Writes are in [`checkpoint`](crate::checkpoint).
//!
//! **Invariant:** a file is published under its name only when it is a whole
//! store: it is built under another name, closed, linked, and the folder synced.

use crate::codec::{self, Codec, Marks, StoreId, StoredRecord};
use crate::disk::{Disk, cannot};
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::options::StoreBuilder;
use crate::position::Position;
use crate::record::{Fence, Record};
use bytes::Bytes;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use redb::backends::InMemoryBackend;
use redb::{
    AccessGuard, BackendError, Database, DatabaseError, ReadOnlyTable, ReadTransaction,
    ReadableDatabase as _, ReadableTable, ReadableTableMetadata as _, StorageBackend, StorageError,
    TableDefinition, TableError, TableHandle as _,
};
use std::io;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

pub(crate) const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("keyonce.meta");
pub(crate) const CLAIMS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("keyonce.claims");
pub(crate) const RECORDS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("keyonce.records");
pub(crate) const PAYLOADS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("keyonce.payloads");

mod shared;
use shared::{Look, Shared, Work};

const HEADER: &str = "header";
pub(crate) const MARKS: &str = "marks";
/// What every redb file begins with.
const REDB_MAGIC: &[u8; 9] = b"redb\x1A\x0A\xA9\x0D\x0A";
/// A store being created is `<name>.new-…` until it is whole.
const BUILDING: &str = ".new-";
/// How often creation starts again when another process interferes.
const CREATE_TRIES: u32 = 16;

/// An open redb file with this crate's tables in it.
#[derive(Debug)]
pub(crate) struct Storage {
    /// `None` once closed. Readers and the committer share the lock; `close`
    /// and `compact`, which need the database for themselves, take it whole.
    database: RwLock<Option<Database>>,
    pub(crate) codec: Codec,
    /// For messages: the path, or "the store in memory".
    name: String,
    /// The file, if there is one.
    file: Option<Arc<Shared>>,
    damaged: AtomicBool,
    /// What the last commit left, for those who look for one record. Made by
    /// the first of them, dropped by the next commit.
    snapshot: Mutex<Option<Arc<Snapshot>>>,
}

/// A read transaction, with the table that every read needs open.
#[derive(Debug)]
struct Snapshot {
    transaction: ReadTransaction,
    records: ReadOnlyTable<u64, &'static [u8]>,
}

/// What the file said when it was opened.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) storage: Storage,
    pub(crate) marks: Marks,
}

impl Storage {
    /// Opens the store at `path`, or creates one if nothing is there.
    pub(crate) fn open(path: &Path, options: &StoreBuilder) -> Result<Opened> {
        let disk = &*options.disk;
        for _ in 0..CREATE_TRIES {
            match disk.open(path)? {
                Some(backend) => return open_existing(backend, path, options),
                None => create(disk, path, options)?,
            }
        }
        Err(Error::new(
            ErrorKind::Io,
            format!("{} appeared and vanished {CREATE_TRIES} times while it was opened", path.display()),
        ))
    }

    pub(crate) fn in_memory(options: &StoreBuilder) -> Result<Opened> {
        let name = "the store in memory".to_owned();
        let database = guarded(&name, || {
            let database = builder(options).create_with_backend(InMemoryBackend::new());
            let database = database.map_err(|error| open_error(error, &name))?;
            initialise(&database, &name)?;
            Ok(database)
        })?;
        read_meta(database, name, None)
    }

    /// What to call this store in a message.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The database, for as long as the guard lives.
    pub(crate) fn database(&self) -> Result<DatabaseGuard<'_>> {
        let guard = self.database.read_recursive();
        RwLockReadGuard::try_map(guard, Option::as_ref).map_err(|_| Error::closed())
    }

    /// Every open and interrupted claim.
    pub(crate) fn claims(&self) -> Result<Vec<(Key, Record)>> {
        self.read(|transaction| {
            let mut claims = Vec::new();
            for row in transaction.open_table(CLAIMS)?.iter()? {
                let (fence, value) = row?;
                claims.push(self.codec.decode_claim(Fence::new(fence.value()), value.value())?);
            }
            Ok(claims)
        })
    }

    /// Visits every completed record, with as many visitors as there are cores.
    ///
    /// The positions are cut into ranges, and each visitor takes one after the
    /// other until all are taken; within a range the order holds.
    pub(crate) fn scan<V: Visitor>(&self, visitor: impl Fn() -> V + Sync) -> Result<()> {
        const WORTH_A_THREAD: u64 = 50_000;
        const RANGES_A_VISITOR: u64 = 16;
        let (len, edges) = self.read(|transaction| {
            let records = transaction.open_table(RECORDS)?;
            let edge = |row: Option<(AccessGuard<'_, u64>, _)>| row.map(|row| row.0.value());
            Ok((records.len()?, edge(records.first()?).zip(edge(records.last()?))))
        })?;
        let Some((first, last)) = edges else { return Ok(()) };
        let cores = thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
        let visitors = cores.min(len / WORTH_A_THREAD + 1);
        let ranges = visitors * RANGES_A_VISITOR;
        let step = last.saturating_sub(first) / ranges + 1;
        let next = AtomicU64::new(0);
        let visit = || {
            let mut visitor = visitor();
            loop {
                let range = next.fetch_add(1, Ordering::Relaxed);
                let Some(from) = (range < ranges).then(|| first.checked_add(range * step)).flatten() else {
                    return visitor.finish();
                };
                self.scan_range(from..=from.saturating_add(step - 1), &mut visitor)?;
            }
        };
        thread::scope(|scope| {
            let others: Vec<_> = (1..visitors).map(|_| scope.spawn(visit)).collect();
            let mut result = visit();
            for other in others {
                result = result.and(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
            }
            result
        })
    }

    fn scan_range(&self, range: RangeInclusive<u64>, visitor: &mut impl Visitor) -> Result<()> {
        self.read(|transaction| {
            for row in transaction.open_table(RECORDS)?.range(range)? {
                let (position, value) = row?;
                let position = Position(position.value());
                visitor.visit(position, &self.codec.decode_record(position, value.value())?)?;
            }
            Ok(())
        })
    }

    /// Calls `each` with the records that stand up to `last`, in order, until
    /// it says `false`.
    pub(crate) fn scan_to(
        &self,
        last: Position,
        mut each: impl FnMut(Position, &[u8]) -> bool,
    ) -> Result<()> {
        self.read(|transaction| {
            for row in transaction.open_table(RECORDS)?.range(..=last.0)? {
                let (position, value) = row?;
                if !each(Position(position.value()), value.value()) {
                    break;
                }
            }
            Ok(())
        })
    }

    /// The record at `position` if it is that of `key`; with its response.
    ///
    /// `Absent` if nothing stands there; `Other` if the record is another key's
    /// (whose hash is the same).
    pub(crate) fn record(&self, position: Position, key: &Key) -> Result<Found> {
        self.read_snapshot(|snapshot| {
            let Some(row) = snapshot.records.get(position.0)? else { return Ok(Found::Absent) };
            let stored = self.codec.decode_record(position, row.value())?;
            if stored.key != key.as_framed() {
                return Ok(Found::Other);
            }
            let payload = match stored.payload_len() {
                None => None,
                Some(_) => Some(self.payload(&snapshot.transaction, position, &stored)?),
            };
            Ok(Found::Record(stored.to_record(payload)))
        })
    }

    /// The key of the record at `position`, if there is one.
    pub(crate) fn key_at(&self, position: Position) -> Result<Option<Key>> {
        self.read(|transaction| {
            let Some(row) = transaction.open_table(RECORDS)?.get(position.0)? else { return Ok(None) };
            Ok(Key::from_framed(self.codec.decode_record(position, row.value())?.key))
        })
    }

    fn payload(
        &self,
        transaction: &ReadTransaction,
        position: Position,
        stored: &StoredRecord<'_>,
    ) -> Result<Bytes, ReadError> {
        let row = transaction.open_table(PAYLOADS)?.get(position.0)?.ok_or_else(|| {
            Error::corrupted(format!(
                "a damaged store in {}: keyonce.payloads has no row {position:?}, which a record names",
                self.name
            ))
        })?;
        Ok(self.codec.decode_payload(position, stored, row.value())?)
    }

    fn read<T>(&self, body: impl FnOnce(&ReadTransaction) -> Result<T, ReadError>) -> Result<T> {
        let database = self.database()?;
        guarded(&self.name, || {
            let transaction = database.begin_read().map_err(ReadError::from);
            transaction.and_then(|transaction| body(&transaction)).map_err(|error| error.within(&self.name))
        })
        .inspect_err(|error| self.note(error))
    }

    /// Like `read`, for what one commit changes little of: opening a
    /// transaction and a table takes longer than reading a record.
    fn read_snapshot<T>(&self, body: impl FnOnce(&Snapshot) -> Result<T, ReadError>) -> Result<T> {
        let database = self.database()?;
        guarded(&self.name, || {
            let snapshot = self.snapshot(&database);
            snapshot.and_then(|snapshot| body(&snapshot)).map_err(|error| error.within(&self.name))
        })
        .inspect_err(|error| self.note(error))
    }

    fn snapshot(&self, database: &Database) -> Result<Arc<Snapshot>, ReadError> {
        // Made with the lock held, so that a commit which ends meanwhile
        // drops what was made before it.
        let mut kept = self.snapshot.lock();
        if let Some(snapshot) = &*kept {
            return Ok(Arc::clone(snapshot));
        }
        let transaction = database.begin_read()?;
        let records = transaction.open_table(RECORDS)?;
        let snapshot = Arc::new(Snapshot { transaction, records });
        *kept = Some(Arc::clone(&snapshot));
        Ok(snapshot)
    }

    /// To be called before a commit, so that it can use the pages that the
    /// snapshot holds; and after it, before anybody is told of it.
    pub(crate) fn drop_snapshot(&self) {
        let snapshot = self.snapshot.lock().take();
        drop(snapshot);
    }

    /// Notes that the file is damaged, if that is what an error says.
    pub(crate) fn note(&self, error: &Error) {
        if error.kind() == ErrorKind::Corrupted {
            self.damaged.store(true, Ordering::Release);
        }
    }

    /// redb commits when it closes a database. On a damaged one it can panic
    /// there twice, which ends the process; so it gets no file to do that with.
    /// Everything acknowledged was committed before.
    fn cut_off_if_damaged(&self) {
        if let (true, Some(file)) = (self.damaged.load(Ordering::Acquire), &self.file) {
            file.cut_off();
        }
    }

    /// For a store that could not be opened: writes nothing more, not when it
    /// is dropped either.
    pub(crate) fn give_up(&self) {
        self.damaged.store(true, Ordering::Release);
        self.cut_off_if_damaged();
    }

    /// Gives pages that are not in use back to the file system. `false` if
    /// there were none.
    pub(crate) fn compact(&self) -> Result<bool> {
        let mut database = self.database.write();
        let database = database.as_mut().ok_or_else(Error::closed)?;
        guarded(&self.name, || {
            self.drop_snapshot();
            database.compact().map_err(|error| storage_error(error, &self.name, "compact"))
        })
    }

    /// Closes the file; later calls get `Closed`.
    pub(crate) fn close(&self) -> Result<()> {
        let Some(database) = self.database.write().take() else { return Ok(()) };
        self.cut_off_if_damaged();
        guarded(&self.name, || {
            self.drop_snapshot();
            database.close().map_err(|error| storage_error(error, &self.name, "close"))
        })
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        self.cut_off_if_damaged();
        self.drop_snapshot();
        if let Some(database) = self.database.get_mut().take() {
            discard(database, &self.name);
        }
    }
}

/// Drops a database whose closing nobody can be told of. redb works on its file
/// there, and so can panic as in any other call.
fn discard(database: Database, name: &str) {
    let _ = guarded(name, || {
        drop(database);
        Ok(())
    });
}

pub(crate) type DatabaseGuard<'a> = parking_lot::MappedRwLockReadGuard<'a, Database>;

/// Who looks at every record while a store is opened: one on each core.
pub(crate) trait Visitor {
    fn visit(&mut self, position: Position, stored: &StoredRecord<'_>) -> Result<()>;
    fn finish(self) -> Result<()>;
}

/// What stands at a position.
#[derive(Debug)]
pub(crate) enum Found {
    Record(Record),
    Other,
    Absent,
}

/// Runs a call into redb, and makes a panic there an error.
///
/// redb asserts what it believes about a file, so a file that was damaged while
/// it was open, or opened without the check, can make it panic. Bytes on disk
/// must not bring a service down.
pub(crate) fn guarded<T>(name: &str, body: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Err(Error::corrupted(format!("{name} made the storage engine panic: {said}")))
    })
}

/// An error of redb about the store `name`, while doing `what`.
pub(crate) fn storage_error(error: impl Into<redb::Error>, name: &str, what: &str) -> Error {
    let error = error.into();
    let kind = match error {
        redb::Error::Corrupted(_) => ErrorKind::Corrupted,
        redb::Error::DatabaseClosed => ErrorKind::Closed,
        _ => ErrorKind::StorageFailed,
    };
    Error::with_source(kind, format!("cannot {what} {name}"), error)
}

/// What a read transaction can end with: redb's errors, or ours.
pub(crate) enum ReadError {
    Redb(redb::Error),
    Ours(Error),
}

impl ReadError {
    fn within(self, name: &str) -> Error {
        match self {
            Self::Redb(error) => storage_error(error, name, "read"),
            Self::Ours(error) => error,
        }
    }
}

impl From<Error> for ReadError {
    fn from(error: Error) -> Self {
        Self::Ours(error)
    }
}

impl From<StorageError> for ReadError {
    fn from(error: StorageError) -> Self {
        Self::Redb(error.into())
    }
}

impl From<TableError> for ReadError {
    fn from(error: TableError) -> Self {
        match error {
            TableError::Storage(error) => error.into(),
            // Not there, or not of our types: the file was changed by others.
            error => Self::Redb(redb::Error::Corrupted(error.to_string())),
        }
    }
}

impl From<redb::TransactionError> for ReadError {
    fn from(error: redb::TransactionError) -> Self {
        Self::Redb(error.into())
    }
}

fn builder(options: &StoreBuilder) -> redb::Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(options.storage_cache_bytes);
    builder.set_check_integrity_on_open(options.check_on_open);
    builder
}

/// Builds a new store beside `path` and links it there. `Ok` also when another
/// process was first.
fn create(disk: &dyn Disk, path: &Path, options: &StoreBuilder) -> Result<()> {
    // What a crash left of earlier tries is nobody's.
    for leftover in disk.leftovers(path, BUILDING).map_err(|error| cannot("create", path, error))? {
        let _ = disk.remove(&leftover);
    }
    let building = building_name(path);
    let backend = disk.create(&building).map_err(|error| cannot("create", path, error))?;
    let name = path.display().to_string();
    let built = guarded(&name, || {
        let database = builder(options).create_with_backend(Work(Shared::new(backend)));
        let database = database.map_err(|error| open_error(error, &name))?;
        initialise(&database, &name)?;
        database.close().map_err(|error| storage_error(error, &name, "create"))
    });
    let published = built.and_then(|()| match disk.publish(&building, path) {
        Ok(()) => disk.sync_folder(path).map_err(|error| cannot("create", path, error)),
        // Another process was first; or it took our file for a leftover.
        Err(error) if matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound) => {
            Ok(())
        }
        Err(error) => Err(cannot("link", path, error)),
    });
    // The file has its name, or is of no use: a leftover either way, which the
    // next creation beside it removes if this does not.
    let _ = disk.remove(&building);
    published
}

fn building_name(path: &Path) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut name = path.as_os_str().to_owned();
    name.push(format!("{BUILDING}{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    name.into()
}

fn open_existing(backend: Box<dyn StorageBackend>, path: &Path, options: &StoreBuilder) -> Result<Opened> {
    let name = path.display().to_string();
    check_magic(&*backend, &name)?;
    let file = Shared::new(backend);
    let database = guarded(&name, || {
        look(&file, &name, options)?;
        let database = builder(options).create_with_backend(Work(Arc::clone(&file)));
        let database = database.map_err(|error| open_error(error, &name))?;
        let ready = match has_meta(&database, &name) {
            Ok(true) => Ok(()),
            Ok(false) if options.adopt => initialise(&database, &name),
            Ok(false) => Err(foreign(&name)),
            Err(error) => Err(error),
        };
        // Before the database is dropped, which writes to the file.
        ready.inspect_err(|_| file.cut_off()).map(|()| database)
    })?;
    read_meta(database, name, Some(file))
}

/// Refuses a database that is no store, or that a later version wrote, before
/// redb writes to it.
///
/// `Ok` is not a promise: what cannot be read without a repair, or not at all,
/// is left to the opening itself, which looks again.
fn look(file: &Arc<Shared>, name: &str, options: &StoreBuilder) -> Result<()> {
    let look = Look::new(Arc::clone(file));
    let (file, end) =
        look.map_err(|error| Error::with_source(ErrorKind::Io, format!("cannot read {name}"), error))?;
    let mut builder = Database::builder();
    // No cache: what is read at the end must be read from the look.
    builder.set_cache_size(0);
    builder.set_check_integrity_on_open(false);
    builder.set_repair_callback(redb::RepairSession::abort);
    let Ok(database) = builder.create_with_backend(file) else { return Ok(()) };
    // Dropped before the database, whatever way this returns.
    let _end = end;
    match has_meta(&database, name) {
        Ok(false) if !options.adopt => return Err(foreign(name)),
        Ok(true) => {}
        _ => return Ok(()),
    }
    let header = || -> Result<Vec<u8>, redb::Error> {
        let header = database.begin_read()?.open_table(META)?.get(HEADER)?;
        Ok(header.map(|header| header.value().to_vec()).unwrap_or_default())
    };
    match header().map(|header| codec::decode_header(&header)) {
        Ok(Err(error)) => Err(Error::with_source(error.kind(), format!("cannot open {name}"), error)),
        _ => Ok(()),
    }
}

#[cold]
fn foreign(name: &str) -> Error {
    Error::new(ErrorKind::ForeignDatabase, format!("{name} is a redb database without a keyonce store in it"))
}

fn check_magic(backend: &dyn StorageBackend, name: &str) -> Result<()> {
    let cannot_read =
        |error| Error::with_source(ErrorKind::Io, format!("cannot read {name}"), io_error(error));
    let not_a_store = |what: &str| {
        Err(Error::new(
            ErrorKind::NotAStore,
            format!("{name} is {what}, not a keyonce store: it was not touched"),
        ))
    };
    let len = backend.len().map_err(cannot_read)?;
    if len == 0 {
        return not_a_store("an empty file");
    }
    let mut start = [0; 16];
    let start = &mut start[..usize::try_from(len.min(16)).expect("at most 16")];
    backend.read(0, start).map_err(cannot_read)?;
    if start.starts_with(REDB_MAGIC) {
        return Ok(());
    }
    not_a_store(match &*start {
        b"SQLite format 3\0" => "a SQLite database",
        start if start.iter().all(|&byte| byte == 0) => "a file that begins with zeros",
        start if start.iter().all(|byte| matches!(byte, b'\t' | b'\n' | b'\r' | b' '..=b'~')) => "a text",
        _ => "a file of another kind",
    })
}

fn io_error(error: impl Into<BackendError>) -> io::Error {
    error.into().into()
}

fn open_error(error: DatabaseError, name: &str) -> Error {
    match error {
        DatabaseError::DatabaseAlreadyOpen | DatabaseError::LockProtocolMismatch => Error::with_source(
            ErrorKind::AlreadyOpen,
            format!("{name} is open already, in this process or another"),
            redb::Error::from(error),
        ),
        DatabaseError::UpgradeRequired(version) => Error::new(
            ErrorKind::NotAStore,
            format!(
                "{name} is a redb database of the old file format {version}, which no keyonce store ever had"
            ),
        ),
        DatabaseError::Storage(StorageError::Io(error)) => {
            let kind = match error.kind() {
                // What redb says of a file that it cannot make sense of.
                io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => ErrorKind::Corrupted,
                _ => ErrorKind::Io,
            };
            Error::with_source(kind, format!("cannot open {name}"), error)
        }
        error => storage_error(error, name, "open"),
    }
}

/// Whether the file has our meta table: whether it was ever a store.
fn has_meta(database: &Database, name: &str) -> Result<bool> {
    let transaction = database.begin_read().map_err(|error| storage_error(error, name, "read"))?;
    let mut tables = transaction.list_tables().map_err(|error| storage_error(error, name, "read"))?;
    Ok(tables.any(|table| table.name() == META.name()))
}

/// Makes an empty store in a database, in one transaction.
fn initialise(database: &Database, name: &str) -> Result<()> {
    let id = StoreId::random()?;
    let write = || -> Result<(), redb::Error> {
        let mut transaction = database.begin_write()?;
        transaction.set_two_phase_commit(true);
        // One table open at a time: see checkpoint.rs.
        for table in [CLAIMS, RECORDS, PAYLOADS] {
            transaction.open_table(table)?;
        }
        {
            let mut meta = transaction.open_table(META)?;
            meta.insert(HEADER, &*codec::encode_header(id))?;
            meta.insert(MARKS, &*Codec::new(id).encode_marks(Marks::default()))?;
        }
        Ok(transaction.commit()?)
    };
    write().map_err(|error| storage_error(error, name, "initialise"))
}

fn read_meta(database: Database, name: String, file: Option<Arc<Shared>>) -> Result<Opened> {
    let read = guarded(&name, || {
        let read = || -> Result<(Codec, Marks), ReadError> {
            let transaction = database.begin_read()?;
            // A table that is gone must not be made anew, empty.
            transaction.open_table(CLAIMS)?;
            transaction.open_table(RECORDS)?;
            transaction.open_table(PAYLOADS)?;
            let meta = transaction.open_table(META)?;
            let missing = |row| Error::corrupted(format!("a damaged store: keyonce.meta has no row `{row}`"));
            let header = meta.get(HEADER)?.ok_or_else(|| missing(HEADER))?;
            let codec = Codec::new(codec::decode_header(header.value())?);
            let marks = meta.get(MARKS)?.ok_or_else(|| missing(MARKS))?;
            Ok((codec, codec.decode_marks(marks.value())?))
        };
        read().map_err(|error| error.within(&name))
    });
    match read {
        Ok((codec, marks)) => Ok(Opened {
            storage: Storage {
                database: RwLock::new(Some(database)),
                codec,
                name,
                file,
                damaged: AtomicBool::new(false),
                snapshot: Mutex::new(None),
            },
            marks,
        }),
        Err(error) => {
            file.iter().for_each(|file| file.cut_off());
            discard(database, &name);
            Err(Error::with_source(error.kind(), format!("cannot open {name}"), error))
        }
    }
}
