//! One file, given to redb twice: to look at it, then to work on it.
//!
//! redb writes to every database that it opens and closes, so a file is looked
//! at through [`Look`] first, whose writes stay in memory. Only what is a store
//! that this version reads is then opened through [`Work`]. The locks that the
//! look took stay taken in between.

use parking_lot::Mutex;
use redb::{BackendError, StorageBackend};
use std::io;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

type Range = (Bound<u64>, Bound<u64>);

/// redb takes a backend by value; this is one that `Disk` chose.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) file: Box<dyn StorageBackend>,
    /// What the look has locked and not unlocked. The same file handle must not
    /// lock it again.
    held: Mutex<Vec<Range>>,
    cut_off: AtomicBool,
}

impl Shared {
    pub(super) fn new(file: Box<dyn StorageBackend>) -> Arc<Self> {
        Arc::new(Self { file, held: Mutex::default(), cut_off: AtomicBool::new(false) })
    }

    /// From now on redb can neither read nor write the file, only close it.
    pub(super) fn cut_off(&self) {
        self.cut_off.store(true, Ordering::Release);
    }

    fn working(&self) -> io::Result<&dyn StorageBackend> {
        if self.cut_off.load(Ordering::Acquire) {
            return Err(io::Error::other("the file is damaged, and is not used any more"));
        }
        Ok(&*self.file)
    }

    fn try_lock(&self, range: Range) -> Result<bool, BackendError> {
        let mut held = self.held.lock();
        if held.contains(&range) {
            return Ok(true);
        }
        let locked = self.file.try_lock_range(range.0, range.1)?;
        if locked {
            held.push(range);
        }
        Ok(locked)
    }

    fn unlock(&self, range: Range) -> Result<(), BackendError> {
        self.held.lock().retain(|held| *held != range);
        self.file.unlock_range(range.0, range.1)
    }
}

/// The file as redb works on it.
#[derive(Debug)]
pub(super) struct Work(pub(super) Arc<Shared>);

impl StorageBackend for Work {
    fn len(&self) -> io::Result<u64> {
        self.0.working()?.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.working()?.read(offset, out)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.working()?.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.0.working()?.sync_data()
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.working()?.write(offset, data)
    }
    fn close(&self) -> io::Result<()> {
        self.0.file.close()
    }
    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.try_lock((start, end))
    }
    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.file.try_lock_shared_range(start, end)
    }
    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.file.lock_range(start, end)
    }
    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.file.lock_shared_range(start, end)
    }
    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.unlock((start, end))
    }
    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.file.query_lock_range(start, end)
    }
}

/// The file as redb may look at it: with the same locks, and with writes that
/// only the look sees.
#[derive(Debug)]
pub(super) struct Look {
    file: Work,
    written: Mutex<Written>,
    over: Arc<AtomicBool>,
}

/// Ends a look when it is dropped: nothing can be read after that.
///
/// redb commits when it closes a database, and on a damaged one it can panic
/// there twice, which ends the process. It finds a file that does not answer
/// instead, and gives up.
pub(super) struct EndOfLook(Arc<AtomicBool>);

impl Drop for EndOfLook {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[derive(Debug)]
struct Written {
    len: u64,
    /// In the order of writing: a later one covers an earlier.
    writes: Vec<(u64, Vec<u8>)>,
}

impl Look {
    pub(super) fn new(shared: Arc<Shared>) -> io::Result<(Self, EndOfLook)> {
        let len = shared.file.len()?;
        let over = Arc::new(AtomicBool::new(false));
        let written = Mutex::new(Written { len, writes: Vec::new() });
        Ok((Self { file: Work(shared), written, over: Arc::clone(&over) }, EndOfLook(over)))
    }
}

impl StorageBackend for Look {
    fn len(&self) -> io::Result<u64> {
        Ok(self.written.lock().len)
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if self.over.load(Ordering::Acquire) {
            return Err(io::Error::other("the look is over"));
        }
        let written = self.written.lock();
        let end = offset.checked_add(out.len() as u64).filter(|end| *end <= written.len);
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        // What lies past the file's own end was never written, or is below.
        out.fill(0);
        let real_end = end.min(self.file.len()?);
        if offset < real_end {
            self.file.read(offset, &mut out[..index(real_end - offset)])?;
        }
        for (start, data) in &written.writes {
            let (from, to) = (offset.max(*start), end.min(start + data.len() as u64));
            if from < to {
                let source = &data[index(from - start)..index(to - start)];
                out[index(from - offset)..index(to - offset)].copy_from_slice(source);
            }
        }
        Ok(())
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.written.lock().len = len;
        Ok(())
    }
    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut written = self.written.lock();
        written.len = written.len.max(offset + data.len() as u64);
        written.writes.push((offset, data.to_vec()));
        Ok(())
    }
    /// Closes the look. The file and its locks stay.
    fn close(&self) -> io::Result<()> {
        Ok(())
    }
    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_range(start, end)
    }
    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_shared_range(start, end)
    }
    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_range(start, end)
    }
    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_shared_range(start, end)
    }
    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.unlock_range(start, end)
    }
    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.query_lock_range(start, end)
    }
}

fn index(bytes: u64) -> usize {
    usize::try_from(bytes).expect("within a buffer")
}
