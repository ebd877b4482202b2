//! The world outside the store: the gateway's book and the shop's ledger, both
//! files that outlive the process.

use crate::input::{CHANNELS, Fault, Notification};
use keyonce::{Busy, ClaimError, Error, Response};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

pub(crate) const LEDGER: &str = "ledger.csv";
pub(crate) const GATEWAY: &str = "gateway.csv";

/// What a notification is answered.
pub(crate) enum Answer {
    Credited(Response),
    Reconciled(Response),
    Replayed(Response),
    /// Another amount than the first: refused.
    Refused,
    /// Somebody is at it.
    Busy(Busy),
    /// Without a store: credited.
    Paid,
    /// Without a store: the order's copy said so.
    AlreadyPaid,
}

/// Why there is no answer.
pub(crate) enum Failure {
    /// The gateway's answer did not come. The gateway will ask again.
    TimedOut,
    Other(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Other(error.to_string())
    }
}

impl From<ClaimError> for Failure {
    fn from(error: ClaimError) -> Self {
        Error::from(error).into()
    }
}

/// An order as it was when it was loaded.
#[derive(Clone, Copy)]
pub(crate) enum Order {
    Pending,
    Paid,
}

pub(crate) struct Shop {
    gateway: Book,
    ledger: Book,
    /// How the process dies: waits until nobody else is at work, and aborts.
    die: Box<dyn Fn(&Notification) + Send + Sync>,
}

impl Shop {
    pub(crate) fn open(
        folder: &Path,
        die: impl Fn(&Notification) + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let book = |name| Book::open(&folder.join(name));
        Ok(Self { gateway: book(GATEWAY)?, ledger: book(LEDGER)?, die: Box::new(die) })
    }

    pub(crate) fn load(&self, order: &Notification) -> Order {
        if self.ledger.knows(order) { Order::Paid } else { Order::Pending }
    }

    /// Moves the money, then credits the points and sends the e-mail.
    pub(crate) fn pay(&self, asked: &Notification) -> Result<String, Failure> {
        self.charge(asked)?;
        self.credit(asked)?;
        Ok(receipt(asked))
    }

    /// After an interruption: asks both books, and does what is not in them.
    pub(crate) fn reconcile(&self, asked: &Notification) -> Result<String, Failure> {
        if !self.gateway.knows(asked) {
            self.charge(asked)?;
        }
        if !self.ledger.knows(asked) {
            self.credit(asked)?;
        }
        Ok(receipt(asked))
    }

    fn charge(&self, asked: &Notification) -> Result<(), Failure> {
        let charges = self.gateway.append(asked)?;
        if charges == 1 && asked.fault == Fault::TimeOut { Err(Failure::TimedOut) } else { Ok(()) }
    }

    fn credit(&self, asked: &Notification) -> Result<(), Failure> {
        let credits = self.ledger.append(asked)?;
        if credits == 1 && asked.fault == Fault::Crash {
            (self.die)(asked);
        }
        Ok(())
    }
}

fn receipt(asked: &Notification) -> String {
    format!("{} {} received for {}", asked.amount, asked.currency, asked.order)
}

/// A file that is only appended to. It outlives the process, not a power cut:
/// nothing here syncs it.
struct Book(Mutex<(File, HashMap<String, u32>)>);

impl Book {
    fn open(path: &Path) -> Result<Self, String> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.map_err(|error| format!("cannot open {}: {error}", path.display()))?;
        let mut lines = HashMap::new();
        for line in read_book(path)? {
            *lines.entry(line.order).or_default() += 1;
        }
        Ok(Self(Mutex::new((file, lines))))
    }

    fn knows(&self, asked: &Notification) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1.contains_key(&asked.order_name())
    }

    /// Says how many lines the order now has.
    fn append(&self, asked: &Notification) -> Result<u32, Failure> {
        let order = asked.order_name();
        let channel = CHANNELS[asked.channel];
        let line = format!("{order},{channel},{},{},{}\n", asked.id, asked.amount, asked.currency);
        let mut book = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        book.0.write_all(line.as_bytes()).map_err(|error| Failure::Other(error.to_string()))?;
        let lines = book.1.entry(order).or_default();
        *lines += 1;
        Ok(*lines)
    }
}

/// A line of a book.
pub(crate) struct Line {
    pub(crate) order: String,
    pub(crate) channel: usize,
}

pub(crate) fn read_book(path: &Path) -> Result<Vec<Line>, String> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(format!("cannot read {}: {error}", path.display())),
    };
    let line = |line: &str| {
        let mut fields = line.split(',');
        let order = format!("{},{}", fields.next()?, fields.next()?);
        let channel = fields.next()?;
        Some(Line { order, channel: CHANNELS.iter().position(|known| *known == channel)? })
    };
    text.lines()
        .enumerate()
        .map(|(i, text)| line(text).ok_or_else(|| format!("{}, line {}: broken", path.display(), i + 1)))
        .collect()
}
