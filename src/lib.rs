//! `keyonce` is an embedded idempotency store: it makes "do this once" true for
//! commands that arrive more than once.
//!
//! ```
//! use keyonce::{Begin, Fingerprint, Key, Store};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("payments.keyonce");
//! # fn charge(attempt: u32) -> Result<String, std::io::Error> { Ok(format!("receipt, attempt {attempt}")) }
//! let store = Store::open(path)?;
//! let key = Key::scoped("merchant-7", "order-1042")?;
//! let request = Fingerprint::builder().field("amount", "129.00").field("currency", "THB").finish();
//!
//! match store.begin(&key, &request)? {
//!     Begin::Fresh(claim) => {
//!         let receipt = charge(claim.attempt())?; // on an error the claim is interrupted
//!         claim.complete(receipt)?;
//!     }
//!     Begin::InProgress(busy) => println!("409, Retry-After: {:?}", busy.retry_after()),
//!     Begin::Replay(response) => println!("200, {} bytes", response.as_bytes().len()),
//!     Begin::Mismatch(_) => println!("422"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A [`Key`] says which command it is, and a [`Fingerprint`] what it asks for.
//! [`Store::begin`] answers with a [`Begin`]; whoever gets
//! [`Fresh`](Begin::Fresh) has a [`Claim`] and ends it with
//! [`complete`](Claim::complete) or [`abandon`](Claim::abandon).
//! [`StoreBuilder`] has the options, [`Error`] what can go wrong.
//!
//! # What it promises
//!
//! Under any crash, power cut, full disk or failed write:
//!
//! 1. At any time at most one live holder of a key.
//! 2. Once `complete` has returned `Ok`, every later `begin` with that
//!    fingerprint replays exactly those bytes until the retention ends, never
//!    earlier.
//! 3. A response is never replayed to a different fingerprint, or in another
//!    scope.
//! 4. A claim that was lost cannot change anything.
//! 5. If `begin` said `Fresh`, a crash afterwards is seen: the next attempt
//!    knows that it was interrupted.
//! 6. An error leaves the key as it was, or says in its kind that the outcome is
//!    unknown until the store is reopened.
//!
//! # What it does not
//!
//! - *Exactly once for effects outside the store.* Nobody can promise that. What
//!   you get is that an interrupted attempt is known to be one
//!   ([`Claim::interrupted`]), or held until somebody looks
//!   ([`OnInterrupt::Hold`]).
//! - *Correctness if the clock is set far forward:* records then expire early.
//!   A clock that is set back does no harm.
//! - *More than one process:* one opens the file at a time; the next gets
//!   [`AlreadyOpen`](ErrorKind::AlreadyOpen).
//!
//! - *Anything after the retention*, 24 hours by default: the key is then
//!   unknown, and the work is done again. Keys that stand for something that
//!   must happen once for ever (an order's payment) want a longer
//!   [`retention`](StoreBuilder::retention).
//!
//! # The rules
//!
//! What an event does to a key is one pure function, [`transition::transition`],
//! and the page of [`transition`] has the picture.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod admin;
mod checkpoint;
mod claim;
mod codec;
mod commit;
#[doc(hidden)]
pub mod disk;
mod engine;
mod error;
mod fingerprint;
mod key;
mod options;
mod pace;
mod parker;
mod position;
pub mod record;
mod storage;
mod store;
mod table;
mod time;
pub mod transition;

pub use admin::{Entry, Stats, Status};
pub use claim::{Claim, ClaimError, Response};
pub use error::{Error, ErrorKind, Result};
pub use fingerprint::{Fingerprint, FingerprintBuilder};
pub use key::Key;
pub use options::StoreBuilder;
pub use record::{Fence, OnInterrupt};
pub use store::{Begin, Busy, Mismatch, Store};
pub use time::{Clock, ManualClock, SystemClock, Timestamp};
pub use transition::Resolution;

/// What the fuzzers reach that nobody else may.
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
