//! Failures that users of comparable systems reported. Each test's comment has
//! the id under which the project keeps the case.

mod article;
mod claims;
mod size;
mod time;
mod waiting;
