//! Power cuts at a call: which one, counted from the moment at which it was asked for.

use std::fmt;
use std::str::FromStr;

use globset::GlobMatcher;
use serde::{Deserialize, Serialize};

use super::loss::pattern;
use crate::{Error, Result};

/// The calls at which the power can be cut, as a program knows them. `write` is also that of a mapped
/// page, and `close` that of the last descriptor.
pub const CALLS: &[&str] = &[
    "creat",
    "mkdir",
    "mknod",
    "symlink",
    "link",
    "unlink",
    "rmdir",
    "rename",
    "open",
    "read",
    "write",
    "truncate",
    "fallocate",
    "chmod",
    "setxattr",
    "removexattr",
    "fsync",
    "fdatasync",
    "close",
];

/// A call by its name, and by the path of what it changes: `CALL` or `CALL:PATTERN`, such as
/// `fsync:wal/*`. `any` is each call that changes something or makes it durable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CallPattern {
    call: String,
    path: Option<String>,
}

impl FromStr for CallPattern {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (call, path) = text.split_once(':').map_or((text, None), |(c, p)| (c, Some(p)));
        if call != "any" && !CALLS.contains(&call) {
            let problem = format!("the calls are any, {}", CALLS.join(", "));
            return Err(Error::Pattern { pattern: text.to_owned(), problem });
        }
        if let Some(path) = path {
            pattern(path)?;
        }
        Ok(Self { call: call.to_owned(), path: path.map(str::to_owned) })
    }
}

impl TryFrom<String> for CallPattern {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<CallPattern> for String {
    fn from(pattern: CallPattern) -> Self {
        pattern.to_string()
    }
}

impl fmt::Display for CallPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.call)?;
        self.path.as_ref().map_or(Ok(()), |path| write!(f, ":{path}"))
    }
}

/// A call at which the power is cut.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutPoint {
    /// Which call.
    pub call: CallPattern,
    /// The how manieth such call from now on, from 1.
    #[serde(default = "first")]
    pub nth: u64,
    /// After it has done its work, and before the program hears of it. Otherwise before it.
    #[serde(default)]
    pub after: bool,
}

fn first() -> u64 {
    1
}

/// Counts calls until the one at which the power is cut.
#[derive(Debug)]
pub(crate) struct Trigger {
    call: String,
    path: Option<GlobMatcher>,
    left: u64,
    pub(crate) after: bool,
}

impl Trigger {
    pub(crate) fn new(at: &CutPoint) -> Result<Self> {
        let path = at.call.path.as_deref().map(pattern).transpose()?;
        Ok(Self { call: at.call.call.clone(), path, left: at.nth.max(1), after: at.after })
    }

    /// Returns true at the call that was asked for; `paths` returns the paths that it has to do with.
    pub(crate) fn counts(&mut self, call: &str, paths: &dyn Fn() -> Vec<String>) -> bool {
        let is_called = match self.call.as_str() {
            "any" => !matches!(call, "open" | "read" | "close"),
            name => name == call,
        };
        let matches = |pattern: &GlobMatcher| paths().iter().any(|path| pattern.is_match(path));
        if !is_called || self.left == 0 || !self.path.as_ref().is_none_or(matches) {
            return false;
        }
        self.left -= 1;
        self.left == 0
    }

    /// Waits for one more call.
    pub(crate) fn count_once_more(&mut self) {
        self.left += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nth_call_on_a_path_counts() {
        let call = "fsync:wal/*".parse().unwrap();
        let mut trigger = Trigger::new(&CutPoint { call, nth: 2, after: false }).unwrap();
        let path = |path: &'static str| move || vec![path.to_owned()];
        assert!(!trigger.counts("fsync", &path("wal/1")));
        assert!(!trigger.counts("write", &path("wal/1")));
        assert!(!trigger.counts("fsync", &path("data/1")));
        assert!(!trigger.counts("fsync", &path("wal/old/1")));
        assert!(trigger.counts("fsync", &path("wal/2")));
        assert!(!trigger.counts("fsync", &path("wal/2")), "only once");
    }

    #[test]
    fn a_wrong_pattern_is_named() {
        for (text, said) in [("fsnyc", "fsync"), ("write:a[", "a["), ("", "any")] {
            let error = text.parse::<CallPattern>().unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
