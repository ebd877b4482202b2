//! A simulated disk, and what may be left of it when the power goes.
//!
//! [`disk::SimDisk`] is what a store is opened on: it keeps what its user sees,
//! and a log of every operation. [`medium::Medium`] follows that log, keeps what
//! is durable apart from what is pending, and makes the images that a power cut
//! could leave. [`script`] drives a store and keeps a record of its answers.

pub(crate) mod disk;
pub(crate) mod medium;
pub(crate) mod script;

/// A small generator of numbers (xorshift64*): a seed says all of a run.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }

    pub(crate) fn coin(&mut self) -> bool {
        self.next() & 1 == 1
    }
}
