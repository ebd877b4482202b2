//! What happened, as a table, and whether it is right.

use crate::input::{CHANNELS, Notification};
use crate::shop::Line;
use comfy_table::{Cell, CellAlignment, Table, presets};
use std::collections::BTreeMap;
use std::time::Duration;

/// How many wrong orders are named.
const NAMED_MAX: usize = 5;

#[derive(Clone, Copy, Default)]
pub(crate) struct Row {
    notifications: usize,
    credits: usize,
    replays: usize,
    mismatches: usize,
    pub(crate) waited: usize,
    pub(crate) interrupted: usize,
    reconciled: usize,
}

impl Row {
    fn figures(self) -> [usize; 7] {
        [
            self.notifications,
            self.credits,
            self.replays,
            self.mismatches,
            self.waited,
            self.interrupted,
            self.reconciled,
        ]
    }
}

/// The store's own figures, of the last worker.
pub(crate) struct Stats {
    pub(crate) keys: usize,
    pub(crate) replays: usize,
    pub(crate) writes: usize,
    pub(crate) commits: usize,
}

pub(crate) struct Report {
    pub(crate) rows: [Row; 3],
    pub(crate) starts: u32,
    /// Interrupted claims that a worker found when it opened the store.
    pub(crate) found: usize,
    pub(crate) stats: Option<Stats>,
    pub(crate) elapsed: Duration,
    /// Order → credits and charges, of all runs.
    orders: BTreeMap<String, (usize, usize)>,
    /// Order → the receipt that its first caller got.
    receipts: BTreeMap<String, String>,
    /// Callers that got another one.
    disagreements: usize,
}

impl Report {
    pub(crate) fn new(all: &[Notification]) -> Self {
        let mut rows = [Row::default(); 3];
        let mut orders = BTreeMap::new();
        for asked in all {
            rows[asked.channel].notifications += 1;
            orders.insert(asked.order_name(), (0, 0));
        }
        Self {
            rows,
            starts: 0,
            found: 0,
            stats: None,
            elapsed: Duration::ZERO,
            orders,
            receipts: BTreeMap::new(),
            disagreements: 0,
        }
    }

    pub(crate) fn answered(&mut self, asked: &Notification, outcome: &str, receipt: &str) {
        if !receipt.is_empty() {
            let first = self.receipts.entry(asked.order_name()).or_insert_with(|| receipt.to_owned());
            self.disagreements += usize::from(first != receipt);
        }
        let row = &mut self.rows[asked.channel];
        match outcome {
            "reconciled" => row.reconciled += 1,
            "replayed" => row.replays += 1,
            "mismatch" => row.mismatches += 1,
            _ => {} // The ledger says what was credited.
        }
    }

    /// Credits are counted in the ledger: it is what the customer sees.
    pub(crate) fn credit(&mut self, ledger: &[Line], before: usize) {
        for (i, line) in ledger.iter().enumerate() {
            self.rows[line.channel].credits += usize::from(i >= before);
            if let Some(order) = self.orders.get_mut(&line.order) {
                order.0 += 1;
            }
        }
    }

    pub(crate) fn charge(&mut self, gateway: &[Line]) {
        for line in gateway {
            if let Some(order) = self.orders.get_mut(&line.order) {
                order.1 += 1;
            }
        }
    }

    fn wrong(&self) -> impl Iterator<Item = (&String, &(usize, usize))> {
        self.orders.iter().filter(|(_, books)| **books != (1, 1))
    }

    pub(crate) fn is_right(&self) -> bool {
        self.disagreements == 0 && self.wrong().next().is_none()
    }

    pub(crate) fn print(&self, unsafely: bool) {
        println!("{}\n", self.table());
        if self.starts > 1 {
            print!("The worker died and was started again");
            if unsafely {
                println!(".");
            } else {
                println!("; the store told it of {} interrupted claim(s).", self.found);
            }
        }
        if let Some(Stats { keys, replays, writes, commits }) = &self.stats {
            print!("The store has {keys} keys. Since the worker's last start: {replays} replays, ");
            println!("{writes} writes in {commits} commits.");
        }
        println!("It took {:.2} s.\n", self.elapsed.as_secs_f64());
        let (orders, wrong) = (self.orders.len(), self.wrong().count());
        let credits: usize = self.rows.iter().map(|row| row.credits).sum();
        if self.disagreements > 0 {
            println!(
                "WRONG: {} callers got another receipt than the first of their order.",
                self.disagreements
            );
        }
        if wrong == 0 && credits == 0 {
            println!(
                "OK: all was remembered. {orders} orders, each credited exactly once, in an earlier run."
            );
        } else if wrong == 0 {
            println!("OK: {orders} orders, each credited exactly once.");
        } else {
            println!("WRONG: {wrong} of {orders} orders were not charged and credited exactly once:");
            for (order, (credits, charges)) in self.wrong().take(NAMED_MAX) {
                println!("  {}: credited {credits} x, charged {charges} x", order.replace(',', " / "));
            }
            if wrong > NAMED_MAX {
                println!("  and {} more", wrong - NAMED_MAX);
            }
            if unsafely {
                println!("That was without the store. Run it without --unsafe to see the difference.");
            }
        }
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        table.set_header([
            "channel",
            "notifications",
            "credits",
            "replays",
            "mismatches",
            "waited",
            "interrupted",
            "reconciled",
        ]);
        let mut total = [0; 7];
        for (name, row) in CHANNELS.iter().zip(self.rows) {
            for (sum, figure) in total.iter_mut().zip(row.figures()) {
                *sum += figure;
            }
            table.add_row(cells(name, row.figures()));
        }
        table.add_row(cells("total", total));
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }
}

fn cells(name: &str, figures: [usize; 7]) -> Vec<Cell> {
    std::iter::once(Cell::new(name)).chain(figures.iter().map(Cell::new)).collect()
}
