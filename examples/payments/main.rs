//! A payment service on an embedded store: `cargo run --example payments`.
//!
//! A gateway reports each payment three times at once: its callback, the
//! customer's redirect, and an admin's inquiry. Some reports come again, some
//! with another amount; one charge times out after the money moved, and the
//! process dies once, after a credit was made and before that was recorded.
//! Each order must be credited once.
//!
//! The input is `notifications.csv`, made once by `--generate` (`generate.rs`).
//! [`handle`] is what there is to learn; the rest is the world around it:
//! `shop.rs` (gateway and ledger), `worker.rs` (the process that dies),
//! `supervisor.rs` (the one that restarts it), `report.rs` (the table).

mod cli;
mod generate;
mod input;
mod report;
mod shop;
mod supervisor;
mod worker;

use input::Notification;
use keyonce::{Begin, Fingerprint, Key, Store};
use shop::{Answer, Failure, Order, Shop};
use std::process::ExitCode;
use std::time::Duration;

/// Answers one notification; credits the order if that is still to be done.
///
/// The key is the order, and the fingerprint is what is asked for: the channel
/// is in neither, so that all channels ask for the same thing. A time-out leaves
/// by `?` and drops the claim, which says: nobody knows whether it was done.
fn handle(store: &Store, shop: &Shop, asked: &Notification, patience: Duration) -> Result<Answer, Failure> {
    let key = Key::scoped(&asked.merchant, &asked.order)?;
    let payment =
        Fingerprint::builder().field("amount", &asked.amount).field("currency", &asked.currency).finish();

    match store.begin_wait(&key, &payment, patience)? {
        Begin::Fresh(claim) if claim.interrupted() => {
            let receipt = shop.reconcile(asked)?; // look first, then do what is missing
            Ok(Answer::Reconciled(claim.complete(receipt)?))
        }
        Begin::Fresh(claim) => {
            let receipt = shop.pay(asked)?;
            Ok(Answer::Credited(claim.complete(receipt)?))
        }
        Begin::Replay(receipt) => Ok(Answer::Replayed(receipt)),
        Begin::InProgress(busy) => Ok(Answer::Busy(busy)),
        Begin::Mismatch(_) => Ok(Answer::Refused),
    }
}

/// The same without a store, as it is often written: `order` was loaded a
/// moment ago, and what it says was true then.
fn handle_unsafely(shop: &Shop, asked: &Notification, order: Order) -> Result<Answer, Failure> {
    match order {
        Order::Paid => Ok(Answer::AlreadyPaid),
        Order::Pending => shop.pay(asked).map(|_| Answer::Paid),
    }
}

fn main() -> ExitCode {
    let options = cli::options();
    let done = if options.generate {
        print!("{}", generate::notifications());
        Ok(ExitCode::SUCCESS)
    } else if options.worker {
        worker::run(&options)
    } else {
        supervisor::run(&options)
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::from(2)
    })
}
