//! Prints the figures of `docs/measurements.md`, measured on this machine.
//!
//! ```sh
//! cargo run --release --example figures            # some minutes
//! cargo run --release --example figures -- --quick # seconds, rough
//! ```
//!
//! Files are in a temporary folder under `target`, on a real disk. Whatever is
//! compared is measured in interleaved rounds of one run, and medians are
//! shown. Every row checks afterwards that the work it measured was done.

#![allow(clippy::cast_precision_loss, reason = "figures for people have a few digits")]

use cap::Cap;
use comfy_table::{Table, presets};
use keyonce::{Begin, Fingerprint, Key, ManualClock, Store, StoreBuilder, Timestamp};
use redb::{Database, ReadableDatabase as _, ReadableTableMetadata as _, TableDefinition};
use std::alloc::System;
use std::hint::black_box;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Counts the bytes that are allocated and not freed.
#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, usize::MAX);

const ANSWER: [u8; 250] = [7; 250];
const DAY: Duration = Duration::from_secs(24 * 3600);

struct Sizes {
    rounds: usize,
    round: Duration,
    keys: usize,
    memory_keys: &'static [usize],
}

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let sizes = if quick {
        Sizes { rounds: 3, round: Duration::from_millis(300), keys: 50_000, memory_keys: &[100_000] }
    } else {
        Sizes {
            rounds: 7,
            round: Duration::from_millis(1500),
            keys: 1_000_000,
            memory_keys: &[1_000_000, 10_000_000],
        }
    };
    let target = std::env::current_exe().unwrap().ancestors().nth(3).unwrap().to_owned();
    let folder = tempfile::tempdir_in(target).unwrap();
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(["what", "measured", "wanted"]);
    let mut row = |what: String, measured: String, wanted: &str| {
        println!("{what}: {measured}");
        table.add_row([what, measured, wanted.to_owned()]);
    };

    for (callers, wanted) in [(1, ""), (4, ""), (16, ""), (64, "≥ 15 ×")] {
        let (ours, naive) = cycles(folder.path(), callers, &sizes);
        row(
            format!("cycles a second, {callers} callers: keyonce, naive redb"),
            format!("{ours:.0}, {naive:.0}: {:.1} ×", ours / naive),
            wanted,
        );
    }
    let path = folder.path().join("replays");
    let clock = ManualClock::new(Timestamp::from_millis(1_780_000_000_000));
    fill(&options(&clock).open(&path).unwrap(), sizes.keys, &ANSWER);
    row("replays a second, one core, hot".into(), rate(hot_replays(&sizes)), "≥ 2 M");
    row(
        format!("replays a second, one core, cold, of {} keys", sizes.keys),
        rate(cold_replays(&path, &clock, &sizes)),
        "≥ 300 k",
    );
    row(
        format!("open, records a second, {} records, unchecked", sizes.keys),
        rate(opens(&path, &clock, false, &sizes)),
        "≥ 3 M",
    );
    row("the same, checked (the default)".into(), rate(opens(&path, &clock, true, &sizes)), "");
    row("sweep, µs a record".into(), format!("{:.2}", sweep(&path, &clock, sizes.keys)), "≤ 0.5");
    for &keys in sizes.memory_keys {
        row(format!("bytes of memory a live key, {keys} keys"), format!("{:.1}", memory(keys)), "≤ 40");
    }
    println!("\n{table}");
}

fn rate(a_second: f64) -> String {
    if a_second > 1e6 { format!("{:.2} M", a_second / 1e6) } else { format!("{:.0} k", a_second / 1e3) }
}

fn options(clock: &ManualClock) -> StoreBuilder {
    Store::builder().clock(clock.clone()).retention(DAY).replay_cache(0)
}

fn key(n: usize) -> Key {
    Key::new(n.to_le_bytes()).unwrap()
}

fn cycle(store: &Store, n: usize, answer: &'static [u8]) {
    match store.begin(&key(n), &Fingerprint::NONE).unwrap() {
        Begin::Fresh(claim) => drop(claim.complete(answer).unwrap()),
        other => panic!("{other:?}"),
    }
}

/// Completes keys 0 to `keys`, by enough threads to share commits.
fn fill(store: &Store, keys: usize, answer: &'static [u8]) {
    const THREADS: usize = 256;
    thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || (thread..keys).step_by(THREADS).for_each(|n| cycle(store, n, answer)));
        }
    });
    assert_eq!(store.stats().unwrap().completed, keys);
}

/// Runs `each` with numbers that nobody had, by `callers` threads for a time.
fn run_for(time: Duration, callers: usize, next: &AtomicUsize, each: impl Fn(usize) + Sync) -> f64 {
    let before = next.load(Ordering::SeqCst);
    let start = Instant::now();
    thread::scope(|scope| {
        for _ in 0..callers {
            scope.spawn(|| {
                while start.elapsed() < time {
                    each(next.fetch_add(1, Ordering::SeqCst));
                }
            });
        }
    });
    (next.load(Ordering::SeqCst) - before) as f64 / start.elapsed().as_secs_f64()
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// A claim and a completion, each durable before the next: ours, and redb with
/// one commit for each, the way it is written without this crate.
fn cycles(folder: &Path, callers: usize, sizes: &Sizes) -> (f64, f64) {
    const NAIVE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("naive");
    let (ours_path, naive_path) =
        (folder.join(format!("ours-{callers}")), folder.join(format!("naive-{callers}")));
    let store = Store::open(&ours_path).unwrap();
    let naive = Database::create(&naive_path).unwrap();
    let write = |n: usize, value: &[u8]| {
        let transaction = naive.begin_write().unwrap();
        transaction.open_table(NAIVE).unwrap().insert(&n.to_le_bytes()[..], value).unwrap();
        transaction.commit().unwrap();
    };
    let (next_ours, next_naive) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..sizes.rounds {
        ours.push(run_for(sizes.round, callers, &next_ours, |n| cycle(&store, n, &ANSWER)));
        theirs.push(run_for(sizes.round, callers, &next_naive, |n| {
            write(n, &[0; 50]);
            write(n, &ANSWER);
        }));
    }
    store.close().unwrap();
    let completed = Store::open(&ours_path).unwrap().stats().unwrap().completed;
    assert_eq!(completed, next_ours.into_inner(), "every completion is there when reopened");
    let there = naive.begin_read().unwrap().open_table(NAIVE).unwrap().len().unwrap();
    assert_eq!(usize::try_from(there).unwrap(), next_naive.into_inner());
    (median(ours), median(theirs))
}

fn replays(store: &Store, keys: usize, count: usize) -> f64 {
    let keys: Vec<Key> = (0..keys).map(key).collect();
    let before = store.stats().unwrap().replays;
    let start = Instant::now();
    let mut at = 0_usize;
    for _ in 0..count {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        match store.begin(&keys[(at >> 20) % keys.len()], &Fingerprint::NONE).unwrap() {
            Begin::Replay(response) => drop(black_box(response)),
            other => panic!("{other:?}"),
        }
    }
    let rate = count as f64 / start.elapsed().as_secs_f64();
    assert_eq!(store.stats().unwrap().replays - before, count as u64);
    rate
}

fn hot_replays(sizes: &Sizes) -> f64 {
    let store = Store::in_memory().unwrap();
    fill(&store, 10_000, &ANSWER);
    median((0..sizes.rounds).map(|_| replays(&store, 10_000, sizes.keys)).collect())
}

fn cold_replays(path: &Path, clock: &ManualClock, sizes: &Sizes) -> f64 {
    let store = options(clock).storage_cache(1 << 30).open(path).unwrap();
    replays(&store, sizes.keys, sizes.keys); // redb's pages into memory
    median((0..sizes.rounds.min(3)).map(|_| replays(&store, sizes.keys, sizes.keys)).collect())
}

fn opens(path: &Path, clock: &ManualClock, check: bool, sizes: &Sizes) -> f64 {
    median(
        (0..sizes.rounds.min(3))
            .map(|_| {
                let start = Instant::now();
                let store = options(clock).check_on_open(check).open(path).unwrap();
                let rate = sizes.keys as f64 / start.elapsed().as_secs_f64();
                assert_eq!(store.stats().unwrap().completed, sizes.keys);
                rate
            })
            .collect(),
    )
}

fn sweep(path: &Path, clock: &ManualClock, keys: usize) -> f64 {
    let store = options(clock).open(path).unwrap();
    clock.advance(2 * DAY);
    let start = Instant::now();
    assert_eq!(store.sweep().unwrap(), keys);
    start.elapsed().as_secs_f64() * 1e6 / keys as f64
}

/// What a store holds in memory for each key, without redb's pages: the store
/// is opened on a file with that many keys, less an empty one.
fn memory(keys: usize) -> f64 {
    let folder = tempfile::tempdir_in(if Path::new("/dev/shm").is_dir() {
        "/dev/shm".into()
    } else {
        std::env::temp_dir()
    })
    .unwrap();
    let path = folder.path().join("keys");
    let clock = ManualClock::new(Timestamp::from_millis(1_780_000_000_000));
    let options = options(&clock).storage_cache(0).check_on_open(false);
    let empty = {
        let before = MEMORY.allocated();
        let _store = options.open(folder.path().join("empty")).unwrap();
        MEMORY.allocated() - before
    };
    fill(&options.clone().storage_cache(64 << 20).open(&path).unwrap(), keys, b"x");
    let before = MEMORY.allocated();
    let store = options.open(&path).unwrap();
    let held = MEMORY.allocated() - before;
    assert_eq!(store.stats().unwrap().completed, keys);
    (held.saturating_sub(empty)) as f64 / keys as f64
}
