//! The command line.

use clap::Parser;
use std::path::PathBuf;
use std::time::Duration;

/// Measures keyonce beside other stores: a durable claim of a new key, then a
/// durable 250-byte answer, by several callers at once.
///
/// Every engine is in its best setting in which nothing is acknowledged before
/// it is on disk (README.md says which). After each cell the store is reopened
/// and every acknowledged answer is read back.
#[derive(Parser)]
#[command(
    name = "peers",
    after_help = "Exit codes: 0 all was measured, and every acknowledged answer was there; 1 something failed, or\n\
                  an answer was missing; 2 wrong arguments."
)]
pub(crate) struct Options {
    /// How often each engine is measured with each number of callers; medians are over these
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How long each measurement takes, in seconds
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS")]
    seconds: f64,
    /// How many callers at once
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 16, 64, 256], value_name = "LIST")]
    callers: Vec<u16>,
    /// Only the engines whose names have one of these in them, in any case; keyonce always
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    engines: Vec<String>,
    /// Where the stores live while they are measured: on the disk that matters
    /// [default: beside the executable]
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
    /// Where peers.csv and peers.svg go [default: out, in this package's folder]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// One round of half a second: to see that all works, not to compare
    #[arg(long, conflicts_with_all = ["rounds", "seconds"])]
    quick: bool,
}

pub(crate) fn options() -> Options {
    Options::parse()
}

impl Options {
    pub(crate) fn rounds(&self) -> usize {
        if self.quick { 1 } else { self.rounds as usize }
    }

    pub(crate) fn time(&self) -> Duration {
        Duration::from_secs_f64(if self.quick { 0.5 } else { self.seconds.clamp(0.01, 3600.0) })
    }

    pub(crate) fn callers(&self) -> Vec<usize> {
        let mut callers: Vec<_> = self.callers.iter().map(|&callers| usize::from(callers.max(1))).collect();
        callers.sort_unstable();
        callers.dedup();
        callers
    }

    pub(crate) fn wants(&self, engine: &str) -> bool {
        let name = engine.to_lowercase();
        self.engines.is_empty() || self.engines.iter().any(|wanted| name.contains(&wanted.to_lowercase()))
    }

    pub(crate) fn dir(&self) -> PathBuf {
        let beside = || std::env::current_exe().unwrap_or_default().with_file_name("peers-data");
        self.dir.clone().unwrap_or_else(beside)
    }

    pub(crate) fn out(&self) -> PathBuf {
        self.out.clone().unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/out").into())
    }
}
