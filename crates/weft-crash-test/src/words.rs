//! Calls in words: with the paths that their inodes had at that moment.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use weft_vfs::memfs::Snapshot;

use crate::calls::{Action, Call, CallNr, NodeNr, ROOT};
use crate::effects::{Change, Resizing};
use crate::model::{UnitNr, Units};

/// A call, as a message shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallText {
    /// Its number in the recording, from 1.
    pub nr: u32,
    /// The command and process that made it, such as `python3[7]`; empty for the kernel's own.
    pub by: String,
    /// The call, such as `write("f.tmp", bytes 0 to 4096)`.
    pub text: String,
    /// The path of what it changes, without the mount.
    pub path: String,
}

/// The paths of inodes at a moment of a recording.
#[derive(Debug)]
pub struct Paths {
    /// A name of each inode: its directory and the name.
    names: HashMap<NodeNr, (NodeNr, Vec<u8>)>,
}

impl Paths {
    /// The paths when the calls before `end` had been made. An inode that has lost its last name
    /// keeps it here.
    #[must_use]
    pub fn at(base: &Snapshot, calls: &[Call], end: CallNr) -> Self {
        let mut names = HashMap::new();
        for (dir, node) in base.nodes() {
            for (name, to) in node.entries() {
                names.insert(NodeNr(to), (NodeNr(dir), name.to_vec()));
            }
        }
        let mut paths = Self { names };
        calls[..end.index().min(calls.len())].iter().for_each(|call| paths.after(call));
        paths
    }

    /// Goes on to the paths after a call.
    pub fn after(&mut self, call: &Call) {
        match &call.action {
            Action::Create { new, at: Some(at) } => self.set(new.node, at.dir, &at.name),
            Action::Link { node, at } => self.set(*node, at.dir, &at.name),
            Action::Rename { from, to, node, replaced, exchange, .. } => {
                if let Some(replaced) = replaced.filter(|_| *exchange) {
                    self.set(replaced, from.dir, &from.name);
                }
                self.set(*node, to.dir, &to.name);
            }
            _ => {}
        }
    }

    fn set(&mut self, node: NodeNr, dir: NodeNr, name: &[u8]) {
        self.names.insert(node, (dir, name.to_vec()));
    }

    /// Returns true if an inode has a name.
    pub(crate) fn knows(&self, node: NodeNr) -> bool {
        self.names.contains_key(&node)
    }

    /// The path of an inode, `.` for the root.
    #[must_use]
    pub fn of(&self, node: NodeNr) -> String {
        if node == ROOT {
            return ".".into();
        }
        let mut parts = Vec::new();
        let mut at = node;
        // A tree is never as deep as this: directories that were moved may form a circle here.
        while at != ROOT && parts.len() < 256 {
            let Some((dir, name)) = self.names.get(&at) else {
                parts.push(format!("(file {} without a name)", at.0));
                break;
            };
            parts.push(String::from_utf8_lossy(name).into_owned());
            at = *dir;
        }
        parts.reverse();
        parts.join("/")
    }

    /// The path of a name in a directory.
    pub(crate) fn place(&self, dir: NodeNr, name: &[u8]) -> String {
        let name = String::from_utf8_lossy(name);
        if dir == ROOT { name.into_owned() } else { format!("{}/{name}", self.of(dir)) }
    }
}

/// Describes a call.
#[must_use]
pub fn describe(base: &Snapshot, calls: &[Call], nr: CallNr) -> CallText {
    let Some(call) = calls.get(nr.index()) else {
        let (by, text, path) = (String::new(), "the end of the program".into(), String::new());
        return CallText { nr: nr.0 + 1, by, text, path };
    };
    let mut text = describe_with(&Paths::at(base, calls, nr), call, nr);
    if call.action.is_block()
        && let Some(last) = calls[..nr.index()].iter().rposition(|call| !call.action.is_block())
    {
        let last = CallNr(last as u32);
        let before = describe_with(&Paths::at(base, calls, last), &calls[last.index()], last);
        text.text = format!("{} after {}", text.text, before.text);
    }
    text
}

/// Describes a call, with the paths before it.
#[must_use]
pub(crate) fn describe_with(paths: &Paths, call: &Call, nr: CallNr) -> CallText {
    let name = call.action.name();
    let of = |node: &NodeNr| paths.of(*node);
    let (path, text) = match &call.action {
        Action::Create { new, at: Some(at) } => {
            let path = paths.place(at.dir, &at.name);
            let target = String::from_utf8_lossy(&new.target);
            let text = match new.target.is_empty() {
                true => format!("{name}({path:?})"),
                false => format!("{name}({target:?}, {path:?})"),
            };
            (path, text)
        }
        Action::Create { at: None, .. } => (String::new(), name.to_owned()),
        Action::Link { node, at } => {
            let path = paths.place(at.dir, &at.name);
            (path.clone(), format!("{name}({:?}, {path:?})", of(node)))
        }
        Action::Remove { at, .. } => {
            let path = paths.place(at.dir, &at.name);
            (path.clone(), format!("{name}({path:?})"))
        }
        Action::Rename { from, to, .. } => {
            let (from, to) = (paths.place(from.dir, &from.name), paths.place(to.dir, &to.name));
            (to.clone(), format!("{name}({from:?}, {to:?})"))
        }
        Action::Write(span) | Action::Zero(span) => {
            let path = of(&span.node);
            let end = span.offset + span.len_bytes;
            (path.clone(), format!("{name}({path:?}, bytes {} to {end})", span.offset))
        }
        Action::Resize(span) => {
            let path = of(&span.node);
            (path.clone(), format!("{name}({path:?}, {})", span.size_after))
        }
        Action::Attributes { node, perm, .. } => {
            let path = of(node);
            (path.clone(), format!("{name}({path:?}, {perm:03o})"))
        }
        Action::Xattr { node, name: attribute, .. } => {
            let path = of(node);
            (path.clone(), format!("{name}({path:?}, {:?})", String::from_utf8_lossy(attribute)))
        }
        Action::Fsync { node, .. } | Action::FsyncDir { dir: node } | Action::Close { node } => {
            let path = of(node);
            (path.clone(), format!("{name}({path:?})"))
        }
        Action::BlockWrite { offset, .. } => {
            let end = offset + call.data.len() as u64;
            ("volume".into(), format!("block write(bytes {offset} to {end} of the volume)"))
        }
        Action::BlockDiscard { offset, len_bytes } => {
            let end = offset + len_bytes;
            ("volume".into(), format!("block discard(bytes {offset} to {end} of the volume)"))
        }
        Action::BlockFlush { .. } => ("volume".into(), "block flush()".into()),
        Action::Sync => (String::new(), "sync()".into()),
        Action::Promise { line } => (String::new(), format!("the program printed {line:?}")),
        Action::Mark { text } => (String::new(), format!("mark {text:?}")),
        Action::Nothing => (String::new(), "left out".into()),
        Action::End => (String::new(), "the program ended".into()),
    };
    let by = match call.process.pid {
        0 => String::new(),
        pid => format!("{}[{pid}]", call.process.command),
    };
    CallText { nr: nr.0 + 1, by, text, path }
}

/// The part of a call that a unit is.
#[must_use]
pub fn part(units: &Units, unit: UnitNr) -> &'static str {
    let mut parts = units.changes(unit).map(|change| match change {
        Change::Page { .. } => "data",
        Change::Size { why: Resizing::Append, .. } => "size",
        Change::Size { .. } => "new size",
        Change::Node(_) => "new inode",
        Change::Name { node: Some(_), .. } => "new name",
        Change::Name { node: None, .. } => "removal of the name",
        Change::Attributes { .. } => "attributes",
        Change::Xattr { .. } => "attribute",
        Change::Block { .. } => "block",
    });
    let first = parts.next().unwrap_or_default();
    // A call whose parts stay together is named as a whole.
    if parts.next().is_some() { "" } else { first }
}

/// A path with its numbers left out, by which findings of one kind are recognised: `*` stands for
/// each run of digits, and for each word of 8 or more hexadecimal digits.
#[must_use]
pub fn kind_of_path(path: &str) -> String {
    let mut kind = String::new();
    for part in path.split_inclusive(|c: char| !c.is_ascii_alphanumeric()) {
        let word = part.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
        if word.len() >= 8 && word.chars().all(|c| c.is_ascii_hexdigit()) {
            kind.push('*');
        } else {
            for c in word.chars() {
                match c.is_ascii_digit() {
                    true if kind.ends_with('*') => {}
                    true => kind.push('*'),
                    false => kind.push(c),
                }
            }
        }
        kind.push_str(&part[word.len()..]);
    }
    kind
}

#[cfg(test)]
mod tests {
    use super::kind_of_path;

    #[test]
    fn numbers_in_paths_are_left_out() {
        assert_eq!(kind_of_path("log/000012.ldb"), "log/*.ldb");
        assert_eq!(kind_of_path("t0001-x2y"), "t*-x*y");
        assert_eq!(kind_of_path(".git/objects/ab/c0ffee00c0ffee"), ".git/objects/ab/*");
        assert_eq!(kind_of_path("f.tmp"), "f.tmp");
    }
}
