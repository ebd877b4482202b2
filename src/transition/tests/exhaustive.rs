//! Every state that two keys can reach, with two fingerprints, three attempts,
//! both policies, a crash at any time and a clock that moves.
//!
//! Beside the records, the walk keeps a *history*: what a bystander who saw
//! every answer would know. The invariants are agreements between the two.

use super::*;
use std::collections::HashSet;

const NOW: u64 = 100;
const RETENTION: u64 = 2;
const ATTEMPTS_MAX: u32 = 3;
const NEW: Fence = Fence::new(9);

/// One key: its record, and what a bystander saw.
#[derive(Clone, Debug, Default)]
struct Seen {
    record: Option<Record>,
    /// The fence of the claim that somebody holds.
    holder: Option<Fence>,
    /// Attempts that ended without a verdict since the key was last free.
    interrupted: u32,
    /// The answer that was acknowledged, and until when.
    answer: Option<(Bytes, Timestamp)>,
    fingerprint: Option<Fingerprint>,
}

type World = [Seen; 2];

/// Two fingerprints; not hashed, because the walk asks millions of times.
fn print(which: u8) -> Fingerprint {
    Fingerprint::from_bytes([which; 32])
}

/// Everything that can happen to a key whose record has `fence`.
fn events(fence: Fence) -> Vec<Event> {
    let mut events = vec![Event::Resolve(Resolution::Free), Event::Forget];
    for which in [0, 1] {
        for on_interrupt in [Retry, Hold] {
            let terms = Terms { retention_ms: RETENTION, on_interrupt };
            events.push(Event::Begin { fingerprint: print(which), fence: NEW, terms });
        }
        events.push(Event::Resolve(Resolution::Complete(Bytes::copy_from_slice(&[which]))));
    }
    // The holder's own fence, and the other key's, which is as good as an old one.
    for fence in [fence, Fence::new(3 - fence.as_u64())] {
        events.push(Event::Abandon { fence });
        events.push(Event::Interrupt { fence });
        for answer in [0, 1] {
            events.push(Event::Complete { fence, response: Bytes::copy_from_slice(&[answer]) });
        }
    }
    events
}

impl Seen {
    /// Applies an event, and checks the answer against the history.
    fn apply(&mut self, event: &Event) {
        let now = at(NOW);
        let before = self.record.clone();
        let alive = before.clone().filter(|record| !record.is_expired(now));
        let (next, outcome) = transition(before.as_ref(), event, now);
        let was = self.clone();
        let shown = || format!("{event:?} on {was:?}: {outcome:?}, {next:?}");

        if alive.is_none() {
            *self = Self { record: before.clone(), ..Self::default() };
        }
        if let Event::Begin { fingerprint, .. } = event {
            // A mismatch before everything else, and in every state.
            let other = self.fingerprint.is_some_and(|first| first != *fingerprint);
            assert_eq!(outcome == Outcome::Mismatch, other, "{}", shown());
            if !other {
                assert_eq!(outcome == Outcome::Replay, self.answer.is_some(), "{}", shown());
            }
            if self.holder.is_some() {
                assert!(matches!(outcome, Outcome::Mismatch | Outcome::InProgress), "{}", shown());
            }
        }
        if let Event::Complete { fence, .. } | Event::Abandon { fence } | Event::Interrupt { fence } = event {
            let holds = self.holder == Some(*fence);
            assert_eq!(outcome == Outcome::Done, holds, "only the holder ends a claim: {}", shown());
        }
        match (&next, outcome) {
            (Next::Same, Outcome::Done | Outcome::Fresh) => panic!("nothing happened: {}", shown()),
            (Next::Is(_) | Next::Gone, Outcome::Done | Outcome::Fresh) | (Next::Same, _) => {}
            _ => panic!("a refusal changed the key: {}", shown()),
        }
        if self.answer.is_some() && next != Next::Same {
            assert_eq!((event, &next), (&Event::Forget, &Next::Gone), "an answer changed: {}", shown());
        }
        self.follow(event, next, outcome);
        self.check();
    }

    /// What a bystander learns from an answer.
    fn follow(&mut self, event: &Event, next: Next, outcome: Outcome) {
        match next {
            Next::Same => return,
            Next::Gone => return *self = Self::default(),
            Next::Is(record) => self.record = Some(record),
        }
        match (event, outcome) {
            (Event::Begin { fingerprint, fence, .. }, Outcome::Fresh) => {
                assert!(self.holder.is_none(), "a second holder: {self:?}");
                self.holder = Some(*fence);
                self.fingerprint = Some(*fingerprint);
            }
            (Event::Interrupt { .. }, _) => {
                self.holder = None;
                self.interrupted += 1;
            }
            (Event::Complete { response, .. } | Event::Resolve(Resolution::Complete(response)), _) => {
                self.holder = None;
                self.answer = Some((response.clone(), at(NOW + RETENTION)));
            }
            (event, outcome) => panic!("{outcome:?} for {event:?} leaves no record"),
        }
    }

    /// The record says what the history says.
    fn check(&self) {
        // A record that has expired is no record.
        let Some(record) = self.record.as_ref().filter(|record| !record.is_expired(at(NOW))) else {
            assert!(self.holder.is_none() && self.answer.is_none(), "{self:?}");
            return;
        };
        match &record.state {
            State::InProgress { after_interruption, .. } => {
                assert_eq!(self.holder, Some(record.fence), "{self:?}");
                assert_eq!(record.attempt, self.interrupted + 1, "{self:?}");
                assert_eq!(*after_interruption, self.interrupted > 0, "{self:?}");
                assert!(!record.is_expired(at(u64::MAX - 1)), "a live claim has no end: {self:?}");
            }
            State::Interrupted { .. } => {
                assert_eq!(self.holder, None, "{self:?}");
                assert_eq!(record.attempt, self.interrupted, "{self:?}");
                let held = record.terms.on_interrupt == Hold;
                assert_eq!(held, !record.is_expired(at(u64::MAX - 1)), "hold never ends: {self:?}");
            }
            State::Completed { response, expires_at, .. } => {
                assert_eq!(self.holder, None, "{self:?}");
                assert_eq!(self.answer.as_ref(), Some(&(response.clone(), *expires_at)), "{self:?}");
            }
        }
    }

    /// Moves the clock by 1 ms, by making everything 1 ms older.
    fn age(&mut self) {
        let older = |time: &mut Timestamp| {
            if *time != Timestamp::MAX {
                // What is older than that is all the same.
                *time = at((time.as_millis() - 1).max(NOW - RETENTION - 1));
            }
        };
        if let Some((_, until)) = &mut self.answer {
            older(until);
        }
        match self.record.as_mut().map(|record| &mut record.state) {
            None => {}
            Some(State::InProgress { since, .. }) => older(since),
            Some(State::Interrupted { since, expires_at }) => [since, expires_at].into_iter().for_each(older),
            Some(State::Completed { completed_at, expires_at, .. }) => {
                [completed_at, expires_at].into_iter().for_each(older);
            }
        }
    }

    /// Only equality of fences counts, so each key's is renamed to its own.
    fn rename(&mut self, to: Fence) {
        if let Some(record) = &mut self.record {
            record.fence = to;
        }
        if let Some(holder) = &mut self.holder {
            *holder = to;
        }
    }

    /// As few words as tell two of these apart.
    fn code(&self) -> [u64; 4] {
        let fingerprint = |of: Fingerprint| u64::from(of == print(0));
        let Some(record) = &self.record else { return [0; 4] };
        // Since when is for people to read; no rule looks at it.
        let (kind, end) = match &record.state {
            State::InProgress { after_interruption, .. } => {
                (1 + u64::from(*after_interruption), Timestamp::MAX)
            }
            State::Interrupted { expires_at, .. } => (3, *expires_at),
            State::Completed { response, expires_at, .. } => (4 + u64::from(response[0]), *expires_at),
        };
        let hold = u64::from(record.terms.on_interrupt == Hold);
        let who = fingerprint(record.fingerprint) << 40 | hold << 32 | u64::from(record.attempt);
        let seen = u64::from(self.interrupted) << 8 | u64::from(self.holder.is_some());
        [kind, end.as_millis(), who, seen]
    }
}

#[test]
fn the_invariants_hold_in_every_state_that_can_be_reached() {
    let mut found: HashSet<[[u64; 4]; 2]> = HashSet::new();
    let mut open = vec![World::default()];
    let mut steps = 0_u64;
    while let Some(world) = open.pop() {
        let mut visit = |mut next: World| {
            steps += 1;
            next[0].rename(Fence::new(1));
            next[1].rename(Fence::new(2));
            let attempts = next.iter().filter_map(|key| key.record.as_ref().map(|record| record.attempt));
            if attempts.max() <= Some(ATTEMPTS_MAX) && found.insert([next[0].code(), next[1].code()]) {
                open.push(next);
            }
        };
        for key in [0, 1] {
            for event in events(Fence::new(key as u64 + 1)) {
                let mut next = world.clone();
                next[key].apply(&event);
                visit(next);
            }
        }
        let mut crashed = world.clone();
        for key in &mut crashed {
            if let Some(fence) = key.holder {
                key.apply(&Event::Interrupt { fence });
            }
        }
        visit(crashed);
        let mut later = world;
        later.iter_mut().for_each(Seen::age);
        visit(later);
    }
    // Fewer would mean that the walk stopped somewhere; more, that the rules
    // have a state that nobody thought of.
    let single: HashSet<_> = found.iter().map(|pair| pair[0]).collect();
    assert_eq!(found.len(), single.len() * single.len(), "keys do not touch each other");
    let kinds: HashSet<u64> = single.iter().map(|code| code[0]).collect();
    assert_eq!(kinds.len(), 6, "absent, first, again, interrupted, two answers");
    assert!(single.iter().any(|code| code[2] & 0xff == u64::from(ATTEMPTS_MAX)));
    assert!(steps > 100_000, "{steps} steps");
}
