//! Entry points for `fuzz/`: only there with `--cfg fuzzing`.

use crate::codec::{self, Codec, StoreId};
use crate::position::Position;
use crate::record::Fence;

/// Decodes `row` as every kind of row; the seed is fixed, so that a fuzzer can
/// learn the checksum, or `sealed` makes it right.
pub fn decode_row(place: u64, row: &[u8], sealed: bool) {
    let codec = Codec::new(StoreId::fixed());
    let position = Position(place);
    let fence = Fence::new(place);
    let row = &*if sealed { codec.sealed_for_fuzzing(place, row) } else { row.to_vec() };
    if let Ok((key, record)) = codec.decode_claim(fence, row) {
        let again = codec.encode_claim(&key, &record);
        assert_eq!(codec.decode_claim(fence, &again).unwrap(), (key, record));
    }
    if let Ok(stored) = codec.decode_record(position, row) {
        let payload = codec.decode_payload(position, &stored, row).ok();
        let key = crate::Key::from_framed(stored.key).expect("decoding checks the frame");
        if stored.payload_len().is_none() {
            let record = stored.to_record(payload);
            let (again, _) = codec.encode_record(position, &key, &record);
            let again = codec.decode_record(position, &again).expect("what was written is read");
            assert_eq!(again.to_record(None), record);
        }
    }
    let _ = codec.decode_marks(row);
    let _ = codec::decode_header(row);
}
