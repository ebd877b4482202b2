//! The integration tests: one binary, a module for each subject.

mod begin;
mod failing_io;
mod power_cut;
mod sim;
mod support;
