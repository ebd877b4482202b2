//! Damage at random: to copies of a closed store, and under an open one.
//!
//! It is done in another process, because redb can panic twice on a damaged
//! file, which ends the process and cannot be caught. What is promised is that
//! this does not happen to a store that is checked when it opens; elsewhere it
//! is counted, and must be rare.
//!
//! `KEYONCE_DAMAGED_COPIES` sets how many damaged copies of a file are tried
//! (default: 300).

use super::{KEYS, Tally, make};
use crate::support::{clock, key, print, quietly};
use keyonce::Store;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, Stdio};

const PAGE: usize = 4096;
const SIGABRT: i32 = 6;

fn copies() -> usize {
    std::env::var("KEYONCE_DAMAGED_COPIES").map_or(300, |copies| copies.parse().expect("a number of copies"))
}

/// Damages `bytes` in one of six ways; says how.
fn damage(bytes: &mut Vec<u8>, other: &[u8], dice: &mut Dice) -> String {
    let page = |dice: &mut Dice, bytes: &[u8]| dice.below(bytes.len() / PAGE) * PAGE;
    match dice.below(6) {
        0 => {
            let (at, bit) = (dice.below(bytes.len()), dice.below(8));
            bytes[at] ^= 1 << bit;
            format!("bit {bit} of byte {at}")
        }
        1 => {
            // Where something is: most of a small file is not in use.
            let used: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at] != 0).collect();
            let at = used[dice.below(used.len())];
            bytes[at] = bytes[at].wrapping_add(1 + u8::try_from(dice.below(255)).unwrap());
            format!("byte {at}")
        }
        2 => {
            let len = dice.below(bytes.len());
            bytes.truncate(len);
            format!("cut to {len} bytes")
        }
        3 => {
            let at = page(dice, bytes);
            bytes[at..at + PAGE].fill(0);
            format!("zeros at {at}")
        }
        4 => {
            let (one, two) = (page(dice, bytes), page(dice, bytes));
            let kept = bytes[one..one + PAGE].to_vec();
            bytes.copy_within(two..two + PAGE, one);
            bytes[two..two + PAGE].copy_from_slice(&kept);
            format!("pages at {one} and {two} swapped")
        }
        _ => {
            let at = page(dice, &bytes[..bytes.len().min(other.len())]);
            bytes[at..at + PAGE].copy_from_slice(&other[at..at + PAGE]);
            format!("the page at {at} of another store")
        }
    }
}

struct Dice(u64);

impl Dice {
    /// The dice of one copy: each can be thrown again by itself.
    fn of(salt: u64, number: usize) -> Self {
        let mut dice = Self(salt.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ number as u64);
        dice.below(2);
        dice
    }

    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % n
    }
}

/// What is done with each copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Checked,
    Unchecked,
    WhileOpen,
    /// Nothing; but every other copy ends the process.
    Aborting,
}

/// One copy, in the process of the child.
fn look_at(way: Way, number: usize, folder: &Path) -> Tally {
    let path = folder.join("copy.keyonce");
    let good = fs::read(folder.join("good")).unwrap();
    let other = fs::read(folder.join("other")).unwrap();
    let mut tally = Tally::default();
    if way == Way::Aborting {
        if number.is_multiple_of(2) {
            std::process::abort();
        }
        tally.replays = 1;
        return tally;
    }
    if way == Way::WhileOpen {
        damage_while_open(&path, &good, number, &mut tally);
        return tally;
    }
    let mut dice = Dice::of(20, number);
    let mut bytes = good;
    let what = format!("{way:?}, copy {number}: {}", damage(&mut bytes, &other, &mut dice));
    fs::write(&path, &bytes).unwrap();
    let check = way == Way::Checked;
    tally.look(&path, &clock(), check, !check, &what);
    tally
}

/// Damage can come after the open. Nothing is in memory but the index.
fn damage_while_open(path: &Path, good: &[u8], number: usize, tally: &mut Tally) {
    let mut dice = Dice::of(5, number);
    fs::write(path, good).unwrap();
    let options = Store::builder().clock(clock()).replay_cache(0).storage_cache(0);
    let store = options.open(path).unwrap();
    let file = File::options().write(true).open(path).unwrap();
    let used: Vec<usize> = (PAGE..good.len()).filter(|&at| good[at] != 0).collect();
    for _ in 0..20 {
        let at = used[dice.below(used.len())];
        file.write_all_at(&[good[at] ^ (1 << dice.below(8))], at as u64).unwrap();
    }
    // A key is never taken for a new one: the index knows it.
    tally.ask(&store, false, &format!("while open, copy {number}"));
    assert!(matches!(store.get(&key("cut off")), Ok(Some(entry)) if entry.fingerprint() == print("a")));
    let _ = quietly(|| catch_unwind(AssertUnwindSafe(|| store.close())))
        .unwrap_or_else(|_| panic!("a panic escaped from close: copy {number}"));
}

/// What the child is to do: a way, the first copy, and the one after the last.
/// Without it that test does nothing.
const TASK: &str = "KEYONCE_TEST_DAMAGE";
const FOLDER: &str = "KEYONCE_TEST_DAMAGE_FOLDER";

/// Not a test by itself: the other process of the tests below. It writes a line
/// for each copy that it has looked at.
#[test]
fn child_that_looks_at_damaged_copies() {
    let Ok(task) = std::env::var(TASK) else { return };
    let folder = std::env::var_os(FOLDER).unwrap();
    let folder = Path::new(&folder);
    let [way, from, to] = task.split(' ').collect::<Vec<_>>()[..] else { panic!("{task:?}") };
    let ways = [Way::Checked, Way::Unchecked, Way::WhileOpen, Way::Aborting];
    let way = ways.into_iter().find(|known| format!("{known:?}") == way).unwrap();
    let mut lines = File::options().append(true).open(folder.join("lines")).unwrap();
    for number in from.parse().unwrap()..to.parse().unwrap() {
        let Tally { refused, failed_reads, harmless, forgotten, replays } = look_at(way, number, folder);
        writeln!(lines, "{refused} {failed_reads} {harmless} {forgotten} {replays}").unwrap();
    }
}

/// What became of all copies, and how many of them ended a process.
fn look_at_all(way: Way, copies: usize) -> (Tally, usize) {
    let folder = tempfile::tempdir().unwrap();
    make(&folder.path().join("good"), 1, &clock());
    make(&folder.path().join("other"), 100, &clock());
    let lines = folder.path().join("lines");
    File::create(&lines).unwrap();
    let (mut aborted, mut done) = (0, 0);
    while done + aborted < copies {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "damage::copies::child_that_looks_at_damaged_copies", "--test-threads=1"])
            .env(TASK, format!("{way:?} {} {copies}", done + aborted))
            .env(FOLDER, folder.path())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        done = fs::read_to_string(&lines).unwrap().lines().count();
        match output.status.signal() {
            Some(SIGABRT) => {
                println!("{way:?}: copy {} ended the process", done + aborted);
                aborted += 1;
            }
            _ if output.status.success() => assert_eq!(done + aborted, copies),
            _ => panic!(
                "{}\n{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            ),
        }
    }
    let mut sum = Tally::default();
    for line in fs::read_to_string(&lines).unwrap().lines() {
        let counts: Vec<usize> = line.split(' ').map(|count| count.parse().unwrap()).collect();
        sum.refused += counts[0];
        sum.failed_reads += counts[1];
        sum.harmless += counts[2];
        sum.forgotten += counts[3];
        sum.replays += counts[4];
    }
    println!("{way:?}: {copies} copies, {aborted} ended the process, {sum:?}");
    (sum, aborted)
}

/// How many copies may end the process where that cannot be prevented.
fn rare(copies: usize) -> usize {
    1 + copies / 100
}

#[test]
fn a_damaged_file_is_an_error_or_answers_as_before() {
    let (tally, aborted) = look_at_all(Way::Checked, copies());
    assert!(tally.refused > 0 && tally.harmless > 0 && tally.replays >= KEYS);
    assert_eq!((tally.forgotten, aborted), (0, 0));
}

#[test]
fn without_the_check_a_damaged_file_never_gives_another_answer() {
    let (tally, aborted) = look_at_all(Way::Unchecked, copies() / 2);
    assert!(tally.refused > 0 && tally.harmless > 0 && tally.replays >= KEYS);
    assert!(aborted <= rare(copies() / 2), "{aborted} copies ended the process");
}

#[test]
fn damage_under_an_open_store_never_gives_another_answer() {
    let (tally, aborted) = look_at_all(Way::WhileOpen, copies() / 10);
    assert!(tally.failed_reads > 0 && tally.replays > 0);
    assert!(aborted <= rare(copies() / 10), "{aborted} copies ended the process");
}

// The check of this module itself: a process that ends is noticed, and the
// copies after it are looked at.
#[test]
fn copy_that_ends_the_process_is_counted() {
    let (tally, aborted) = look_at_all(Way::Aborting, 5);
    assert_eq!((tally.replays, aborted), (2, 3));
}
