//! Every way to open wrongly is an error of its own kind, which names the path
//! and leaves the file as it was.

use crate::support::{builder, clock, fresh, key, open, print, replay};
use keyonce::{Error, ErrorKind, Fingerprint, Store};
use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableDefinition};
use std::fs;
use std::path::Path;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

const ORDERS: TableDefinition<'_, &str, u64> = TableDefinition::new("orders");
const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("keyonce.meta");

/// Opens what must not open, and checks that the message names the path.
#[track_caller]
fn refusal(path: &Path) -> Error {
    let error = Store::open(path).expect_err("this must not open");
    assert!(error.to_string().contains(&path.display().to_string()), "{error} does not name its path");
    error
}

/// A file with these bytes is refused with this kind, and keeps its bytes.
#[track_caller]
fn refused_as_it_is(name: &str, bytes: &[u8], kind: ErrorKind, says: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    let error = refusal(&path);
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(says), "{error} does not say {says:?}");
    assert!(fs::read(&path).unwrap() == bytes, "{name} was changed");
    assert_eq!(names(folder.path()), [name], "something was left beside it");
}

fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// Pseudo-random bytes, the same in every run.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let step = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..len).map(step).collect()
}

/// A closed store in which the key `done` has the answer `answer`.
fn store_with_an_answer(path: &Path) {
    let store = open(path, &clock());
    fresh(store.begin(&key("done"), &print("a")).unwrap()).complete("answer").unwrap();
    store.close().unwrap();
}

#[track_caller]
fn assert_answers(path: &Path) {
    let store = open(path, &clock());
    assert_eq!(replay(store.begin(&key("done"), &print("a")).unwrap()).as_bytes(), b"answer");
}

#[test]
fn a_missing_folder_is_not_found_and_not_made() {
    let folder = tempfile::tempdir().unwrap();
    let error = refusal(&folder.path().join("missing").join("s.keyonce"));
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(names(folder.path()).is_empty());
}

#[test]
fn a_folder_is_not_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let error = refusal(folder.path());
    assert_eq!(error.kind(), ErrorKind::NotAFile);
    assert!(error.to_string().contains("a folder"), "{error}");
    assert!(names(folder.path()).is_empty());
}

#[test]
fn a_path_without_a_file_name_is_refused_and_nothing_is_made() {
    for path in ["", ".", "..", "/"] {
        let before = names(Path::new("."));
        let error = Store::open(path).expect_err("this must not open");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{path:?}: {error}");
        assert!(error.to_string().contains(&format!("{path:?}")), "{error} does not name {path:?}");
        assert_eq!(names(Path::new(".")), before);
    }
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing").join("..");
    assert!(Store::open(missing).is_err());
    assert!(names(folder.path()).is_empty());
}

#[test]
fn a_path_below_a_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "a file").unwrap();
    assert_eq!(refusal(&file.join("s.keyonce")).kind(), ErrorKind::Io);
    assert_eq!(fs::read(&file).unwrap(), b"a file");
}

#[cfg(unix)]
#[test]
fn a_link_is_not_followed_whether_it_dangles_or_not() {
    use std::os::unix::fs::symlink;

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("real.keyonce");
    let dangling = folder.path().join("dangling");
    symlink(folder.path().join("nothing"), &dangling).unwrap();
    assert_eq!(refusal(&dangling).kind(), ErrorKind::SymbolicLink);
    assert!(!folder.path().join("nothing").exists());

    store_with_an_answer(&path);
    let before = fs::read(&path).unwrap();
    let link = folder.path().join("link");
    symlink(&path, &link).unwrap();
    assert_eq!(refusal(&link).kind(), ErrorKind::SymbolicLink);
    assert!(fs::read(&path).unwrap() == before);
    assert!(link.is_symlink());
    assert_answers(&path);
}

#[cfg(unix)]
#[test]
fn a_fifo_a_socket_and_a_device_are_not_files_and_do_not_hang() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let socket = folder.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for (path, what) in [(&*fifo, "a FIFO"), (&*socket, "a socket"), (Path::new("/dev/null"), "a device")] {
        let (send, receive) = std::sync::mpsc::channel();
        let opened = path.to_owned();
        thread::spawn(move || send.send(Store::open(opened).unwrap_err()));
        let error = receive.recv_timeout(Duration::from_secs(60)).expect("opening hangs");
        assert_eq!(error.kind(), ErrorKind::NotAFile, "{error}");
        let message = error.to_string();
        assert!(message.contains(what) && message.contains(&path.display().to_string()), "{message}");
    }
    assert_eq!(names(folder.path()), ["fifo", "socket"]);
}

#[test]
fn a_file_of_another_kind_is_named_and_not_touched() {
    let sqlite = [&b"SQLite format 3\0"[..], &[0; 4080]].concat();
    refused_as_it_is("notes.txt", b"To do:\n\t- pay\r\n", ErrorKind::NotAStore, "a text");
    refused_as_it_is("short.txt", b"x", ErrorKind::NotAStore, "a text");
    refused_as_it_is("empty", b"", ErrorKind::NotAStore, "an empty file");
    refused_as_it_is("app.sqlite", &sqlite, ErrorKind::NotAStore, "a SQLite database");
    refused_as_it_is("zeros", &[0; 8192], ErrorKind::NotAStore, "zeros");
    refused_as_it_is("noise", &noise(100_000), ErrorKind::NotAStore, "another kind");
}

#[test]
fn a_store_cut_short_is_corrupted_and_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.keyonce");
    store_with_an_answer(&path);
    let whole = fs::read(&path).unwrap();
    for len in [9, 16, 64, 320, 511, 512, 4096, whole.len() / 2, whole.len() - 4096] {
        refused_as_it_is("cut.keyonce", &whole[..len], ErrorKind::Corrupted, "cut.keyonce");
    }
    let with_noise = [&whole[..9], &noise(whole.len() - 9)].concat();
    refused_as_it_is("noise.keyonce", &with_noise, ErrorKind::Corrupted, "noise.keyonce");
}

fn application_database(path: &Path) {
    let database = Database::create(path).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(ORDERS).unwrap().insert("order-1042", 129).unwrap();
    transaction.commit().unwrap();
}

#[track_caller]
fn assert_order_is_there(path: &Path) {
    let database = Database::open(path).unwrap();
    let orders = database.begin_read().unwrap().open_table(ORDERS).unwrap();
    assert_eq!(orders.get("order-1042").unwrap().unwrap().value(), 129);
}

#[test]
fn a_foreign_database_is_not_touched_unless_it_is_adopted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.redb");
    application_database(&path);
    refused_as_it_is("app.redb", &fs::read(&path).unwrap(), ErrorKind::ForeignDatabase, "without a keyonce");

    let adopting = builder(&clock()).adopt(true);
    let store = adopting.open(&path).unwrap();
    fresh(store.begin(&key("done"), &print("a")).unwrap()).complete("answer").unwrap();
    store.close().unwrap();
    assert_order_is_there(&path);
    assert_answers(&path);

    // Adopting what is a store already is opening it.
    let store = adopting.open(&path).unwrap();
    assert_eq!(replay(store.begin(&key("done"), &print("a")).unwrap()).as_bytes(), b"answer");
    store.close().unwrap();
    assert_order_is_there(&path);
}

#[test]
fn a_foreign_database_that_was_not_closed_is_refused_and_keeps_its_rows() {
    let folder = tempfile::tempdir().unwrap();
    let (held, path) = (folder.path().join("held.redb"), folder.path().join("app.redb"));
    application_database(&held);
    let database = Database::open(&held).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(ORDERS).unwrap().insert("order-1043", 130).unwrap();
    transaction.commit().unwrap();
    // As a power cut would leave it: redb repairs it before it says what it has.
    fs::copy(&held, &path).unwrap();
    drop(database);
    assert_eq!(refusal(&path).kind(), ErrorKind::ForeignDatabase);
    assert_order_is_there(&path);
}

#[test]
fn adopting_what_is_no_database_is_refused_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    fs::write(&path, "notes").unwrap();
    let error = Store::builder().adopt(true).open(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotAStore);
    assert_eq!(fs::read(&path).unwrap(), b"notes");
}

/// Changes the format in the header with plain redb.
fn set_format(path: &Path, format: u32) {
    let database = Database::open(path).unwrap();
    let transaction = database.begin_write().unwrap();
    {
        let mut meta = transaction.open_table(META).unwrap();
        let mut header = meta.get("header").unwrap().unwrap().value().to_vec();
        header[..4].copy_from_slice(&format.to_le_bytes());
        meta.insert("header", &*header).unwrap();
    }
    transaction.commit().unwrap();
}

#[test]
fn a_newer_format_is_refused_and_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.keyonce");
    store_with_an_answer(&path);
    for (format, kind, says) in [
        (2, ErrorKind::NewerFormat, "format 2"),
        (u32::MAX, ErrorKind::NewerFormat, "format 4294967295"),
        (0, ErrorKind::Corrupted, "header"),
    ] {
        set_format(&path, format);
        refused_as_it_is("newer.keyonce", &fs::read(&path).unwrap(), kind, says);
        // Nor does `adopt` make it a new store.
        let error = Store::builder().adopt(true).open(&path).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
    set_format(&path, 1);
    assert_answers(&path);
}

#[test]
fn options_out_of_range_are_refused_by_name_and_nothing_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.keyonce");
    let new = Store::builder;
    for (name, wrong) in [
        ("retention", new().retention(Duration::ZERO)),
        ("response_bytes_max", new().response_bytes_max((1 << 30) + 1)),
        ("open_claims_max", new().open_claims_max(0)),
        ("open_claims_max", new().open_claims_max(usize::MAX)),
        ("live_keys_max", new().live_keys_max(0)),
        ("live_keys_max", new().live_keys_max((1 << 32) + 1)),
        ("scope_keys_max", new().scope_keys_max(0)),
        ("scope_keys_max", new().scope_keys_max(usize::MAX)),
    ] {
        for error in [wrong.open(&path).unwrap_err(), wrong.open_in_memory().unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().starts_with(&format!("{name} is ")), "{error} does not name {name}");
        }
    }
    assert!(names(folder.path()).is_empty());
    let least = new().retention(Duration::from_nanos(1)).response_bytes_max(0).open_claims_max(1);
    least.live_keys_max(1).scope_keys_max(1).open_in_memory().unwrap();
    let most = new().retention(Duration::MAX).response_bytes_max(1 << 30).open_claims_max(1 << 32);
    most.live_keys_max(1 << 32).scope_keys_max(1 << 32).open_in_memory().unwrap();
}

#[cfg(unix)]
#[test]
fn only_its_owner_can_read_a_new_store() {
    use std::os::unix::fs::PermissionsExt as _;

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.keyonce");
    store_with_an_answer(&path);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn leftovers_of_a_crashed_creation_go_and_a_closed_store_is_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.keyonce");
    for leftover in ["s.keyonce.new-1-0", "s.keyonce.new-77-3"] {
        fs::write(folder.path().join(leftover), b"half a store").unwrap();
    }
    for others in ["t.keyonce.new-1-0", "s.keyonce.newer"] {
        fs::write(folder.path().join(others), b"not ours").unwrap();
    }
    store_with_an_answer(&path);
    assert_eq!(names(folder.path()), ["s.keyonce", "s.keyonce.newer", "t.keyonce.new-1-0"]);
    assert_answers(&path);
}

#[test]
fn a_store_that_is_open_here_is_already_open() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.keyonce");
    let first = open(&path, &clock());
    assert_eq!(refusal(&path).kind(), ErrorKind::AlreadyOpen);
    // Any clone keeps it open, and so does none that is gone.
    let clone = first.clone();
    drop(first);
    assert_eq!(refusal(&path).kind(), ErrorKind::AlreadyOpen);
    fresh(clone.begin(&key("done"), &print("a")).unwrap()).complete("answer").unwrap();
    drop(clone);
    assert_answers(&path);
}

#[test]
fn of_two_threads_that_create_one_store_exactly_one_gets_it() {
    for _ in 0..30 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.keyonce");
        let (start, end) = (Barrier::new(2), Barrier::new(2));
        let race = || {
            start.wait();
            let opened = Store::open(&path);
            // Nobody closes before both have tried.
            end.wait();
            opened
        };
        let both = thread::scope(|scope| {
            let other = scope.spawn(race);
            [race(), other.join().unwrap()]
        });
        let [won, lost] = match both {
            [Ok(won), lost] => [Ok(won), lost],
            [lost, won] => [won, lost],
        };
        let won = won.expect("one of them must get it");
        let lost = lost.expect_err("only one may get it");
        assert_eq!(lost.kind(), ErrorKind::AlreadyOpen, "{lost}");
        fresh(won.begin(&key("k"), &Fingerprint::NONE).unwrap()).complete("once").unwrap();
        won.close().unwrap();
        assert_eq!(names(folder.path()), ["s.keyonce"]);
        let again = Store::open(&path).unwrap();
        assert_eq!(replay(again.begin(&key("k"), &Fingerprint::NONE).unwrap()).as_bytes(), b"once");
    }
}
