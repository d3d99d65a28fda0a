//! The policy for the files below a directory: the number of copies, and how many `fsync` waits
//! for.
//!
//! A policy is an attribute ([`POLICY_XATTR`]) of a directory, so it is versioned, leased and seen
//! by all clients as any other. The nearest directory above a file that has one counts; policies
//! are not merged. Its text form is words with blanks between them, each of which may be left out:
//!
//! ```text
//! copies=2     two clients keep a copy beside the writer
//! fsync=1      fsync waits until one of them has the file
//! versions=10  the last ten earlier contents of a file are kept
//! keep=604800  for this many seconds
//! every=10     except contents less than ten seconds younger than the last one kept
//! text=64K     index the words of text files of up to 65,536 bytes; `none`: of no file
//! ```

use std::fmt;
use std::str::FromStr;

use crate::rnode::{Bytes, Rnode};
use crate::text::TEXT_MAX_BYTES;

/// The attribute of a directory that holds its policy.
pub const POLICY_XATTR: &[u8] = b"user.weft.policy";
/// The most copies that can be asked for.
pub const COPIES_MAX: u32 = 16;
/// The most versions of a file that are kept.
pub const VERSIONS_MAX: u32 = 1000;
/// The longest duration that can be set, in seconds: a hundred years.
const SECONDS_MAX: u64 = 100 * 366 * 24 * 3600;
/// The longest policy that is parsed, in bytes.
const POLICY_MAX_BYTES: usize = 1024;

/// Whether files are copied to the cell's archives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Archiving {
    /// No.
    #[default]
    No,
    /// Yes, a while after they were changed.
    Later,
    /// Yes, and `fsync` waits until one archive has acknowledged the file.
    Fsync,
}
crate::wire::wire_enum!(Archiving { 0 => No, 1 => Later, 2 => Fsync, });

/// The policy for the files below a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// The number of clients that are to keep a whole copy of a file, beside the writer.
    pub copies: u32,
    /// The number of them that `fsync` waits for; 0: none.
    pub fsync: u32,
    /// Whether an archive is to keep a copy as well.
    pub archive: Archiving,
    /// The number of earlier contents of a file that are kept; 0: none, nor removed files.
    pub versions: u32,
    /// The time that they are kept, in seconds.
    pub keep_secs: u64,
    /// The least time between two contents kept by one client, in seconds.
    pub every_secs: u64,
    /// The longest text file whose words are indexed, in bytes; 0: none is.
    pub text_bytes: u64,
}

/// The reason why a text is not a policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// An unknown word.
    #[error(
        "`{0}` is not part of a policy: copies=N, fsync=N, archive=no|later|fsync, versions=N, \
         keep=SECONDS, every=SECONDS, text=BYTES"
    )]
    Word(String),
    /// Not a number, or too large.
    #[error("`{0}` needs a number of at most {1}")]
    Number(String, u64),
    /// `fsync` would wait for more copies than are made.
    #[error("fsync cannot wait for more copies than are made")]
    Waits,
}

impl Default for Policy {
    fn default() -> Self {
        let (keep_secs, every_secs) = (7 * 24 * 3600, 10);
        let (archive, text_bytes) = (Archiving::No, 0);
        Self { copies: 0, fsync: 0, archive, versions: 0, keep_secs, every_secs, text_bytes }
    }
}

impl Policy {
    /// Returns the policy that a directory has itself. Words of later versions are ignored.
    #[must_use]
    pub fn of(rnode: &Rnode) -> Option<Self> {
        let text = rnode.xattrs.get(&Bytes(POLICY_XATTR.to_vec())).filter(|_| rnode.is_dir())?;
        let text = std::str::from_utf8(text.0.get(..text.0.len().min(POLICY_MAX_BYTES))?).ok()?;
        let mut policy = Self::default();
        for word in text.split_whitespace() {
            let _ = policy.take(word);
        }
        policy.fsync = policy.fsync.min(policy.copies);
        Some(policy)
    }

    fn take(&mut self, word: &str) -> Result<(), PolicyError> {
        let unknown = || PolicyError::Word(word.to_owned());
        let (name, value) = word.split_once('=').ok_or_else(unknown)?;
        let seconds = |max: u64| {
            let number = value.parse().ok().filter(|n| *n <= max);
            number.ok_or_else(|| PolicyError::Number(word.to_owned(), max))
        };
        let number = |max: u32| {
            let number = seconds(u64::from(max))?;
            // The bound was checked above.
            Ok(u32::try_from(number).unwrap_or(max))
        };
        match name {
            "copies" => self.copies = number(COPIES_MAX)?,
            "fsync" => self.fsync = number(COPIES_MAX)?,
            "archive" => {
                self.archive = match value {
                    "no" => Archiving::No,
                    "later" => Archiving::Later,
                    "fsync" => Archiving::Fsync,
                    _ => return Err(unknown()),
                }
            }
            "versions" => self.versions = number(VERSIONS_MAX)?,
            "keep" => self.keep_secs = seconds(SECONDS_MAX)?,
            "every" => self.every_secs = seconds(SECONDS_MAX)?,
            "text" => {
                let too_much = || PolicyError::Number(word.to_owned(), TEXT_MAX_BYTES);
                self.text_bytes = text_bytes(value).ok_or_else(too_much)?;
            }
            _ => return Err(unknown()),
        }
        Ok(())
    }
}

/// Parses a length of text files, in bytes, with a suffix K or M; `none` is 0.
fn text_bytes(text: &str) -> Option<u64> {
    if text == "none" {
        return Some(0);
    }
    let bytes = parse_size::Config::new().with_binary().parse_size(text).ok()?;
    (bytes <= TEXT_MAX_BYTES).then_some(bytes)
}

impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        if text.len() > POLICY_MAX_BYTES {
            return Err(PolicyError::Word(text.chars().take(20).collect()));
        }
        let mut policy = Self::default();
        text.split_whitespace().try_for_each(|word| policy.take(word))?;
        if policy.fsync > policy.copies { Err(PolicyError::Waits) } else { Ok(policy) }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { copies, fsync, archive, versions, keep_secs, every_secs, text_bytes } = self;
        write!(f, "copies={copies} fsync={fsync}")?;
        match archive {
            Archiving::No => {}
            Archiving::Later => f.write_str(" archive=later")?,
            Archiving::Fsync => f.write_str(" archive=fsync")?,
        }
        if *versions > 0 {
            write!(f, " versions={versions} keep={keep_secs} every={every_secs}")?;
        }
        if *text_bytes > 0 {
            write!(f, " text={text_bytes}")?;
        }
        Ok(())
    }
}

crate::wire::wire_struct!(Policy {
    copies,
    fsync,
    archive,
    versions,
    keep_secs,
    every_secs,
    text_bytes
});

#[cfg(test)]
mod tests {
    use super::*;
    use weft_vfs::Time;

    #[test]
    fn policies_roundtrip() {
        for (copies, fsync) in [(0, 0), (1, 0), (16, 16), (3, 2)] {
            for versions in [0, 1, 1000] {
                for (text_bytes, archive) in [
                    (0, Archiving::No),
                    (1, Archiving::Later),
                    (TEXT_MAX_BYTES, Archiving::Fsync),
                    (0, Archiving::Fsync),
                ] {
                    let rest = Policy { text_bytes, archive, ..Policy::default() };
                    let policy = Policy { copies, fsync, versions, ..rest };
                    assert_eq!(policy.to_string().parse(), Ok(policy));
                }
            }
        }
        assert_eq!("".parse(), Ok(Policy::default()));
        for bad in [
            "copies",
            "copies=",
            "copies=17",
            "copies=-1",
            "fsync=1",
            "x=1",
            "copies=1,",
            "archive=1",
        ] {
            assert!(bad.parse::<Policy>().is_err(), "{bad}");
        }
        for (text, text_bytes) in [("none", 0), ("7", 7), ("64K", 65_536), ("1M", 1 << 20)] {
            let policy: Policy = format!("text={text}").parse().expect("a policy");
            assert_eq!(policy, Policy { text_bytes, ..Policy::default() });
        }
        for bad in ["", "K", "-1", "2M", "1048577", "99999999999999999999", "all", "64k8"] {
            assert!(format!("text={bad}").parse::<Policy>().is_err(), "{bad}");
        }
        assert!(" ".repeat(2000).parse::<Policy>().is_err());
    }

    #[test]
    fn settings_of_later_versions_are_ignored() {
        let mut rnode = Rnode::root(Time::default());
        assert_eq!(Policy::of(&rnode), None);
        let text = Bytes(b"copies=2 moons=3 fsync=9".to_vec());
        rnode.xattrs.insert(Bytes(POLICY_XATTR.to_vec()), text);
        assert_eq!(Policy::of(&rnode), Some(Policy { copies: 2, fsync: 2, ..Policy::default() }));
    }
}
