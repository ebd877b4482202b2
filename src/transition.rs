//! The rules: what an event does to the state of a key.
//!
//! One pure function, [`transition`]: no clock, no lock, no I/O. Every engine,
//! model and fuzzer calls it, so there is one place to read what this crate
//! promises, and one to get it wrong.
//!
//! ```text
//!               Begin                      Complete
//!   (absent) ───────────▶ InProgress ───────────────────▶ Completed
//!      ▲  ▲                 │     ▲                           │
//!      │  └──── Abandon ────┘     │ Begin (Retry): Fresh,     │ retention
//!      │                Interrupt │ attempt + 1               │ runs out
//!      │                    ▼     │                           │
//!      │                  Interrupted ── Hold: InProgress     │
//!      │                    │            until Resolve        │
//!      └────────────────────┴──────── retention ──────────────┘
//! ```

use crate::fingerprint::Fingerprint;
use crate::record::{Fence, OnInterrupt, Record, State, Terms};
use crate::time::Timestamp;
use bytes::Bytes;

/// Something that happens to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Somebody asks whether the work is theirs to do.
    Begin {
        /// What they ask for.
        fingerprint: Fingerprint,
        /// The fence of their claim, if they get one: greater than any before.
        fence: Fence,
        /// The terms of their claim, if they get one.
        terms: Terms,
    },
    /// The holder has done the work.
    Complete {
        /// The holder's fence.
        fence: Fence,
        /// The answer for all who ask again.
        response: Bytes,
    },
    /// The holder says that nothing happened.
    Abandon {
        /// The holder's fence.
        fence: Fence,
    },
    /// The holder is gone without a verdict.
    Interrupt {
        /// The holder's fence.
        fence: Fence,
    },
    /// Somebody who knows says what became of an interrupted attempt.
    Resolve(Resolution),
    /// An operator removes what is known of the key.
    Forget,
}

/// The verdict on an interrupted key. See [`Store::resolve`](crate::Store::resolve).
///
/// Exhaustive on purpose: work was done, or it was not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// The work was done, and this is the answer to replay.
    Complete(Bytes),
    /// Nothing happened: the key is free, for any fingerprint.
    Free,
}

/// What the one who caused an event is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// To `Begin`: the work is yours.
    Fresh,
    /// To `Begin`: a live holder has it, or it is held after an interruption.
    /// To `Resolve` and `Forget`: refused, because a live holder has it.
    InProgress,
    /// To `Begin`: it was done; the record has the answer.
    Replay,
    /// To `Begin`: the key was used for a different request.
    Mismatch,
    /// The event took place.
    Done,
    /// To `Complete`, `Abandon`, `Interrupt`: the fence is not the holder's.
    Lost,
    /// To `Resolve` and `Forget`: nothing is known of the key.
    Absent,
    /// To `Resolve`: the key was completed already.
    Settled,
}

/// What the key is after an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// What it was.
    Same,
    /// Absent.
    Gone,
    /// This.
    Is(Record),
}

/// Applies `event` to `record` (`None`: absent) at the time `now`.
///
/// Total: every event has an outcome in every state. An expired record is an
/// absent one.
#[must_use]
pub fn transition(record: Option<&Record>, event: &Event, now: Timestamp) -> (Next, Outcome) {
    let record = record.filter(|record| !record.is_expired(now));
    match event {
        Event::Begin { fingerprint, fence, terms } => begin(record, *fingerprint, *fence, *terms, now),
        Event::Complete { fence, response } => match held(record, *fence) {
            Some(record) => (Next::Is(completed(record, response, now)), Outcome::Done),
            None => (Next::Same, Outcome::Lost),
        },
        Event::Abandon { fence } => match held(record, *fence) {
            Some(_) => (Next::Gone, Outcome::Done),
            None => (Next::Same, Outcome::Lost),
        },
        Event::Interrupt { fence } => match held(record, *fence) {
            Some(record) => (Next::Is(interrupted(record, now)), Outcome::Done),
            None => (Next::Same, Outcome::Lost),
        },
        Event::Resolve(resolution) => resolve(record, resolution, now),
        Event::Forget => match record.map(|record| &record.state) {
            None => (Next::Same, Outcome::Absent),
            Some(State::InProgress { .. }) => (Next::Same, Outcome::InProgress),
            Some(State::Interrupted { .. } | State::Completed { .. }) => (Next::Gone, Outcome::Done),
        },
    }
}

fn begin(
    record: Option<&Record>,
    fingerprint: Fingerprint,
    fence: Fence,
    terms: Terms,
    now: Timestamp,
) -> (Next, Outcome) {
    let claimed = |attempt, after_interruption| {
        let state = State::InProgress { since: now, after_interruption };
        (Next::Is(Record { fingerprint, fence, attempt, terms, state }), Outcome::Fresh)
    };
    let Some(record) = record else { return claimed(1, false) };
    // Before anything else: whoever asks for something different learns
    // nothing of how the first request stands.
    if record.fingerprint != fingerprint {
        return (Next::Same, Outcome::Mismatch);
    }
    match (&record.state, record.terms.on_interrupt) {
        (State::Completed { .. }, _) => (Next::Same, Outcome::Replay),
        (State::Interrupted { .. }, OnInterrupt::Retry) => claimed(record.attempt.saturating_add(1), true),
        (State::InProgress { .. }, _) | (State::Interrupted { .. }, OnInterrupt::Hold) => {
            (Next::Same, Outcome::InProgress)
        }
    }
}

fn resolve(record: Option<&Record>, resolution: &Resolution, now: Timestamp) -> (Next, Outcome) {
    let Some(record) = record else { return (Next::Same, Outcome::Absent) };
    match (&record.state, resolution) {
        (State::InProgress { .. }, _) => (Next::Same, Outcome::InProgress),
        (State::Completed { .. }, _) => (Next::Same, Outcome::Settled),
        (State::Interrupted { .. }, Resolution::Free) => (Next::Gone, Outcome::Done),
        (State::Interrupted { .. }, Resolution::Complete(response)) => {
            (Next::Is(completed(record, response, now)), Outcome::Done)
        }
    }
}

/// The record, if the claim with this fence is its live holder.
fn held(record: Option<&Record>, fence: Fence) -> Option<&Record> {
    record.filter(|record| record.fence == fence && matches!(record.state, State::InProgress { .. }))
}

fn completed(record: &Record, response: &Bytes, now: Timestamp) -> Record {
    let state = State::Completed {
        response: response.clone(),
        completed_at: now,
        expires_at: record.terms.expiry_from(now),
    };
    Record { state, ..record.clone() }
}

/// What a live holder's record becomes when the holder is gone.
fn interrupted(record: &Record, now: Timestamp) -> Record {
    let expires_at = match record.terms.on_interrupt {
        OnInterrupt::Retry => record.terms.expiry_from(now),
        // An unknown outcome must not be forgotten by the passing of time.
        OnInterrupt::Hold => Timestamp::MAX,
    };
    Record { state: State::Interrupted { since: now, expires_at }, ..record.clone() }
}

#[cfg(test)]
mod tests;
