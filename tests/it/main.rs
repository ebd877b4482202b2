//! The integration tests: one binary, a module for each subject.

mod begin;
mod cases;
mod concurrency;
mod damage;
mod failing_io;
mod interleaving;
mod limits;
mod model;
mod old_files;
mod opening;
mod payments_example;
mod power_cut;
mod reopening;
mod sim;
mod support;
mod two_processes;
