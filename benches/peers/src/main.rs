//! keyonce beside its peers, in one run: see `README.md`.

#![allow(
    clippy::cast_precision_loss,
    reason = "figures are counted in integers far below 2^52 and reported as floats"
)]

mod cli;
mod engine;
mod limit;
mod measure;
mod report;
mod work;

use anyhow::{Context, Result, ensure};
use cli::Options;
use report::{Limit, Run};
use std::fs;
use std::path::Path;

/// More synced cycles a second than any disk makes: the folder is in memory.
const LIMIT_OF_DISKS: f64 = 150_000.0;

fn main() -> Result<()> {
    let options = cli::options();
    let (dir, out) = (options.dir(), options.out());
    for folder in [&dir, &out] {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let run = measure_all(&options, &dir)?;

    report::csv::write(&run, &out.join("peers.csv"))?;
    report::plot::write(&run, &out.join("peers.svg"))?;

    println!("{}", report::table::rates(&run));
    for &callers in &run.callers {
        println!("\n{}", report::table::figures(&run, callers));
    }
    println!("\nMedians of {} rounds of {:?}.", run.rounds, options.time());
    println!("Every acknowledged answer was there after reopening: {} cells.", run.cells.len());
    println!("Written: peers.csv and peers.svg in {}", out.display());
    for (engine, why) in &run.missing {
        println!("NOT MEASURED: {engine}: {why}");
    }
    if run.limits.iter().any(|limit| limit.cycles_per_second > LIMIT_OF_DISKS) {
        println!("NOT DURABLE: {} syncs faster than a disk can; give --dir on a disk", dir.display());
    }
    Ok(())
}

/// Each round measures every engine once with each number of callers, one after
/// the other, and each round starts with another engine.
fn measure_all(options: &Options, dir: &Path) -> Result<Run> {
    let all = engine::all();
    let measure_of_all = all.iter().take(1);
    let others = all.iter().skip(1).filter(|engine| options.wants(engine.name()));
    let (engines, absent): (Vec<_>, Vec<_>) =
        measure_of_all.chain(others).partition(|engine| engine.missing().is_none());
    let mut run = Run {
        engines: engines.iter().map(|engine| engine.name()).collect(),
        missing: absent.iter().filter_map(|engine| Some((engine.name(), engine.missing()?))).collect(),
        callers: options.callers(),
        rounds: options.rounds(),
        cells: Vec::new(),
        limits: Vec::new(),
    };
    ensure!(!run.callers.is_empty(), "no number of callers is given");
    for round in 0..run.rounds {
        for callers in run.callers.clone() {
            let cycles_per_second = limit::cycles_per_second(options.time(), dir)?;
            eprintln!("round {} {callers:>4} callers  disk limit {cycles_per_second:.0}", round + 1);
            run.limits.push(Limit { round, callers, cycles_per_second });
            for place in 0..engines.len() {
                let engine = engines[(place + round) % engines.len()];
                let cell = measure::cell(&**engine, callers, round, options.time(), dir)
                    .with_context(|| format!("{}, {callers} callers, round {}", engine.name(), round + 1))?;
                let (name, rate) = (cell.engine, cell.cycles_per_second);
                eprintln!("round {} {callers:>4} callers  {name:<24}{rate:>9.0} cycles/s", round + 1);
                run.cells.push(cell);
            }
        }
    }
    Ok(run)
}
