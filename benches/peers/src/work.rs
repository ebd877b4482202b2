//! The work: keys that never come twice, and an answer that tells its key.

use std::fmt;

/// The length of a stored answer, in bytes.
pub(crate) const ANSWER_BYTES: usize = 250;

pub(crate) type Answer = [u8; ANSWER_BYTES];

/// An idempotency key as clients send them: 32 random hexadecimal digits. Being
/// random, keys spread over a B-tree, as they do in life.
#[derive(Clone, Copy)]
pub(crate) struct Key([u8; 32]);

impl Key {
    /// The `cycle`-th key of a caller, the same in every run. Two pairs never
    /// share one: mixing is a bijection of the pair.
    pub(crate) fn of(caller: usize, cycle: usize) -> Self {
        let first = mix(((caller as u64) << 40) | cycle as u64);
        let second = mix(first ^ 0x5851_F42D_4C95_7F2D);
        let mut digits = [0; 32];
        for (place, digit) in digits.iter_mut().enumerate() {
            let half = if place < 16 { first } else { second };
            *digit = b"0123456789abcdef"[(half >> (4 * (place % 16)) & 15) as usize];
        }
        Self(digits)
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("hexadecimal digits are UTF-8")
    }

    /// What is stored for this key: bytes that do not compress, and that no
    /// other key has.
    pub(crate) fn answer(&self) -> Answer {
        let mut state = self.0[..16].iter().fold(0, |state, &digit| mix(state ^ u64::from(digit)));
        let mut answer = [0; ANSWER_BYTES];
        for piece in answer.chunks_mut(8) {
            state = mix(state);
            piece.copy_from_slice(&state.to_le_bytes()[..piece.len()]);
        }
        answer
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A step of the generator SplitMix64: every bit of the input reaches every bit
/// of the output, and no two inputs give the same.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
