//! The fingerprint: what makes a repeated request "the same request".

use sha2::{Digest as _, Sha256};
use std::fmt;

/// A SHA-256 over everything that makes two requests the same one.
///
/// A key that comes again with another fingerprint is a
/// [`Mismatch`](crate::Begin::Mismatch): the client reused a key for something
/// else, and must not be given the first answer. Put in whatever would make the
/// work different (the amount, the currency, the account), and leave out what
/// differs on every delivery (a timestamp, a redelivery flag).
///
/// Each field is framed by its length, so bytes cannot move from one field to
/// the next without changing the fingerprint:
///
/// ```
/// use keyonce::Fingerprint;
///
/// let a = Fingerprint::builder().field("method", "POST").field("path", "/ab").finish();
/// let b = Fingerprint::builder().field("method", "POST/a").field("path", "b").finish();
/// assert_ne!(a, b);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// No fingerprint, for a key that is the request: an order number, an
    /// event's id. It equals only itself.
    ///
    /// (All zeros. Nobody knows bytes whose SHA-256 that is.)
    pub const NONE: Self = Self([0; 32]);

    /// The fingerprint of one piece of bytes, such as a request's body.
    #[must_use]
    pub fn of(bytes: impl AsRef<[u8]>) -> Self {
        Self::builder().field("", bytes).finish()
    }

    /// A fingerprint of several named fields. Their order counts.
    pub fn builder() -> FingerprintBuilder {
        FingerprintBuilder { hasher: Sha256::new() }
    }

    /// The 32 bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    pub(crate) fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NONE {
            return f.write_str("Fingerprint(NONE)");
        }
        f.write_str("Fingerprint(")?;
        for byte in &self.0[..8] {
            write!(f, "{byte:02x}")?;
        }
        f.write_str("…)")
    }
}

/// Collects the fields of a [`Fingerprint`]. Made by [`Fingerprint::builder`].
#[derive(Clone)]
#[must_use = "a builder makes nothing until `finish` is called"]
pub struct FingerprintBuilder {
    hasher: Sha256,
}

impl FingerprintBuilder {
    /// Adds a field. Name and value are both framed by length; a field that is
    /// there and empty differs from one that is not there.
    pub fn field(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        for part in [name.as_bytes(), value.as_ref()] {
            self.hasher.update((part.len() as u64).to_le_bytes());
            self.hasher.update(part);
        }
        self
    }

    /// The fingerprint of all fields.
    #[must_use]
    pub fn finish(self) -> Fingerprint {
        Fingerprint(self.hasher.finalize().into())
    }
}

impl fmt::Debug for FingerprintBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FingerprintBuilder").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(fields: &[(&str, &str)]) -> Fingerprint {
        fields.iter().fold(Fingerprint::builder(), |b, (n, v)| b.field(n, v)).finish()
    }

    // C11: ("ab", "c") and ("a", "bc").
    #[test]
    fn fields_that_run_together_differ() {
        let all = [
            of(&[("", "ab"), ("", "c")]),
            of(&[("", "a"), ("", "bc")]),
            of(&[("", "abc")]),
            of(&[("", "abc"), ("", "")]),
            of(&[("a", "bc")]),
            of(&[("ab", "c")]),
            of(&[]),
            Fingerprint::NONE,
        ];
        for (i, a) in all.iter().enumerate() {
            for b in &all[i + 1..] {
                assert_ne!(a, b);
            }
        }
    }

    // Stored fingerprints outlive the release that wrote them, so the bytes
    // under SHA-256 may never change. The value is that of
    // `printf '\0\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0abc' | sha256sum`.
    #[test]
    fn the_framing_is_fixed_for_ever() {
        let sum = Fingerprint::of("abc");
        let hex = |half: &[u8]| u128::from_be_bytes(half.try_into().unwrap());
        let (high, low) = sum.as_bytes().split_at(16);
        assert_eq!(
            format!("{:032x}{:032x}", hex(high), hex(low)),
            "4e403ba3511c0e7306e298fd34975ed62fbdfe948a9199de59551ede1378be99"
        );
    }
}
