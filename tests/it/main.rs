//! The integration tests: one binary, a module for each subject.

mod begin;
mod payments_example;
mod support;
