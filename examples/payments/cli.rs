//! The command line.

use clap::Parser;
use std::path::PathBuf;

/// Credits several hundred payments once each, though every one is reported
/// three times or more, a gateway times out and the process dies in the middle.
///
/// Run it twice: the second run shows that all is remembered.
#[derive(Parser)]
#[command(
    name = "payments",
    after_help = "Exit codes: 0 each order is credited exactly once; 1 some are not (with --unsafe, that is\n\
                  the point); 2 wrong arguments or input, or the store cannot be opened."
)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct Options {
    /// Read the notifications from this file instead of the example's own
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Keep the store, the ledger and the gateway's book in this folder
    /// [default: payments-data, beside the executable]
    #[arg(long, value_name = "FOLDER")]
    store: Option<PathBuf>,
    /// Forget earlier runs first
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Run without the store, always afresh, and see orders credited twice and more
    #[arg(long = "unsafe")]
    pub(crate) unsafely: bool,
    /// Be the worker process
    #[arg(long, hide = true)]
    pub(crate) worker: bool,
    /// Print the example's input as it was made
    #[arg(long, hide = true)]
    pub(crate) generate: bool,
}

pub(crate) fn options() -> Options {
    Options::parse()
}

impl Options {
    pub(crate) fn input(&self) -> PathBuf {
        let own = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/payments/notifications.csv");
        self.input.clone().unwrap_or_else(|| own.into())
    }

    /// What `--unsafe` does is kept apart from what the store remembers.
    pub(crate) fn folder(&self) -> PathBuf {
        let beside = || std::env::current_exe().unwrap_or_default().with_file_name("payments-data");
        let folder = self.store.clone().unwrap_or_else(beside);
        if self.unsafely { folder.join("unsafe") } else { folder }
    }
}
