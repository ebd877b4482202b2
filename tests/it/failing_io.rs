//! A disk whose operations fail: each one of a short script, once or from then
//! on, as an I/O error or for want of space, with short writes and failing
//! syncs among them.

use crate::sim::disk::{Fault, SimDisk};
use crate::sim::medium::{Cut, Medium};
use crate::sim::script::{Fate, PATH, RETENTION, builder, look};
use crate::support::{clock, key, print};
use keyonce::{
    Begin, Claim, ClaimError, ErrorKind, Fingerprint, ManualClock, Resolution, Store, StoreBuilder, Timestamp,
};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// What a caller keeps of a store on a failing disk.
struct Witness {
    store: Store,
    clock: ManualClock,
    fates: BTreeMap<&'static str, Vec<Fate>>,
    fence: u64,
    /// Whether a write has failed: then every later one is refused.
    failed: bool,
}

impl Witness {
    fn now(&self) -> Timestamp {
        keyonce::Clock::now(&self.clock)
    }

    fn is(&mut self, name: &'static str, fate: Fate) {
        self.fates.insert(name, vec![fate]);
    }

    /// A call about a key failed: it is as it was, or may be `next`.
    fn failed(&mut self, name: &'static str, kind: ErrorKind, next: Fate) {
        match kind {
            ErrorKind::OutcomeUnknown => {
                assert!(!self.failed, "{name}: a write was tried after one had failed");
                self.fates.entry(name).or_insert_with(|| vec![Fate::Absent]).push(next);
            }
            ErrorKind::StorageFailed => {}
            other => panic!("{name}: {other:?} is not documented for a failed write"),
        }
        self.failed = true;
    }

    fn worked(&self, name: &str) {
        assert!(!self.failed, "{name}: a write was accepted after one had failed");
    }

    fn begin(&mut self, name: &'static str) -> Option<Claim> {
        match self.store.begin(&key(name), &print(name)) {
            Ok(Begin::Fresh(claim)) => {
                self.worked(name);
                let (attempt, fence) = (claim.attempt(), claim.fence().as_u64());
                assert!(fence > self.fence, "{name}");
                self.fence = fence;
                self.is(name, Fate::Open { attempt, fence });
                Some(claim)
            }
            Ok(other) => panic!("{name} is free: {other:?}"),
            Err(error) => {
                // Whose fence nobody knows: the next.
                self.failed(name, error.kind(), Fate::Open { attempt: 1, fence: self.fence + 1 });
                None
            }
        }
    }

    fn ended<T>(&mut self, name: &'static str, result: Result<T, ClaimError>, next: Fate) -> Option<Claim> {
        match result {
            Ok(_) => {
                self.worked(name);
                self.is(name, next);
                None
            }
            Err(error) => {
                self.failed(name, error.kind(), next);
                let claim = error.into_claim();
                assert_eq!(claim.key(), &key(name));
                Some(claim)
            }
        }
    }

    fn complete(&mut self, name: &'static str, claim: Option<Claim>, bytes: &[u8]) -> Option<Claim> {
        let expires_at = self.now().saturating_add(RETENTION);
        let next = Fate::Completed { bytes: bytes.to_vec(), expires_at };
        let result = claim?.complete(bytes.to_vec());
        self.ended(name, result, next)
    }

    fn abandon(&mut self, name: &'static str, claim: Option<Claim>) -> Option<Claim> {
        let result = claim?.abandon();
        self.ended(name, result, Fate::Absent)
    }

    fn drop_claim(&mut self, name: &'static str, claim: Option<Claim>) {
        let Some(claim) = claim else { return };
        let (attempt, fence) = (claim.attempt(), claim.fence().as_u64());
        drop(claim);
        let expires_at = self.now().saturating_add(RETENTION);
        self.is(name, Fate::Dropped { attempt, fence, expires_at });
    }

    fn operated<T>(&mut self, name: &'static str, result: keyonce::Result<T>, next: Fate) {
        match result {
            Ok(_) => {
                self.worked(name);
                self.is(name, next);
            }
            Err(error) => self.failed(name, error.kind(), next),
        }
    }

    /// Whether the key is known to be so.
    fn surely(&self, name: &str, wanted: impl Fn(&Fate) -> bool) -> bool {
        self.fates.get(name).is_some_and(|fates| fates.len() == 1 && wanted(&fates[0]))
    }

    fn replays(&self) {
        for (name, fates) in &self.fates {
            if let [Fate::Completed { bytes, .. }] = &fates[..] {
                match self.store.begin(&key(name), &print(name)).unwrap() {
                    Begin::Replay(response) => assert_eq!(response.as_bytes(), bytes, "{name}"),
                    other => panic!("{name} is completed: {other:?}"),
                }
            }
        }
    }

    /// The script. Goes on after a failure, as a service would.
    fn work(&mut self) {
        let claim = self.begin("short");
        let held = self.complete("short", claim, b"receipt 17");
        let claim = self.begin("long");
        let held_too = self.complete("long", claim, &vec![9; 20_000]);
        let claim = self.begin("abandoned");
        let third = self.abandon("abandoned", claim);
        let claim = self.begin("dropped");
        self.drop_claim("dropped", claim);
        let claim = self.begin("resolved");
        self.drop_claim("resolved", claim);
        self.replays();
        if self.surely("resolved", |fate| matches!(fate, Fate::Dropped { .. })) {
            let expires_at = self.now().saturating_add(RETENTION);
            let result = self.store.resolve(&key("resolved"), Resolution::Complete("it was".into()));
            self.operated("resolved", result, Fate::Completed { bytes: b"it was".to_vec(), expires_at });
        }
        if self.surely("short", |fate| matches!(fate, Fate::Completed { .. })) {
            let result = self.store.forget(&key("short"));
            self.operated("short", result, Fate::Absent);
        }
        self.clock.advance(Duration::from_secs(60));
        match self.store.sweep() {
            Ok(_) => self.worked("sweep"),
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::OutcomeUnknown | ErrorKind::StorageFailed));
                self.failed = true;
            }
        }
        let open = self.begin("open");
        self.replays();
        let again = |claim: &Claim| self.store.begin(claim.key(), &Fingerprint::of(claim.key().key()));
        // Held claims are the holder's still: nobody else gets the key.
        for claim in [&held, &held_too, &third, &open].into_iter().flatten() {
            let begun = again(claim);
            assert!(matches!(begun, Ok(Begin::InProgress(_))), "{begun:?}");
        }
        for claim in [held, held_too, third].into_iter().flatten() {
            let refused = claim.complete("again").unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::StorageFailed);
            assert!(refused.to_string().contains("reopen the store"), "{refused}");
        }
    }
}

/// What became of one case.
#[derive(Debug, Default)]
struct Tally {
    cases: usize,
    not_opened: usize,
    /// The disk failed, and no caller had to know.
    unnoticed: usize,
    unknown: usize,
}

/// Where reads are to fail, pages are read from the disk each time.
fn options(disk: &SimDisk, clock: &ManualClock, reads: bool) -> StoreBuilder {
    let options = builder(disk, clock);
    if reads { options.storage_cache(0) } else { options }
}

fn fails(fault: Fault, tally: &mut Tally) {
    let (disk, clock) = (SimDisk::new(), clock());
    disk.set_fault(Some(fault));
    tally.cases += 1;
    let (fates, fence) = match options(&disk, &clock, fault.reads).open(PATH) {
        Err(error) => {
            let kind = error.kind();
            assert!(kind == ErrorKind::Io, "open: {error:?}");
            tally.not_opened += 1;
            (BTreeMap::new(), 0)
        }
        Ok(store) => {
            let clock = clock.clone();
            let mut witness = Witness { store, clock, fates: BTreeMap::new(), fence: 0, failed: false };
            witness.work();
            let Witness { store, fates, fence, failed, .. } = witness;
            if let Err(error) = store.close() {
                let kind = error.kind();
                assert!(matches!(kind, ErrorKind::OutcomeUnknown | ErrorKind::StorageFailed), "{error:?}");
            }
            tally.unnoticed += usize::from(!failed);
            tally.unknown += usize::from(fates.values().any(|fates| fates.len() > 1));
            (fates, fence)
        }
    };
    disk.set_fault(None);
    // The process starts again; or the machine, and nothing or all that was pending is there.
    let mut medium = Medium::default();
    for op in disk.log() {
        medium.follow(&op);
    }
    let images = [Cut::Nothing, Cut::Everything, Cut::Torn(fault.at as u64)];
    let images = images.map(|cut| SimDisk::holding(medium.cut(cut)));
    for disk in [&disk].into_iter().chain(&images) {
        let store = builder(disk, &clock).open(PATH).unwrap();
        for (name, fates) in &fates {
            let found = look(&store, name).unwrap();
            let now = keyonce::Clock::now(&clock);
            assert!(fates.iter().any(|fate| fate.allows(&found, now)), "{name} is {found:?}: {fates:?}");
        }
        let Begin::Fresh(claim) = store.begin(&key("new"), &print("new")).unwrap() else {
            panic!("a new key is free")
        };
        assert!(claim.fence().as_u64() > fence);
        claim.complete("done").unwrap();
        store.close().unwrap();
        let others = disk.folder();
        let others = others.names().filter(|(name, _)| *name != Path::new(PATH)).count();
        assert!(others <= 1, "{others} leftovers");
    }
}

/// Runs the script once for every operation that it makes when all is well.
fn fails_everywhere(reads: bool, lasting: bool, errno: i32, short: bool) -> Tally {
    let disk = SimDisk::new();
    let clock = clock();
    let store = options(&disk, &clock, reads).open(PATH).unwrap();
    let mut witness = Witness { store, clock, fates: BTreeMap::new(), fence: 0, failed: false };
    witness.work();
    assert!(!witness.failed);
    witness.store.close().unwrap();
    let mut tally = Tally::default();
    for at in 0..if reads { disk.read() } else { disk.tried() } {
        let fault = Fault { reads, at, lasting, errno, short };
        // Seen when the case fails.
        eprintln!("{fault:?}");
        fails(fault, &mut tally);
    }
    println!("{tally:?}");
    assert!(tally.not_opened > 0 && (reads || tally.unknown > 0), "{tally:?}");
    tally
}

#[test]
fn operation_that_fails_once_loses_nothing_that_was_answered() {
    fails_everywhere(false, false, EIO, false);
}

#[test]
fn disk_that_fails_from_some_operation_on_loses_nothing_that_was_answered() {
    fails_everywhere(false, true, EIO, false);
}

#[test]
fn full_disk_loses_nothing_that_was_answered() {
    fails_everywhere(false, true, ENOSPC, false);
}

#[test]
fn write_cut_short_by_a_full_disk_loses_nothing_that_was_answered() {
    fails_everywhere(false, false, ENOSPC, true);
    fails_everywhere(false, true, ENOSPC, true);
}

#[test]
fn read_that_fails_loses_nothing_that_was_answered() {
    fails_everywhere(true, false, EIO, false);
    fails_everywhere(true, true, EIO, false);
}

#[test]
fn open_that_fails_leaves_the_store_as_it_was() {
    let (disk, clock) = (SimDisk::new(), clock());
    let store = builder(&disk, &clock).open(PATH).unwrap();
    let mut witness =
        Witness { store, clock: clock.clone(), fates: BTreeMap::new(), fence: 0, failed: false };
    witness.work();
    witness.store.close().unwrap();
    let before = disk.folder();
    let mut refused = 0;
    for (reads, lasting, short) in
        [(false, false, false), (false, true, true), (true, false, false), (true, true, false)]
    {
        let healthy = SimDisk::holding(before.clone());
        builder(&healthy, &clock).open(PATH).unwrap().close().unwrap();
        for at in 0..if reads { healthy.read() } else { healthy.tried() } {
            let fault = Fault { reads, at, lasting, errno: EIO, short };
            let disk = SimDisk::holding(before.clone());
            disk.set_fault(Some(fault));
            match builder(&disk, &clock).open(PATH) {
                Ok(store) => drop(store.close()),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Io, "{fault:?}: {error:?}");
                    refused += 1;
                }
            }
            let mut medium = Medium::holding(before.clone());
            disk.log().iter().for_each(|op| medium.follow(op));
            disk.set_fault(None);
            for disk in [disk, SimDisk::holding(medium.cut(Cut::Nothing))] {
                let store = builder(&disk, &clock).open(PATH).unwrap();
                for (name, fates) in &witness.fates {
                    let found = look(&store, name).unwrap();
                    assert!(
                        fates[0].allows(&found, keyonce::Clock::now(&clock)),
                        "{fault:?}: {name} is {found:?}"
                    );
                }
            }
        }
    }
    assert!(refused > 10, "{refused}");
}
