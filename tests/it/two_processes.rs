//! One process at a time has the file.

use crate::support::{clock, fresh, key, open, print};
use keyonce::{ErrorKind, Store};
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};

/// The path that the child opens; without it that test does nothing.
const PATH: &str = "KEYONCE_TEST_HOLD";
const READY: &str = "@ready";

/// Not a test by itself: the other process of the tests below.
#[test]
fn child_that_holds_a_store() {
    let Some(path) = std::env::var_os(PATH) else { return };
    let store = open(path.as_ref(), &clock());
    let _claim = fresh(store.begin(&key("held"), &print("a")).unwrap());
    println!("{READY}");
    // Until the parent closes the pipe, or kills us.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// Another process that has the store open by now.
fn holder(path: &std::path::Path) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "two_processes::child_that_holds_a_store", "--nocapture", "--test-threads=1"])
        .env(PATH, path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap().contains(READY)), "the other process did not open the store");
    child
}

#[test]
fn a_store_that_another_process_has_is_already_open() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.keyonce");
    let mut child = holder(&path);
    let error = Store::open(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyOpen);
    assert!(error.to_string().contains(&path.display().to_string()), "{error}");

    // A killed process gives the file back, and its claim is an interrupted one.
    child.kill().unwrap();
    child.wait().unwrap();
    let store = open(&path, &clock());
    let claim = fresh(store.begin(&key("held"), &print("a")).unwrap());
    assert_eq!((claim.attempt(), claim.interrupted()), (2, true));
}
