//! Every event in every state: what the key is next, and what the caller is told.

use super::*;

/// Columns are what the key is, rows what happens to it, cells `next:outcome`.
///
/// | the key is | |
/// |---|---|
/// | absent | never seen |
/// | open, open-hold | attempt 2, in progress, under `Retry` and `Hold` |
/// | cut | attempt 2, interrupted under `Retry`, not expired |
/// | held | attempt 2, interrupted under `Hold`, at any time |
/// | done | attempt 2, completed, not expired |
/// | passed | cut or done, at its expiry or later |
///
/// | next | |
/// |---|---|
/// | `=` | what it was |
/// | gone | absent |
/// | first | attempt 1, in progress, not interrupted before, with the new fence and terms |
/// | again | attempt 3, the same with interrupted before |
/// | cut, held | interrupted now; forgotten after the retention, or never |
/// | done | completed now, with the event's response, until the retention ends |
const CONTRACT: &str = "
event           absent      open         open-hold    cut          held         done       passed
begin-same      first:Fresh =:InProgress =:InProgress again:Fresh  =:InProgress =:Replay   first:Fresh
begin-other     first:Fresh =:Mismatch   =:Mismatch   =:Mismatch   =:Mismatch   =:Mismatch first:Fresh
complete        =:Lost      done:Done    done:Done    =:Lost       =:Lost       =:Lost     =:Lost
complete-stale  =:Lost      =:Lost       =:Lost       =:Lost       =:Lost       =:Lost     =:Lost
abandon         =:Lost      gone:Done    gone:Done    =:Lost       =:Lost       =:Lost     =:Lost
abandon-stale   =:Lost      =:Lost       =:Lost       =:Lost       =:Lost       =:Lost     =:Lost
interrupt       =:Lost      cut:Done     held:Done    =:Lost       =:Lost       =:Lost     =:Lost
interrupt-stale =:Lost      =:Lost       =:Lost       =:Lost       =:Lost       =:Lost     =:Lost
resolve-done    =:Absent    =:InProgress =:InProgress done:Done    done:Done    =:Settled  =:Absent
resolve-free    =:Absent    =:InProgress =:InProgress gone:Done    gone:Done    =:Settled  =:Absent
forget          =:Absent    =:InProgress =:InProgress gone:Done    gone:Done    gone:Done  =:Absent
";

const FENCE: Fence = Fence::new(70);
const STALE: Fence = Fence::new(69);
const NEW: Fence = Fence::new(71);

fn same() -> Fingerprint {
    Fingerprint::of("same")
}

fn record(on_interrupt: OnInterrupt, state: State) -> Record {
    Record { fingerprint: same(), fence: FENCE, attempt: 2, terms: terms(on_interrupt), state }
}

fn open(on_interrupt: OnInterrupt) -> Record {
    record(on_interrupt, State::InProgress { since: at(START), after_interruption: true })
}

fn cut() -> Record {
    record(Retry, State::Interrupted { since: at(START), expires_at: at(START + RETENTION_MS) })
}

fn held() -> Record {
    record(Hold, State::Interrupted { since: at(START), expires_at: Timestamp::MAX })
}

fn done(on_interrupt: OnInterrupt) -> Record {
    let state = State::Completed {
        response: "first answer".into(),
        completed_at: at(START),
        expires_at: at(START + RETENTION_MS),
    };
    record(on_interrupt, state)
}

/// What a column stands for, and the times at which it does.
fn column(name: &str) -> (Vec<Option<Record>>, Vec<u64>) {
    let alive = vec![START, START + 1, START + RETENTION_MS - 1];
    let passed = vec![START + RETENTION_MS, START + RETENTION_MS + 1, u64::MAX - 1];
    let always = [&alive[..], &passed[..], &[0][..]].concat();
    match name {
        "absent" => (vec![None], always),
        "open" => (vec![Some(open(Retry))], always),
        "open-hold" => (vec![Some(open(Hold))], always),
        "cut" => (vec![Some(cut())], alive),
        "held" => (vec![Some(held())], always),
        "done" => (vec![Some(done(Retry)), Some(done(Hold))], alive),
        "passed" => (vec![Some(cut()), Some(done(Retry)), Some(done(Hold))], passed),
        other => panic!("no such state: {other}"),
    }
}

fn event(name: &str, policy: OnInterrupt) -> Event {
    let begin = |what: &str| Event::Begin {
        fingerprint: Fingerprint::of(what),
        fence: NEW,
        terms: Terms { retention_ms: 5, on_interrupt: policy },
    };
    let complete = |fence| Event::Complete { fence, response: "answer".into() };
    match name {
        "begin-same" => begin("same"),
        "begin-other" => begin("other"),
        "complete" => complete(FENCE),
        "complete-stale" => complete(STALE),
        "abandon" => Event::Abandon { fence: FENCE },
        "abandon-stale" => Event::Abandon { fence: STALE },
        "interrupt" => Event::Interrupt { fence: FENCE },
        "interrupt-stale" => Event::Interrupt { fence: STALE },
        "resolve-done" => Event::Resolve(Resolution::Complete("answer".into())),
        "resolve-free" => Event::Resolve(Resolution::Free),
        "forget" => Event::Forget,
        other => panic!("no such event: {other}"),
    }
}

/// What a cell's `next` stands for.
fn next(name: &str, before: Option<&Record>, event: &Event, now: Timestamp) -> Next {
    let later = now.saturating_add(std::time::Duration::from_millis(RETENTION_MS));
    let claimed = |attempt, after_interruption| {
        let Event::Begin { fingerprint, fence, terms } = *event else { panic!("only begin claims") };
        let state = State::InProgress { since: now, after_interruption };
        Next::Is(Record { fingerprint, fence, attempt, terms, state })
    };
    let becomes = |state| Next::Is(Record { state, ..before.expect("there is a key").clone() });
    match name {
        "=" => Next::Same,
        "gone" => Next::Gone,
        "first" => claimed(1, false),
        "again" => claimed(3, true),
        "cut" => becomes(State::Interrupted { since: now, expires_at: later }),
        "held" => becomes(State::Interrupted { since: now, expires_at: Timestamp::MAX }),
        "done" => {
            becomes(State::Completed { response: "answer".into(), completed_at: now, expires_at: later })
        }
        other => panic!("no such next state: {other}"),
    }
}

#[test]
fn every_event_in_every_state_does_what_the_contract_says() {
    let mut rows = CONTRACT.trim().lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let header = rows.next().unwrap();
    let mut checked = 0;
    for row in rows {
        assert_eq!(row.len(), header.len(), "a cell for every state: {row:?}");
        for (state, cell) in header.iter().zip(&row).skip(1) {
            let (becomes, told) = cell.split_once(':').unwrap();
            let (records, times) = column(state);
            for policy in [Retry, Hold] {
                let event = event(row[0], policy);
                for (record, &now) in records.iter().flat_map(|r| times.iter().map(move |t| (r, t))) {
                    let (found, outcome) = transition(record.as_ref(), &event, at(now));
                    let place = format!("{} when {state} at {now}: {record:?}", row[0]);
                    assert_eq!(format!("{outcome:?}"), told, "{place}");
                    assert_eq!(found, next(becomes, record.as_ref(), &event, at(now)), "{place}");
                    checked += 1;
                }
            }
        }
    }
    // 11 events, 2 policies, and the columns' records times their times.
    assert_eq!(checked, 11 * 2 * (7 + 7 + 7 + 3 + 7 + 2 * 3 + 3 * 3));
}

fn five_ms_hold() -> Terms {
    Terms { retention_ms: 5, on_interrupt: Hold }
}

#[test]
fn the_agreed_terms_hold_until_the_key_ends_and_the_next_attempt_brings_its_own() {
    let claim = Event::Begin { fingerprint: same(), fence: NEW, terms: five_ms_hold() };
    let (Next::Is(again), Outcome::Fresh) = transition(Some(&cut()), &claim, at(START)) else { panic!() };
    assert_eq!(again.terms, five_ms_hold());
    let (Next::Is(again), _) = transition(Some(&again), &Event::Interrupt { fence: NEW }, at(START)) else {
        panic!()
    };
    assert_eq!(again.expires_at(), Timestamp::MAX, "the claim's own policy counts");
    let resolve = Event::Resolve(Resolution::Complete("x".into()));
    let (Next::Is(done), _) = transition(Some(&again), &resolve, at(START + 9)) else { panic!() };
    assert_eq!(done.expires_at(), at(START + 14), "the claim's own retention counts");
}

#[test]
fn retention_never_wraps_and_never_ends_early() {
    use std::time::Duration;
    let until = |retention, now| {
        let begin = Event::Begin { fingerprint: same(), fence: NEW, terms: Terms::new(retention, Retry) };
        let (Next::Is(open), _) = transition(None, &begin, at(now)) else { panic!() };
        let complete = Event::Complete { fence: NEW, response: Bytes::new() };
        let (Next::Is(done), _) = transition(Some(&open), &complete, at(now)) else { panic!() };
        done.expires_at()
    };
    assert_eq!(until(Duration::from_nanos(1), 5), at(6), "a part of a millisecond is a whole one");
    assert_eq!(until(Duration::from_millis(1), 5), at(6));
    assert_eq!(until(Duration::MAX, 5), Timestamp::MAX);
    assert_eq!(until(Duration::from_millis(2), u64::MAX - 1), Timestamp::MAX);
    assert!(!done_until(Timestamp::MAX).is_expired(at(u64::MAX - 1)));
    assert!(!done_until(Timestamp::MAX).is_expired(Timestamp::MAX), "never is never");
}

fn done_until(expires_at: Timestamp) -> Record {
    record(Retry, State::Completed { response: Bytes::new(), completed_at: at(START), expires_at })
}

#[test]
fn the_attempt_number_does_not_wrap() {
    let mut last = cut();
    last.attempt = u32::MAX;
    let begin = Event::Begin { fingerprint: same(), fence: NEW, terms: terms(Retry) };
    let (Next::Is(next), Outcome::Fresh) = transition(Some(&last), &begin, at(START)) else { panic!() };
    assert_eq!(next.attempt, u32::MAX);
}
