//! The parts, one by one: `cargo bench --bench parts`. For whole figures beside
//! a naive redb, see `examples/figures.rs`.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use keyonce::{Begin, Fingerprint, Key, ManualClock, Store, StoreBuilder, Timestamp};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const ANSWER: [u8; 250] = [7; 250];
const KEYS: usize = 20_000;
const DAY: Duration = Duration::from_secs(24 * 3600);

fn key(n: usize) -> Key {
    Key::new(n.to_le_bytes()).unwrap()
}

fn clock() -> ManualClock {
    ManualClock::new(Timestamp::from_millis(1_780_000_000_000))
}

fn options(clock: &ManualClock) -> StoreBuilder {
    Store::builder().clock(clock.clone())
}

fn cycle(store: &Store, n: usize) {
    match store.begin(&key(n), &Fingerprint::NONE).unwrap() {
        Begin::Fresh(claim) => drop(claim.complete(&ANSWER[..]).unwrap()),
        other => panic!("{other:?}"),
    }
}

fn replay(store: &Store, n: usize) {
    match store.begin(&key(n), &Fingerprint::NONE).unwrap() {
        Begin::Replay(response) => drop(black_box(response)),
        other => panic!("{other:?}"),
    }
}

fn fill(store: &Store) {
    const THREADS: usize = 64;
    thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || (thread..KEYS).step_by(THREADS).for_each(|n| cycle(store, n)));
        }
    });
    assert_eq!(store.stats().unwrap().completed, KEYS);
}

/// A claim and a completion, durable on a file, and in memory (where what is
/// left is the table, the codec and redb's pages).
fn cycles(c: &mut Criterion) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut group = c.benchmark_group("cycle");
    let stores =
        [("file", Store::open(folder.path().join("s")).unwrap()), ("memory", Store::in_memory().unwrap())];
    for (name, store) in stores {
        for callers in [1_usize, 64] {
            let next = AtomicUsize::new(store.stats().unwrap().completed);
            group.throughput(Throughput::Elements(1));
            group.bench_function(format!("{name}, {callers} callers"), |b| {
                b.iter_custom(|iterations| {
                    let left = AtomicUsize::new(usize::try_from(iterations).unwrap());
                    let take = || left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
                    let start = Instant::now();
                    thread::scope(|scope| {
                        for _ in 0..callers {
                            scope.spawn(|| {
                                while take().is_ok() {
                                    cycle(&store, next.fetch_add(1, Ordering::SeqCst));
                                }
                            });
                        }
                    });
                    start.elapsed()
                });
            });
            assert_eq!(store.stats().unwrap().completed, next.into_inner());
        }
    }
    group.finish();
}

fn replays(c: &mut Criterion) {
    let clock = clock();
    let mut group = c.benchmark_group("replay");
    for (name, cache) in [("hot", 256 << 20), ("cold", 0)] {
        let store = options(&clock).replay_cache(cache).open_in_memory().unwrap();
        fill(&store);
        let mut n = 0;
        group.bench_function(name, |b| {
            b.iter(|| {
                n = (n + 7919) % KEYS;
                replay(&store, n);
            });
        });
    }
    group.finish();
}

fn sweep_and_open(c: &mut Criterion) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("s");
    let mut group = c.benchmark_group("whole store");
    group.sample_size(10).throughput(Throughput::Elements(KEYS as u64));
    group.bench_function("sweep", |b| {
        b.iter_batched(
            || {
                let clock = clock();
                let store = options(&clock).open_in_memory().unwrap();
                fill(&store);
                clock.advance(2 * DAY);
                store
            },
            |store| assert_eq!(store.sweep().unwrap(), KEYS),
            BatchSize::PerIteration,
        );
    });
    let clock = clock();
    fill(&options(&clock).open(&path).unwrap());
    for check in [false, true] {
        group.bench_function(format!("open, {}", if check { "checked" } else { "unchecked" }), |b| {
            b.iter(|| {
                let store = options(&clock).check_on_open(check).open(&path).unwrap();
                assert_eq!(store.stats().unwrap().completed, KEYS);
            });
        });
    }
    group.finish();
}

fn fingerprints(c: &mut Criterion) {
    let body = vec![b'x'; 1024];
    c.bench_function("fingerprint of a method, a path and 1 KiB", |b| {
        b.iter(|| {
            Fingerprint::builder()
                .field("method", "POST")
                .field("path", "/orders")
                .field("body", black_box(&body))
                .finish()
        });
    });
}

criterion_group!(parts, cycles, replays, sweep_and_open, fingerprints);
criterion_main!(parts);
