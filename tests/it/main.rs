//! The integration tests: one binary, a module for each subject.

mod begin;
mod limits;
mod model;
mod reopening;
mod support;
