//! The disk as its user sees it while the power is on.

use super::medium::{Folder, Op};
use keyonce::disk::Disk;
use redb::{BackendError, StorageBackend};
use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

/// Which operations fail, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    /// Whether reads fail, and not what changes the disk. They are counted apart.
    pub(crate) reads: bool,
    /// The number of the first operation that fails, from 0.
    pub(crate) at: usize,
    /// Whether all after it fail too.
    pub(crate) lasting: bool,
    /// The error number of the operating system.
    pub(crate) errno: i32,
    /// Whether half of a failing write is written.
    pub(crate) short: bool,
}

impl Fault {
    fn strikes(self, reads: bool, number: usize) -> bool {
        self.reads == reads && (number == self.at || (self.lasting && number > self.at))
    }
}

/// An in-memory disk with one folder. Clones are the same disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct SimDisk(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    seen: Folder,
    /// What was done, in order.
    log: Vec<Op>,
    /// Which handle has a file's lock.
    locks: BTreeMap<u64, u64>,
    handles: u64,
    tried: usize,
    read: usize,
    fault: Option<Fault>,
    slow: bool,
}

impl SimDisk {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// A disk on which this is durable.
    pub(crate) fn holding(folder: Folder) -> Self {
        Self(Arc::new(Mutex::new(State { seen: folder, ..State::default() })))
    }

    pub(crate) fn set_fault(&self, fault: Option<Fault>) {
        self.lock().fault = fault;
    }

    /// Lets other threads run before each sync is done: callers come together
    /// in a commit, and one that is answered too early gets ahead of the sync.
    pub(crate) fn be_slow(&self) {
        self.lock().slow = true;
    }

    /// How many operations were done, but for those that failed.
    pub(crate) fn done(&self) -> usize {
        self.lock().log.len()
    }

    /// How many changes of the disk were tried.
    pub(crate) fn tried(&self) -> usize {
        self.lock().tried
    }

    /// How many reads were tried.
    pub(crate) fn read(&self) -> usize {
        self.lock().read
    }

    pub(crate) fn log(&self) -> Vec<Op> {
        self.lock().log.clone()
    }

    /// What is seen now.
    pub(crate) fn folder(&self) -> Folder {
        self.lock().seen.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    fn handle(&self, file: u64) -> Box<dyn StorageBackend> {
        let mut state = self.lock();
        state.handles += 1;
        Box::new(Handle { disk: self.clone(), file, id: state.handles })
    }
}

impl State {
    fn perform(&mut self, op: Op) -> io::Result<()> {
        let number = self.tried;
        self.tried += 1;
        if let Some(fault) = self.fault
            && fault.strikes(false, number)
        {
            match op {
                Op::Write { file, offset, data } if fault.short => {
                    let half = data[..data.len() / 2].into();
                    self.record(Op::Write { file, offset, data: half });
                }
                Op::SyncFile { file } => self.record(Op::SyncFailed { file }),
                _ => {}
            }
            return Err(io::Error::from_raw_os_error(fault.errno));
        }
        self.record(op);
        Ok(())
    }

    fn record(&mut self, op: Op) {
        self.seen.apply(&op);
        self.log.push(op);
    }
}

fn not_found() -> io::Error {
    io::Error::from(io::ErrorKind::NotFound)
}

impl Disk for SimDisk {
    fn open(&self, path: &Path) -> keyonce::Result<Option<Box<dyn StorageBackend>>> {
        let file = self.lock().seen.file(path);
        Ok(file.map(|file| self.handle(file)))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn StorageBackend>> {
        let file = {
            let mut state = self.lock();
            if state.seen.file(path).is_some() {
                return Err(io::Error::from(io::ErrorKind::AlreadyExists));
            }
            let file = state.seen.free_number();
            state.perform(Op::Name { name: path.to_owned(), file })?;
            file
        };
        Ok(self.handle(file))
    }

    fn publish(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.lock();
        let file = state.seen.file(from).ok_or_else(not_found)?;
        if state.seen.file(to).is_some() {
            return Err(io::Error::from(io::ErrorKind::AlreadyExists));
        }
        state.perform(Op::Name { name: to.to_owned(), file })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.lock();
        state.seen.file(path).ok_or_else(not_found)?;
        state.perform(Op::Remove { name: path.to_owned() })
    }

    fn sync_folder(&self, _: &Path) -> io::Result<()> {
        self.lock().perform(Op::SyncFolder)
    }

    fn leftovers(&self, path: &Path, suffix: &str) -> io::Result<Vec<PathBuf>> {
        let state = self.lock();
        let prefix = format!("{}{suffix}", path.display());
        let ours = state.seen.names().filter(|(name, file)| {
            name.to_str().unwrap().starts_with(&prefix) && !state.locks.contains_key(file)
        });
        Ok(ours.map(|(name, _)| name.to_owned()).collect())
    }
}

/// An open file.
#[derive(Debug)]
struct Handle {
    disk: SimDisk,
    file: u64,
    id: u64,
}

impl Handle {
    fn unlock(&self) {
        let mut state = self.disk.lock();
        if state.locks.get(&self.file) == Some(&self.id) {
            state.locks.remove(&self.file);
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.unlock();
    }
}

impl StorageBackend for Handle {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.lock().seen.content(self.file).len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut state = self.disk.lock();
        let number = state.read;
        state.read += 1;
        match state.fault {
            Some(fault) if fault.strikes(true, number) => Err(io::Error::from_raw_os_error(fault.errno)),
            _ => state.seen.content(self.file).read(offset, out),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.lock().perform(Op::SetLen { file: self.file, len })
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.disk.lock().slow {
            (0..500).for_each(|_| std::thread::yield_now());
        }
        self.disk.lock().perform(Op::SyncFile { file: self.file })
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.disk.lock().perform(Op::Write { file: self.file, offset, data: data.into() })
    }

    fn close(&self) -> io::Result<()> {
        self.unlock();
        Ok(())
    }

    // The first lock of any range takes the file.
    fn try_lock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<bool, BackendError> {
        Ok(*self.disk.lock().locks.entry(self.file).or_insert(self.id) == self.id)
    }

    fn unlock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<(), BackendError> {
        self.unlock();
        Ok(())
    }

    fn query_lock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<bool, BackendError> {
        Ok(self.disk.lock().locks.get(&self.file).is_some_and(|holder| *holder != self.id))
    }
}
