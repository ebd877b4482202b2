//! The CSV: a line for each cell as it was measured, so that medians can be
//! taken again; and one for each engine that was not.

use super::Run;
use anyhow::Result;
use std::path::Path;

pub(crate) fn write(run: &Run, path: &Path) -> Result<()> {
    let mut csv = csv::Writer::from_path(path)?;
    csv.write_record([
        "engine",
        "callers",
        "round",
        "cycles",
        "cycles_per_second",
        "p50_ms",
        "p99_ms",
        "bytes_per_cycle",
        "bytes_per_cycle_closed",
        "note",
    ])?;
    for limit in &run.limits {
        let (callers, round) = (limit.callers.to_string(), limit.round.to_string());
        let rate = one_digit(limit.cycles_per_second);
        let note = "one caller, measured beside the cells with so many";
        csv.write_record(["disk limit", &callers, &round, "", &rate, "", "", "", "", note])?;
    }
    for cell in &run.cells {
        csv.write_record([
            cell.engine.into(),
            cell.callers.to_string(),
            cell.round.to_string(),
            cell.cycles.to_string(),
            one_digit(cell.cycles_per_second),
            format!("{:.4}", cell.p50_ms),
            format!("{:.4}", cell.p99_ms),
            cell.bytes_per_cycle.map_or(String::new(), one_digit),
            cell.bytes_per_cycle_closed.map_or(String::new(), one_digit),
            String::new(),
        ])?;
    }
    for (engine, why) in &run.missing {
        csv.write_record([engine, "", "", "", "", "", "", "", "", why])?;
    }
    Ok(csv.flush()?)
}

fn one_digit(value: f64) -> String {
    format!("{value:.1}")
}
