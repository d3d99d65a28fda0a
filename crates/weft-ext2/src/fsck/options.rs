//! Options of a check and of its repair.

use weft_block::BlockDevice;

/// The treatment of a file that has no name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unattached {
    /// It gets one in lost+found, if it has content.
    #[default]
    Reattach,
    /// It is deleted. Right after a crash under soft updates, where such a file had been removed
    /// or had not got its name yet.
    Free,
}

/// Options of a repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Repair {
    /// Files without a name.
    pub unattached: Unattached,
}

/// The progress of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The pass, from 1 to 5.
    pub pass: u8,
    /// Steps of it that are done.
    pub done: u64,
    /// Steps it has.
    pub total: u64,
}

/// Options of a check.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// The repair to make; `None` only checks.
    pub repair: Option<Repair>,
    /// A function that is called with the progress of the check.
    pub progress: Option<&'a dyn Fn(Progress)>,
    /// The most problems to list; all are counted.
    pub max_problems: usize,
    /// The external journal, if the volume has one.
    pub journal: Option<&'a dyn BlockDevice>,
    /// The time a repair leaves in the volume, seconds since 1970; `None`: now.
    pub time: Option<u32>,
}

impl std::fmt::Debug for Options<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("repair", &self.repair)
            .field("max_problems", &self.max_problems)
            .field("time", &self.time)
            .finish_non_exhaustive()
    }
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self { repair: None, progress: None, max_problems: 100_000, journal: None, time: None }
    }
}

impl Options<'_> {
    /// Returns the options to check and repair.
    #[must_use]
    pub fn repair() -> Self {
        Self { repair: Some(Repair::default()), ..Self::default() }
    }
}
