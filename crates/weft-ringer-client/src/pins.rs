//! The files and directories that are kept here whole.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use weft_ringer::{RnodeId, Version};

/// The roots of the pinned trees. Stored in a file, a number on each line.
#[derive(Debug, Default)]
pub(super) struct Pins {
    pub(super) roots: BTreeSet<RnodeId>,
    /// Files below them that are here, with the version of their content.
    pub(super) have: BTreeMap<RnodeId, Version>,
    /// The number of files below them that are not.
    pub(super) lacking: u64,
}

impl Pins {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => String::new(),
            Err(e) => return Err(e),
        };
        let numbers: std::result::Result<BTreeSet<u64>, _> = text.lines().map(str::parse).collect();
        let damaged = |_| io::Error::new(io::ErrorKind::InvalidData, "the list of pins is damaged");
        let roots = numbers.map_err(damaged)?.into_iter().map(RnodeId).collect();
        Ok(Self { roots, ..Self::default() })
    }

    pub(super) fn save(&self, path: &Path) -> io::Result<()> {
        let text: String = self.roots.iter().map(|id| format!("{}\n", id.0)).collect();
        weft_ringer_net::replace(path, text.as_bytes())
    }
}
