//! The report of changes that are not durable, by file and by name.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::window::Moment;
use crate::calls::{CallNr, NodeNr};
use crate::effects::{Change, PAGE_BYTES, Resizing};
use crate::model::UnitNr;
use crate::words::{CallText, Paths, describe_with};

/// The changes of a folder that a power cut could take away.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// The files of which something is not durable, by path.
    pub files: Vec<PendingFile>,
    /// The calls whose names are not durable: `creat`, `rename`, `unlink`, `mkdir` and others, in
    /// their order.
    pub names: Vec<CallText>,
    /// The number of calls of which something is not durable.
    pub calls: u64,
    /// The number of bytes that are not durable.
    pub bytes: u64,
}

/// The changes of a file or directory that are not durable, but for those of its names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingFile {
    /// Its path without the mount, as it is now.
    pub path: String,
    /// It was made, and its inode is not durable.
    pub is_new: bool,
    /// Ranges of bytes that were written, and are not durable: the first byte, and the one behind
    /// the last.
    pub ranges: Vec<(u64, u64)>,
    /// The size in bytes if that is not durable.
    pub size_bytes: Option<u64>,
    /// Permission bits, owner or extended attributes are not durable.
    pub attributes: bool,
}

impl PendingFile {
    /// The number of bytes that are not durable.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|(from, to)| to - from).sum()
    }

    fn add(&mut self, change: &Change) {
        match change {
            Change::Node(_) => self.is_new = true,
            // Writes to a file that is made shorter behind its new end are shown, too: a power cut
            // may bring back the longer file.
            Change::Page { bytes, .. } => {
                let from = bytes.page * PAGE_BYTES + bytes.start as u64;
                self.ranges.push((from, from + bytes.len as u64));
            }
            Change::Size { size_bytes, .. } => self.size_bytes = Some(*size_bytes),
            Change::Attributes { .. } | Change::Xattr { .. } => self.attributes = true,
            Change::Name { .. } | Change::Block { .. } => {}
        }
    }

    /// Joins ranges that touch.
    fn join_ranges(&mut self) {
        self.ranges.sort_unstable();
        let mut joined: Vec<(u64, u64)> = Vec::new();
        for &(from, to) in &self.ranges {
            match joined.last_mut() {
                Some((_, end)) if *end >= from => *end = to.max(*end),
                _ => joined.push((from, to)),
            }
        }
        self.ranges = joined;
    }
}

impl Pending {
    /// Reports the pending units for whose place `is_in` returns true.
    pub(crate) fn of(moment: &Moment, is_in: impl Fn(usize) -> bool) -> Self {
        let subject = &moment.subject;
        let units = &subject.units;
        let places = 0..moment.epoch.pending.len();
        let chosen: Vec<UnitNr> =
            places.filter(|place| is_in(*place)).map(|place| moment.epoch.pending[place]).collect();
        let mut files: BTreeMap<NodeNr, PendingFile> = BTreeMap::new();
        let mut found = Self::default();
        let mut paths = Paths::at(&subject.base, &subject.calls, CallNr(0));
        let (mut at, mut last, mut last_name) = (0, None, None);
        for unit in chosen {
            let call = units.units[unit.index()].call;
            subject.calls[at..call.index()].iter().for_each(|call| paths.after(call));
            at = call.index();
            found.calls += u64::from(last != Some(call));
            last = Some(call);
            for change in units.changes(unit) {
                if !matches!(change, Change::Name { .. }) {
                    files.entry(change.node()).or_default().add(change);
                } else if last_name != Some(call) {
                    last_name = Some(call);
                    let mut text = describe_with(&paths, &subject.calls[call.index()], call);
                    let nr = moment.first + u64::from(text.nr);
                    text.nr = u32::try_from(nr).unwrap_or(u32::MAX);
                    found.names.push(text);
                }
            }
        }
        subject.calls[at..].iter().for_each(|call| paths.after(call));
        for (node, mut file) in files {
            file.path = paths.of(node);
            file.join_ranges();
            found.bytes += file.bytes();
            found.files.push(file);
        }
        found.files.sort_by(|a, b| a.path.cmp(&b.path));
        found
    }

    /// Returns true if a power cut could take nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.names.is_empty()
    }
}

/// Returns true for a change of the size by a write: the data say the same.
pub(crate) fn is_append(change: &Change) -> bool {
    matches!(change, Change::Size { why: Resizing::Append, .. })
}

impl fmt::Display for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for file in &self.files {
            let PendingFile { path, is_new, ranges, size_bytes, attributes } = file;
            let mut parts = Vec::new();
            if *is_new {
                parts.push("new inode".to_owned());
            }
            if !ranges.is_empty() {
                let ranges: Vec<String> =
                    ranges.iter().map(|(from, to)| format!("{from} to {to}")).collect();
                parts.push(format!("bytes {}", ranges.join(", ")));
            }
            parts.extend(size_bytes.map(|size| format!("size {size}")));
            if *attributes {
                parts.push("attributes".to_owned());
            }
            writeln!(f, "{path:?}: {}", parts.join("; "))?;
        }
        for CallText { text, by, .. } in &self.names {
            let by = if by.is_empty() { String::new() } else { format!("  by {by}") };
            writeln!(f, "{text}{by}")?;
        }
        Ok(())
    }
}
