//! Rows read back as they were written, and everything else is `Corrupted`.
//! What format 1 looks like is in `golden`.

mod damage;
mod golden;

use super::*;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

fn codec() -> Codec {
    Codec::new(StoreId::fixed())
}

fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(ms)
}

/// A record as it comes back from its rows.
fn read_back(
    codec: Codec,
    position: Position,
    row: &[u8],
    payload: Option<&[u8]>,
) -> Result<(Vec<u8>, Record)> {
    let stored = codec.decode_record(position, row)?;
    let payload = payload.map(|payload| codec.decode_payload(position, &stored, payload)).transpose()?;
    Ok((stored.key.to_vec(), stored.to_record(payload)))
}

fn any_key() -> impl Strategy<Value = Key> {
    let part = || proptest::collection::vec(any::<u8>(), 1..=Key::LEN_MAX);
    (proptest::option::of(part()), part()).prop_map(|(scope, key)| match scope {
        Some(scope) => Key::scoped(scope, key).unwrap(),
        None => Key::new(key).unwrap(),
    })
}

/// Numbers of every length that they have on disk.
fn any_number() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..300_u64,
        65_000..66_000_u64,
        u64::from(u32::MAX) - 2..=u64::from(u32::MAX) + 2,
        any::<u64>(),
        Just(u64::MAX)
    ]
}

fn any_record(state: impl Strategy<Value = State>) -> impl Strategy<Value = Record> {
    (any::<[u8; 32]>(), any_number(), any::<u32>(), any_number(), any::<bool>(), state).prop_map(
        |(fingerprint, fence, attempt, retention_ms, hold, state)| Record {
            fingerprint: Fingerprint::from_bytes(fingerprint),
            fence: Fence::new(fence),
            attempt,
            terms: Terms {
                retention_ms,
                on_interrupt: if hold { OnInterrupt::Hold } else { OnInterrupt::Retry },
            },
            state,
        },
    )
}

fn any_claim_state() -> impl Strategy<Value = State> {
    prop_oneof![
        (any_number(), any::<bool>()).prop_map(|(since, after_interruption)| State::InProgress {
            since: at(since),
            after_interruption
        }),
        (any_number(), any_number())
            .prop_map(|(since, until)| State::Interrupted { since: at(since), expires_at: at(until) }),
    ]
}

fn any_completed_state() -> impl Strategy<Value = State> {
    let len = prop_oneof![0..64_usize, INLINE_MAX - 2..=INLINE_MAX + 2, 5_000..9_000_usize];
    let response = (len, any::<u8>()).prop_map(|(len, byte)| Bytes::from(vec![byte; len]));
    (response, any_number(), any_number()).prop_map(|(response, completed, expires)| State::Completed {
        response,
        completed_at: at(completed),
        expires_at: at(expires),
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn claims_read_back(key in any_key(), record in any_record(any_claim_state())) {
        let row = codec().encode_claim(&key, &record);
        prop_assert!(row.len() <= ROW_MAX);
        prop_assert_eq!(codec().decode_claim(record.fence, &row).unwrap(), (key, record));
    }

    #[test]
    fn records_read_back(
        key in any_key(),
        record in any_record(any_completed_state()),
        sequence in any_number(),
    ) {
        let position = Position::new(record.expires_at(), sequence);
        let (row, payload) = codec().encode_record(position, &key, &record);
        let State::Completed { ref response, .. } = record.state else { unreachable!() };
        prop_assert!(row.len() <= ROW_MAX);
        prop_assert_eq!(payload.is_some(), response.len() > INLINE_MAX);
        let back = read_back(codec(), position, &row, payload.as_deref()).unwrap();
        prop_assert_eq!(back, (key.as_framed().to_vec(), record));
    }

    #[test]
    fn marks_read_back(clock_ms in any_number(), fences_reserved in any_number(), next_sequence in any_number()) {
        let marks = Marks { clock_ms, fences_reserved, next_sequence };
        prop_assert_eq!(codec().decode_marks(&codec().encode_marks(marks)).unwrap(), marks);
    }

    #[test]
    fn any_bytes_are_an_error_and_sealed_ones_never_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let (fence, position) = (Fence::new(7), Position::new(at(1 << 30), 7));
        damage::assert_corrupted(codec().decode_claim(fence, &bytes));
        damage::assert_corrupted(codec().decode_record(position, &bytes));
        damage::assert_corrupted(codec().decode_marks(&bytes));
        let body = [&[ROW_VERSION][..], &bytes].concat();
        let _ = codec().decode_claim(fence, &codec().seal(body.clone(), Place::Claim(fence)));
        let _ = codec().decode_record(position, &codec().seal(body.clone(), Place::Record(position)));
        let _ = codec().decode_marks(&codec().seal(body, Place::Marks));
    }
}

#[test]
fn the_longest_of_everything_fits_into_a_row() {
    let key = Key::scoped([0xFF; Key::LEN_MAX], [0xFF; Key::LEN_MAX]).unwrap();
    let record = Record {
        fingerprint: Fingerprint::from_bytes([0xFF; 32]),
        fence: Fence::new(u64::MAX),
        attempt: u32::MAX,
        terms: Terms { retention_ms: u64::MAX, on_interrupt: OnInterrupt::Hold },
        state: State::Completed {
            response: vec![0xFF; INLINE_MAX].into(),
            completed_at: Timestamp::MAX,
            expires_at: Timestamp::MAX,
        },
    };
    let position = Position::new(Timestamp::MAX, u64::MAX);
    let (row, payload) = codec().encode_record(position, &key, &record);
    assert!(row.len() <= ROW_MAX && payload.is_none());
    let back = read_back(codec(), position, &row, None).unwrap();
    assert_eq!(back, (key.as_framed().to_vec(), record));
}
