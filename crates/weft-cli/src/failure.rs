//! The failure of a verb: a message for the user and an exit code (docs/exit-codes.md).

use std::fmt;

/// The result of a verb; `Ok` carries the exit code.
pub type Outcome = Result<u8, Failure>;

/// The exit code of success.
pub const DONE: u8 = 0;
/// The exit code of a failure.
pub const FAILED: u8 = 1;
/// The exit code of wrong usage, the same as clap's.
pub const USAGE: u8 = 2;
/// The exit code of `weft crash` for a state that breaks a promise.
pub const PROMISE_BROKEN: u8 = 3;

/// The reason why a verb ended early.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub code: u8,
    /// The failed action, its object, and a remedy.
    pub message: String,
    /// A word for programs, where they may want to tell failures with one code apart.
    pub kind: Option<&'static str>,
}

impl Failure {
    /// Makes a failure for wrong usage that clap cannot detect.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { code: USAGE, message: message.into(), kind: None }
    }

    /// Makes a failure with the code [`FAILED`].
    pub fn new(message: impl Into<String>) -> Self {
        Self { code: FAILED, message: message.into(), kind: None }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The remedy for an error, if there is one.
fn advice(error: &weft::Error) -> Option<String> {
    use weft::block::Error as Block;
    if let weft::Error::Block(Block::Locked { path }) = error {
        return weft::holder_of(path).map(|holder| holder.to_string());
    }
    plain_advice(error).map(str::to_owned)
}

fn plain_advice(error: &weft::Error) -> Option<&'static str> {
    use weft::block::Error as Block;
    use weft::vfs::Error as Fs;
    match error {
        weft::Error::Block(Block::Open { source, .. }) => match source.kind() {
            std::io::ErrorKind::NotFound => Some("check the name; weft mkfs makes a new volume"),
            std::io::ErrorKind::PermissionDenied => {
                Some("you need permission to read and write the image")
            }
            _ => None,
        },
        weft::Error::File { source: Fs::NoSpace, .. } => Some("the volume is full; see weft df"),
        weft::Error::File { source: Fs::Corrupt(_), .. } => {
            Some("the volume is damaged; check it with weft fsck")
        }
        weft::Error::File { source: Fs::IsADirectory, action: "remove", .. } => {
            Some("--recursive removes directories")
        }
        _ => None,
    }
}

impl From<weft::Error> for Failure {
    fn from(error: weft::Error) -> Self {
        let mut message = match &error {
            weft::Error::Missing { message, option } => format!("{message}, {option}"),
            weft::Error::Unasked { message, option } => format!("{message}. {option}"),
            error => error.to_string(),
        };
        if let Some(advice) = advice(&error) {
            message.push_str(" (");
            message.push_str(&advice);
            message.push(')');
        }
        match error {
            weft::Error::Usage(_)
            | weft::Error::Missing { .. }
            | weft::Error::Block(weft::block::Error::Description { .. }) => Self::usage(message),
            _ => Self::new(message),
        }
    }
}

impl From<weft::block::Error> for Failure {
    fn from(error: weft::block::Error) -> Self {
        weft::Error::from(error).into()
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(error.to_string())
    }
}
