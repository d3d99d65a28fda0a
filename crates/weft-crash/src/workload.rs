//! Workloads: the operations on a file system while its writes are recorded, as a small language.
//!
//! ```text
//! mkdir A; creat A/x; write A/x 0 6k | fsync A/x; rename A/x A/y; sync
//! ```
//!
//! Operations are separated by `;`. Operations before `|` prepare the volume and are durable before
//! the recording begins. Paths are relative to the root and contain no blanks; sizes take the units
//! of [`weft_block::parse_size`].

use crate::{Error, Result};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use weft_block::parse_size;

/// One operation. Paths are relative to the root of the volume.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Op {
    /// `creat PATH`: creates an empty file.
    Creat(String),
    /// `tmpfile PATH`: creates an empty file without a name and then gives it one.
    Tmpfile(String),
    /// `mkdir PATH`
    Mkdir(String),
    /// `mkfifo PATH`
    Mkfifo(String),
    /// `write PATH OFFSET LENGTH`: overwrites, extends, or leaves a hole before it.
    Write(String, u64, u64),
    /// `append PATH LENGTH`
    Append(String, u64),
    /// `falloc PATH OFFSET LENGTH [keep]`: allocates; `keep` does not change the size.
    Falloc(String, u64, u64, bool),
    /// `punch PATH OFFSET LENGTH`: makes a hole.
    Punch(String, u64, u64),
    /// `truncate PATH SIZE`
    Truncate(String, u64),
    /// `link PATH NEW`
    Link(String, String),
    /// `symlink TARGET NEW`
    Symlink(String, String),
    /// `unlink PATH`
    Unlink(String),
    /// `rmdir PATH`
    Rmdir(String),
    /// `remove PATH`: `unlink` or `rmdir`, depending on the kind.
    Remove(String),
    /// `rename OLD NEW`
    Rename(String, String),
    /// `exchange ONE OTHER`: swaps two names.
    Exchange(String, String),
    /// `setxattr PATH NAME LENGTH`: sets `user.NAME` to a value of LENGTH bytes.
    Setxattr(String, String, u64),
    /// `removexattr PATH NAME`
    Removexattr(String, String),
    /// `chmod PATH OCTAL`
    Chmod(String, u16),
    /// `hold PATH`: keeps the file open until the end.
    Hold(String),
    /// `fsync PATH`, of a file or a directory.
    Fsync(String),
    /// `fdatasync PATH`
    Fdatasync(String),
    /// `sync`
    Sync,
    /// `writeback`: one round of the write-back that age and memory pressure cause, at a chosen
    /// moment. It makes some dirty blocks durable and guarantees nothing.
    WriteBack,
    /// `trim`: discards all free space on the device.
    Trim,
}

/// The operations that a workload may have: the first word of each, and its arguments.
pub const OPERATIONS: &[&str] = &[
    "creat PATH",
    "tmpfile PATH",
    "mkdir PATH",
    "mkfifo PATH",
    "write PATH OFFSET LENGTH",
    "append PATH LENGTH",
    "falloc PATH OFFSET LENGTH [keep]",
    "punch PATH OFFSET LENGTH",
    "truncate PATH SIZE",
    "link PATH NEW",
    "symlink TARGET NEW",
    "unlink PATH",
    "rmdir PATH",
    "remove PATH",
    "rename OLD NEW",
    "exchange ONE OTHER",
    "setxattr PATH NAME LENGTH",
    "removexattr PATH NAME",
    "chmod PATH OCTAL",
    "hold PATH",
    "fsync PATH",
    "fdatasync PATH",
    "sync",
    "writeback",
    "trim",
];

/// Says how an operation is written that could not be read.
fn usage(text: &str) -> Error {
    let word = text.split_whitespace().next().unwrap_or_default();
    let form = OPERATIONS.iter().find(|form| form.split(' ').next() == Some(word));
    Error::Syntax(match form {
        Some(form) => format!("{text:?} is no operation of a workload: write {form:?}"),
        None => format!(
            "{text:?} is no operation of a workload: the operations are {}",
            OPERATIONS.join("; ")
        ),
    })
}

impl Op {
    /// Returns true if it makes something durable and changes nothing else.
    #[must_use]
    pub fn is_persist(&self) -> bool {
        matches!(self, Self::Fsync(_) | Self::Fdatasync(_) | Self::Sync)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Creat(p) => write!(f, "creat {p}"),
            Self::Tmpfile(p) => write!(f, "tmpfile {p}"),
            Self::Mkdir(p) => write!(f, "mkdir {p}"),
            Self::Mkfifo(p) => write!(f, "mkfifo {p}"),
            Self::Write(p, at, n) => write!(f, "write {p} {at} {n}"),
            Self::Append(p, n) => write!(f, "append {p} {n}"),
            Self::Falloc(p, at, n, false) => write!(f, "falloc {p} {at} {n}"),
            Self::Falloc(p, at, n, true) => write!(f, "falloc {p} {at} {n} keep"),
            Self::Punch(p, at, n) => write!(f, "punch {p} {at} {n}"),
            Self::Truncate(p, n) => write!(f, "truncate {p} {n}"),
            Self::Link(p, new) => write!(f, "link {p} {new}"),
            Self::Symlink(target, new) => write!(f, "symlink {target} {new}"),
            Self::Unlink(p) => write!(f, "unlink {p}"),
            Self::Rmdir(p) => write!(f, "rmdir {p}"),
            Self::Remove(p) => write!(f, "remove {p}"),
            Self::Rename(p, new) => write!(f, "rename {p} {new}"),
            Self::Exchange(p, q) => write!(f, "exchange {p} {q}"),
            Self::Setxattr(p, name, n) => write!(f, "setxattr {p} {name} {n}"),
            Self::Removexattr(p, name) => write!(f, "removexattr {p} {name}"),
            Self::Chmod(p, perm) => write!(f, "chmod {p} {perm:o}"),
            Self::Hold(p) => write!(f, "hold {p}"),
            Self::Fsync(p) => write!(f, "fsync {p}"),
            Self::Fdatasync(p) => write!(f, "fdatasync {p}"),
            Self::Sync => f.write_str("sync"),
            Self::WriteBack => f.write_str("writeback"),
            Self::Trim => f.write_str("trim"),
        }
    }
}

impl FromStr for Op {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let own = |p: &&str| (*p).to_owned();
        let size = |n: &&str| parse_size(n).map_err(|e| Error::Syntax(format!("{text:?}: {e}")));
        Ok(match words.as_slice() {
            ["creat", p] => Self::Creat(own(p)),
            ["tmpfile", p] => Self::Tmpfile(own(p)),
            ["mkdir", p] => Self::Mkdir(own(p)),
            ["mkfifo", p] => Self::Mkfifo(own(p)),
            ["write", p, at, n] => Self::Write(own(p), size(at)?, size(n)?),
            ["append", p, n] => Self::Append(own(p), size(n)?),
            ["falloc", p, at, n] => Self::Falloc(own(p), size(at)?, size(n)?, false),
            ["falloc", p, at, n, "keep"] => Self::Falloc(own(p), size(at)?, size(n)?, true),
            ["punch", p, at, n] => Self::Punch(own(p), size(at)?, size(n)?),
            ["truncate", p, n] => Self::Truncate(own(p), size(n)?),
            ["link", p, new] => Self::Link(own(p), own(new)),
            ["symlink", target, new] => Self::Symlink(own(target), own(new)),
            ["unlink", p] => Self::Unlink(own(p)),
            ["rmdir", p] => Self::Rmdir(own(p)),
            ["remove", p] => Self::Remove(own(p)),
            ["rename", p, new] => Self::Rename(own(p), own(new)),
            ["exchange", p, q] => Self::Exchange(own(p), own(q)),
            ["setxattr", p, name, n] => Self::Setxattr(own(p), own(name), size(n)?),
            ["removexattr", p, name] => Self::Removexattr(own(p), own(name)),
            ["chmod", p, perm] => Self::Chmod(
                own(p),
                u16::from_str_radix(perm, 8)
                    .ok()
                    .filter(|perm| *perm < 0o10_000)
                    .ok_or_else(|| Error::Syntax(format!("{text:?}: {perm:?} is no mode")))?,
            ),
            ["hold", p] => Self::Hold(own(p)),
            ["fsync", p] => Self::Fsync(own(p)),
            ["fdatasync", p] => Self::Fdatasync(own(p)),
            ["sync"] => Self::Sync,
            ["writeback"] => Self::WriteBack,
            ["trim"] => Self::Trim,
            _ => return Err(usage(text)),
        })
    }
}

/// Operations, and those that prepare the volume for them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Workload {
    /// Operations done and made durable before the recording begins. Shared: a campaign has tens of
    /// thousands of workloads with the same setup.
    pub setup: Arc<[Op]>,
    /// Operations that are recorded. A `sync` and an unmount are appended.
    pub ops: Vec<Op>,
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, ops: &[Op]| {
            for (i, op) in ops.iter().enumerate() {
                write!(f, "{}{op}", if i == 0 { "" } else { "; " })?;
            }
            Ok(())
        };
        if !self.setup.is_empty() {
            list(f, &self.setup)?;
            f.write_str(" | ")?;
        }
        list(f, &self.ops)
    }
}

impl FromStr for Workload {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let list = |text: &str| -> Result<Vec<Op>> {
            let ops = text.split([';', '\n']).map(str::trim).filter(|op| !op.is_empty());
            ops.map(str::parse).collect()
        };
        match text.split('|').collect::<Vec<_>>().as_slice() {
            [ops] => Ok(Self { setup: Arc::default(), ops: list(ops)? }),
            [setup, ops] => Ok(Self { setup: list(setup)?.into(), ops: list(ops)? }),
            _ => Err(Error::Syntax("a workload has one '|' at most".into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workload_prints_as_it_was_read() {
        let text = "mkdir A; creat A/x; write A/x 0 6144 | hold A/x; unlink A/x; link A/x B; \
                    symlink t l; falloc A/x 0 1 keep; punch A/x 1 2; chmod A 755; setxattr A n 9; \
                    removexattr A n; exchange A B; mkfifo p; fdatasync A/x; fsync A; writeback; trim; tmpfile q; \
                    sync";
        let workload: Workload = text.parse().unwrap();
        assert_eq!((workload.setup.len(), workload.ops.len()), (3, 17));
        assert_eq!(workload.to_string(), text);
        assert_eq!("write a 1k 2K".parse::<Op>().unwrap(), Op::Write("a".into(), 1024, 2048));
    }

    #[test]
    fn every_operation_that_is_listed_is_one_and_errors_list_them() {
        let arguments = [
            ("PATH", "a"),
            ("OFFSET", "0"),
            ("LENGTH", "1"),
            ("[keep]", "keep"),
            ("SIZE", "1"),
            ("NEW", "b"),
            ("TARGET", "t"),
            ("OLD", "a"),
            ("ONE", "a"),
            ("OTHER", "b"),
            ("NAME", "n"),
            ("OCTAL", "755"),
        ];
        for form in OPERATIONS {
            let words = form.split(' ').map(|word| {
                arguments.iter().find(|(name, _)| *name == word).map_or(word, |(_, value)| value)
            });
            let text = words.collect::<Vec<_>>().join(" ");
            assert_eq!(text.parse::<Op>().map(|op| op.to_string()).unwrap(), text);
        }
        let error = |text: &str| text.parse::<Op>().unwrap_err().to_string();
        assert!(error("write d/a 8192").contains("write \"write PATH OFFSET LENGTH\""));
        assert!(error("fly a").contains("creat PATH; tmpfile PATH; "), "{}", error("fly a"));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["creat", "write a 0", "fly a", "chmod a 99", "write a 0 x", "a|b|c", "sync a"]
        {
            assert!(matches!(text.parse::<Workload>(), Err(Error::Syntax(_))), "{text:?}");
        }
    }
}
