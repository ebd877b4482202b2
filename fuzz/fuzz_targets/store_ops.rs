//! Calls on a store, with reopening and a clock that goes both ways, against a
//! map and the rules.
#![no_main]

mod memory;

use arbitrary::Arbitrary;
use keyonce::record::{Record, State, Terms};
use keyonce::transition::{Event, Next, Outcome, transition};
use keyonce::{
    Begin, Claim, ErrorKind, Fingerprint, Key, ManualClock, OnInterrupt, Resolution, Store, Timestamp,
};
use memory::MemoryDisk;
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Arbitrary, Debug)]
enum Op {
    Begin { key: u8, print: bool },
    Complete { claim: u8, long: bool },
    Abandon { claim: u8 },
    Drop { claim: u8 },
    Resolve { key: u8, done: bool },
    Forget { key: u8 },
    Get { key: u8 },
    Sweep,
    Forward { seconds: u16 },
    Backward { seconds: u16 },
    Reopen,
}

const RETENTION: Duration = Duration::from_secs(3600);

struct World {
    disk: MemoryDisk,
    clock: ManualClock,
    policy: OnInterrupt,
    collide: bool,
    /// What time it is for the store: never earlier than before.
    latest: Timestamp,
    model: BTreeMap<u8, Record>,
    claims: Vec<(u8, Claim)>,
}

impl World {
    fn open(&self) -> Store {
        let mut builder = Store::builder()
            .disk(self.disk.clone())
            .clock(self.clock.clone())
            .on_interrupt(self.policy)
            .retention(RETENTION)
            .replay_cache(0)
            .storage_cache(1 << 20);
        if self.collide {
            builder = builder.key_hash_for_tests(|framed| u64::from(framed[1] & 1));
        }
        builder.open("fuzz.keyonce").expect("what a store wrote it can open")
    }

    fn now(&mut self) -> Timestamp {
        self.latest = self.latest.max(keyonce::Clock::now(&self.clock));
        self.latest
    }

    fn apply(&mut self, key: u8, event: &Event) -> (Outcome, Option<Record>) {
        let now = self.now();
        let (next, outcome) = transition(self.model.get(&key), event, now);
        match next {
            Next::Same => {}
            Next::Gone => drop(self.model.remove(&key)),
            Next::Is(record) => drop(self.model.insert(key, record)),
        }
        (outcome, self.model.get(&key).cloned())
    }
}

fn key(name: u8) -> Key {
    Key::new([b'a' + name % 6]).unwrap()
}

libfuzzer_sys::fuzz_target!(|input: (bool, bool, Vec<Op>)| {
    let (hold, collide, ops) = input;
    let clock = ManualClock::new(Timestamp::from_millis(1_000_000_000));
    let policy = if hold { OnInterrupt::Hold } else { OnInterrupt::Retry };
    let disk = MemoryDisk::default();
    let (model, claims) = (BTreeMap::new(), Vec::new());
    let mut world = World { disk, clock, policy, collide, latest: Timestamp::default(), model, claims };
    let mut store = world.open();
    for op in ops.into_iter().take(64) {
        step(&mut world, &mut store, op);
    }
});

fn step(world: &mut World, store: &mut Store, op: Op) {
    match op {
        Op::Begin { key: name, print } => {
            let name = name % 6;
            let fingerprint = if print { Fingerprint::of("a") } else { Fingerprint::NONE };
            let begun = store.begin(&key(name), &fingerprint).unwrap();
            let fence = match &begun {
                Begin::Fresh(claim) => claim.fence(),
                _ => keyonce::Fence::new(u64::MAX),
            };
            let terms = Terms::new(RETENTION, world.policy);
            let (outcome, record) = world.apply(name, &Event::Begin { fingerprint, fence, terms });
            match (begun, outcome, record) {
                (Begin::Fresh(claim), Outcome::Fresh, Some(record)) => {
                    assert_eq!(claim.attempt(), record.attempt);
                    let again = matches!(record.state, State::InProgress { after_interruption: true, .. });
                    assert_eq!(claim.interrupted(), again);
                    world.claims.push((name, claim));
                }
                (Begin::InProgress(busy), Outcome::InProgress, Some(record)) => {
                    assert_eq!(busy.interrupted(), matches!(record.state, State::Interrupted { .. }));
                }
                (Begin::Replay(answer), Outcome::Replay, Some(record)) => {
                    let State::Completed { response, expires_at, .. } = record.state else { panic!() };
                    assert_eq!((answer.as_bytes(), answer.expires_at()), (&*response, expires_at));
                }
                (Begin::Mismatch(_), Outcome::Mismatch, _) => {}
                (begun, outcome, record) => panic!("{begun:?}, and the rules say {outcome:?}: {record:?}"),
            }
        }
        Op::Complete { claim, long } if !world.claims.is_empty() => {
            let (name, claim) = world.claims.swap_remove(usize::from(claim) % world.claims.len());
            let answer = vec![name; if long { 5_000 } else { usize::from(name) }];
            let event = Event::Complete { fence: claim.fence(), response: answer.clone().into() };
            assert_eq!(world.apply(name, &event).0, Outcome::Done);
            claim.complete(answer).unwrap();
        }
        Op::Abandon { claim } if !world.claims.is_empty() => {
            let (name, claim) = world.claims.swap_remove(usize::from(claim) % world.claims.len());
            assert_eq!(world.apply(name, &Event::Abandon { fence: claim.fence() }).0, Outcome::Done);
            claim.abandon().unwrap();
        }
        Op::Drop { claim } if !world.claims.is_empty() => {
            let (name, claim) = world.claims.swap_remove(usize::from(claim) % world.claims.len());
            assert_eq!(world.apply(name, &Event::Interrupt { fence: claim.fence() }).0, Outcome::Done);
        }
        Op::Complete { .. } | Op::Abandon { .. } | Op::Drop { .. } => {}
        Op::Resolve { key: name, done } => {
            let name = name % 6;
            let verdict = if done { Resolution::Complete("resolved".into()) } else { Resolution::Free };
            let (outcome, _) = world.apply(name, &Event::Resolve(verdict.clone()));
            match store.resolve(&key(name), verdict) {
                Ok(answer) => assert_eq!((outcome, answer.is_some()), (Outcome::Done, done)),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WrongState);
                    assert_ne!(outcome, Outcome::Done);
                }
            }
        }
        Op::Forget { key: name } => {
            let name = name % 6;
            let (outcome, _) = world.apply(name, &Event::Forget);
            match store.forget(&key(name)) {
                Ok(known) => assert_eq!(outcome, if known { Outcome::Done } else { Outcome::Absent }),
                Err(error) => {
                    assert_eq!((error.kind(), outcome), (ErrorKind::WrongState, Outcome::InProgress))
                }
            }
        }
        Op::Get { key: name } => {
            let name = name % 6;
            let now = world.now();
            let record = world.model.get(&name).filter(|record| !record.is_expired(now));
            let entry = store.get(&key(name)).unwrap();
            assert_eq!(entry.map(|e| (e.attempt(), e.fence())), record.map(|r| (r.attempt, r.fence)));
        }
        Op::Sweep => {
            store.sweep().unwrap();
            let now = world.now();
            world.model.retain(|_, record| !record.is_expired(now));
            assert_eq!(store.stats().unwrap().live_keys, world.model.len());
        }
        Op::Forward { seconds } => world.clock.advance(Duration::from_secs(seconds.into())),
        Op::Backward { seconds } => {
            // A clock that nobody asked was never there.
            world.now();
            store.sweep().unwrap();
            let back = keyonce::Clock::now(&world.clock).as_millis() - u64::from(seconds) * 1000;
            world.clock.set(Timestamp::from_millis(back));
        }
        Op::Reopen => {
            world.now();
            let claims = std::mem::take(&mut world.claims);
            std::mem::replace(store, Store::in_memory().unwrap()).close().unwrap();
            *store = world.open();
            for (name, claim) in claims {
                assert_eq!(world.apply(name, &Event::Interrupt { fence: claim.fence() }).0, Outcome::Done);
                assert_eq!(claim.complete("late").unwrap_err().kind(), ErrorKind::Closed);
            }
        }
    }
}
