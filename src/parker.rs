//! A place for one thread to wait until it is told something.

use parking_lot::{Condvar, Mutex};
use std::time::Instant;

/// Tells one waiting thread one thing at a time. Each waiter has its own, so
/// that waking one wakes nobody else.
#[derive(Debug)]
pub(crate) struct Parker<T> {
    told: Mutex<Option<T>>,
    wake: Condvar,
}

impl<T> Parker<T> {
    pub(crate) fn new() -> Self {
        Self { told: Mutex::new(None), wake: Condvar::new() }
    }

    /// Tells `what`, in place of anything that was told and not yet heard.
    pub(crate) fn tell(&self, what: T) {
        *self.told.lock() = Some(what);
        self.wake.notify_one();
    }

    /// Waits until something is told.
    pub(crate) fn wait(&self) -> T {
        let mut told = self.told.lock();
        loop {
            match told.take() {
                Some(what) => return what,
                None => self.wake.wait(&mut told),
            }
        }
    }

    /// Waits until something is told or `deadline` has passed.
    pub(crate) fn wait_until(&self, deadline: Instant) -> Option<T> {
        let mut told = self.told.lock();
        while told.is_none() {
            if self.wake.wait_until(&mut told, deadline).timed_out() {
                break;
            }
        }
        told.take()
    }

    /// What was told and not yet heard.
    pub(crate) fn heard(&self) -> Option<T> {
        self.told.lock().take()
    }
}
