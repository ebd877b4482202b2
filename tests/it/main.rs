//! The integration tests: one binary, a module for each subject.

mod begin;
mod old_files;
mod opening;
mod support;
mod two_processes;
