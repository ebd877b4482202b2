//! The model: what a store must answer, and no more.

use crate::support::print;
use keyonce::record::{Fence, OnInterrupt, Record, State, Terms};
use keyonce::transition::{Event, Next, Outcome, transition};
use keyonce::{Fingerprint, Key, Resolution, Timestamp};
use proptest::prelude::*;
use proptest_state_machine::ReferenceStateMachine;
use std::collections::{BTreeMap, BTreeSet};

/// Two and a half of the units of time that records are swept by.
pub(crate) const RETENTION_MS: u64 = 40_000;
pub(crate) const START_MS: u64 = 1_780_000_000_000;
/// The greatest response; those over 1 KiB stand apart on disk.
pub(crate) const RESPONSE_MAX: usize = 3_000;

/// One call, or one thing that happens to the machine.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Begin {
        key: Key,
        fingerprint: Fingerprint,
        wait: bool,
    },
    /// Of the open claims, the one with this number; here and below.
    Complete(prop::sample::Index, Vec<u8>),
    CompleteTooLong(prop::sample::Index),
    Abandon(prop::sample::Index),
    Drop(prop::sample::Index),
    Get(Key),
    Forget(Key),
    Resolve(Key, Resolution),
    Sweep,
    Compact,
    Clock(i64),
    /// Close, and open with this policy.
    Reopen(OnInterrupt),
    /// The same without closing.
    Crash(OnInterrupt),
}

/// What the caller is told: the outcome, and the record that it speaks of.
pub(crate) type Told = (Outcome, Option<Record>);

#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) records: BTreeMap<Key, Record>,
    pub(crate) on_interrupt: OnInterrupt,
    /// The open claims, oldest first.
    pub(crate) claims: Vec<(Key, Fence)>,
    /// What the clock says.
    pub(crate) clock_ms: u64,
    /// The latest that the store saw, and the latest that is on disk.
    seen_ms: u64,
    saved_ms: u64,
    /// Keys whose interruption is not on disk yet.
    noted: BTreeSet<Key>,
    fences: u64,
    /// What the last step's caller is told.
    pub(crate) told: Option<Told>,
}

impl Model {
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.seen_ms)
    }

    pub(crate) fn alive(&self, key: &Key) -> Option<&Record> {
        self.records.get(key).filter(|record| !record.is_expired(self.now()))
    }

    fn event(&mut self, key: &Key, event: &Event) {
        let (next, outcome) = transition(self.records.get(key), event, self.now());
        match next {
            Next::Same => {}
            Next::Gone => drop(self.records.remove(key)),
            Next::Is(record) => drop(self.records.insert(key.clone(), record)),
        }
        self.told = Some((outcome, self.alive(key).cloned()));
        match outcome {
            Outcome::Done if matches!(event, Event::Interrupt { .. }) => drop(self.noted.insert(key.clone())),
            Outcome::Done | Outcome::Fresh => self.commit(),
            _ => {}
        }
    }

    fn end(&mut self, claim: prop::sample::Index, event: impl FnOnce(Fence) -> Event) {
        let (key, fence) = self.claims.remove(claim.index(self.claims.len()));
        self.event(&key, &event(fence));
    }

    fn commit(&mut self) {
        self.saved_ms = self.seen_ms;
        self.noted.clear();
    }

    fn restart(&mut self, on_interrupt: OnInterrupt) {
        self.on_interrupt = on_interrupt;
        self.seen_ms = self.saved_ms.max(self.clock_ms);
        for key in &self.noted {
            // On disk it is still open.
            let open = State::InProgress { since: self.now(), after_interruption: false };
            self.records.get_mut(key).expect("noted keys are there").state = open;
        }
        for (key, record) in self.records.clone() {
            self.event(&key, &Event::Interrupt { fence: record.fence });
        }
        self.claims.clear();
        self.commit();
    }
}

impl ReferenceStateMachine for Model {
    type State = Self;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<Self> {
        policy()
            .prop_map(|on_interrupt| Self {
                records: BTreeMap::new(),
                on_interrupt,
                claims: Vec::new(),
                clock_ms: START_MS,
                seen_ms: START_MS,
                saved_ms: START_MS,
                noted: BTreeSet::new(),
                fences: 0,
                told: None,
            })
            .boxed()
    }

    fn transitions(model: &Self) -> BoxedStrategy<Step> {
        let claim = any::<prop::sample::Index>;
        let any_time = prop_oneof![
            14 => (key(), fingerprint(), prop::bool::weighted(0.2))
                .prop_map(|(key, fingerprint, wait)| Step::Begin { key, fingerprint, wait }),
            3 => key().prop_map(Step::Get),
            2 => key().prop_map(Step::Forget),
            3 => (key(), resolution()).prop_map(|(key, resolution)| Step::Resolve(key, resolution)),
            1 => Just(Step::Sweep),
            1 => Just(Step::Compact),
            4 => clock().prop_map(Step::Clock),
            1 => policy().prop_map(Step::Reopen),
            1 => policy().prop_map(Step::Crash),
        ];
        if model.claims.is_empty() {
            return any_time.boxed();
        }
        prop_oneof![
            30 => any_time,
            10 => (claim(), response()).prop_map(|(claim, response)| Step::Complete(claim, response)),
            1 => claim().prop_map(Step::CompleteTooLong),
            3 => claim().prop_map(Step::Abandon),
            5 => claim().prop_map(Step::Drop),
        ]
        .boxed()
    }

    fn preconditions(model: &Self, step: &Step) -> bool {
        match step {
            Step::Complete(..) | Step::CompleteTooLong(_) | Step::Abandon(_) | Step::Drop(_) => {
                !model.claims.is_empty()
            }
            _ => true,
        }
    }

    fn apply(mut model: Self, step: &Step) -> Self {
        model.told = None;
        match step.clone() {
            Step::Begin { key, fingerprint, wait: _ } => {
                model.fences += 1;
                let fence = Fence::new(model.fences);
                let terms = Terms { retention_ms: RETENTION_MS, on_interrupt: model.on_interrupt };
                model.event(&key, &Event::Begin { fingerprint, fence, terms });
                if let Some((Outcome::Fresh, _)) = model.told {
                    model.claims.push((key, fence));
                }
            }
            Step::Complete(claim, response) => {
                model.end(claim, |fence| Event::Complete { fence, response: response.into() });
            }
            Step::Abandon(claim) => model.end(claim, |fence| Event::Abandon { fence }),
            Step::Drop(claim) => model.end(claim, |fence| Event::Interrupt { fence }),
            Step::Forget(key) => model.event(&key, &Event::Forget),
            Step::Resolve(key, resolution) => model.event(&key, &Event::Resolve(resolution)),
            Step::CompleteTooLong(_) | Step::Get(_) => {}
            Step::Sweep | Step::Compact => {
                let now = model.now();
                model.records.retain(|_, record| !record.is_expired(now));
                model.commit();
            }
            Step::Clock(by) => {
                model.clock_ms = model.clock_ms.saturating_add_signed(by);
                model.seen_ms = model.seen_ms.max(model.clock_ms);
            }
            Step::Reopen(on_interrupt) => {
                model.commit();
                model.restart(on_interrupt);
            }
            Step::Crash(on_interrupt) => model.restart(on_interrupt),
        }
        model
    }
}

/// A few keys in two scopes, and one in none.
pub(crate) fn keys() -> Vec<Key> {
    let scoped = |scope, key| Key::scoped(scope, key).unwrap();
    vec![scoped("a", "1"), scoped("a", "2"), scoped("b", "1"), scoped("b", "2"), Key::new("1").unwrap()]
}

fn key() -> impl Strategy<Value = Key> {
    prop::sample::select(keys())
}

fn fingerprint() -> impl Strategy<Value = Fingerprint> {
    prop_oneof![18 => Just(Fingerprint::NONE), 1 => Just(print("a")), 1 => Just(print("b"))]
}

fn response() -> impl Strategy<Value = Vec<u8>> {
    let len = prop_oneof![3 => 0..20_usize, 1 => 1_023..1_027_usize, 1 => 2_000..=RESPONSE_MAX];
    (any::<u8>(), len).prop_map(|(byte, len)| vec![byte; len])
}

fn resolution() -> impl Strategy<Value = Resolution> {
    prop_oneof![Just(Resolution::Free), response().prop_map(|response| Resolution::Complete(response.into()))]
}

fn policy() -> impl Strategy<Value = OnInterrupt> {
    prop_oneof![Just(OnInterrupt::Retry), Just(OnInterrupt::Hold)]
}

fn clock() -> impl Strategy<Value = i64> {
    let retention = i64::try_from(RETENTION_MS).unwrap();
    prop::sample::select(vec![
        1,
        1_000,
        16_384,
        retention - 1,
        retention,
        retention + 1,
        100_000,
        -1,
        -retention,
        -3_600_000,
    ])
}
