//! The file of conflicts: changes that came too late, until the user has settled them.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use weft_ringer::client::Conflict;
use weft_ringer::op::Op;
use weft_ringer::wire::wire_enum;
use weft_ringer::{BlockHash, RnodeId, Seq};

use super::journal::Journal;

/// More changes than one client makes.
const ANOTHER_PAST: u64 = 1_000_000_000_000;

/// A record in the file of conflicts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kept {
    Conflict {
        conflict: Conflict,
    },
    Settled {
        seq: Seq,
    },
    /// A change made again created the rnode `new` in place of `old`.
    Remade {
        old: RnodeId,
        new: RnodeId,
    },
}
wire_enum!(Kept {
    1 => Conflict { conflict },
    2 => Settled { seq },
    3 => Remade { old, new },
});

/// The conflicts of a client.
#[derive(Debug)]
pub(super) struct Conflicts {
    file: Journal,
    pub(super) open: BTreeMap<Seq, Conflict>,
    pub(super) remade: BTreeMap<RnodeId, RnodeId>,
}

impl Conflicts {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let (file, records) = Journal::open(path)?;
        let mut conflicts = Self { file, open: BTreeMap::new(), remade: BTreeMap::new() };
        for record in records {
            conflicts.take(record);
        }
        Ok(conflicts)
    }

    fn take(&mut self, record: Kept) {
        match record {
            Kept::Conflict { conflict } => drop(self.open.insert(conflict.logged.seq, conflict)),
            Kept::Settled { seq } => drop(self.open.remove(&seq)),
            Kept::Remade { old, new } => drop(self.remade.insert(old, new)),
        }
    }

    /// Appends a record, durably.
    pub(super) fn keep(&mut self, record: Kept) -> io::Result<()> {
        self.file.append(&record);
        self.take(record);
        self.file.catch_up()?;
        self.file.handle()?.sync_data()
    }

    pub(super) fn add(&mut self, conflict: Conflict) -> io::Result<()> {
        self.keep(Kept::Conflict { conflict })
    }

    /// The number to be added to the numbers of changes that another identity of this client made,
    /// so that no change that it makes from now on has the number of one of these.
    pub(super) fn base_for_another_past(&self) -> u64 {
        let last = self.open.last_key_value().map_or(0, |(seq, _)| seq.0);
        (last / ANOTHER_PAST + 1) * ANOTHER_PAST
    }

    /// The number of conflicts.
    pub(super) fn count(&self) -> usize {
        self.groups().len()
    }

    /// Conflicts by the number of the first change of each.
    pub(super) fn groups(&self) -> BTreeMap<Seq, Vec<Conflict>> {
        let (mut groups, mut of_file) = (BTreeMap::<Seq, Vec<Conflict>>::new(), BTreeMap::new());
        for (seq, conflict) in &self.open {
            let first = match subject(&conflict.logged.op) {
                Some(id) => *of_file.entry(id).or_insert(*seq),
                None => *seq,
            };
            groups.entry(first).or_default().push(conflict.clone());
        }
        groups
    }
}

/// The rnode that a change is about, if it is not about names.
pub(super) fn subject(op: &Op) -> Option<RnodeId> {
    match op {
        Op::Create { id, .. }
        | Op::SetAttr { id, .. }
        | Op::SetXattr { id, .. }
        | Op::RemoveXattr { id, .. }
        | Op::Write { id, .. }
        | Op::Keep { id } => Some(*id),
        Op::Link { .. } | Op::Unlink { .. } | Op::Rmdir { .. } | Op::Rename { .. } => None,
    }
}

/// The blocks that a change wrote.
pub(super) fn blocks_of(op: &Op) -> impl Iterator<Item = (RnodeId, BlockHash)> {
    let (id, blocks) = match op {
        Op::Write { id, blocks, .. } => (*id, &blocks[..]),
        _ => (RnodeId::ROOT, &[][..]),
    };
    blocks.iter().filter_map(move |(_, block)| Some((id, (*block)?.hash)))
}
