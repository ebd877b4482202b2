//! What every module needs: keys, clocks, and shorthand for the four answers.

use keyonce::{Begin, Claim, Clock, Fingerprint, Key, ManualClock, Response, Store, StoreBuilder, Timestamp};
use std::cell::{Cell, RefCell};
use std::path::Path;
use std::sync::Once;
use std::thread;
use std::time::{Duration, Instant};

pub(crate) fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

pub(crate) fn print(what: &str) -> Fingerprint {
    Fingerprint::of(what)
}

/// A clock that stands at a day in 2026.
pub(crate) fn clock() -> ManualClock {
    ManualClock::new(Timestamp::from_millis(1_780_000_000_000))
}

pub(crate) fn builder(clock: &ManualClock) -> StoreBuilder {
    Store::builder().clock(clock.clone())
}

pub(crate) fn open(path: &Path, clock: &ManualClock) -> Store {
    builder(clock).open(path).unwrap()
}

#[track_caller]
pub(crate) fn fresh(begin: Begin) -> Claim {
    match begin {
        Begin::Fresh(claim) => claim,
        other => panic!("expected Fresh, got {other:?}"),
    }
}

#[track_caller]
pub(crate) fn replay(begin: Begin) -> Response {
    match begin {
        Begin::Replay(response) => response,
        other => panic!("expected Replay, got {other:?}"),
    }
}

thread_local! {
    static HOOK: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
}

/// A clock at which a test can stop a thread: see [`hooked`].
#[derive(Clone, Debug)]
pub(crate) struct HookedClock(pub(crate) ManualClock);

impl Clock for HookedClock {
    fn now(&self) -> Timestamp {
        HOOK.with_borrow_mut(|hook| hook.as_mut().map(|hook| hook()));
        self.0.now()
    }
}

/// Runs `body`, and `hook` whenever this thread asks a [`HookedClock`] for the
/// time meanwhile. A store asks within each call, and again within a commit,
/// by the thread that commits for all.
pub(crate) fn hooked<T>(hook: impl FnMut() + 'static, body: impl FnOnce() -> T) -> T {
    HOOK.set(Some(Box::new(hook)));
    let done = body();
    HOOK.set(None);
    done
}

/// Lets other threads run until `done` says so; fails if it does not in a time
/// that no machine needs.
#[track_caller]
pub(crate) fn until(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(120), "it never happened");
        thread::yield_now();
    }
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `body` without a report of panics on this thread, for panics that are
/// expected and caught within the store.
pub(crate) fn quietly<T>(body: impl FnOnce() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !QUIET.get() {
                report(panic);
            }
        }));
    });
    QUIET.set(true);
    let done = body();
    QUIET.set(false);
    done
}
