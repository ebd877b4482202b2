//! The store against a model of a dozen lines: any sequence of calls, with time
//! (forward and backward), reopening and crashes in it, has the same answers.
//!
//! [`reference`] is the model: a map, and the crate's own
//! [`transition`](keyonce::transition::transition). [`subject`] does the same
//! to a store on a real file, and compares every answer.

mod reference;
mod subject;

use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use proptest_state_machine::{ReferenceStateMachine as _, StateMachineTest as _};
use reference::Model;
use std::sync::atomic::{AtomicUsize, Ordering};
use subject::Subject;

/// The options that a variant of the test is run with.
#[derive(Debug)]
struct Variant {
    /// All keys have one hash.
    collide: bool,
    replay_cache: usize,
    tally: Tally,
}

const fn variant(collide: bool, replay_cache: usize) -> Variant {
    Variant { collide, replay_cache, tally: Tally::new() }
}

static VARIANTS: [Variant; 3] = [variant(false, 32 << 20), variant(true, 32 << 20), variant(true, 0)];

/// What happened in all cases of a variant, so that it can say that it did.
#[derive(Debug)]
struct Tally {
    replays: AtomicUsize,
    long_replays: AtomicUsize,
    mismatches: AtomicUsize,
    interrupted: AtomicUsize,
    held: AtomicUsize,
    crashes: AtomicUsize,
}

impl Tally {
    const fn new() -> Self {
        Self {
            replays: AtomicUsize::new(0),
            long_replays: AtomicUsize::new(0),
            mismatches: AtomicUsize::new(0),
            interrupted: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            crashes: AtomicUsize::new(0),
        }
    }
}

/// The same cases in every run, unless `KEYONCE_SEED` asks for others.
fn rng(variant: u64) -> TestRng {
    let seed = std::env::var("KEYONCE_SEED").map_or(0, |seed| seed.parse::<u64>().expect("a number"));
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes[8..16].copy_from_slice(&variant.to_le_bytes());
    TestRng::from_seed(RngAlgorithm::ChaCha, &bytes)
}

/// Runs `PROPTEST_CASES` cases, or 256.
fn run<const VARIANT: usize>() {
    let config = Config { failure_persistence: None, max_shrink_iters: 4_000, ..Config::default() };
    let cases = config.cases as usize;
    let strategy = Model::sequential_strategy(1..60);
    let mut runner = TestRunner::new_with_rng(config.clone(), rng(VARIANT as u64));
    let ran = runner.run(&strategy, |(state, steps, seen)| {
        Subject::<VARIANT>::test_sequential(config.clone(), state, steps, seen);
        Ok(())
    });
    if let Err(failure) = ran {
        panic!("{failure}");
    }
    // A suite in which nothing is ever replayed proves nothing.
    let tally = &VARIANTS[VARIANT].tally;
    println!("{cases} cases: {tally:?}");
    let Tally { replays, long_replays, mismatches, interrupted, held, crashes } = tally;
    for count in [replays, mismatches, interrupted, held, crashes] {
        assert!(count.load(Ordering::Relaxed) >= cases / 4, "{tally:?}");
    }
    assert!(long_replays.load(Ordering::Relaxed) >= cases / 32, "{tally:?}");
}

#[test]
fn every_sequence_of_calls_answers_like_the_model() {
    run::<0>();
}

#[test]
fn keys_whose_hashes_collide_are_not_confused() {
    run::<1>();
}

#[test]
fn without_a_replay_cache_the_answers_are_the_same() {
    run::<2>();
}
