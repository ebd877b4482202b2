//! One cell: one engine, so many callers, in a fresh folder, for so long; then
//! reopened, and every acknowledged answer read back.

use crate::engine::{Engine, Store, Writer};
use crate::work::Key;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// What was measured.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) engine: &'static str,
    pub(crate) callers: usize,
    pub(crate) round: usize,
    /// Acknowledged, and found again after reopening.
    pub(crate) cycles: usize,
    pub(crate) cycles_per_second: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    /// Written a cycle from the first cycle to the last.
    pub(crate) bytes_per_cycle: Option<f64>,
    /// The same, to the end of `close`: with what was put off until then.
    pub(crate) bytes_per_cycle_closed: Option<f64>,
}

/// What one caller saw.
struct Seen {
    /// How long each of its cycles took.
    latencies: Vec<Duration>,
    /// How many of them ended before time was up.
    in_time: usize,
}

pub(crate) fn cell(
    engine: &dyn Engine,
    callers: usize,
    round: usize,
    time: Duration,
    parent: &Path,
) -> Result<Cell> {
    let folder = tempfile::Builder::new().prefix("cell-").tempdir_in(parent)?;
    let store = engine.open(folder.path(), callers)?;
    settle_disk();
    let writer = store.writer();
    let before = bytes_written(writer);
    let (seen, seconds) = run(&*store, callers, time)?;
    let after = bytes_written(writer);
    store.close()?;
    let closed = if matches!(writer, Writer::ThisProcess) { bytes_written(writer) } else { None };

    let reopened = engine.open(folder.path(), callers).context("reopening")?;
    verify(&*reopened, &seen)?;
    reopened.close()?;

    let in_time: usize = seen.iter().map(|caller| caller.in_time).sum();
    let mut latencies: Vec<_> = seen.iter().flat_map(|caller| caller.latencies.iter().copied()).collect();
    latencies.sort_unstable();
    let per_cycle = |end: Option<u64>| Some((end? - before?) as f64 / latencies.len() as f64);
    Ok(Cell {
        engine: engine.name(),
        callers,
        round,
        cycles: latencies.len(),
        cycles_per_second: in_time as f64 / seconds,
        p50_ms: percentile_ms(&latencies, 50),
        p99_ms: percentile_ms(&latencies, 99),
        bytes_per_cycle: per_cycle(after),
        bytes_per_cycle_closed: per_cycle(closed),
    })
}

/// All callers at once, each with keys of its own. Returns what each saw, and
/// the seconds from the start until time was up.
fn run(store: &dyn Store, callers: usize, time: Duration) -> Result<(Vec<Seen>, f64)> {
    let (start, time_is_up) = (Barrier::new(callers + 1), AtomicBool::new(false));
    thread::scope(|scope| {
        let threads: Vec<_> = (0..callers)
            .map(|caller| {
                let (start, time_is_up) = (&start, &time_is_up);
                scope.spawn(move || one_caller(store, caller, start, time_is_up))
            })
            .collect();
        start.wait();
        let began = Instant::now();
        thread::sleep(time);
        time_is_up.store(true, Ordering::SeqCst);
        let seconds = began.elapsed().as_secs_f64();
        let seen: Result<Vec<_>> =
            threads.into_iter().map(|thread| thread.join().expect("a caller does not panic")).collect();
        Ok((seen?, seconds))
    })
}

fn one_caller(store: &dyn Store, caller: usize, start: &Barrier, time_is_up: &AtomicBool) -> Result<Seen> {
    let own = store.caller();
    start.wait(); // also if that failed: the others wait here
    let mut own = own?;
    let mut seen = Seen { latencies: Vec::new(), in_time: 0 };
    while !time_is_up.load(Ordering::Relaxed) {
        let key = Key::of(caller, seen.latencies.len());
        let answer = key.answer();
        let began = Instant::now();
        own.cycle(&key, &answer)?;
        seen.latencies.push(began.elapsed());
        if !time_is_up.load(Ordering::Relaxed) {
            seen.in_time = seen.latencies.len();
        }
    }
    Ok(seen)
}

/// Every answer that was acknowledged is there, byte for byte, and no more.
fn verify(store: &dyn Store, seen: &[Seen]) -> Result<()> {
    let acknowledged: usize = seen.iter().map(|caller| caller.latencies.len()).sum();
    let completed = store.completed()?;
    ensure!(
        completed == acknowledged as u64,
        "{acknowledged} completions were acknowledged, and {completed} are there after reopening"
    );
    for (caller, seen) in seen.iter().enumerate() {
        let keys: Vec<_> = (0..seen.latencies.len()).map(|cycle| Key::of(caller, cycle)).collect();
        let answers = store.answers(&keys)?;
        ensure!(answers.len() == keys.len(), "{} answers to {} keys", answers.len(), keys.len());
        for (key, answer) in keys.iter().zip(answers) {
            let answer = answer.with_context(|| format!("the acknowledged answer of {key} is gone"))?;
            ensure!(answer == key.answer(), "the answer of {key} is not what was acknowledged");
        }
    }
    Ok(())
}

/// Of sorted latencies; the smallest that is not less than that share of them.
fn percentile_ms(sorted: &[Duration], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).map_or(f64::NAN, |latency| latency.as_secs_f64() * 1000.0)
}

/// What opening and earlier cells left to be written is written now, not under the clock.
fn settle_disk() {
    let _ = Command::new("sync").status(); // without it the figures are only noisier
}

/// How many bytes the process had the kernel write to disk so far. Counted when
/// a page becomes dirty, so whole pages.
fn bytes_written(writer: Writer) -> Option<u64> {
    let process = match writer {
        Writer::ThisProcess => "self".to_owned(),
        Writer::Process(id) => id.to_string(),
        Writer::Many => return None,
    };
    let io = fs::read_to_string(format!("/proc/{process}/io")).ok()?;
    io.lines().find_map(|line| line.strip_prefix("write_bytes: "))?.parse().ok()
}
