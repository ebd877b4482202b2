//! Rows that are not what was written: `Corrupted`, never a panic, never
//! another value.

use super::golden::{completed, key, long_response, marks, open_claim, position};
use super::*;
use crate::ErrorKind;

#[track_caller]
pub(super) fn assert_corrupted<T: fmt::Debug>(result: Result<T>) -> String {
    let error = result.expect_err("this is damaged");
    assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
    error.to_string()
}

/// A row, and what reads it at its place.
type Sample = (Vec<u8>, Box<dyn Fn(Codec, &[u8]) -> Result<()>>);

/// One of each table's rows.
fn samples() -> Vec<Sample> {
    let claim = open_claim();
    let (fence, claim) = (claim.fence, codec().encode_claim(&key(), &claim));
    let (short, _) = codec().encode_record(position(), &key(), &completed(b"receipt 17".to_vec()));
    let (long, payload) = codec().encode_record(position(), &key(), &completed(long_response()));
    let decode_record = |codec: Codec, row: &[u8]| codec.decode_record(position(), row).map(drop);
    let record = long.clone();
    // The record is read by its own store, so that only the payload is judged.
    let decode_payload = move |other: Codec, row: &[u8]| {
        let stored = codec().decode_record(position(), &record).unwrap();
        other.decode_payload(position(), &stored, row).map(drop)
    };
    vec![
        (claim, Box::new(move |codec, row| codec.decode_claim(fence, row).map(drop))),
        (short, Box::new(decode_record)),
        (long, Box::new(decode_record)),
        (payload.unwrap(), Box::new(decode_payload)),
        (codec().encode_marks(marks()), Box::new(|codec, row| codec.decode_marks(row).map(drop))),
    ]
}

#[test]
fn a_flipped_bit_anywhere_is_found() {
    for (row, decode) in samples() {
        decode(codec(), &row).unwrap();
        for bit in 0..row.len() * 8 {
            let mut row = row.clone();
            row[bit / 8] ^= 1 << (bit % 8);
            assert_corrupted(decode(codec(), &row));
        }
    }
}

#[test]
fn a_row_cut_short_or_grown_is_found() {
    for (row, decode) in samples() {
        for len in 0..row.len() {
            assert_corrupted(decode(codec(), &row[..len]));
        }
        for more in [1, 8, 100, 5_000, 100_000] {
            assert_corrupted(decode(codec(), &[&row[..], &vec![0; more]].concat()));
        }
    }
}

#[test]
fn a_row_of_another_store_is_found() {
    let other = Codec::new(StoreId(*b"0123456789abcdeg"));
    for (row, decode) in samples() {
        assert_corrupted(decode(other, &row));
    }
}

#[test]
fn a_row_at_another_place_is_found() {
    let claim = codec().encode_claim(&key(), &open_claim());
    let said = assert_corrupted(codec().decode_claim(Fence::new(70_002), &claim));
    assert!(said.contains("keyonce.claims, row 70002"), "{said}");
    // A place with the same number in another table.
    assert_corrupted(codec().unseal(&claim, Place::Record(Position(70_001))));

    let (row, payload) = codec().encode_record(position(), &key(), &completed(long_response()));
    assert_corrupted(codec().decode_record(Position(position().0 + 1), &row));
    assert_corrupted(codec().decode_claim(Fence::new(position().0), &row));

    // A payload belongs to one position, one fence, one key, one length.
    let payload = payload.unwrap();
    let mut fenced = completed(long_response());
    fenced.fence = Fence::new(70_002);
    let longer = completed(vec![0; 2000]);
    let same = completed(long_response());
    let elsewhere = Position(position().0 + 1);
    let other_key = Key::scoped("merchant-7", "order-1043").unwrap();
    for (at, key, record) in [
        (position(), &key(), &fenced),
        (position(), &key(), &longer),
        (position(), &other_key, &same),
        (elsewhere, &key(), &same),
    ] {
        let (row, _) = codec().encode_record(at, key, record);
        let stored = codec().decode_record(at, &row).unwrap();
        assert_corrupted(codec().decode_payload(at, &stored, &payload));
    }
    // Nor does a short record have one.
    let (row, _) = codec().encode_record(position(), &key(), &completed(b"short".to_vec()));
    let stored = codec().decode_record(position(), &row).unwrap();
    assert_corrupted(codec().decode_payload(position(), &stored, &payload));
}

#[test]
fn a_record_that_expires_in_another_unit_than_its_place_is_found() {
    // With a checksum for that place: a mistake of this crate, not of the disk.
    let elsewhere = Position::new(at(1_780_086_400_000 + (1 << 14)), 5);
    let (row, _) = codec().encode_record(elsewhere, &key(), &completed(b"receipt 17".to_vec()));
    let said = assert_corrupted(codec().decode_record(elsewhere, &row));
    assert!(said.contains("it stands where it does not expire"), "{said}");
}

/// A claim's row with this body, correctly sealed.
fn sealed(body: &[u8]) -> Vec<u8> {
    codec().seal(body.to_vec(), Place::Claim(Fence::new(1)))
}

/// A good row's body, to be changed and sealed again.
fn body() -> Vec<u8> {
    let row = codec().encode_claim(&key(), &Record { fence: Fence::new(1), ..open_claim() });
    row[..row.len() - CHECKSUM_LEN].to_vec()
}

fn decode_sealed(body: &[u8]) -> Result<(Key, Record)> {
    codec().decode_claim(Fence::new(1), &sealed(body))
}

#[test]
fn a_length_that_asks_for_gigabytes_is_refused_and_not_believed() {
    // 253 announces a length of 8 bytes, 252 one of 4.
    for length in [u64::MAX, u64::MAX - 8, 1 << 40, 1 << 32, 5_000] {
        assert_corrupted(decode_sealed(&[&[ROW_VERSION, 253][..], &length.to_le_bytes(), &[0; 64]].concat()));
    }
    assert_corrupted(decode_sealed(&[&[ROW_VERSION, 252][..], &u32::MAX.to_le_bytes(), &[0; 64]].concat()));
    let said = assert_corrupted(decode_sealed(&vec![ROW_VERSION; ROW_MAX]));
    assert!(said.contains("more than 4096"), "{said}");
}

#[test]
fn a_sealed_row_of_an_unknown_version_or_shape_is_refused() {
    decode_sealed(&body()).unwrap();
    for version in (0..=u8::MAX).filter(|version| *version != ROW_VERSION) {
        let said = assert_corrupted(decode_sealed(&[&[version], &body()[1..]].concat()));
        assert!(said.contains(&format!("its version is {version}")), "{said}");
    }
    assert_corrupted(decode_sealed(&[]));
    assert_corrupted(decode_sealed(&body()[..body().len() - 1]));
    let said = assert_corrupted(decode_sealed(&[&body()[..], &[0]].concat()));
    assert!(said.contains("1 bytes trail it"), "{said}");
    // The key's frame says that its scope is longer than the whole.
    let mut unframed = body();
    unframed[2] = 255;
    let said = assert_corrupted(decode_sealed(&unframed));
    assert!(said.contains("not framed"), "{said}");
}

#[test]
fn a_sealed_row_with_any_byte_changed_is_a_value_or_an_error() {
    for index in 0..body().len() {
        for value in [0, 1, 2, 127, 128, 250, 251, 252, 253, 254, 255] {
            let mut body = body();
            body[index] = value;
            if let Err(error) = decode_sealed(&body) {
                assert_eq!(error.kind(), ErrorKind::Corrupted);
            }
        }
    }
}

#[test]
fn a_damaged_header_is_corrupted_and_a_later_one_is_newer() {
    let header = encode_header(StoreId::fixed());
    for len in 0..header.len() {
        assert_corrupted(decode_header(&header[..len]));
    }
    assert_corrupted(decode_header(&[&header[..], &[0]].concat()));
    assert_corrupted(decode_header(&[&[0; 4], &header[4..]].concat()));
    for format in [FORMAT + 1, u32::MAX] {
        // A later version may have a longer header, or a shorter one.
        for rest in [&header[4..], &[], &[0; 100]] {
            let error = decode_header(&[&format.to_le_bytes(), rest].concat()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NewerFormat);
            assert!(error.to_string().contains(&format!("format {format}")), "{error}");
        }
    }
}
