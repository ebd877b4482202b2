//! The worker process: opens the store and answers, on many threads.
//!
//! It reads the numbers of the notifications that are still to be answered from
//! its standard input, and tells each event in a line of its standard output.

use crate::cli::Options;
use crate::input::{self, Notification};
use crate::shop::{Answer, Failure, Order, Shop};
use keyonce::{Response, Store};
use std::collections::VecDeque;
use std::io::Read;
use std::process::ExitCode;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

const THREADS: usize = 12;
/// Longer than any holder here takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than anybody will wait for the second run of this example.
const RETENTION: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

pub(crate) fn run(options: &Options) -> Result<ExitCode, String> {
    let all = input::read(&options.input())?;
    let mut wanted = String::new();
    std::io::stdin().read_to_string(&mut wanted).map_err(|error| error.to_string())?;
    let wanted: Vec<usize> = wanted.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    let folder = options.folder();
    let store = if options.unsafely {
        None
    } else {
        let store = Store::builder().retention(RETENTION).open(folder.join("payments.keyonce"));
        Some(store.map_err(|error| error.to_string())?)
    };
    if let Some(store) = &store {
        println!("found {}", store.stats().map_err(|error| error.to_string())?.interrupted);
    }

    let unanswered = Arc::new(Unanswered::default());
    let (left, alone) = (Arc::clone(&unanswered), options.unsafely);
    let shop = Shop::open(&folder, move |asked| {
        println!("interrupted {}", asked.channel);
        left.wait_for_others(asked, alone);
        std::process::abort();
    })?;

    let mut rounds: Vec<u32> = wanted.iter().map(|number| all[*number].round).collect();
    rounds.sort_unstable();
    rounds.dedup();
    for round in rounds {
        // All copies are loaded before any of them is worked on: they are stale.
        let queue: VecDeque<(usize, Order)> = wanted
            .iter()
            .filter(|number| all[**number].round == round)
            .map(|number| (*number, shop.load(&all[*number])))
            .collect();
        unanswered.set(queue.iter().map(|(number, _)| all[*number].clone()));
        let queue = Mutex::new(queue);
        let service =
            Service { store: store.as_ref(), shop: &shop, all: &all, queue, unanswered: &unanswered };
        let ended: Result<(), String> = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(|| service.work())).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("a worker thread panicked"))
        });
        ended?;
    }
    if let Some(store) = store {
        let stats = store.stats().map_err(|error| error.to_string())?;
        println!("stats {} {} {} {}", stats.live_keys, stats.replays, stats.writes, stats.commits);
        store.close().map_err(|error| error.to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

struct Service<'a> {
    store: Option<&'a Store>,
    shop: &'a Shop,
    all: &'a [Notification],
    queue: Mutex<VecDeque<(usize, Order)>>,
    unanswered: &'a Unanswered,
}

impl Service<'_> {
    fn work(&self) -> Result<(), String> {
        while let Some((number, order)) = self.next() {
            let asked = &self.all[number];
            match self.answer(asked, order) {
                Ok(told) => {
                    println!("answered {number} {told}");
                    self.unanswered.answered(asked);
                }
                Err(Failure::TimedOut) => {
                    println!("interrupted {}", asked.channel);
                    // No answer: the gateway sends it again.
                    self.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back((number, order));
                }
                Err(Failure::Other(error)) => return Err(format!("{}: {error}", asked.id)),
            }
        }
        Ok(())
    }

    fn next(&self) -> Option<(usize, Order)> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    fn answer(&self, asked: &Notification, order: Order) -> Result<String, Failure> {
        let Some(store) = self.store else {
            return crate::handle_unsafely(self.shop, asked, order).map(|answer| told(&answer));
        };
        let mut answer = crate::handle(store, self.shop, asked, Duration::ZERO)?;
        if let Answer::Busy(_) = answer {
            println!("waited {}", asked.channel);
            answer = crate::handle(store, self.shop, asked, PATIENCE)?;
        }
        if let Answer::Busy(busy) = &answer {
            return Err(Failure::Other(format!("in progress since {:?}", busy.since())));
        }
        Ok(told(&answer))
    }
}

/// The outcome, and the receipt where the store keeps one.
fn told(answer: &Answer) -> String {
    let with =
        |outcome, receipt: &Response| format!("{outcome} {}", String::from_utf8_lossy(receipt.as_bytes()));
    match answer {
        Answer::Credited(receipt) => with("credited", receipt),
        Answer::Reconciled(receipt) => with("reconciled", receipt),
        Answer::Replayed(receipt) => with("replayed", receipt),
        Answer::Paid => "credited".into(),
        Answer::AlreadyPaid => "replayed".into(),
        Answer::Refused => "mismatch".into(),
        Answer::Busy(_) => "busy".into(),
    }
}

/// What of this round is not answered: so that the crash comes when nobody else
/// is at work, and the figures are the same each time.
#[derive(Default)]
struct Unanswered {
    orders: Mutex<Vec<String>>,
    fewer: Condvar,
}

impl Unanswered {
    fn set(&self, round: impl Iterator<Item = Notification>) {
        *self.orders.lock().unwrap_or_else(PoisonError::into_inner) =
            round.map(|asked| asked.order_name()).collect();
    }

    fn answered(&self, asked: &Notification) {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        let name = asked.order_name();
        if let Some(at) = orders.iter().position(|order| *order == name) {
            orders.swap_remove(at);
        }
        self.fewer.notify_all();
    }

    /// With a store, others with the same order wait for this one.
    fn wait_for_others(&self, asked: &Notification, alone: bool) {
        let name = asked.order_name();
        let orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        let busy = |orders: &mut Vec<String>| {
            if alone { orders.len() > 1 } else { orders.iter().any(|order| *order != name) }
        };
        drop(self.fewer.wait_timeout_while(orders, PATIENCE, busy));
    }
}
