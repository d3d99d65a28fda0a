//! Errors of networks and of the data that passes through them.

use crate::Refusal;

/// The result of the calls of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why a network could not be built, attached or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The network text does not parse.
    #[error("network text, byte {at}: {message}")]
    Text {
        /// Byte offset in the text.
        at: usize,
        /// The syntax that was expected there.
        message: String,
    },
    /// No stage has this name.
    #[error("unknown stage \"{name}\"{}", nearest.as_ref().map(|n| format!(" (did you mean \"{n}\"?)")).unwrap_or_default())]
    UnknownStage {
        /// The name as written.
        name: String,
        /// A stage whose name is close.
        nearest: Option<String>,
    },
    /// A parameter that the stage does not have, or a value that it cannot have.
    #[error("stage {stage}: {message}")]
    Parameter {
        /// The stage.
        stage: String,
        /// The parameter, and its valid values.
        message: String,
    },
    /// The caller supplied no key of this name.
    #[error("stage {stage}: no key named \"{key}\"")]
    MissingKey {
        /// The stage.
        stage: &'static str,
        /// The key's name.
        key: String,
    },
    /// The data was sealed with another key.
    #[error("stage {stage}: sealed with key {found}, which is not among those named \"{key}\"")]
    WrongKey {
        /// The stage.
        stage: &'static str,
        /// The name of the keys that were tried.
        key: String,
        /// The id of the key that sealed the data, in hex.
        found: String,
    },
    /// The network does not support the required access.
    #[error("{0}")]
    Refused(#[from] Box<Refusal>),
    /// Stored data that the stage did not write, or that was changed since.
    #[error("stage {stage}: damaged data at byte {offset}: {what}")]
    Corrupt {
        /// The stage.
        stage: &'static str,
        /// The first byte that cannot be produced, in the output of the stage.
        offset: u64,
        /// The defect.
        what: String,
    },
    /// A WebAssembly module failed, or does not keep to the interface. The data may be sound.
    #[error("stage wasm: the module failed at byte {offset}: {what}")]
    Guest {
        /// The first byte that cannot be produced, in the output of the stage.
        offset: u64,
        /// The fault of the module.
        what: String,
    },
    /// Data that would expand beyond a limit.
    #[error("stage {stage}: limit reached at byte {offset}: {what}")]
    Limit {
        /// The stage.
        stage: &'static str,
        /// The position in the output of the stage.
        offset: u64,
        /// The limit.
        what: String,
    },
    /// A frame too long to be held in memory: it can be decoded as a stream, but not written.
    #[error(
        "stage {stage}: a frame of more than {max_bytes} bytes at byte {offset}: to be read at any place, it must be written again with shorter ones"
    )]
    LongFrame {
        /// The stage.
        stage: &'static str,
        /// The start of the frame in the output of the stage.
        offset: u64,
        /// Maximum length of a frame that is held in memory, in bytes.
        max_bytes: u64,
    },
    /// Input that the stage cannot represent in its output.
    #[error("stage {stage}: byte {offset} of the input: {what}")]
    Input {
        /// The stage.
        stage: &'static str,
        /// The position in the input of the stage.
        offset: u64,
        /// The defect.
        what: String,
    },
    /// A stage exceeded the deadline for a block.
    #[error("stage {stage}: no answer within {millis} ms")]
    Deadline {
        /// The stage that was running.
        stage: &'static str,
        /// The deadline, in milliseconds.
        millis: u64,
    },
    /// The file system below failed.
    #[error("{0}")]
    Below(#[from] weft_vfs::Error),
    /// Reading the input or writing the output of a run failed.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

impl From<Error> for weft_vfs::Error {
    fn from(e: Error) -> Self {
        match e {
            Error::Below(below) => below,
            Error::Refused(_) => Self::Io { errno: EOPNOTSUPP, message: e.to_string() },
            Error::MissingKey { .. } | Error::WrongKey { .. } => {
                Self::Io { errno: ENOKEY, message: e.to_string() }
            }
            Error::Text { .. } | Error::UnknownStage { .. } | Error::Parameter { .. } => {
                Self::Io { errno: EINVAL, message: e.to_string() }
            }
            _ => Self::Io { errno: EIO, message: e.to_string() },
        }
    }
}

// Linux's numbers.
const EIO: i32 = 5;
const EINVAL: i32 = 22;
const EOPNOTSUPP: i32 = 95;
const ENOKEY: i32 = 126;

impl Error {
    /// Returns true if the call was interrupted: the file is as good as before, and so is what was
    /// read of it.
    pub(crate) fn is_interrupted(&self) -> bool {
        matches!(self, Self::Below(weft_vfs::Error::Interrupted))
    }

    /// Returns the error with its offset in the output advanced by `by` bytes.
    pub(crate) fn moved(self, by: u64) -> Self {
        match self {
            Self::Corrupt { stage, offset, what } => {
                Self::Corrupt { stage, offset: offset.saturating_add(by), what }
            }
            Self::Limit { stage, offset, what } => {
                Self::Limit { stage, offset: offset.saturating_add(by), what }
            }
            Self::Guest { offset, what } => Self::Guest { offset: offset.saturating_add(by), what },
            other => other,
        }
    }
}
