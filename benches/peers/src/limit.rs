//! The disk's own limit for one caller: two blocks appended for each cycle, each
//! written and synced before the next, to a file whose blocks are allocated and
//! were written before. Nothing that makes a claim and an answer durable one
//! after the other, for one caller, can do less.

use anyhow::Result;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

const BLOCK_BYTES: usize = 4096;
const FILE_BLOCKS: usize = 16 * 1024;

/// Cycles a second.
pub(crate) fn cycles_per_second(time: Duration, parent: &Path) -> Result<f64> {
    let folder = tempfile::Builder::new().prefix("limit-").tempdir_in(parent)?;
    let file = File::create_new(folder.path().join("blocks"))?;
    let mebibyte = vec![0; 256 * BLOCK_BYTES];
    for part in 0..FILE_BLOCKS / 256 {
        file.write_all_at(&mebibyte, (part * mebibyte.len()) as u64)?;
    }
    file.sync_all()?;

    let block = [0x5A; BLOCK_BYTES];
    let (began, mut appended) = (Instant::now(), 0);
    while began.elapsed() < time {
        for _ in 0..2 {
            file.write_all_at(&block, (appended % FILE_BLOCKS * BLOCK_BYTES) as u64)?;
            file.sync_data()?;
            appended += 1;
        }
    }
    Ok((appended / 2) as f64 / began.elapsed().as_secs_f64())
}
