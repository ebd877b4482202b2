//! Callers of a store on a simulated disk, and the record of what they were
//! told, which is kept outside of the store.

use super::Random;
use super::disk::SimDisk;
use crate::support::{clock, key, print};
use keyonce::{Begin, Claim, ManualClock, Resolution, Status, Store, StoreBuilder, Timestamp};
use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) const PATH: &str = "folder/store";
pub(crate) const RETENTION: Duration = Duration::from_secs(3600);

/// What the answers say of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Absent,
    /// Claimed; the claim is not ended.
    Open {
        attempt: u32,
        fence: u64,
    },
    /// The claim was dropped.
    Dropped {
        attempt: u32,
        fence: u64,
        expires_at: Timestamp,
    },
    Completed {
        bytes: Vec<u8>,
        expires_at: Timestamp,
    },
}

/// What a store that was just opened says of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Absent,
    Interrupted { attempt: u32, fence: u64 },
    Completed { bytes: Vec<u8>, expires_at: Timestamp },
}

impl Fate {
    pub(crate) fn allows(&self, found: &Found, now: Timestamp) -> bool {
        match (self, found) {
            (Self::Absent, Found::Absent) => true,
            // That it was dropped may not be on disk: then it was interrupted only now.
            (
                Self::Open { attempt, fence } | Self::Dropped { attempt, fence, .. },
                Found::Interrupted { attempt: found, fence: of },
            ) => (attempt, fence) == (found, of),
            (Self::Dropped { expires_at, .. } | Self::Completed { expires_at, .. }, Found::Absent) => {
                *expires_at <= now
            }
            (Self::Completed { bytes, expires_at }, Found::Completed { bytes: found, expires_at: until }) => {
                now < *expires_at && (bytes, expires_at) == (found, until)
            }
            _ => false,
        }
    }
}

/// Looks a key up in a store in which nobody has a claim.
pub(crate) fn look(store: &Store, name: &str) -> Result<Found, String> {
    let entry = store.get(&key(name)).map_err(|error| format!("get {name}: {error:?}"))?;
    let Some(entry) = entry else { return Ok(Found::Absent) };
    if entry.fingerprint() != print(name) {
        return Err(format!("{name} has another fingerprint"));
    }
    match (entry.status(), entry.response()) {
        (Status::Interrupted, None) => {
            Ok(Found::Interrupted { attempt: entry.attempt(), fence: entry.fence().as_u64() })
        }
        (Status::Completed, Some(response)) => {
            Ok(Found::Completed { bytes: response.as_bytes().to_vec(), expires_at: response.expires_at() })
        }
        _ => Err(format!("{name} is {entry:?}, which nothing is after opening")),
    }
}

pub(crate) fn builder(disk: &SimDisk, clock: &ManualClock) -> StoreBuilder {
    Store::builder().clock(clock.clone()).disk(disk.clone()).retention(RETENTION)
}

/// A call, between which operations of the disk, and what its answer says.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) now: Timestamp,
    pub(crate) change: Option<(String, Fate)>,
    /// The greatest fence that was handed out, if one was.
    pub(crate) fence: u64,
}

/// What must be found if the power goes after some operation.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    /// Any of these, for each key.
    pub(crate) fates: BTreeMap<String, Vec<Fate>>,
    pub(crate) fence: u64,
    pub(crate) now: Timestamp,
}

impl Expected {
    /// After `ops` operations: what was answered by then is certain, the call
    /// of each key that was under way may have had its effect or not.
    pub(crate) fn after(ops: usize, steps: &[Step]) -> Self {
        let now = steps.iter().filter(|step| step.from <= ops).map(|step| step.now).max();
        let mut expected = Self { fates: BTreeMap::new(), fence: 0, now: now.unwrap_or(clock_start()) };
        for step in steps {
            let Some((name, fate)) = &step.change else { continue };
            let fates = expected.fates.entry(name.clone()).or_insert_with(|| vec![Fate::Absent]);
            if step.to <= ops {
                *fates = vec![fate.clone()];
                expected.fence = expected.fence.max(step.fence);
            } else if step.from <= ops {
                fates.push(fate.clone());
            }
        }
        expected
    }
}

fn clock_start() -> Timestamp {
    keyonce::Clock::now(&clock())
}

/// One caller at work.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) disk: SimDisk,
    pub(crate) clock: ManualClock,
    pub(crate) steps: Vec<Step>,
    store: Store,
    claims: BTreeMap<String, Claim>,
    fates: BTreeMap<String, Fate>,
    names: Vec<String>,
    random: Random,
}

impl Caller {
    /// Opens a store, and will call it about `keys` keys that begin with `name`.
    pub(crate) fn new(disk: &SimDisk, seed: u64, name: &str, keys: usize) -> Self {
        let clock = clock();
        let store = builder(disk, &clock).open(PATH).unwrap();
        Self::of(store, disk, &clock, seed, name, keys)
    }

    pub(crate) fn of(
        store: Store,
        disk: &SimDisk,
        clock: &ManualClock,
        seed: u64,
        name: &str,
        keys: usize,
    ) -> Self {
        Self {
            disk: disk.clone(),
            clock: clock.clone(),
            steps: Vec::new(),
            store,
            claims: BTreeMap::new(),
            fates: BTreeMap::new(),
            names: (0..keys).map(|number| format!("{name}-{number}")).collect(),
            random: Random::new(seed),
        }
    }

    /// Makes `calls` calls of those that change keys.
    pub(crate) fn work(&mut self, calls: usize) {
        for _ in 0..calls {
            match self.random.below(12) {
                0..=4 => self.begin(),
                5..=8 => self.end(),
                9 => self.resolve(),
                10 => self.forget(),
                _ => self.replay(),
            }
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        keyonce::Clock::now(&self.clock)
    }

    fn fate(&self, name: &str) -> Fate {
        let fate = self.fates.get(name).cloned().unwrap_or(Fate::Absent);
        match fate {
            Fate::Completed { expires_at, .. } | Fate::Dropped { expires_at, .. }
                if expires_at <= self.now() =>
            {
                Fate::Absent
            }
            fate => fate,
        }
    }

    /// A key that stands so, if there is one.
    fn pick(&mut self, wanted: impl Fn(&Fate) -> bool) -> Option<String> {
        let start = self.random.below(self.names.len());
        let names = self.names[start..].iter().chain(&self.names[..start]);
        names.into_iter().find(|name| wanted(&self.fate(name))).cloned()
    }

    fn told(&mut self, from: usize, name: &str, fate: Fate, fence: u64) {
        let (to, now) = (self.disk.done(), self.now());
        self.fates.insert(name.to_owned(), fate.clone());
        self.steps.push(Step { from, to, now, change: Some((name.to_owned(), fate)), fence });
    }

    fn begin(&mut self) {
        let free = |fate: &Fate| matches!(fate, Fate::Absent | Fate::Dropped { .. });
        let Some(name) = self.pick(free) else { return };
        let earlier = match self.fate(&name) {
            Fate::Dropped { attempt, .. } => attempt,
            _ => 0,
        };
        let from = self.disk.done();
        let Begin::Fresh(claim) = self.store.begin(&key(&name), &print(&name)).unwrap() else {
            panic!("{name} is free")
        };
        assert_eq!((claim.attempt(), claim.interrupted()), (earlier + 1, earlier > 0), "{name}");
        let (attempt, fence) = (claim.attempt(), claim.fence().as_u64());
        self.claims.insert(name.clone(), claim);
        self.told(from, &name, Fate::Open { attempt, fence }, fence);
    }

    fn end(&mut self) {
        let Some(name) = self.pick(|fate| matches!(fate, Fate::Open { .. })) else { return };
        let claim = self.claims.remove(&name).unwrap();
        let (attempt, fence) = (claim.attempt(), claim.fence().as_u64());
        let from = self.disk.done();
        let fate = match self.random.below(6) {
            0 => {
                claim.abandon().unwrap();
                Fate::Absent
            }
            1 => {
                drop(claim);
                Fate::Dropped { attempt, fence, expires_at: self.now().saturating_add(RETENTION) }
            }
            _ => {
                let bytes = self.response();
                let response = claim.complete(bytes.clone()).unwrap();
                Fate::Completed { bytes, expires_at: response.expires_at() }
            }
        };
        self.told(from, &name, fate, 0);
    }

    /// Some answer: empty, short, or longer than a record holds by itself.
    fn response(&mut self) -> Vec<u8> {
        let len = match self.random.below(4) {
            0 => 1_100 + self.random.below(5_000),
            1 => 0,
            _ => self.random.below(200),
        };
        (0..len).map(|_| self.random.next().to_le_bytes()[0]).collect()
    }

    fn resolve(&mut self) {
        let Some(name) = self.pick(|fate| matches!(fate, Fate::Dropped { .. })) else { return };
        let from = self.disk.done();
        let fate = if self.random.coin() {
            self.store.resolve(&key(&name), Resolution::Free).unwrap();
            Fate::Absent
        } else {
            let bytes = self.response();
            let resolution = Resolution::Complete(bytes.clone().into());
            let response = self.store.resolve(&key(&name), resolution).unwrap().unwrap();
            Fate::Completed { bytes, expires_at: response.expires_at() }
        };
        self.told(from, &name, fate, 0);
    }

    fn forget(&mut self) {
        let known = |fate: &Fate| matches!(fate, Fate::Dropped { .. } | Fate::Completed { .. });
        let Some(name) = self.pick(known) else { return };
        let from = self.disk.done();
        assert!(self.store.forget(&key(&name)).unwrap());
        self.told(from, &name, Fate::Absent, 0);
    }

    fn replay(&mut self) {
        let Some(name) = self.pick(|fate| matches!(fate, Fate::Completed { .. })) else { return };
        let Begin::Replay(response) = self.store.begin(&key(&name), &print(&name)).unwrap() else {
            panic!("{name} is completed")
        };
        let Fate::Completed { bytes, .. } = self.fate(&name) else { unreachable!() };
        assert_eq!(response.as_bytes(), bytes);
    }

    pub(crate) fn advance(&mut self, by: Duration) {
        self.clock.advance(by);
        let (from, now) = (self.disk.done(), self.now());
        self.steps.push(Step { from, to: from, now, change: None, fence: 0 });
    }

    pub(crate) fn sweep(&mut self) {
        self.store.sweep().unwrap();
    }

    /// Closes the store, with claims open, and opens it again.
    pub(crate) fn reopen(&mut self) {
        let from = self.disk.done();
        self.store.clone().close().unwrap();
        self.claims.clear();
        self.store = builder(&self.disk, &self.clock).open(PATH).unwrap();
        let expires_at = self.now().saturating_add(RETENTION);
        for (name, fate) in self.fates.clone() {
            if let Fate::Open { attempt, fence } = fate {
                self.told(from, &name, Fate::Dropped { attempt, fence, expires_at }, 0);
            }
        }
    }
}
