//! How a verb fails: a message for a person and an exit code (docs/exit-codes.md).

use std::fmt;

/// The result of a verb; `Ok` carries the exit code.
pub type Outcome = Result<u8, Failure>;

/// Done.
pub const DONE: u8 = 0;
/// Failed.
pub const FAILED: u8 = 1;
/// Wrong usage, as clap exits too.
pub const USAGE: u8 = 2;
/// `weft crash` found a state that breaks a promise.
pub const PROMISE_BROKEN: u8 = 3;

/// Why a verb ended early.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub code: u8,
    /// What, where, and what to do.
    pub message: String,
}

impl Failure {
    /// Wrong usage that clap could not see.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { code: USAGE, message: message.into() }
    }

    /// A failure.
    pub fn new(message: impl Into<String>) -> Self {
        Self { code: FAILED, message: message.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// What to do about an error, where there is something to do.
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
        weft::Error::File { source: Fs::NoSpace, .. } => {
            Some("the volume is full; weft df shows how it stands")
        }
        weft::Error::File { source: Fs::Corrupt(_), .. } => {
            Some("the volume is damaged; look at it with weft fsck")
        }
        weft::Error::File { source: Fs::IsADirectory, action: "remove", .. } => {
            Some("--recursive removes directories")
        }
        _ => None,
    }
}

impl From<weft::Error> for Failure {
    fn from(error: weft::Error) -> Self {
        let mut message = error.to_string();
        if let Some(advice) = advice(&error) {
            message.push_str(" (");
            message.push_str(&advice);
            message.push(')');
        }
        match error {
            weft::Error::Usage(_) | weft::Error::Block(weft::block::Error::Description(_)) => {
                Self::usage(message)
            }
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
