//! What is on the medium: durable, or pending.

use super::Random;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const PAGE: usize = 4096;
/// What a disk writes whole or not at all.
const SECTOR: usize = 512;

/// Something done to the disk.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Write {
        file: u64,
        offset: u64,
        data: Arc<[u8]>,
    },
    SetLen {
        file: u64,
        len: u64,
    },
    SyncFile {
        file: u64,
    },
    /// A sync that failed: what was pending is still seen, and a later sync
    /// does not write it any more.
    SyncFailed {
        file: u64,
    },
    /// A file got a name: its first, when it was created, or a further one.
    Name {
        name: PathBuf,
        file: u64,
    },
    Remove {
        name: PathBuf,
    },
    SyncFolder,
}

/// The bytes of a file, in pages that clones share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    pages: Vec<Option<Arc<[u8; PAGE]>>>,
    len: u64,
}

impl Content {
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if offset + out.len() as u64 > self.len {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        for (page, within, part) in pieces(offset, out.len(), PAGE) {
            let out = &mut out[part];
            match &self.pages[page] {
                Some(page) => out.copy_from_slice(&page[within..within + out.len()]),
                None => out.fill(0),
            }
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        if offset + data.len() as u64 > self.len {
            self.set_len(offset + data.len() as u64);
        }
        for (page, within, part) in pieces(offset, data.len(), PAGE) {
            let page = self.pages[page].get_or_insert_with(|| Arc::new([0; PAGE]));
            let data = &data[part];
            Arc::make_mut(page)[within..within + data.len()].copy_from_slice(data);
        }
    }

    fn set_len(&mut self, len: u64) {
        let bytes = usize::try_from(len).unwrap();
        self.pages.resize(bytes.div_ceil(PAGE), None);
        if len < self.len
            && bytes % PAGE > 0
            && let Some(Some(last)) = self.pages.last_mut()
        {
            Arc::make_mut(last)[bytes % PAGE..].fill(0);
        }
        self.len = len;
    }
}

/// Cuts `len` bytes at `offset` where units of `size` end: the unit, where the
/// piece begins in it, and which of the bytes it is.
fn pieces(
    offset: u64,
    len: usize,
    size: usize,
) -> impl Iterator<Item = (usize, usize, std::ops::Range<usize>)> {
    let offset = usize::try_from(offset).unwrap();
    let mut at = 0;
    std::iter::from_fn(move || {
        let within = (offset + at) % size;
        let end = len.min(at + size - within);
        let piece = ((offset + at) / size, within, at..end);
        (at < len).then(|| {
            at = end;
            piece
        })
    })
}

/// Files, and their names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Folder {
    names: BTreeMap<PathBuf, u64>,
    files: BTreeMap<u64, Content>,
}

impl Folder {
    pub(crate) fn file(&self, name: &Path) -> Option<u64> {
        self.names.get(name).copied()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = (&PathBuf, &u64)> {
        self.names.iter()
    }

    pub(crate) fn content(&self, file: u64) -> &Content {
        &self.files[&file]
    }

    pub(crate) fn free_number(&self) -> u64 {
        self.files.last_key_value().map_or(1, |(last, _)| last + 1)
    }

    pub(crate) fn apply(&mut self, op: &Op) {
        match op {
            Op::Write { file, offset, data } => self.files.entry(*file).or_default().write(*offset, data),
            Op::SetLen { file, len } => self.files.entry(*file).or_default().set_len(*len),
            Op::Name { name, file } => {
                self.files.entry(*file).or_default();
                self.names.insert(name.clone(), *file);
            }
            Op::Remove { name } => drop(self.names.remove(name)),
            Op::SyncFile { .. } | Op::SyncFailed { .. } | Op::SyncFolder => {}
        }
    }
}

/// Which of what is pending survives a power cut.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cut {
    Nothing,
    Everything,
    /// Only the pending operation with this number.
    Only(usize),
    /// Any, each write torn at sectors; drawn with this seed.
    Torn(u64),
}

/// A disk whose power can be cut.
#[derive(Clone, Debug, Default)]
pub(crate) struct Medium {
    durable: Folder,
    pending: Vec<Op>,
}

impl Medium {
    pub(crate) fn holding(folder: Folder) -> Self {
        Self { durable: folder, pending: Vec::new() }
    }

    /// How many operations are pending.
    pub(crate) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Follows the disk by one operation.
    pub(crate) fn follow(&mut self, op: &Op) {
        let synced: fn(&Op, u64) -> bool = |op, synced| match op {
            Op::Write { file, .. } | Op::SetLen { file, .. } => *file == synced,
            _ => false,
        };
        let mut settle = |is_synced: &dyn Fn(&Op) -> bool| {
            for op in self.pending.extract_if(.., |op| is_synced(op)) {
                self.durable.apply(&op);
            }
        };
        match op {
            Op::SyncFile { file } => settle(&|op| synced(op, *file)),
            Op::SyncFolder => settle(&|op| matches!(op, Op::Name { .. } | Op::Remove { .. })),
            Op::SyncFailed { file } => self.pending.retain(|op| !synced(op, *file)),
            op => self.pending.push(op.clone()),
        }
    }

    /// What a power cut leaves.
    pub(crate) fn cut(&self, cut: Cut) -> Folder {
        let mut left = self.durable.clone();
        let mut random = match cut {
            Cut::Torn(seed) => Random::new(seed),
            _ => Random::new(0),
        };
        for (number, op) in self.pending.iter().enumerate() {
            match cut {
                Cut::Everything => left.apply(op),
                Cut::Only(only) if only == number => left.apply(op),
                Cut::Nothing | Cut::Only(_) => {}
                Cut::Torn(_) => match (random.below(3), op) {
                    (0, _) => {}
                    (1, Op::Write { file, offset, data }) => {
                        tear(&mut left, *file, *offset, data, &mut random);
                    }
                    _ => left.apply(op),
                },
            }
        }
        left
    }
}

/// Writes some of the sectors.
fn tear(left: &mut Folder, file: u64, offset: u64, data: &[u8], random: &mut Random) {
    for (_, _, part) in pieces(offset, data.len(), SECTOR) {
        if random.coin() {
            let offset = offset + part.start as u64;
            left.apply(&Op::Write { file, offset, data: data[part].into() });
        }
    }
}
