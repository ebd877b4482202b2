//! From cells to medians, and from medians to a table, a CSV and a plot.

pub(crate) mod csv;
pub(crate) mod plot;
pub(crate) mod table;

use crate::measure::Cell;

/// Everything that one run measured.
pub(crate) struct Run {
    /// Engines in the order of the list; the first is the measure.
    pub(crate) engines: Vec<&'static str>,
    /// Engines that were asked for and cannot be measured here, and why.
    pub(crate) missing: Vec<(&'static str, String)>,
    pub(crate) callers: Vec<usize>,
    pub(crate) rounds: usize,
    pub(crate) cells: Vec<Cell>,
    /// The disk's limit, measured beside the cells of each round and number of callers.
    pub(crate) limits: Vec<Limit>,
}

pub(crate) struct Limit {
    pub(crate) round: usize,
    pub(crate) callers: usize,
    pub(crate) cycles_per_second: f64,
}

impl Run {
    /// The median over the rounds of one figure of an engine.
    pub(crate) fn median(
        &self,
        engine: &str,
        callers: usize,
        figure: impl Fn(&Cell) -> Option<f64>,
    ) -> Option<f64> {
        let cells = self.cells.iter().filter(|cell| cell.engine == engine && cell.callers == callers);
        median(cells.filter_map(figure))
    }

    /// The median over the rounds of an engine's rate as a part of another's in
    /// the same round: what makes a disk slower for a minute changes both.
    pub(crate) fn ratio(&self, engine: &str, to: &str, callers: usize) -> Option<f64> {
        self.median(engine, callers, |cell| {
            let same =
                |other: &&Cell| (other.engine, other.callers, other.round) == (to, cell.callers, cell.round);
            Some(cell.cycles_per_second / self.cells.iter().find(same)?.cycles_per_second)
        })
    }

    /// The same, to the disk's limit.
    pub(crate) fn ratio_to_limit(&self, engine: &str, callers: usize) -> Option<f64> {
        self.median(engine, callers, |cell| {
            let same = |limit: &&Limit| (limit.callers, limit.round) == (cell.callers, cell.round);
            Some(cell.cycles_per_second / self.limits.iter().find(same)?.cycles_per_second)
        })
    }

    /// The disk's limit, measured beside these cells.
    pub(crate) fn limit(&self, callers: usize) -> Option<f64> {
        let limits = self.limits.iter().filter(|limit| limit.callers == callers);
        median(limits.map(|limit| limit.cycles_per_second))
    }
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    let (below, above) = (values.len().checked_sub(1)? / 2, values.len() / 2);
    Some(f64::midpoint(values[below], values[above]))
}
