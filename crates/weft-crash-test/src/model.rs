//! Models of persistence: what a file system promises about the order in which changes reach the
//! disk, and about what `fsync` makes durable.
//!
//! A model turns the calls of a recording into *units*, each of which is durable or lost as a whole,
//! says for each unit which others must be durable first, and after which call it is durable for
//! certain. A state that a power cut can leave is then every set of units that contains what is
//! durable for certain, and with each unit those that it requires.
//!
//! | | `posix` | `ext4-ordered` | `xfs-like` | `btrfs-like` |
//! |---|---|---|---|---|
//! | changes of names and inodes | in any order | in the order of the calls | same | same, but for inodes that were fsynced |
//! | the parts of a `rename` | apart | together | together | together in one directory |
//! | overwritten pages | at any time | at any time | at any time | at any time |
//! | the end of the last page of a file made shorter | cleared at any time | same | same | same |
//! | a file that grew | size and data apart | same, the size in the order of the calls | size after its data | same, but in a file that was made shorter |
//! | `rename` over a file | alone | after the size of the file (`auto_da_alloc`), not its data | alone | alone |
//! | `fsync` of a file | the file, if it has a name | the file, and all names and inodes changed before its own last change | same | the file and its names, if it has one |
//! | `fsync` of a file that has had no name yet | the file, for when it has one | as of others | same | as `posix` |
//! | `sync` | all but overwritten pages | all | all but overwritten pages | all |
//! | `fsync` of a directory | its names, but for files that were moved elsewhere | the same for the directory's last change | same | as `posix`, and the inodes it names |
//!
//! Sources:
//!
//! - `posix`: IEEE 1003.1-2017, `fsync` (Synchronized I/O) and `rename`; fsync(2) of Linux: "Calling
//!   fsync() does not necessarily ensure that the entry in the directory containing the file has
//!   also reached disk". It orders nothing else, as the *most permissive* model of the ALICE paper
//!   (Pillai and others, "All File Systems Are Not Created Equal", OSDI 2014, section 3) does.
//! - `ext4-ordered`: the kernel's `Documentation/filesystems/ext4/` (`data=ordered`,
//!   `auto_da_alloc`, `delalloc`), `fs/ext4/fsync.c` (the transaction that `fsync` commits is that of
//!   the inode's last change), and table 1 of the same paper. That documentation says that the data
//!   of a file which replaces another are on the disk before the `rename`. Since Linux 5.6 they need
//!   not be: new blocks are marked as unwritten until the data are there (`dioread_nolock`, the
//!   default since commit 244adf6426ee), `mpage_map_and_submit_extent` sets the size when they are
//!   allocated, and the journal waits for no data. The file is as long as it should be, of zeroes.
//! - `xfs-like`: the kernel's `Documentation/filesystems/xfs/`, `fs/xfs/xfs_file.c` (`xfs_file_fsync`
//!   forces the log up to the inode's last change) and `fs/xfs/xfs_aops.c` (the size on disk is
//!   changed when the write has ended), `fs/xfs/xfs_super.c` (`xfs_fs_sync_fs` forces the log, which
//!   flushes the disk only if there is something to write to it).
//! - `btrfs-like`: btrfs(5); `fs/btrfs/tree-log.c` (`btrfs_log_inode_parent`: an fsync logs the inode,
//!   its names and its new parents, not what else the transaction holds, and nothing of an inode
//!   without a name; `btrfs_log_new_name` and `btrfs_del_dir_entries_in_log`: later changes of its
//!   names, and of those in a directory that was fsynced, change the log, up to the next commit); and the guarantees collected in Mohan and others, "Finding
//!   Crash-Consistency Bugs with Bounded Black-Box Crash Testing" (OSDI 2018).
//!
//! The models are judged by the file systems themselves: `examples/judge_models` runs random
//! workloads on the kernel's ext4, XFS and btrfs over a recorded disk, and asks of each tree that a
//! power cut leaves whether the file system's model and `posix` allow it. With Linux 6.18.44:
//!
//! | `judge_models` | workloads | states of the disk | trees | not allowed |
//! |---|---|---|---|---|
//! | `ext4 --seeds 0..2889` | 2,889 | 105,228 | 9,047 | none |
//! | `xfs --seeds 0..992` | 992 | 8,584 | 2,825 | none |
//! | `btrfs --seeds 5000..6027` | 1,027 | 40,165 | 2,703 | in one workload |
//! | `btrfs --names --seeds 0..545` | 545 | 20,924 | 1,471 | none |
//! | `btrfs --seeds 50000..50540` | 540 | 21,474 | 1,475 | in two workloads |
//! | `btrfs --names --seeds 50000..50557` | 557 | 22,020 | 1,630 | none |
//! | `btrfs --seeds 50000..50174`, since the log of a directory counts | 174 | 6,751 | 458 | none |
//! | `btrfs --names --seeds 60000..60017`, the same | 17 | 673 | 46 | none |
//!
//! Not judged were 200 states of ext4 and 31 of XFS, of workloads that allow too many. In the two
//! workloads a `rename` exchanges a file that is logged with another: of what was changed before, a new
//! name or an attribute is missing that the model holds to it. What no model allows in the one is a
//! fault of btrfs: the `fsync` of an open file without a name, which another that was
//! never fsynced has replaced by `rename`, undoes an earlier `fsync` of it. After a power cut the
//! name has the content from before both.
//!
//! Where a source leaves something open, the model allows it.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::calls::{Action, Call, CallNr, NodeNr, ROOT};
use crate::effects::{Change, Effect, PAGE_BYTES, Resizing, changes_of};
use crate::inode_log::InodeLog;
use crate::{Error, Result};

mod restored;

/// A model of persistence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Model {
    /// What was not fsynced may be lost in any combination.
    Posix,
    /// ext4 as distributions mount it: `data=ordered,delalloc,auto_da_alloc`.
    #[serde(rename = "ext4-ordered")]
    Ext4Ordered,
    /// A file system with a log of metadata and late allocation, without ext4's exceptions.
    XfsLike,
    /// A file system that commits trees, and logs single inodes for `fsync`.
    BtrfsLike,
    /// No model but a volume: what counts are the blocks that weft's file system wrote, any of which
    /// may be lost up to the next flush.
    Volume,
}

impl Model {
    /// All models of calls, the most permissive first.
    pub const ALL: [Self; 4] = [Self::Posix, Self::Ext4Ordered, Self::XfsLike, Self::BtrfsLike];

    /// The file systems that people use; `posix` permits more than any of them.
    pub const COMMON: [Self; 3] = [Self::Ext4Ordered, Self::XfsLike, Self::BtrfsLike];

    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Posix => "posix",
            Self::Ext4Ordered => "ext4-ordered",
            Self::XfsLike => "xfs-like",
            Self::BtrfsLike => "btrfs-like",
            Self::Volume => "volume",
        }
    }

    /// Names and inodes change on the disk in the order of the calls.
    fn has_ordered_metadata(self) -> bool {
        self != Self::Posix
    }

    /// A file grows on the disk only when the page that it grows by is there. ext4 changes the size
    /// when it has allocated the blocks, which hold zeroes until the data are there.
    fn writes_data_before_size(self) -> bool {
        matches!(self, Self::XfsLike | Self::BtrfsLike)
    }

    /// A file that replaces another has its blocks allocated first, and with them its size; one that
    /// was emptied, when it is closed.
    fn allocates_replacements(self) -> bool {
        self == Self::Ext4Ordered
    }

    /// `sync` flushes the disk in any case. XFS does only if there is something to write to its log,
    /// and so not if old blocks were written and the times of the file are those that it had. POSIX
    /// does not ask that `sync` waits.
    fn flushes_data_for_sync(self) -> bool {
        !matches!(self, Self::Posix | Self::XfsLike)
    }

    /// `fsync` writes the inode and its names, and nothing else.
    fn logs_single_inodes(self) -> bool {
        self == Self::BtrfsLike
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Model {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|model| model.name() == name);
        found.ok_or_else(|| Error::UnknownModel(name.to_owned()))
    }
}

/// The place of a unit in [`Units`], in the order of the calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnitNr(pub u32);

impl UnitNr {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Changes that are durable or lost together.
#[derive(Debug, Clone)]
pub struct Unit {
    /// The call that made them.
    pub call: CallNr,
    /// Its changes: a range of [`Units::effects`] would not do, since a call's data lie between.
    pub effects: Vec<u32>,
    /// Units that are durable whenever this one is. All are earlier.
    pub requires: Vec<UnitNr>,
    /// The call after which it is durable for certain.
    pub durable_after: Option<CallNr>,
}

/// The units of a recording under a model.
#[derive(Debug, Clone)]
pub struct Units {
    /// The changes of all calls.
    pub effects: Vec<Effect>,
    /// The units, in the order of their calls.
    pub units: Vec<Unit>,
    /// Whether an `fsync` may make a unit durable before others that the unit requires.
    pub(crate) out_of_order: bool,
}

impl Units {
    /// Derives the units of `calls`. `base_size` returns the size of a file at the beginning, in
    /// bytes; `None` for an inode that the calls make.
    #[must_use]
    pub fn new(model: Model, calls: &[Call], base_size: &dyn Fn(NodeNr) -> Option<u64>) -> Self {
        let mut builder = Builder::new(model, base_size);
        for (nr, call) in (0..).map(CallNr).zip(calls) {
            match model {
                Model::Volume => builder.add_blocks(nr, call),
                _ => builder.add(nr, call),
            }
        }
        let out_of_order = model.logs_single_inodes();
        let Builder { effects, mut units, chain, log, .. } = builder;
        log.finish(&chain, &mut units);
        Self { effects, units, out_of_order }
    }

    /// The changes of a unit.
    pub fn changes(&self, unit: UnitNr) -> impl Iterator<Item = &Change> {
        self.units[unit.index()].effects.iter().map(|e| &self.effects[*e as usize].change)
    }
}

/// What is known of an inode while the calls are read.
#[derive(Default)]
struct Node {
    /// The unit in which it came into being.
    made: Option<UnitNr>,
    /// The last change of each page.
    pages: HashMap<u64, UnitNr>,
    /// Units with data that are not durable for certain: pages, and sizes of appends.
    data: Vec<UnitNr>,
    /// Units of metadata that are not durable for certain: attributes, sizes, names of it or in it.
    metadata: Vec<UnitNr>,
    /// The last metadata unit that changed it, and the last that a `fdatasync` must write.
    last: Option<UnitNr>,
    last_for_data: Option<UnitNr>,
    /// Where it was last made shorter, and to which size in bytes.
    shrunk: Vec<(UnitNr, u64)>,
    /// Made shorter, and that is not durable for certain. btrfs logs the size of a file for a new
    /// name of it, and neither what was cut off nor new data.
    is_shorter: bool,
    /// Emptied since it was last written back: it will be written when it is closed.
    emptied: bool,
    /// The units that gave it a name, with the directory.
    names: Vec<(UnitNr, NodeNr)>,
    /// The names that it got, less those that it lost. A `rename` moves one.
    links: i64,
}

struct Builder<'a> {
    model: Model,
    base_size: &'a dyn Fn(NodeNr) -> Option<u64>,
    effects: Vec<Effect>,
    units: Vec<Unit>,
    nodes: HashMap<NodeNr, Node>,
    /// The metadata units in order, where the model has an order; those before `durable` are
    /// durable for certain.
    chain: Vec<UnitNr>,
    durable: usize,
    /// Data that the next metadata unit must wait for.
    ordered: Vec<UnitNr>,
    /// Where single inodes are logged: what is not in the order of `chain`.
    log: InodeLog,
}

impl<'a> Builder<'a> {
    fn new(model: Model, base_size: &'a dyn Fn(NodeNr) -> Option<u64>) -> Self {
        Self {
            model,
            base_size,
            effects: Vec::new(),
            units: Vec::new(),
            nodes: HashMap::new(),
            chain: Vec::new(),
            durable: 0,
            ordered: Vec::new(),
            log: InodeLog::default(),
        }
    }

    fn node(&mut self, node: NodeNr) -> &mut Node {
        self.nodes.entry(node).or_default()
    }

    fn add(&mut self, nr: CallNr, call: &Call) {
        match &call.action {
            Action::Fsync { node, data_only } => self.fsync(nr, *node, false, *data_only),
            Action::FsyncDir { dir } => self.fsync(nr, *dir, true, false),
            Action::Sync => self.sync(nr),
            Action::Close { node } => self.close(*node),
            _ => {}
        }
        let changes = changes_of(call);
        if changes.is_empty() {
            return;
        }
        let together = match &call.action {
            Action::Rename { is_dir: true, .. } => true,
            // What the `fsync` of one directory writes is not in the other.
            Action::Rename { from, to, .. } if from.dir != to.dir => {
                self.model.has_ordered_metadata() && !self.model.logs_single_inodes()
            }
            _ => self.model.has_ordered_metadata(),
        };
        self.forget_replaced(nr, call);
        let mut metadata = Vec::new();
        for change in changes {
            let effect = self.effects.len() as u32;
            let is_data = change.is_data();
            self.effects.push(Effect { call: nr, change });
            if is_data {
                self.data(nr, effect);
            } else if together {
                metadata.push(effect);
            } else {
                self.metadata(nr, call, vec![effect]);
            }
        }
        if !metadata.is_empty() {
            self.metadata(nr, call, metadata);
        }
        self.restore_removed(nr, call);
    }

    /// The blocks of a volume: each is a unit of its own, and nothing orders them but a flush.
    fn add_blocks(&mut self, nr: CallNr, call: &Call) {
        if let Action::BlockFlush { covers } = &call.action {
            let pending = self.units[self.durable..].iter_mut();
            for unit in pending.take_while(|unit| unit.call < *covers) {
                unit.durable_after.get_or_insert(nr);
            }
            self.durable = self.units.partition_point(|unit| unit.call < *covers);
            return;
        }
        if !call.action.is_block() {
            return;
        }
        for change in changes_of(call) {
            let effect = self.effects.len() as u32;
            self.effects.push(Effect { call: nr, change });
            let unit = self.push(nr, vec![effect], Vec::new());
            if matches!(call.action, Action::BlockWrite { durable: true, .. }) {
                self.units[unit.index()].durable_after = Some(nr);
            }
        }
    }

    fn push(&mut self, call: CallNr, effects: Vec<u32>, mut requires: Vec<UnitNr>) -> UnitNr {
        requires.sort_unstable();
        requires.dedup();
        let unit = UnitNr(self.units.len() as u32);
        self.units.push(Unit { call, effects, requires, durable_after: None });
        unit
    }

    /// A page, or the size that a write grew a file to.
    fn data(&mut self, nr: CallNr, effect: u32) {
        let change = self.effects[effect as usize].change.clone();
        let node_nr = change.node();
        let model = self.model;
        let chain = self.chain.last().copied();
        let node = self.node(node_nr);
        let mut requires: Vec<UnitNr> = node.made.into_iter().collect();
        match &change {
            Change::Page { bytes, .. } => {
                // The page in memory holds what was written into it before. If the whole page was
                // cut off, the new bytes have a block of their own.
                requires.extend(node.pages.get(&bytes.page));
                let mut cut = node.shrunk.iter().rev();
                let cut = cut.find(|(_, size)| *size <= bytes.page * PAGE_BYTES);
                requires.extend(cut.map(|(unit, _)| *unit));
                let page = bytes.page;
                let unit = self.push(nr, vec![effect], requires);
                let node = self.node(node_nr);
                node.pages.insert(page, unit);
                node.data.push(unit);
            }
            Change::Size { size_bytes, .. } => {
                let is_apart = node.is_shorter && model.logs_single_inodes();
                if model.writes_data_before_size() && !is_apart {
                    let page = (size_bytes - 1) / PAGE_BYTES;
                    requires.extend(node.pages.get(&page));
                }
                if model.has_ordered_metadata() && !model.logs_single_inodes() {
                    requires.extend(chain);
                }
                let unit = self.push(nr, vec![effect], requires);
                self.node(node_nr).data.push(unit);
                self.note_order(unit, is_apart);
            }
            _ => {}
        }
    }

    /// Notes a unit that commits order and logs do not.
    fn note_order(&mut self, unit: UnitNr, is_loose: bool) {
        if self.model.logs_single_inodes() {
            self.log.note(unit, self.chain.len(), &self.units, &self.effects, is_loose);
        }
    }

    /// The sizes among the data of a file that are not durable for certain.
    fn sizes(&self, node: NodeNr) -> Vec<UnitNr> {
        let Some(node) = self.nodes.get(&node) else { return Vec::new() };
        let is_size = |unit: &UnitNr| {
            let effects = &self.units[unit.index()].effects;
            effects.iter().any(|e| matches!(self.effects[*e as usize].change, Change::Size { .. }))
        };
        node.data.iter().copied().filter(is_size).collect()
    }

    /// Changes of names, inodes and attributes.
    fn metadata(&mut self, nr: CallNr, call: &Call, effects: Vec<u32>) {
        let mut requires = Vec::new();
        if self.model.has_ordered_metadata() && !self.model.logs_single_inodes() {
            requires.extend(self.chain.last());
            requires.append(&mut self.ordered);
        }
        if self.model.allocates_replacements()
            && let Action::Rename { node, replaced: Some(_), exchange: false, .. } = &call.action
        {
            requires.extend(self.sizes(*node));
        }
        for effect in &effects {
            let change = &self.effects[*effect as usize].change;
            let mut touched = vec![change.node()];
            if let Change::Name { node, .. } = change {
                touched.extend(*node);
            }
            for node in touched {
                let made = self.nodes.get(&node).and_then(|n| n.made);
                requires.extend(made);
            }
        }
        // A directory that is moved twice has one parent at a time.
        if let Action::Rename { node, is_dir: true, .. } = &call.action {
            let node = *node;
            let last = self.node(node).last;
            requires.extend(last);
        }
        // The old name is not lost without the new one.
        if self.model.logs_single_inodes()
            && let Action::Rename { .. } = &call.action
        {
            let last = self.units.len().checked_sub(1).filter(|last| self.units[*last].call == nr);
            requires.extend(last.map(|last| UnitNr(last as u32)));
        }
        let unit = self.push(nr, effects.clone(), requires);
        self.note_order(unit, false);
        if self.model.has_ordered_metadata() {
            self.chain.push(unit);
        }
        for effect in effects {
            let change = self.effects[effect as usize].change.clone();
            self.note_metadata(unit, &change, call);
        }
    }

    /// Notes which inodes a unit of metadata has changed.
    fn note_metadata(&mut self, unit: UnitNr, change: &Change, call: &Call) {
        let base = (self.base_size)(change.node());
        let leaves = match &call.action {
            Action::Rename { from, to, is_dir: false, .. } => from.dir != to.dir,
            _ => false,
        };
        let node = self.node(change.node());
        node.last = Some(unit);
        // The `fsync` of the directory that a file has left may leave it there: btrfs does not log
        // that an inode has gone which it has logged with its new name.
        if !(leaves && matches!(change, Change::Name { node: None, .. })) {
            node.metadata.push(unit);
        }
        match change {
            Change::Node(_) => {
                node.made = Some(unit);
                node.last_for_data = Some(unit);
            }
            Change::Size { size_bytes, why, .. } => {
                // A `truncate` to the size that a file has changes its times alone.
                let is_same = matches!(&call.action,
                    Action::Resize(span) if span.size_before == span.size_after);
                if !is_same {
                    node.last_for_data = Some(unit);
                }
                if *why == Resizing::Shrink {
                    node.is_shorter = true;
                    node.shrunk.push((unit, *size_bytes));
                    node.emptied |= *size_bytes == 0 && (base.is_some() || node.made.is_some());
                }
            }
            // A rename or a link changes the inode that is named too.
            Change::Name { dir, node: named, before, .. } => {
                if let Some(named) = named {
                    self.node(*named).names.push((unit, *dir));
                }
                for other in [*named, *before].into_iter().flatten() {
                    self.node(other).last = Some(unit);
                    let is_moved = match &call.action {
                        Action::Rename { node, replaced, exchange, .. } => {
                            *node == other || (*exchange && *replaced == Some(other))
                        }
                        _ => false,
                    };
                    let gets_name = *named == Some(other);
                    if !is_moved {
                        self.node(other).links += if gets_name { 1 } else { -1 };
                    }
                    if self.model.logs_single_inodes() && (is_moved || gets_name) {
                        self.node(other).metadata.push(unit);
                    }
                }
            }
            Change::Page { .. }
            | Change::Attributes { .. }
            | Change::Xattr { .. }
            | Change::Block { .. } => {}
        }
    }

    /// A file that was emptied and written again is written back when it is closed.
    fn close(&mut self, node: NodeNr) {
        if self.model.allocates_replacements() && self.node(node).emptied {
            self.node(node).emptied = false;
            let sizes = self.sizes(node);
            self.ordered.extend(sizes);
        }
    }

    fn fsync(&mut self, nr: CallNr, node_nr: NodeNr, is_dir: bool, data_only: bool) {
        let names_matter = matches!(self.model, Model::Posix | Model::BtrfsLike);
        let node = self.node(node_nr);
        // btrfs does not log an inode without a name. How many names a file had at the beginning is
        // not known here: one, in most cases.
        let links = node.links + i64::from(node.made.is_none());
        if names_matter && node_nr != ROOT && links <= 0 {
            // One that has never had a name (`O_TMPFILE`) will get one: what it holds is on the disk then.
            if node.names.is_empty() && node.made.is_some() {
                self.settle_content(nr, node_nr);
            }
            return;
        }
        let data = std::mem::take(&mut node.data);
        let (last, last_for_data) = (node.last, node.last_for_data);
        for unit in data {
            self.settle(unit, nr);
        }
        if self.model.has_ordered_metadata() && !self.model.logs_single_inodes() {
            // The log is written up to the inode's last change. If the file grew, this was the
            // latest when the data were written back, which may have been just after the write.
            let upto = if data_only { last_for_data } else { last };
            self.settle_chain(upto, nr);
        } else {
            // An inode, its attributes and sizes; in a directory the names. `fdatasync` may leave
            // out what is not needed to find the data.
            let own = std::mem::take(&mut self.node(node_nr).metadata);
            let mut left = Vec::new();
            for unit in own {
                let needed = !data_only
                    || self.units[unit.index()].effects.iter().any(|e| {
                        matches!(
                            self.effects[*e as usize].change,
                            Change::Node(_) | Change::Size { .. }
                        )
                    });
                if needed { self.settle_alone(unit, nr) } else { left.push(unit) }
            }
            self.node(node_nr).metadata.append(&mut left);
            if self.model.logs_single_inodes() {
                self.settle_parents(node_nr, nr);
                self.log.fsync(node_nr, is_dir, &self.units, &self.effects);
                self.restore_passed(nr, node_nr);
            }
        }
        let node = self.node(node_nr);
        node.emptied = false;
        node.is_shorter = false;
    }

    /// Marks the inode, its attributes and its data as durable.
    fn settle_content(&mut self, nr: CallNr, node_nr: NodeNr) {
        let node = self.node(node_nr);
        let own = std::mem::take(&mut node.data);
        let own = own.into_iter().chain(std::mem::take(&mut node.metadata)).chain(node.made);
        for unit in own.collect::<Vec<_>>() {
            self.settle_alone(unit, nr);
        }
    }

    fn sync(&mut self, nr: CallNr) {
        for unit in (0..self.units.len() as u32).map(UnitNr) {
            let mut effects = self.units[unit.index()].effects.iter();
            let is_page =
                effects.any(|e| matches!(self.effects[*e as usize].change, Change::Page { .. }));
            if !is_page || self.model.flushes_data_for_sync() {
                self.settle(unit, nr);
            }
        }
        self.durable = self.chain.len();
        self.log.commit();
        for node in self.nodes.values_mut() {
            node.data.retain(|unit| self.units[unit.index()].durable_after.is_none());
            node.metadata.clear();
            node.emptied = false;
            node.is_shorter = false;
        }
    }

    /// Marks a unit, and all that it requires, as durable after a call.
    fn settle(&mut self, unit: UnitNr, nr: CallNr) {
        if self.model.logs_single_inodes() {
            return self.settle_alone(unit, nr);
        }
        let mut todo = vec![unit];
        while let Some(unit) = todo.pop() {
            let unit = &mut self.units[unit.index()];
            if unit.durable_after.is_none() {
                unit.durable_after = Some(nr);
                todo.extend_from_slice(&unit.requires);
            }
        }
    }

    /// Marks a unit as durable, and of those that it requires only the inodes and pages without
    /// which it would mean nothing.
    fn settle_alone(&mut self, unit: UnitNr, nr: CallNr) {
        let mut todo = vec![unit];
        while let Some(unit) = todo.pop() {
            let (first, rest) = (unit, &mut self.units[unit.index()]);
            if rest.durable_after.is_some() {
                continue;
            }
            rest.durable_after = Some(nr);
            let requires = rest.requires.clone();
            todo.extend(requires.into_iter().filter(|r| self.is_needed_by(*r, first)));
        }
    }

    /// Returns true if `unit` has the inode that `later` changes or names, or the page.
    fn is_needed_by(&self, unit: UnitNr, later: UnitNr) -> bool {
        let changes = |unit: UnitNr| {
            self.units[unit.index()].effects.iter().map(|e| &self.effects[*e as usize].change)
        };
        changes(unit).any(|change| match change {
            Change::Node(new) => changes(later).any(|l| {
                l.node() == new.node
                    || matches!(l, Change::Name { node: Some(named), .. } if *named == new.node)
            }),
            Change::Page { node, .. } => changes(later).any(|l| l.node() == *node),
            Change::Size { node, .. } => changes(later).any(|l| l.node() == *node),
            // No file is lost by a rename.
            Change::Name { .. } => {
                let call = |unit: UnitNr| self.units[unit.index()].call;
                call(unit) == call(later)
                    && changes(later).all(|l| matches!(l, Change::Name { .. }))
            }
            _ => false,
        })
    }

    /// Marks the metadata up to a unit as durable.
    fn settle_chain(&mut self, upto: Option<UnitNr>, nr: CallNr) {
        while let Some(unit) = self.chain.get(self.durable).copied() {
            if upto.is_none_or(|upto| unit > upto) {
                break;
            }
            self.settle(unit, nr);
            self.durable += 1;
        }
    }

    /// The names of a new inode, and the new directories on the way to it.
    fn settle_parents(&mut self, node: NodeNr, nr: CallNr) {
        let mut todo = vec![node];
        let mut seen = HashSet::new();
        while let Some(node) = todo.pop() {
            let known = self.nodes.get(&node).filter(|n| n.made.is_some());
            let Some(known) = known.filter(|_| seen.insert(node)) else { continue };
            for (unit, dir) in known.names.clone() {
                self.settle_alone(unit, nr);
                todo.push(dir);
            }
        }
    }
}
