//! Any bytes as any row: an error or a value that is written the same again,
//! never a panic and no memory by a stored length.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: (u64, bool, &[u8])| {
    let (place, sealed, row) = input;
    keyonce::fuzzing::decode_row(place, row, sealed);
});
