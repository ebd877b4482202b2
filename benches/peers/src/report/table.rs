//! The tables: one of rates, and one of all figures for each number of callers.

use super::Run;
use comfy_table::{CellAlignment, Table, presets};

/// All engines by all numbers of callers, in cycles a second.
pub(crate) fn rates(run: &Run) -> Table {
    let mut table =
        new(std::iter::once("cycles/s".into()).chain(run.callers.iter().map(ToString::to_string)));
    let limit = run.callers.iter().map(|&callers| number(run.limit(callers)));
    table.add_row(std::iter::once("disk limit, 1 caller".into()).chain(limit));
    for &engine in &run.engines {
        let rate = |&callers| number(run.median(engine, callers, |cell| Some(cell.cycles_per_second)));
        table.add_row(std::iter::once(engine.into()).chain(run.callers.iter().map(rate)));
    }
    for (engine, why) in &run.missing {
        table.add_row([*engine, why]);
    }
    table
}

/// Every figure of every engine with so many callers.
pub(crate) fn figures(run: &Run, callers: usize) -> Table {
    let first = run.engines.first().copied().unwrap_or_default();
    let header = [
        &format!("{callers} callers"),
        "cycles/s",
        &format!("ratio to {first}"),
        "ratio to disk limit",
        "p50 ms",
        "p99 ms",
        "bytes/cycle",
        "with close",
    ];
    let mut table = new(header.into_iter().map(str::to_owned));
    for &engine in &run.engines {
        table.add_row([
            engine.into(),
            number(run.median(engine, callers, |cell| Some(cell.cycles_per_second))),
            fine(run.ratio(engine, first, callers)),
            fine(run.ratio_to_limit(engine, callers)),
            fine(run.median(engine, callers, |cell| Some(cell.p50_ms))),
            fine(run.median(engine, callers, |cell| Some(cell.p99_ms))),
            number(run.median(engine, callers, |cell| cell.bytes_per_cycle)),
            number(run.median(engine, callers, |cell| cell.bytes_per_cycle_closed)),
        ]);
    }
    for (engine, why) in &run.missing {
        table.add_row([*engine, why]);
    }
    table
}

fn new(header: impl Iterator<Item = String>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// A whole number with its thousands apart.
fn number(value: Option<f64>) -> String {
    let Some(value) = value else { return "–".into() };
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Two digits after the point, or three for what is small.
fn fine(value: Option<f64>) -> String {
    value.map_or("–".into(), |value| if value < 0.1 { format!("{value:.3}") } else { format!("{value:.2}") })
}
