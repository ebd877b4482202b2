//! The seam between the store and the files it keeps.
//!
//! Everything that happens to a *name* (open, create, publish, remove, and the
//! sync of the folder) and to a file's bytes (redb's [`StorageBackend`]) goes
//! through [`Disk`], so that the power-cut simulator of the tests can own both.
//! Hidden from the documentation: it may change in any release.

use crate::error::{Error, ErrorKind, Result};
use redb::StorageBackend;
use redb::backends::FileBackend;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// A folder of files that a store can be kept in.
pub trait Disk: Send + Sync + fmt::Debug {
    /// Opens an existing file; `None` if nothing has that name. Links are not
    /// followed, and what is not a regular file is an error.
    fn open(&self, path: &Path) -> Result<Option<Box<dyn StorageBackend>>>;
    /// Creates an empty file that only its owner can read; an error if the name
    /// is taken.
    fn create(&self, path: &Path) -> io::Result<Box<dyn StorageBackend>>;
    /// Gives the file `from` the further name `to`; `AlreadyExists` if that is
    /// taken.
    fn publish(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a name.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes what was created, published and removed beside `path` durable.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;
    /// The files beside `path` whose names begin with its name and `suffix`,
    /// and that no living process holds.
    fn leftovers(&self, path: &Path, suffix: &str) -> io::Result<Vec<PathBuf>>;
}

/// The operating system's files.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn open(&self, path: &Path) -> Result<Option<Box<dyn StorageBackend>>> {
        let found = match fs::symlink_metadata(path) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(cannot("open", path, error)),
        };
        if found.is_symlink() {
            return Err(Error::new(
                ErrorKind::SymbolicLink,
                format!("{} is a symbolic link, and links are not followed", path.display()),
            ));
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        no_follow(&mut options);
        // A folder refuses the open for writing; its kind is the better answer.
        let opened = options.open(path);
        if !found.is_file() || opened.as_ref().is_ok_and(|file| !is_regular(file)) {
            return Err(Error::new(
                ErrorKind::NotAFile,
                format!("{} is {}, not a regular file", path.display(), describe(&found)),
            ));
        }
        let file = opened.map_err(|error| cannot("open", path, error))?;
        Ok(Some(Box::new(backend(file)?)))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn StorageBackend>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        no_follow(&mut options);
        owner_only(&mut options);
        let file = options.open(path)?;
        Ok(Box::new(backend(file).map_err(io::Error::other)?))
    }

    fn publish(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::hard_link(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        // Elsewhere a folder cannot be opened, and the file system orders names.
        if cfg!(unix) { File::open(folder_of(path))?.sync_all() } else { Ok(()) }
    }

    fn leftovers(&self, path: &Path, suffix: &str) -> io::Result<Vec<PathBuf>> {
        let Some(name) = path.file_name() else { return Ok(Vec::new()) };
        let mut prefix = name.to_os_string();
        prefix.push(suffix);
        let prefix = prefix.as_encoded_bytes();
        let mut found = Vec::new();
        for entry in fs::read_dir(folder_of(path))? {
            let entry = entry?;
            let ours = entry.file_name().as_encoded_bytes().starts_with(prefix);
            if ours && entry.file_type()?.is_file() && !is_locked(&entry.path()) {
                found.push(entry.path());
            }
        }
        Ok(found)
    }
}

/// The folder that `path` names a file in.
fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// An error of the operating system about a path.
pub(crate) fn cannot(what: &str, path: &Path, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        _ => ErrorKind::Io,
    };
    Error::with_source(kind, format!("cannot {what} {}", path.display()), error)
}

fn backend(file: File) -> Result<FileBackend> {
    FileBackend::new(file)
        .map_err(|error| Error::with_source(ErrorKind::Io, "cannot use the file", redb::Error::from(error)))
}

fn is_regular(file: &File) -> bool {
    file.metadata().is_ok_and(|found| found.is_file())
}

fn is_locked(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return true };
    // Dropping the file gives the lock back.
    file.try_lock().is_err()
}

#[cfg(unix)]
fn no_follow(options: &mut OpenOptions) {
    use std::os::unix::fs::OpenOptionsExt as _;
    // O_NONBLOCK: opening a FIFO must not wait for its other end.
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
}

#[cfg(not(unix))]
fn no_follow(_: &mut OpenOptions) {}

#[cfg(unix)]
fn owner_only(options: &mut OpenOptions) {
    use std::os::unix::fs::OpenOptionsExt as _;
    options.mode(0o600);
}

#[cfg(not(unix))]
fn owner_only(_: &mut OpenOptions) {}

#[cfg(unix)]
fn describe(found: &fs::Metadata) -> &'static str {
    use std::os::unix::fs::FileTypeExt as _;
    let kind = found.file_type();
    if kind.is_dir() {
        "a folder"
    } else if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

#[cfg(not(unix))]
fn describe(found: &fs::Metadata) -> &'static str {
    if found.is_dir() { "a folder" } else { "something else" }
}
