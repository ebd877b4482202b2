//! Payments, jobs and charges: the cases that this project started from.

use crate::support::{builder, clock, fresh, key, open, print, replay};
use keyonce::{Begin, Fingerprint, Store};
use std::collections::BTreeMap;
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(120);

/// An order as a caller loaded it.
#[derive(Clone)]
struct Order {
    number: String,
    paid: bool,
}

// A1: callback, redirect and the admin's button report one payment at once;
// each loaded the order before any of them ran, and still holds that copy.
#[test]
fn three_stale_copies_of_one_order_credit_it_once_and_are_told_the_same() {
    let store = Store::in_memory().unwrap();
    let credits = Mutex::new(Vec::new());
    let mails = Mutex::new(Vec::new());
    for n in 0..100 {
        let loaded = Order { number: format!("order-{n}"), paid: false };
        let start = Barrier::new(3);
        let report = |copy: &Order| {
            start.wait();
            assert!(!copy.paid, "the copy is stale: it cannot tell");
            let paid = Fingerprint::builder().field("amount", "129.00 THB").finish();
            match store.begin_wait(&key(&copy.number), &paid, LONG).unwrap() {
                Begin::Fresh(claim) => {
                    credits.lock().unwrap().push(copy.number.clone());
                    mails.lock().unwrap().push(copy.number.clone());
                    claim.complete(format!("{} credited", copy.number)).unwrap()
                }
                Begin::Replay(response) => response,
                other => panic!("{other:?}"),
            }
        };
        let copies = [loaded.clone(), loaded.clone(), loaded];
        let told: Vec<_> = thread::scope(|scope| {
            let callers = copies.each_ref().map(|copy| scope.spawn(|| report(copy)));
            callers.into_iter().map(|caller| caller.join().unwrap()).collect()
        });
        assert_eq!(told[0].as_bytes(), format!("order-{n} credited").as_bytes());
        assert!(told.iter().all(|answer| *answer == told[0]), "{told:?}");
    }
    for ledger in [credits, mails] {
        let ledger = ledger.into_inner().unwrap();
        assert_eq!(ledger, (0..100).map(|n| format!("order-{n}")).collect::<Vec<_>>());
    }
    assert_eq!(store.stats().unwrap().replays, 200);
}

// A2: a queue job dies half-way and is run again; a second worker takes it
// meanwhile. Dies with its thread, and with its process.
#[test]
fn a_job_that_died_half_way_is_credited_once_and_the_next_attempt_knows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.keyonce");
    let clock = clock();
    let store = open(&path, &clock);
    let credits = Mutex::new(Vec::new());
    let job = key("job-7");

    // It credits, and dies before it can say so.
    thread::scope(|scope| {
        let died = scope.spawn(|| {
            let _claim = fresh(store.begin(&job, &print("credit 50")).unwrap());
            credits.lock().unwrap().push("job-7");
            // The second worker, meanwhile.
            assert!(matches!(store.begin(&job, &print("credit 50")).unwrap(), Begin::InProgress(_)));
            std::panic::resume_unwind(Box::new("the worker dies"));
        });
        assert!(died.join().is_err());
    });
    let work = |store: &Store, attempt: u32, at_the_end: fn(keyonce::Claim)| {
        let claim = fresh(store.begin(&job, &print("credit 50")).unwrap());
        assert_eq!((claim.attempt(), claim.interrupted()), (attempt, true));
        // It knows that it is not the first, and so looks.
        let mut credits = credits.lock().unwrap();
        if !credits.contains(&"job-7") {
            credits.push("job-7");
        }
        at_the_end(claim);
    };
    // The second attempt dies with the whole process.
    let crashed = folder.path().join("crashed.keyonce");
    work(&store, 2, std::mem::forget);
    std::fs::copy(&path, &crashed).unwrap();
    let store = open(&crashed, &clock);
    work(&store, 3, |claim| drop(claim.complete("credited 50").unwrap()));
    assert_eq!(replay(store.begin(&job, &print("credit 50")).unwrap()).as_bytes(), b"credited 50");
    assert_eq!(credits.into_inner().unwrap(), ["job-7"]);
}

/// A gateway that moves the money, and may fail to say so.
#[derive(Default)]
struct Gateway {
    charges: Mutex<BTreeMap<String, u32>>,
}

impl Gateway {
    fn charge(&self, order: &str, answers: bool) -> Result<String, &'static str> {
        *self.charges.lock().unwrap().entry(order.to_owned()).or_insert(0) += 1;
        if answers { Ok(format!("charged {order}")) } else { Err("timed out") }
    }

    fn inquire(&self, order: &str) -> Option<String> {
        self.charges.lock().unwrap().get(order).map(|_| format!("charged {order}"))
    }
}

fn pay(store: &Store, gateway: &Gateway, order: &str, answers: bool) -> Result<Vec<u8>, String> {
    match store.begin(&key(order), &print("129.00")).map_err(|e| e.to_string())? {
        Begin::Fresh(claim) => {
            let known = if claim.interrupted() { gateway.inquire(order) } else { None };
            let receipt = match known {
                Some(receipt) => receipt,
                None => gateway.charge(order, answers)?,
            };
            Ok(claim.complete(receipt).map_err(|e| e.to_string())?.as_bytes().to_vec())
        }
        Begin::Replay(response) => Ok(response.as_bytes().to_vec()),
        other => Err(format!("{other:?}")),
    }
}

// A3: the charge times out at the gateway after the money moved.
#[test]
fn a_retry_after_a_time_out_asks_the_gateway_and_charges_nothing() {
    let store = builder(&clock()).open_in_memory().unwrap();
    let gateway = Gateway::default();
    assert_eq!(pay(&store, &gateway, "order-1", false).unwrap_err(), "timed out");
    let entry = store.get(&key("order-1")).unwrap().unwrap();
    assert_eq!((entry.status(), entry.attempt()), (keyonce::Status::Interrupted, 1));
    for _ in 0..3 {
        assert_eq!(pay(&store, &gateway, "order-1", true).unwrap(), b"charged order-1");
    }
    assert_eq!(gateway.charges.into_inner().unwrap(), BTreeMap::from([("order-1".to_owned(), 1)]));
    assert_eq!(store.get(&key("order-1")).unwrap().unwrap().attempt(), 2);
    assert_eq!(store.stats().unwrap().replays, 2);
}
