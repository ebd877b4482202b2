//! The store, led through the model's steps.

use super::VARIANTS;
use super::reference::{Model, RESPONSE_MAX, RETENTION_MS, Step, Told, keys};
use keyonce::record::{Fence, OnInterrupt, Record, State};
use keyonce::transition::Outcome;
use keyonce::{
    Begin, Claim, Entry, ErrorKind, Fingerprint, Key, ManualClock, Resolution, Response, Status, Store,
    Timestamp,
};
use proptest::sample::Index;
use proptest_state_machine::StateMachineTest;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

pub(crate) struct Subject<const VARIANT: usize> {
    store: Store,
    clock: ManualClock,
    folder: tempfile::TempDir,
    opened: u32,
    /// The open claims, in the order of the model's.
    claims: Vec<Claim>,
    /// The model's fences and the store's.
    fences: BTreeMap<Fence, Fence>,
    greatest: u64,
}

impl<const VARIANT: usize> StateMachineTest for Subject<VARIANT> {
    type SystemUnderTest = Self;
    type Reference = Model;

    fn init_test(model: &Model) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = ManualClock::new(Timestamp::from_millis(model.clock_ms));
        let store = open::<VARIANT>(&path(&folder, 0), &clock, model.on_interrupt);
        let (claims, fences) = (Vec::new(), BTreeMap::new());
        Self { store, clock, folder, opened: 0, claims, fences, greatest: 0 }
    }

    fn apply(mut subject: Self, model: &Model, step: Step) -> Self {
        let told = model.told.clone();
        match step {
            Step::Begin { key, fingerprint, wait } => subject.begin(&key, fingerprint, wait, told.unwrap()),
            Step::Complete(claim, response) => {
                let found = subject.take(claim).complete(response).unwrap();
                assert_response(&found, &told.unwrap().1.unwrap());
            }
            Step::CompleteTooLong(claim) => {
                let index = claim.index(subject.claims.len());
                let refused =
                    subject.claims.remove(index).complete(vec![0; RESPONSE_MAX + 1]).expect_err("too long");
                assert_eq!(refused.kind(), ErrorKind::LimitReached);
                subject.claims.insert(index, refused.into_claim());
            }
            Step::Abandon(claim) => subject.take(claim).abandon().unwrap(),
            Step::Drop(claim) => drop(subject.take(claim)),
            Step::Get(key) => subject.get(&key, model),
            Step::Forget(key) => {
                let forgotten = subject.store.forget(&key);
                match told.unwrap().0 {
                    Outcome::Done => assert!(forgotten.unwrap()),
                    Outcome::Absent => assert!(!forgotten.unwrap()),
                    _ => assert_eq!(forgotten.unwrap_err().kind(), ErrorKind::WrongState),
                }
            }
            Step::Resolve(key, resolution) => subject.resolve(&key, resolution, told.unwrap()),
            Step::Sweep => {
                subject.store.sweep().unwrap();
                assert_eq!(subject.store.sweep().unwrap(), 0, "nothing is left to sweep");
            }
            Step::Compact => drop(subject.store.compact().unwrap()),
            Step::Clock(_) => subject.clock.set(Timestamp::from_millis(model.clock_ms)),
            Step::Reopen(policy) => {
                subject.store.clone().close().unwrap();
                let path = path(&subject.folder, subject.opened);
                subject.reopen(&path, policy);
            }
            Step::Crash(policy) => {
                VARIANTS[VARIANT].tally.crashes.fetch_add(1, Ordering::Relaxed);
                // What a process leaves that dies now.
                let left = path(&subject.folder, subject.opened + 1);
                std::fs::copy(path(&subject.folder, subject.opened), &left).unwrap();
                subject.store.clone().close().unwrap();
                std::fs::remove_file(path(&subject.folder, subject.opened)).unwrap();
                subject.opened += 1;
                subject.reopen(&left, policy);
            }
        }
        subject
    }

    fn check_invariants(subject: &Self, model: &Model) {
        let alive = || model.records.keys().filter_map(|key| model.alive(key));
        let count = |is: fn(&State) -> bool| alive().filter(|record| is(&record.state)).count();
        let stats = subject.store.stats().unwrap();
        assert_eq!(stats.latest, model.now());
        assert_eq!(stats.completed, count(|state| matches!(state, State::Completed { .. })), "{stats:?}");
        assert_eq!(stats.open_claims, count(|state| matches!(state, State::InProgress { .. })), "{stats:?}");
        assert_eq!(stats.interrupted, count(|state| matches!(state, State::Interrupted { .. })), "{stats:?}");
        assert_eq!(stats.live_keys, alive().count(), "{stats:?}");
        assert_eq!(stats.waiting, 0);
        assert!(!stats.storage_failed);
    }

    fn teardown(subject: Self, model: Model) {
        for key in keys() {
            subject.get(&key, &model);
        }
        subject.store.close().unwrap();
    }
}

impl<const VARIANT: usize> Subject<VARIANT> {
    fn take(&mut self, claim: Index) -> Claim {
        let index = claim.index(self.claims.len());
        self.claims.remove(index)
    }

    fn begin(&mut self, key: &Key, fingerprint: Fingerprint, wait: bool, (outcome, record): Told) {
        let tally = &VARIANTS[VARIANT].tally;
        let begun = if wait {
            self.store.begin_wait(key, &fingerprint, Duration::ZERO)
        } else {
            self.store.begin(key, &fingerprint)
        };
        match (begun.unwrap(), outcome, record) {
            (Begin::Fresh(claim), Outcome::Fresh, Some(record)) => {
                let State::InProgress { after_interruption, .. } = record.state else { panic!("{record:?}") };
                assert_eq!((claim.attempt(), claim.interrupted()), (record.attempt, after_interruption));
                tally.interrupted.fetch_add(usize::from(claim.interrupted()), Ordering::Relaxed);
                assert!(claim.fence().as_u64() > self.greatest, "fences grow");
                self.greatest = claim.fence().as_u64();
                self.fences.insert(record.fence, claim.fence());
                self.claims.push(claim);
            }
            (Begin::InProgress(busy), Outcome::InProgress, Some(record)) => {
                let (interrupted, since) = match record.state {
                    State::InProgress { since, .. } => (false, since),
                    State::Interrupted { since, .. } => (true, since),
                    State::Completed { .. } => panic!("{record:?}"),
                };
                tally.held.fetch_add(usize::from(interrupted), Ordering::Relaxed);
                assert_eq!((busy.interrupted(), busy.since()), (interrupted, since));
                assert_eq!(busy.attempt(), record.attempt);
            }
            (Begin::Replay(response), Outcome::Replay, Some(record)) => {
                tally.replays.fetch_add(1, Ordering::Relaxed);
                let long = response.as_bytes().len() > 1024;
                tally.long_replays.fetch_add(usize::from(long), Ordering::Relaxed);
                assert_response(&response, &record);
            }
            (Begin::Mismatch(_), Outcome::Mismatch, _) => {
                tally.mismatches.fetch_add(1, Ordering::Relaxed);
            }
            (begun, outcome, record) => panic!("expected {outcome:?} of {record:?}, got {begun:?}"),
        }
    }

    fn resolve(&self, key: &Key, resolution: Resolution, (outcome, record): Told) {
        match (self.store.resolve(key, resolution), outcome) {
            (Ok(found), Outcome::Done) => match (found, record) {
                (Some(response), Some(record)) => assert_response(&response, &record),
                (None, None) => {}
                (found, record) => panic!("expected {record:?}, got {found:?}"),
            },
            (Err(error), Outcome::InProgress | Outcome::Absent | Outcome::Settled) => {
                assert_eq!(error.kind(), ErrorKind::WrongState);
            }
            (found, outcome) => panic!("expected {outcome:?}, got {found:?}"),
        }
    }

    fn get(&self, key: &Key, model: &Model) {
        let found = self.store.get(key).unwrap();
        match (found, model.alive(key)) {
            (None, None) => {}
            (Some(entry), Some(record)) => {
                assert_eq!(entry.key(), key);
                assert_eq!(entry.fence(), self.fences[&record.fence]);
                assert_entry(&entry, record);
            }
            (found, record) => panic!("expected {record:?}, got {found:?}"),
        }
    }

    /// Opens the file at `path` in place of the store, which was closed.
    fn reopen(&mut self, path: &Path, policy: OnInterrupt) {
        for claim in self.claims.drain(..) {
            // It was open when its store ended: it can change nothing any more.
            let refused = claim.complete("late").expect_err("its store is closed");
            assert_eq!(refused.kind(), ErrorKind::Closed);
        }
        self.store = open::<VARIANT>(path, &self.clock, policy);
    }
}

fn path(folder: &tempfile::TempDir, opened: u32) -> PathBuf {
    folder.path().join(format!("{opened}.keyonce"))
}

fn open<const VARIANT: usize>(path: &Path, clock: &ManualClock, policy: OnInterrupt) -> Store {
    let variant = &VARIANTS[VARIANT];
    let mut builder = Store::builder()
        .clock(clock.clone())
        .retention(Duration::from_millis(RETENTION_MS))
        .on_interrupt(policy)
        .response_bytes_max(RESPONSE_MAX)
        .scope_keys_max(100)
        .storage_cache(1 << 20)
        .replay_cache(variant.replay_cache);
    if variant.collide {
        builder = builder.key_hash_for_tests(|_| 7);
    }
    builder.open(path).unwrap()
}

fn assert_response(found: &Response, record: &Record) {
    let State::Completed { response, completed_at, expires_at } = &record.state else { panic!("{record:?}") };
    assert_eq!(found.as_bytes(), response);
    assert_eq!((found.completed_at(), found.expires_at()), (*completed_at, *expires_at));
}

fn assert_entry(entry: &Entry, record: &Record) {
    assert_eq!((entry.fingerprint(), entry.attempt()), (record.fingerprint, record.attempt));
    assert_eq!(entry.expires_at(), record.expires_at());
    let (status, since) = match record.state {
        State::InProgress { since, .. } => (Status::InProgress, since),
        State::Interrupted { since, .. } => (Status::Interrupted, since),
        State::Completed { completed_at, .. } => (Status::Completed, completed_at),
    };
    assert_eq!((entry.status(), entry.since()), (status, since));
    match entry.response() {
        Some(response) => assert_response(&response, record),
        None => assert_ne!(status, Status::Completed),
    }
}
