//! The power is cut at every operation of the disk, and nothing that was
//! answered is lost.
//!
//! The first pass drives a store on a simulated disk and keeps a record of what
//! it answered. The second cuts the power after each operation of the disk and
//! makes images of what may be left: nothing that was pending, everything, each
//! pending operation alone, and random subsets with torn writes. Each image is
//! opened, compared with the record, worked on, closed and opened again.
//!
//! `KEYONCE_POWER_CUT_IMAGES` is how many images are wanted at least
//! (10,000 by default; CI has 100,000 with an optimised build).

use crate::sim::Random;
use crate::sim::disk::SimDisk;
use crate::sim::medium::{Cut, Folder, Medium, Op};
use crate::sim::script::{Caller, Expected, Fate, Found, PATH, Step, builder, look};
use crate::support::{key, print};
use keyonce::{Begin, ManualClock, Store};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// A run of callers, to be cut.
struct Run {
    seed: u64,
    ops: Vec<Op>,
    steps: Vec<Step>,
}

fn images_wanted() -> usize {
    match std::env::var("KEYONCE_POWER_CUT_IMAGES") {
        Ok(wanted) => wanted.parse().expect("KEYONCE_POWER_CUT_IMAGES is a number"),
        Err(_) => 10_000,
    }
}

/// Every call there is, by one caller, with the clock going on.
fn one_caller(seed: u64) -> Run {
    let mut caller = Caller::new(&SimDisk::new(), seed, "order", 24);
    for part in 1..=8_u64 {
        caller.work(24);
        let seconds = match part {
            3 => 3_700, // past the retention,
            6 => 3_599, // and just before it, for what ended last
            part => 100 * part,
        };
        caller.advance(Duration::from_secs(seconds));
        if part % 2 == 0 {
            caller.sweep();
        }
        if part % 4 == 0 {
            caller.reopen();
        }
    }
    caller.work(10);
    Run { seed, ops: caller.disk.log(), steps: caller.steps.clone() }
}

/// Callers that share commits.
fn callers_in_parallel(seed: u64) -> Run {
    let disk = SimDisk::new();
    let clock = crate::support::clock();
    let store = builder(&disk, &clock).open(PATH).unwrap();
    disk.be_slow();
    let start = Barrier::new(4);
    let mut steps = Vec::new();
    thread::scope(|scope| {
        let callers: Vec<_> = (0..4)
            .map(|number| {
                let name = format!("caller-{number}");
                let mut caller = Caller::of(store.clone(), &disk, &clock, seed + number, &name, 4);
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    caller.work(20);
                    caller.steps.clone()
                })
            })
            .collect();
        for caller in callers {
            steps.extend(caller.join().unwrap());
        }
    });
    Run { seed, ops: disk.log(), steps }
}

/// Cuts a run after each of its operations; says how many images that made.
fn cut_everywhere(run: &Run, wanted: usize) -> usize {
    let (mut basic, mut cuts) = (0, 0);
    let mut medium = Medium::default();
    for op in &run.ops {
        medium.follow(op);
        basic += cuts_of(&medium, 0, 0).len();
        cuts += usize::from(medium.pending() > 0);
    }
    let torn = wanted.saturating_sub(basic).div_ceil(cuts.max(1)).max(1);
    let images = AtomicUsize::new(0);
    let threads = thread::available_parallelism().map_or(1, usize::from).min(8);
    thread::scope(|scope| {
        for mine in 0..threads {
            let images = &images;
            scope.spawn(move || {
                let mut medium = Medium::default();
                for after in 0..=run.ops.len() {
                    if after > 0 {
                        medium.follow(&run.ops[after - 1]);
                    }
                    if after % threads != mine {
                        continue;
                    }
                    let expected = Expected::after(after, &run.steps);
                    for (number, cut) in cuts_of(&medium, after, torn).into_iter().enumerate() {
                        // During recovery too, for some.
                        let again = (after * 31 + number) % 199 == 0;
                        let image = medium.cut(cut);
                        let made = catch_unwind(AssertUnwindSafe(|| {
                            survives(&image, &expected, run.seed + after as u64, again)
                        }));
                        let made = made.unwrap_or_else(|_| Err("a panic".to_owned()));
                        let made = made.unwrap_or_else(|what| {
                            panic!("seed {}, cut after operation {after}, {cut:?}: {what}", run.seed)
                        });
                        images.fetch_add(made, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    images.into_inner()
}

/// The cuts to try after an operation, `torn` of them random.
fn cuts_of(medium: &Medium, after: usize, torn: usize) -> Vec<Cut> {
    let mut cuts = vec![Cut::Nothing];
    let pending = medium.pending();
    if pending > 0 {
        cuts.push(Cut::Everything);
        cuts.extend((0..torn as u64).map(|number| Cut::Torn(((after as u64) << 32) + number)));
    }
    // The only one is everything.
    if pending > 1 {
        cuts.extend((0..pending).map(Cut::Only));
    }
    cuts
}

/// Opens an image, compares, works, and opens it again. Says how many images
/// that were, with those of cuts during recovery if there are to be such.
fn survives(image: &Folder, expected: &Expected, seed: u64, cut_again: bool) -> Result<usize, String> {
    let mut random = Random::new(seed);
    let disk = SimDisk::holding(image.clone());
    let clock = ManualClock::new(expected.now);
    let open = || builder(&disk, &clock).open(PATH).map_err(|error| format!("open: {error:?}"));
    let store = open()?;
    let recovery = disk.log();
    if image.file(Path::new(PATH)).is_none() && disk.folder().names().count() != 1 {
        return Err(format!("creation leaves {:?}", disk.folder().names().collect::<Vec<_>>()));
    }
    let mut found = BTreeMap::new();
    for (name, fates) in &expected.fates {
        let now = look(&store, name)?;
        if !fates.iter().any(|fate| fate.allows(&now, expected.now)) {
            return Err(format!("{name} is {now:?}, and may be {fates:?}"));
        }
        found.insert(name.clone(), now);
    }

    work_on(&store, &mut found, expected.fence, &mut random)?;
    store.close().map_err(|error| format!("close: {error:?}"))?;
    let store = open().map_err(|error| format!("again: {error}"))?;
    for (name, before) in &found {
        let now = look(&store, name)?;
        if now != *before {
            return Err(format!("{name} was {before:?}, and is {now:?} when it is opened again"));
        }
    }
    drop(store);

    let mut images = 1;
    if cut_again {
        let mut medium = Medium::holding(image.clone());
        for (after, op) in recovery.iter().enumerate() {
            medium.follow(op);
            for cut in cuts_of(&medium, after, 1) {
                images += survives(&medium.cut(cut), expected, seed, false).map_err(|what| {
                    format!("cut again after operation {after} of recovery, {cut:?}: {what}")
                })?;
            }
        }
    }
    Ok(images)
}

/// A replay, a mismatch, the next attempt on an interrupted key, and a new key.
fn work_on(
    store: &Store,
    found: &mut BTreeMap<String, Found>,
    mut fence: u64,
    random: &mut Random,
) -> Result<(), String> {
    let pick = |random: &mut Random, is: &dyn Fn(&Found) -> bool| {
        let names: Vec<_> = found.iter().filter(|(_, found)| is(found)).collect();
        let at = (!names.is_empty()).then(|| random.below(names.len()))?;
        Some((names[at].0.clone(), names[at].1.clone()))
    };
    let begin = |name: &str, what: &str| {
        store.begin(&key(name), &print(what)).map_err(|error| format!("begin {name}: {error:?}"))
    };
    let completed = pick(random, &|found| matches!(found, Found::Completed { .. }));
    if let Some((name, Found::Completed { bytes, .. })) = completed {
        match begin(&name, &name)? {
            Begin::Replay(response) if response.as_bytes() == bytes => {}
            other => return Err(format!("{name} is completed: {other:?}")),
        }
        match begin(&name, "something else")? {
            Begin::Mismatch(_) => {}
            other => return Err(format!("{name} has another fingerprint: {other:?}")),
        }
    }
    let interrupted = pick(random, &|found| matches!(found, Found::Interrupted { .. }));
    let mut next = vec![("a-new-one".to_owned(), 0)];
    if let Some((name, Found::Interrupted { attempt, .. })) = interrupted {
        next.push((name, attempt));
    }
    for (name, earlier) in next {
        let claim = match begin(&name, &name)? {
            Begin::Fresh(claim) => claim,
            other => return Err(format!("{name} is free: {other:?}")),
        };
        if (claim.attempt(), claim.interrupted()) != (earlier + 1, earlier > 0) {
            return Err(format!("{name}: {claim:?} after attempt {earlier}"));
        }
        if claim.fence().as_u64() <= fence {
            return Err(format!("{name}: {claim:?}, and {fence} was handed out before"));
        }
        fence = claim.fence().as_u64();
        if earlier == 0 {
            // Left open.
            found.insert(name, Found::Interrupted { attempt: 1, fence });
        } else {
            let response = claim.complete(vec![7; 1_500]).map_err(|error| format!("{name}: {error}"))?;
            let expires_at = response.expires_at();
            found.insert(name, Found::Completed { bytes: vec![7; 1_500], expires_at });
        }
    }
    Ok(())
}

#[test]
fn nothing_answered_is_lost_wherever_the_power_is_cut() {
    let run = one_caller(1);
    let completed = |step: &&Step| matches!(step.change, Some((_, Fate::Completed { .. })));
    assert!(run.steps.iter().filter(completed).count() > 20, "the script does something");
    let wanted = images_wanted();
    let images = cut_everywhere(&run, wanted);
    println!("{images} images of {} calls and {} operations of the disk", run.steps.len(), run.ops.len());
    assert!(images >= wanted, "{images} images");
}

#[test]
fn nothing_answered_to_callers_in_parallel_is_lost_when_the_power_is_cut() {
    let run = callers_in_parallel(2);
    let images = cut_everywhere(&run, images_wanted() / 10);
    println!("{images} images of {} calls and {} operations of the disk", run.steps.len(), run.ops.len());
}

#[test]
fn creation_cut_anywhere_leaves_nothing_or_a_whole_store() {
    let disk = SimDisk::new();
    let clock = crate::support::clock();
    let store = builder(&disk, &clock).open(PATH).unwrap();
    let whole = disk.done();
    store.close().unwrap();
    let ops = disk.log();
    // Once it was opened it is durable: an empty record says all of it.
    let expected = Expected::after(0, &[]);
    let mut medium = Medium::default();
    let (mut images, mut leftovers, mut published) = (0, 0, 0);
    for (after, op) in ops.iter().enumerate() {
        medium.follow(op);
        for cut in cuts_of(&medium, after, 40) {
            let context = format!("cut after operation {after}, {cut:?}");
            let image = medium.cut(cut);
            let is_there = image.file(Path::new(PATH)).is_some();
            assert!(is_there || after + 1 < whole, "{context}: an opened store is gone");
            survives(&image, &expected, 3, false).unwrap_or_else(|what| panic!("{context}: {what}"));
            images += 1;
            published += usize::from(is_there);
            leftovers += usize::from(!is_there && image.names().count() > 0);
            // A store beside which a leftover stays: the next creation takes it away.
            if is_there && image.names().count() > 1 {
                let mut image = image;
                image.apply(&Op::Remove { name: PATH.into() });
                survives(&image, &expected, 3, false).unwrap_or_else(|what| panic!("{context}: {what}"));
            }
        }
    }
    assert!(leftovers > 0 && published > 0, "{leftovers} and {published} of {images}");
}
