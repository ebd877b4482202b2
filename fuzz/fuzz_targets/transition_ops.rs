//! Events on one key against a model that was written from the promise, not
//! from the code: what a caller may be told, in each of four states.
#![no_main]

use arbitrary::Arbitrary;
use keyonce::record::{Record, Terms};
use keyonce::transition::{Event, Next, Outcome, transition};
use keyonce::{Fence, Fingerprint, OnInterrupt, Resolution, Timestamp};
use std::time::Duration;

#[derive(Arbitrary, Debug)]
enum Op {
    Begin { print: bool, hold: bool, retention_ms: u64 },
    Complete { fence: u8, answer: u8 },
    Abandon { fence: u8 },
    Interrupt { fence: u8 },
    Resolve { answer: Option<u8> },
    Forget,
    Wait { ms: u64 },
}

/// What is known: the first request, the latest attempt, its terms, its state.
#[derive(Clone, Copy)]
struct Known {
    print: bool,
    fence: u64,
    attempt: u32,
    hold: bool,
    retention_ms: u64,
    is: Is,
}

#[derive(Clone, Copy)]
enum Is {
    Held,
    Interrupted { until: u64 },
    Done { answer: u8, until: u64 },
}

libfuzzer_sys::fuzz_target!(|ops: Vec<Op>| {
    let (mut record, mut known, mut now, mut fence) = (None::<Record>, None::<Known>, 0_u64, 1_u64);
    for op in ops {
        known = alive(known, now);
        let holds = |given: u8| known.filter(|k| k.fence == u64::from(given) && matches!(k.is, Is::Held));
        let until = |k: Known| now.saturating_add(k.retention_ms);
        let (event, outcome, after) = match op {
            Op::Wait { ms } => {
                now = now.saturating_add(ms).min(u64::MAX - 1);
                continue;
            }
            Op::Begin { print, hold, retention_ms } => {
                let on_interrupt = if hold { OnInterrupt::Hold } else { OnInterrupt::Retry };
                let terms = Terms::new(Duration::from_millis(retention_ms), on_interrupt);
                let fingerprint = if print { Fingerprint::of("a") } else { Fingerprint::NONE };
                let event = Event::Begin { fingerprint, fence: Fence::new(fence), terms };
                let mut mine = Known { print, fence, attempt: 1, hold, retention_ms, is: Is::Held };
                match known {
                    Some(k) if k.print != print => (event, Outcome::Mismatch, known),
                    Some(Known { is: Is::Done { .. }, .. }) => (event, Outcome::Replay, known),
                    Some(Known { is: Is::Interrupted { .. }, hold: false, attempt, .. }) => {
                        mine.attempt = attempt + 1;
                        (event, Outcome::Fresh, Some(mine))
                    }
                    Some(_) => (event, Outcome::InProgress, known),
                    None => (event, Outcome::Fresh, Some(mine)),
                }
            }
            Op::Complete { fence, answer } => {
                let event =
                    Event::Complete { fence: Fence::new(fence.into()), response: vec![answer].into() };
                match holds(fence) {
                    Some(k) => {
                        (event, Outcome::Done, Some(Known { is: Is::Done { answer, until: until(k) }, ..k }))
                    }
                    None => (event, Outcome::Lost, known),
                }
            }
            Op::Abandon { fence } => {
                let event = Event::Abandon { fence: Fence::new(fence.into()) };
                if holds(fence).is_some() {
                    (event, Outcome::Done, None)
                } else {
                    (event, Outcome::Lost, known)
                }
            }
            Op::Interrupt { fence } => {
                let event = Event::Interrupt { fence: Fence::new(fence.into()) };
                match holds(fence) {
                    Some(k) => {
                        let until = if k.hold { u64::MAX } else { until(k) };
                        (event, Outcome::Done, Some(Known { is: Is::Interrupted { until }, ..k }))
                    }
                    None => (event, Outcome::Lost, known),
                }
            }
            Op::Resolve { answer } => {
                let verdict = answer.map_or(Resolution::Free, |a| Resolution::Complete(vec![a].into()));
                let event = Event::Resolve(verdict);
                match known {
                    None => (event, Outcome::Absent, None),
                    Some(Known { is: Is::Held, .. }) => (event, Outcome::InProgress, known),
                    Some(Known { is: Is::Done { .. }, .. }) => (event, Outcome::Settled, known),
                    Some(k) => {
                        let done =
                            answer.map(|answer| Known { is: Is::Done { answer, until: until(k) }, ..k });
                        (event, Outcome::Done, done)
                    }
                }
            }
            Op::Forget => match known {
                None => (Event::Forget, Outcome::Absent, None),
                Some(Known { is: Is::Held, .. }) => (Event::Forget, Outcome::InProgress, known),
                Some(_) => (Event::Forget, Outcome::Done, None),
            },
        };
        let (next, told) = transition(record.as_ref(), &event, Timestamp::from_millis(now));
        assert_eq!(told, outcome, "{event:?}");
        match next {
            Next::Same => {}
            Next::Gone => record = None,
            Next::Is(next) => record = Some(next),
        }
        fence += u64::from(told == Outcome::Fresh);
        known = after;
        let live = record.as_ref().filter(|record| !record.is_expired(Timestamp::from_millis(now)));
        assert_eq!(
            live.map(|r| (r.fence.as_u64(), r.attempt)),
            alive(known, now).map(|k| (k.fence, k.attempt))
        );
        if let (Some(record), Some(Known { is: Is::Done { answer, .. }, .. })) = (live, known) {
            let keyonce::record::State::Completed { response, .. } = &record.state else {
                panic!("{record:?}")
            };
            assert_eq!(response[..], [answer]);
        }
    }
});

fn alive(known: Option<Known>, now: u64) -> Option<Known> {
    known.filter(|known| match known.is {
        Is::Held => true,
        Is::Interrupted { until } | Is::Done { until, .. } => now < until || until == u64::MAX,
    })
}
