//! The rules as a table, and a walk through every state that they lead to.

use super::*;
use crate::record::OnInterrupt::{Hold, Retry};

mod contract;
mod exhaustive;

const RETENTION_MS: u64 = 1_000;
const START: u64 = 1_000_000;

fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(ms)
}

fn terms(on_interrupt: OnInterrupt) -> Terms {
    Terms { retention_ms: RETENTION_MS, on_interrupt }
}
