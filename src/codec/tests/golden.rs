//! What format 1 looks like, byte for byte: a store that was ever written must
//! stay readable. `KEYONCE_WRITE_FIXTURES=1 cargo test --lib golden` writes the
//! files anew; a difference in them is a change of the format.

use super::*;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

pub(super) fn key() -> Key {
    Key::scoped("merchant-7", "order-1042").unwrap()
}

fn record(state: State) -> Record {
    Record {
        fingerprint: Fingerprint::from_bytes(std::array::from_fn(|i| u8::try_from(i).unwrap())),
        fence: Fence::new(70_001),
        attempt: 3,
        terms: Terms { retention_ms: 86_400_000, on_interrupt: OnInterrupt::Hold },
        state,
    }
}

pub(super) fn open_claim() -> Record {
    record(State::InProgress { since: at(1_780_000_000_000), after_interruption: true })
}

fn interrupted_claim() -> Record {
    record(State::Interrupted { since: at(1_780_000_000_250), expires_at: Timestamp::MAX })
}

pub(super) fn completed(response: Vec<u8>) -> Record {
    record(State::Completed {
        response: response.into(),
        completed_at: at(1_780_000_000_000),
        expires_at: at(1_780_086_400_000),
    })
}

pub(super) fn position() -> Position {
    Position::new(at(1_780_086_400_000), 5)
}

pub(super) fn long_response() -> Vec<u8> {
    (0..1025_u16).map(|i| i.to_le_bytes()[0]).collect()
}

pub(super) fn marks() -> Marks {
    Marks { clock_ms: 1_780_000_000_000, fences_reserved: 71_000, next_sequence: 6 }
}

/// The bytes of the fixture. `now` is what this version writes.
fn fixture(name: &str, now: &[u8]) -> Vec<u8> {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests/fixtures/v1", name].iter().collect();
    if std::env::var_os("KEYONCE_WRITE_FIXTURES").is_some() {
        let mut text = String::new();
        for line in now.chunks(32) {
            for byte in line {
                write!(text, "{byte:02x}").unwrap();
            }
            text.push('\n');
        }
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
    }
    let digits: Vec<u8> = fs::read(path).unwrap().into_iter().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// This version writes what the fixture has.
#[track_caller]
fn assert_written(name: &str, now: &[u8]) -> Vec<u8> {
    let bytes = fixture(name, now);
    assert!(bytes == now, "{name}: format 1 has {bytes:02x?}, and this version writes {now:02x?}");
    bytes
}

#[test]
fn claims_of_format_1_stay_as_they_are() {
    for (name, record) in [("claim_open.hex", open_claim()), ("claim_interrupted.hex", interrupted_claim())] {
        let bytes = assert_written(name, &codec().encode_claim(&key(), &record));
        assert_eq!(codec().decode_claim(record.fence, &bytes).unwrap(), (key(), record));
    }
}

#[test]
fn records_of_format_1_stay_as_they_are() {
    let short = completed(b"receipt 17".to_vec());
    let (row, payload) = codec().encode_record(position(), &key(), &short);
    let row = assert_written("record_inline.hex", &row);
    assert!(payload.is_none());
    let back = read_back(codec(), position(), &row, None).unwrap();
    assert_eq!(back, (key().as_framed().to_vec(), short));

    let long = completed(long_response());
    let (row, payload) = codec().encode_record(position(), &key(), &long);
    let row = assert_written("record_with_payload.hex", &row);
    let payload = assert_written("payload.hex", &payload.unwrap());
    let back = read_back(codec(), position(), &row, Some(&payload)).unwrap();
    assert_eq!(back, (key().as_framed().to_vec(), long));
}

#[test]
fn marks_and_header_of_format_1_stay_as_they_are() {
    let bytes = assert_written("marks.hex", &codec().encode_marks(marks()));
    assert_eq!(codec().decode_marks(&bytes).unwrap(), marks());
    let bytes = assert_written("header.hex", &encode_header(StoreId::fixed()));
    assert_eq!(decode_header(&bytes).unwrap(), StoreId::fixed());
}

#[test]
fn the_place_in_format_1_stays_as_it_is() {
    assert_eq!(position().0, (1_780_086_400_000 >> 14 << 36) | 5);
}
