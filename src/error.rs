//! One error for the whole crate: [`Error`], and its [`ErrorKind`].
//!
//! Match on [`Error::kind`] to decide what to do; print the error to tell a
//! person. The message names the value that was refused and the limit it met.
//! [`std::error::Error::source`] gives the cause below, where there is one.

use std::error::Error as StdError;
use std::fmt;

/// What a call of this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed. See [`ErrorKind`] for what to do about it.
///
/// Each error leaves the key as it was, unless its kind is
/// [`OutcomeUnknown`](ErrorKind::OutcomeUnknown): then only reopening the store
/// tells.
///
/// ```
/// use keyonce::{ErrorKind, Key};
///
/// let error = Key::new("").unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::InvalidInput);
/// assert_eq!(error.to_string(), "the key is empty: it must have 1 to 255 bytes");
/// ```
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// What a caller can do about an [`Error`].
///
/// More kinds may come with new capabilities, so a `match` needs a `_` arm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument or option is out of its range. Correct the call; trying
    /// again as it is will fail again.
    InvalidInput,
    /// A limit of the store is reached: open claims, live keys, keys of one
    /// scope, or the size of a response. Nothing was changed. Try later, raise
    /// the limit, or give a smaller value.
    LimitReached,
    /// The claim is not the key's holder any more. Nothing was changed.
    ClaimLost,
    /// The key is not in a state that allows this (for example, `resolve` of a
    /// key that is not interrupted, or `forget` of one whose holder is alive).
    /// Nothing was changed.
    WrongState,
    /// The write failed in a way that leaves open whether it is on disk.
    /// The store refuses further writes; reopen it, and look.
    OutcomeUnknown,
    /// The storage failed, now or earlier, and this write was *not* made.
    /// Writes are refused until the store is reopened; replays go on.
    StorageFailed,
    /// The store was closed.
    Closed,
    /// The file, or the folder that it should be in, does not exist.
    NotFound,
    /// The path names something that is not a regular file: a folder, a FIFO,
    /// a device, a socket.
    NotAFile,
    /// The path names a symbolic link. Links are not followed, so that nobody
    /// can point the store at another file.
    SymbolicLink,
    /// The file exists and is something else: a text, another database, or an
    /// empty file. It was not touched.
    NotAStore,
    /// The file is a redb database without this crate's tables. It was not
    /// touched, except that redb repairs one that was not closed.
    /// [`StoreBuilder::adopt`](crate::StoreBuilder::adopt) is the way
    /// to keep a store in an application's own redb file.
    ForeignDatabase,
    /// The file was written by a later version of this crate.
    NewerFormat,
    /// The store is open elsewhere, in this process or another.
    AlreadyOpen,
    /// The bytes on disk are not what was written there. The message names the
    /// place.
    Corrupted,
    /// The operating system refused for another reason (permissions, for one).
    Io,
}

impl Error {
    /// What the caller can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    #[cold]
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner { kind, message: message.into(), source: None }))
    }

    #[cold]
    pub(crate) fn with_source(
        kind: ErrorKind,
        message: impl Into<String>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self(Box::new(Inner { kind, message: message.into(), source: Some(source.into()) }))
    }

    /// The same, of another kind.
    pub(crate) fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.0.kind = kind;
        self
    }

    #[cold]
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidInput, message)
    }

    #[cold]
    pub(crate) fn corrupted(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupted, message)
    }

    #[cold]
    pub(crate) fn closed() -> Self {
        Self::new(ErrorKind::Closed, "the store is closed")
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        match &self.0.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({:?}: {self})", self.0.kind)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}
