//! The idempotency key: a scope and a key, framed so that no two pairs collide.

use crate::error::{Error, Result};
use std::fmt::{self, Write as _};
use std::sync::Arc;

/// An idempotency key, in the scope of whoever brought it.
///
/// A *scope* keeps callers apart: `order-1042` of one merchant is another key
/// than `order-1042` of the next. Use it whenever keys come from outside.
///
/// Scope and key are 1 to [`Key::LEN_MAX`] bytes each, any bytes. They are
/// framed by length, so scope `1` with key `a:b` differs from scope `1:a` with
/// key `b`. Cloning is cheap.
///
/// ```
/// use keyonce::Key;
///
/// let mine = Key::scoped("merchant-7", "order-1042")?;
/// let yours = Key::scoped("merchant-8", "order-1042")?;
/// assert_ne!(mine, yours);
/// assert_eq!(mine.to_string(), "merchant-7/order-1042");
/// # Ok::<(), keyonce::Error>(())
/// ```
///
/// `Display` and `Debug` print one line whatever the bytes are: control
/// characters, line separators, direction marks and bytes that are not UTF-8
/// are escaped, and so is a `/` inside a part.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// `[scope length: u8][scope][key]`. A length of 0 is "no scope".
    framed: Arc<[u8]>,
}

impl Key {
    /// The greatest length of a scope and of a key, in bytes.
    ///
    /// The idempotency-key draft leaves the length to the server; 255 is what
    /// Stripe documents, and it lets the frame's length be one byte.
    pub const LEN_MAX: usize = 255;

    /// A key without a scope: for keys that the application makes itself.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) if the key is empty or
    /// longer than [`Key::LEN_MAX`].
    pub fn new(key: impl AsRef<[u8]>) -> Result<Self> {
        Ok(Self::frame(&[], checked("key", key.as_ref())?))
    }

    /// A key in a scope: the authenticated caller, tenant or merchant.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) if either is empty or
    /// longer than [`Key::LEN_MAX`].
    pub fn scoped(scope: impl AsRef<[u8]>, key: impl AsRef<[u8]>) -> Result<Self> {
        Ok(Self::frame(checked("scope", scope.as_ref())?, checked("key", key.as_ref())?))
    }

    /// The scope's bytes, if it has one.
    #[must_use]
    pub fn scope(&self) -> Option<&[u8]> {
        let scope = &self.framed[1..=self.scope_len()];
        (!scope.is_empty()).then_some(scope)
    }

    /// The key's bytes, without the scope.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.framed[1 + self.scope_len()..]
    }

    fn scope_len(&self) -> usize {
        usize::from(self.framed[0])
    }

    fn frame(scope: &[u8], key: &[u8]) -> Self {
        let mut framed = Vec::with_capacity(1 + scope.len() + key.len());
        framed.push(u8::try_from(scope.len()).expect("checked against LEN_MAX"));
        framed.extend_from_slice(scope);
        framed.extend_from_slice(key);
        Self { framed: framed.into() }
    }

    /// The bytes that identify this key: what is hashed, compared and stored.
    pub(crate) fn as_framed(&self) -> &[u8] {
        &self.framed
    }

    /// Reads framed bytes back; `None` if they are not what [`Key`] makes.
    pub(crate) fn from_framed(framed: &[u8]) -> Option<Self> {
        Self::is_framed(framed).then(|| Self { framed: framed.into() })
    }

    pub(crate) fn is_framed(bytes: &[u8]) -> bool {
        let Some((&scope_len, rest)) = bytes.split_first() else { return false };
        let key_len = rest.len().checked_sub(usize::from(scope_len));
        key_len.is_some_and(|len| (1..=Self::LEN_MAX).contains(&len))
    }
}

fn checked<'a>(what: &str, bytes: &'a [u8]) -> Result<&'a [u8]> {
    match bytes.len() {
        0 => Err(Error::invalid(format!("the {what} is empty: it must have 1 to {} bytes", Key::LEN_MAX))),
        len if len > Key::LEN_MAX => {
            Err(Error::invalid(format!("the {what} has {len} bytes: it must have 1 to {}", Key::LEN_MAX)))
        }
        _ => Ok(bytes),
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(scope) = self.scope() {
            escape(f, scope)?;
            f.write_char('/')?;
        }
        escape(f, self.key())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

/// Writes `bytes` as printable characters of one line.
fn escape(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '/' | '\\' => write!(f, "\\{c}")?,
                ' ' => f.write_char(' ')?,
                // HTML's and the shell's quotes too, so that a page or a log
                // line that shows a key cannot be broken out of.
                '<' | '>' | '&' | '"' | '\'' | '`' => write!(f, "\\u{{{:x}}}", u32::from(c))?,
                c if changes_direction(c) => write!(f, "\\u{{{:x}}}", u32::from(c))?,
                // `escape_debug` escapes control characters, separators and
                // every code point that std's tables call unprintable.
                c => write!(f, "{}", c.escape_debug())?,
            }
        }
        for byte in chunk.invalid() {
            write!(f, "\\x{byte:02x}")?;
        }
    }
    Ok(())
}

/// The marks that Unicode's bidirectional algorithm obeys (UAX #9, section 2).
fn changes_direction(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn lengths_from_1_to_255_are_keys_and_others_are_told_the_limit() {
        for len in [1, 2, 254, 255] {
            assert_eq!(Key::new(vec![b'k'; len]).unwrap().key().len(), len);
            assert_eq!(Key::scoped(vec![b's'; len], "k").unwrap().scope().unwrap().len(), len);
        }
        for (error, text) in [
            (Key::new("").unwrap_err(), "the key is empty: it must have 1 to 255 bytes"),
            (Key::new([0; 256]).unwrap_err(), "the key has 256 bytes: it must have 1 to 255"),
            (Key::scoped("", "k").unwrap_err(), "the scope is empty: it must have 1 to 255 bytes"),
            (Key::scoped([0; 300], "k").unwrap_err(), "the scope has 300 bytes: it must have 1 to 255"),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert_eq!(error.to_string(), text);
        }
    }

    #[test]
    fn moving_bytes_between_scope_and_key_makes_another_key() {
        let pairs = [("1", "a:b"), ("1:a", "b"), ("1:a:", "b"), ("1:", "a:b")];
        for (i, (scope, key)) in pairs.iter().enumerate() {
            for (other_scope, other_key) in &pairs[i + 1..] {
                assert_ne!(Key::scoped(scope, key).unwrap(), Key::scoped(other_scope, other_key).unwrap());
            }
        }
        assert_ne!(Key::new("ab").unwrap(), Key::scoped("a", "b").unwrap());
    }

    #[test]
    fn framed_bytes_read_back_and_damaged_frames_do_not() {
        for key in [Key::new("k").unwrap(), Key::scoped([255; 255], [0; 255]).unwrap()] {
            assert_eq!(Key::from_framed(key.as_framed()), Some(key));
        }
        for bytes in [&[][..], &[0], &[3, b'a', b'b'], &[1, b'a'], &[0; 257]] {
            assert_eq!(Key::from_framed(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn whatever_the_bytes_one_printable_line_comes_out() {
        let key = Key::scoped("a/b", "x\n\r\0\x1b[31m\u{202e}\u{2028}<b>\u{1f600}\\").unwrap();
        assert_eq!(key.to_string(), r"a\/b/x\n\r\0\u{1b}[31m\u{202e}\u{2028}\u{3c}b\u{3e}😀\\");
        assert_eq!(Key::new([b'a', 0xff, 0xc3]).unwrap().to_string(), r"a\xff\xc3");
    }
}
