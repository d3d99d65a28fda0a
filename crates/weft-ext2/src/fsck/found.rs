//! The findings of the passes: the owners of blocks, the inodes in use and the number of their
//! names.

use super::bitmap::Bitmap;
use super::problem::{Problem, Severity};
use crate::layout::{Geometry, GroupDesc};
use hashbrown::HashMap;

/// The state of an inode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct InodeState {
    /// Set if it is in use: it has links, or is a reserved one.
    pub used: bool,
    /// The code of its kind as in directory entries; 0 if it has none.
    pub kind: u8,
    /// Set if it has neither size nor blocks.
    pub empty: bool,
    /// Set if it cannot be trusted: its mode is impossible.
    pub bad: bool,
    /// Link count as stored.
    pub links: u16,
    /// Names found in directories.
    pub names: u32,
}

/// The code of a directory.
pub(super) const KIND_DIRECTORY: u8 = 2;

/// A block of a directory.
#[derive(Debug, Clone, Copy)]
pub(super) struct DirBlock {
    pub ino: u32,
    /// The number of the block in the directory.
    pub logical: u32,
    pub block: u32,
}

/// The position of a directory in the tree.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DirState {
    /// The directory that names it, and the position of the name.
    pub parent: u32,
    pub name_at: (u32, u16),
    /// The inode that its `..` names, and the position of that.
    pub dotdot: u32,
    pub dotdot_at: Option<(u32, u16)>,
    /// Names in it beside `.` and `..`.
    pub entries: u32,
    /// Set if a path from the root leads to it.
    pub connected: bool,
    /// Set if no path leads to it.
    pub lost: bool,
    /// Set if it is to get a name in lost+found, or lies below a directory that is.
    pub adopted: bool,
    /// Set if it has a hash tree, by its inode's flag.
    pub indexed: bool,
}

/// One more name of a directory that has one.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExtraName {
    pub ino: u32,
    pub parent: u32,
    pub at: (u32, u16),
}

/// An attribute block.
#[derive(Debug, Clone, Copy)]
pub(super) struct AttrBlock {
    pub refs_found: u32,
    pub refs: u32,
}

/// Everything found.
#[derive(Debug)]
pub(super) struct Found {
    pub descs: Vec<GroupDesc>,
    /// The inode tables of the groups that can be read.
    pub tables: Vec<Option<u32>>,
    /// Blocks that belong to something.
    pub blocks: Bitmap,
    /// By group; none where no inode is in use.
    inodes: Vec<Option<Box<[InodeState]>>>,
    pub dirs: HashMap<u32, DirState>,
    pub dir_blocks: Vec<DirBlock>,
    pub extra_names: Vec<ExtraName>,
    pub attrs: HashMap<u32, AttrBlock>,
    /// Some file is of 2 GiB or more.
    pub large_file: bool,
    pub problems: Vec<Problem>,
    /// By severity, also of those that did not fit into `problems`.
    pub counts: [u64; 3],
    max_problems: usize,
    per_group: u32,
}

impl Found {
    pub(super) fn new(geometry: &Geometry, max_problems: usize) -> Self {
        Self {
            descs: Vec::new(),
            tables: Vec::new(),
            blocks: Bitmap::new(geometry.blocks),
            inodes: vec![None; geometry.groups as usize],
            dirs: HashMap::new(),
            dir_blocks: Vec::new(),
            extra_names: Vec::new(),
            attrs: HashMap::new(),
            large_file: false,
            problems: Vec::new(),
            counts: [0; 3],
            max_problems,
            per_group: geometry.inodes_per_group,
        }
    }

    pub(super) fn report(&mut self, problem: Problem) {
        let at = match problem.severity() {
            Severity::Leak => 0,
            Severity::CountOff => 1,
            Severity::Corruption => 2,
        };
        if let Some(count) = self.counts.get_mut(at) {
            *count += 1;
        }
        if self.problems.len() < self.max_problems {
            self.problems.push(problem);
        }
    }

    pub(super) fn inode(&self, ino: u32) -> InodeState {
        let index = ino.wrapping_sub(1);
        self.inodes
            .get((index / self.per_group) as usize)
            .and_then(Option::as_ref)
            .and_then(|group| group.get((index % self.per_group) as usize))
            .copied()
            .unwrap_or_default()
    }

    /// The state of an inode to change; `None` outside the volume.
    pub(super) fn inode_mut(&mut self, ino: u32) -> Option<&mut InodeState> {
        let index = ino.wrapping_sub(1);
        let per_group = self.per_group as usize;
        let group = self.inodes.get_mut((index / self.per_group) as usize)?;
        group
            .get_or_insert_with(|| vec![InodeState::default(); per_group].into_boxed_slice())
            .get_mut((index % self.per_group) as usize)
    }

    /// All inodes in use.
    pub(super) fn used_inodes(&self) -> impl Iterator<Item = (u32, InodeState)> + '_ {
        let per_group = self.per_group;
        (0_u32..).zip(&self.inodes).flat_map(move |(group, states)| {
            (0_u32..)
                .zip(states.iter().flat_map(|s| s.iter()))
                .filter(|(_, state)| state.used)
                .map(move |(index, state)| (group * per_group + index + 1, *state))
        })
    }
}
