//! The integration tests: one binary, a module for each subject.

mod begin;
mod cases;
mod concurrency;
mod interleaving;
mod limits;
mod model;
mod payments_example;
mod reopening;
mod support;
