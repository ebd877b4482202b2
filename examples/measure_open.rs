//! How long a store takes to open, with the check of every page and without.
//!
//! ```text
//! cargo run --release --example measure_open -- 1000 [folder]
//! ```
//!
//! builds a store of about 1,000 MB with responses of 16 KiB in a temporary
//! folder (or one below `folder`), closes it, and opens it three times each way
//! while the system has the file in memory. The times are of
//! [`keyonce::StoreBuilder::open`] alone.

use keyonce::{Begin, Fingerprint, Key, Store};
use std::error::Error;
use std::fs;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

const RESPONSE_BYTES: usize = 16 << 10;
const THREADS: usize = 32;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mb: usize = arguments.next().ok_or("usage: measure_open <MB> [folder]")?.parse()?;
    let folder = match arguments.next() {
        Some(below) => tempfile::tempdir_in(below)?,
        None => tempfile::tempdir()?,
    };
    let path = folder.path().join("measured.keyonce");

    let began = Instant::now();
    let store = Store::open(&path)?;
    let keys = mb * 1_000_000 / RESPONSE_BYTES;
    thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|worker| {
                scope.spawn({
                    let store = &store;
                    move || fill(store, worker, keys)
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker panicked"))
    })?;
    store.close()?;
    let size = fs::metadata(&path)?.len();
    println!("{keys} keys, a file of {} MB, built in {:.0?}", size / 1_000_000, began.elapsed());

    // The whole file into the system's memory, as far as it fits.
    io::copy(&mut fs::File::open(&path)?, &mut io::sink())?;
    for check in [true, false] {
        for _ in 0..3 {
            let took = open(&path, check)?;
            println!("check_on_open({check}): {took:.3?}");
        }
    }
    Ok(())
}

/// Completes this worker's part of the keys.
fn fill(store: &Store, worker: usize, keys: usize) -> Result<(), keyonce::Error> {
    for number in (worker..keys).step_by(THREADS) {
        let key = Key::new(format!("order-{number}"))?;
        if let Begin::Fresh(claim) = store.begin(&key, &Fingerprint::NONE)? {
            claim.complete(vec![number.to_le_bytes()[0]; RESPONSE_BYTES])?;
        }
    }
    Ok(())
}

fn open(path: &std::path::Path, check: bool) -> Result<Duration, keyonce::Error> {
    let began = Instant::now();
    let store = Store::builder().check_on_open(check).open(path)?;
    let took = began.elapsed();
    store.close()?;
    Ok(took)
}
