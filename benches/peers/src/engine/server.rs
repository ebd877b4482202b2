//! What the two servers have in common: they are found, started in private, and
//! never outlive the harness.
//!
//! They listen on a Unix socket in a folder of their own, on no port: nobody
//! else is met, and it is faster than TCP over loopback.

use anyhow::{Context, Result, bail};
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const START_SECONDS_MAX: u64 = 60;

/// A program of this name, on the PATH or in one of the folders.
pub(super) fn program(name: &str, also_in: &[PathBuf]) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(also_in.iter().cloned());
    folders.map(|folder| folder.join(name)).find(|candidate| candidate.is_file())
}

/// The end of a server's log, to say why it did not start.
pub(super) fn last_lines(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}

/// A folder for the socket: its name must be short, which the data's may not be.
pub(super) fn socket_folder() -> Result<TempDir> {
    tempfile::Builder::new().prefix("peers-").tempdir().context("no folder for a socket")
}

/// Asks until the answer is yes, the server has ended, or it takes too long.
pub(super) fn wait_until_ready(
    name: impl AsRef<OsStr>,
    log: &Path,
    mut has_ended: impl FnMut() -> Result<bool>,
    mut is_ready: impl FnMut() -> bool,
) -> Result<()> {
    let start = Instant::now();
    while !is_ready() {
        let name = name.as_ref().display();
        if has_ended()? {
            bail!("{name} ended at its start:\n{}", last_lines(log));
        }
        if start.elapsed() > Duration::from_secs(START_SECONDS_MAX) {
            bail!("{name} does not answer after {START_SECONDS_MAX} s:\n{}", last_lines(log));
        }
        sleep(Duration::from_millis(10));
    }
    Ok(())
}
