//! A disk in memory whose files outlive the store that had them open.

use keyonce::disk::Disk;
use redb::StorageBackend;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

type Bytes = Arc<Mutex<Vec<u8>>>;

#[derive(Clone, Debug, Default)]
pub struct MemoryDisk(Arc<Mutex<BTreeMap<PathBuf, Bytes>>>);

impl Disk for MemoryDisk {
    fn open(&self, path: &Path) -> keyonce::Result<Option<Box<dyn StorageBackend>>> {
        let file = self.0.lock().unwrap().get(path).cloned();
        Ok(file.map(|file| Box::new(MemoryFile(file)) as Box<dyn StorageBackend>))
    }
    fn create(&self, path: &Path) -> io::Result<Box<dyn StorageBackend>> {
        let file = Bytes::default();
        self.0.lock().unwrap().insert(path.into(), file.clone());
        Ok(Box::new(MemoryFile(file)))
    }
    fn publish(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut files = self.0.lock().unwrap();
        let file = files[from].clone();
        files.insert(to.into(), file);
        Ok(())
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.lock().unwrap().remove(path).map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
    fn sync_folder(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
    fn leftovers(&self, _: &Path, _: &str) -> io::Result<Vec<PathBuf>> {
        Ok(Vec::new())
    }
}

#[derive(Debug)]
struct MemoryFile(Bytes);

impl StorageBackend for MemoryFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().len() as u64)
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let bytes = self.0.lock().unwrap();
        let from = offset as usize;
        out.copy_from_slice(bytes.get(from..from + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.lock().unwrap().resize(len as usize, 0);
        Ok(())
    }
    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let from = offset as usize;
        self.0.lock().unwrap()[from..from + data.len()].copy_from_slice(data);
        Ok(())
    }
}
