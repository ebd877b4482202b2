//! The example, run from the outside: what it prints and exits with.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::process::{Command, Output};

const INPUT: &str = include_str!("../../examples/payments/notifications.csv");

/// Through cargo: `cargo test --test it` does not build examples, and what an
/// earlier build left there would be tested instead.
fn payments(folder: &Path, arguments: &[&str]) -> Output {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["run", "--quiet", "--example", "payments"]);
    cargo.args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")]);
    cargo.arg("--").arg("--store").arg(folder).args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// The figures of the table's last row: notifications, credits, replays,
/// mismatches, waited, interrupted, reconciled.
#[track_caller]
fn total(output: &Output) -> Vec<usize> {
    let text = text(output);
    let row =
        text.lines().find(|line| line.contains("│ total")).unwrap_or_else(|| panic!("no table in {text}"));
    row.split(['│', '┆']).filter_map(|cell| cell.trim().parse().ok()).collect()
}

struct Counts {
    notifications: usize,
    orders: usize,
    changed: usize,
    faults: usize,
    /// What arrives in a round in which the order was not paid yet.
    stale: usize,
}

fn counts() -> Counts {
    let rows: Vec<Vec<&str>> = INPUT.lines().skip(1).map(|line| line.split(',').collect()).collect();
    let (mut first, mut faults) = (HashMap::new(), HashSet::new());
    let (mut changed, mut stale) = (0, 0);
    for row in &rows {
        let (round, amount) = *first.entry((row[3], row[4])).or_insert((row[0], row[5]));
        changed += usize::from(amount != row[5]);
        stale += usize::from(round == row[0]);
        if !row[7].is_empty() {
            faults.insert(row[7]);
        }
    }
    Counts { notifications: rows.len(), orders: first.len(), changed, faults: faults.len(), stale }
}

#[test]
fn first_run_credits_each_order_once_and_the_second_remembers() {
    let folder = tempfile::tempdir().unwrap();
    let Counts { notifications, orders, changed, faults, .. } = counts();

    let first = payments(folder.path(), &[]);
    assert_eq!(first.status.code(), Some(0), "{}", text(&first));
    let figures = total(&first);
    assert_eq!(figures[..4], [notifications, orders, notifications - orders - changed, changed]);
    assert_eq!(figures[5..], [faults, faults], "interrupted, reconciled: {}", text(&first));
    assert!(text(&first).contains(&format!("OK: {orders} orders, each credited exactly once")));
    assert!(text(&first).contains("the store told it of 1 interrupted claim(s)"), "{}", text(&first));

    let second = payments(folder.path(), &[]);
    assert_eq!(second.status.code(), Some(0), "{}", text(&second));
    assert_eq!(total(&second), [notifications, 0, notifications - changed, changed, 0, 0, 0]);
    assert!(text(&second).contains("all was remembered"));
}

#[test]
fn without_the_store_every_stale_copy_is_credited() {
    let folder = tempfile::tempdir().unwrap();
    let Counts { notifications, orders, stale, .. } = counts();
    let output = payments(folder.path(), &["--unsafe"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let figures = total(&output);
    assert_eq!((figures[0], figures[1], figures[3]), (notifications, stale, 0));
    assert!(text(&output).contains(&format!("WRONG: {orders} of {orders} orders")), "{}", text(&output));
}

#[test]
fn help_tells_the_options_and_the_exit_codes() {
    let folder = tempfile::tempdir().unwrap();
    let output = payments(folder.path(), &["--help"]);
    assert_eq!(output.status.code(), Some(0));
    for word in ["--store", "--fresh", "--unsafe", "--input", "Exit codes"] {
        assert!(text(&output).contains(word), "{word} is not in {}", text(&output));
    }
}

#[test]
fn wrong_input_is_named_and_exits_with_2() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |arguments: &[&str], named: &str| {
        let output = payments(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert!(text(&output).contains(named), "{named:?} is not in {}", text(&output));
    };
    refused(&["--nonsense"], "--nonsense");
    refused(&["--input", "/no/such/file.csv"], "/no/such/file.csv");

    let broken = folder.path().join("broken.csv");
    let lines: Vec<&str> = INPUT.lines().take(3).chain(["1,n-9,fax,m,o,1.00,THB,"]).collect();
    std::fs::write(&broken, lines.join("\n")).unwrap();
    refused(&["--input", broken.to_str().unwrap()], "broken.csv, line 4: \"fax\" is not a channel");

    let output = payments(&broken, &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).contains("cannot make the folder") && text(&output).contains("broken.csv"));

    std::fs::write(folder.path().join("payments.keyonce"), "not a store").unwrap();
    refused(&[], "payments.keyonce");
}

#[test]
fn the_input_is_what_the_generator_makes() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(String::from_utf8(payments(folder.path(), &["--generate"]).stdout).unwrap(), INPUT);
}
