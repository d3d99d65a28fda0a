//! The garbage collection of unused blocks in an archive: a *sweep* lists the blocks of the archive,
//! and has the server look for their users, a part of the cell at a time.
//!
//! Invariants:
//! - Blocks are *condemned* before the second scan of the cell. From then on no content counts as
//!   archived that has one of them, and a change that uses one spares it. A block that is still
//!   condemned after that scan is unused: one that was used all the time was seen, and one that
//!   came into use was spared.
//! - Only *doomed* blocks are deleted: condemned ones that one transaction recorded as doomed.
//!   Until they are cleared, which a sweep asks for when each deletion was acknowledged, no content
//!   counts as archived that has one of them. They outlive the sweep and the server.
//! - A sweep deletes its doomed blocks within [`DELETE_LIMIT`] or never; another sweep begins only
//!   after a longer silence.

use std::collections::BTreeSet;

use super::records::{self, number_of};
use super::{Mds, history};
use crate::rnode::{Body, Rnode};
use crate::store::{Store, StoreError, StoreResult};
use crate::types::{ArchiveId, BlockHash, Moment, RnodeId};
use crate::wire::{SweepStep, Swept};

/// The most archives of a cell.
pub(super) const ARCHIVES_MAX: usize = 8;
/// The most blocks that a sweep holds in memory: 32 MB, and the overhead of the set.
const SWEPT_MAX: usize = 1 << 20;
/// The most blocks in one [`SweepStep::Add`]: they fit a frame of an observer connection.
pub const ADD_AT_ONCE: usize = 100;
/// Blocks that are doomed together: their record is small enough for etcd.
const DOOM_AT_ONCE: usize = 1000;
/// Rnodes that are scanned in one step.
const SCAN_AT_ONCE: usize = 200;
/// The longest time that a sweep may take to delete its doomed blocks.
pub const DELETE_LIMIT: std::time::Duration = std::time::Duration::from_secs(240);
/// The silence of a sweep after which another may begin, in microseconds.
pub(super) const SILENCE_MICROS: u64 = 600_000_000;

/// The reason why a step of a sweep failed, or an archive was not added.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SweepError {
    /// There is no such archive.
    #[error("no such archive in this cell")]
    NoArchive,
    /// The archive exists already, or there are too many, or its URL is too long.
    #[error(
        "archive not added: the cell has it already, or has {ARCHIVES_MAX} (the most), or the \
        URL is too long"
    )]
    NotAdded,
    /// Another sweep is in progress, or was aborted without an end.
    #[error("sweep not started: another sweep is running or was aborted; try again in {0} s")]
    Another(u64),
    /// A sweep of another archive was not finished.
    #[error(
        "sweep not started: a sweep of archive {0:016x} is unfinished; sweep that archive first"
    )]
    Left(u64),
    /// The sweep is not the one that the step names, or the server was restarted.
    #[error("sweep aborted: another sweep or a restart of the server ended it; start it again")]
    Over,
    /// The step is out of order.
    #[error("sweep aborted: protocol error: step out of order")]
    Order,
    /// More blocks than one sweep may have.
    #[error("sweep aborted: more blocks than one sweep may have")]
    TooMany,
    /// The cell's store failed.
    #[error("{0}")]
    Store(#[from] StoreError),
}

/// The position of a scan of the cell.
#[derive(Debug, Clone, PartialEq, Eq)]
enum At {
    /// In the files, from this key on.
    Files(Vec<u8>),
    /// In the removed files, from this key on.
    Removed(Vec<u8>),
    End,
}

/// A sweep in progress.
#[derive(Debug)]
pub(super) struct Sweep {
    number: u64,
    archive: ArchiveId,
    is_condemned: bool,
    /// The blocks that were not seen in use.
    hashes: BTreeSet<BlockHash>,
    at: At,
    heard: Moment,
}

impl Sweep {
    /// Spares a block from deletion.
    pub(super) fn spare(&mut self, hash: &BlockHash) {
        self.hashes.remove(hash);
    }

    /// Returns true if a block in an archive is condemned.
    pub(super) fn condemns(&self, archive: ArchiveId, hash: &BlockHash) -> bool {
        self.archive == archive && self.is_condemned && self.hashes.contains(hash)
    }

    /// Scans a part of the cell.
    fn scan(&mut self, store: &dyn Store) -> StoreResult<()> {
        let (kind, from) = match &self.at {
            At::Files(from) => (b'r', from),
            At::Removed(from) => (b'z', from),
            At::End => return Ok(()),
        };
        let page = store.range(from, &[kind + 1], SCAN_AT_ONCE)?;
        for (key, record) in &page {
            let id = RnodeId(number_of(key)?);
            if kind == b'r' {
                let rnode: Rnode = crate::wire::decode(&record.value)
                    .map_err(|_| records::damaged("rnode", key))?;
                let Body::File { blocks, .. } = &rnode.body else { continue };
                for block in blocks.values() {
                    self.spare(&block.hash);
                }
            }
            for hash in history::blocks(store, id)? {
                self.spare(&hash);
            }
        }
        self.at = match page.last() {
            Some((last, _)) if page.len() == SCAN_AT_ONCE => {
                let next = [&last[..], &[0]].concat();
                if kind == b'r' { At::Files(next) } else { At::Removed(next) }
            }
            _ if kind == b'r' => At::Removed(b"z".to_vec()),
            _ => At::End,
        };
        Ok(())
    }

    fn swept(&self, doomed: Vec<BlockHash>) -> Swept {
        let (number, left) = (self.number, self.hashes.len() as u64);
        Swept { number, left, scanned: self.at == At::End, doomed }
    }
}

impl Mds {
    /// Carries out a step of a sweep. Each does a bounded part of the work.
    ///
    /// # Errors
    /// [`SweepError`]; except after an error of the store, the sweep may go on, or begin anew.
    pub fn sweep(
        &mut self,
        store: &mut dyn Store,
        now: Moment,
        number: u64,
        step: &SweepStep,
    ) -> Result<Swept, SweepError> {
        if let SweepStep::Begin { archive } = step {
            return self.begin_sweep(now, *archive);
        }
        let mut sweep = self.archives.sweep.take().ok_or(SweepError::Over)?;
        if sweep.number != number {
            self.archives.sweep = Some(sweep);
            return Err(SweepError::Over);
        }
        sweep.heard = now;
        let done = self.step(store, &mut sweep, step);
        if !matches!(step, SweepStep::End {}) {
            self.archives.sweep = Some(sweep);
        }
        done
    }

    fn begin_sweep(&mut self, now: Moment, archive: ArchiveId) -> Result<Swept, SweepError> {
        let archives = &mut self.archives;
        if !archives.record.urls.contains_key(&archive) {
            return Err(SweepError::NoArchive);
        }
        let heard = archives.sweep.as_ref().map(|s| s.heard.after(SILENCE_MICROS));
        let until = heard.unwrap_or_default().max(archives.quiet_until);
        if now < until {
            return Err(SweepError::Another((until.0 - now.0).div_ceil(1_000_000)));
        }
        archives.last_sweep += 1;
        let sweep = Sweep {
            number: archives.last_sweep,
            archive,
            is_condemned: false,
            hashes: BTreeSet::new(),
            at: At::Files(b"r".to_vec()),
            heard: now,
        };
        let left = &archives.record.doomed;
        if !left.is_empty() && archives.record.doomed_in != archive {
            return Err(SweepError::Left(archives.record.doomed_in.0));
        }
        // Blocks that another sweep left doomed are deleted first: it may not have deleted them.
        let doomed = left.clone();
        let swept = sweep.swept(doomed);
        archives.sweep = Some(sweep);
        Ok(swept)
    }

    fn step(
        &mut self,
        store: &mut dyn Store,
        sweep: &mut Sweep,
        step: &SweepStep,
    ) -> Result<Swept, SweepError> {
        match step {
            SweepStep::Begin { .. } => return Err(SweepError::Order),
            SweepStep::Add { hashes } => {
                if sweep.is_condemned || sweep.at != At::Files(b"r".to_vec()) {
                    return Err(SweepError::Order);
                }
                if sweep.hashes.len() + hashes.len() > SWEPT_MAX {
                    return Err(SweepError::TooMany);
                }
                sweep.hashes.extend(hashes);
            }
            SweepStep::Scan {} => {
                // One thread: other changes spare blocks before or after this scan, not during it.
                sweep.scan(store)?;
            }
            SweepStep::Condemn {} => {
                if sweep.is_condemned || sweep.at != At::End {
                    return Err(SweepError::Order);
                }
                sweep.is_condemned = true;
                sweep.at = At::Files(b"r".to_vec());
            }
            SweepStep::Doom {} => {
                // Before the second scan no block is doomed, but those of another sweep are
                // cleared.
                let may_doom = sweep.is_condemned && sweep.at == At::End;
                if !may_doom && self.archives.record.doomed.is_empty() {
                    return Err(SweepError::Order);
                }
                let count = if may_doom { DOOM_AT_ONCE } else { 0 };
                let doomed: Vec<BlockHash> = sweep.hashes.iter().take(count).copied().collect();
                let mut record = self.archives.record.clone();
                record.era += u64::from(!record.doomed.is_empty());
                record.doomed_in = sweep.archive;
                record.doomed.clone_from(&doomed);
                if record != self.archives.record {
                    self.put_archives(store, record)?;
                }
                for hash in &doomed {
                    sweep.spare(hash);
                }
                return Ok(sweep.swept(doomed));
            }
            SweepStep::End {} => {}
        }
        Ok(sweep.swept(Vec::new()))
    }
}

#[cfg(test)]
mod tests {
    use weft_vfs::Time;

    use super::*;
    use crate::block_map::Block;
    use crate::error::Refusal;
    use crate::mds::MdsOptions;
    use crate::mds::stop::Stop;
    use crate::op::{Logged, Op};
    use crate::rnode::Bytes;
    use crate::store::{MemoryStore, Transaction};
    use crate::types::{Epoch, Seq, Version};
    use crate::wire::{ArchiveInfo, Reply, encode};

    const ARCHIVE: ArchiveId = ArchiveId(3);
    const FILES: u64 = 4;

    /// A cell with files, an archive, clients that write to it and a sweeper.
    struct World {
        rng: weft_block::Rng,
        now: Moment,
        store: MemoryStore,
        mds: Mds,
        archive: BTreeSet<BlockHash>,
        /// The upload in progress of each client.
        clients: Vec<Option<Putting>>,
        changes: u64,
        sweeper: Sweeper,
        deleted: u64,
        archived: u64,
    }

    /// The era, the file, its content, and the blocks that remain to be put.
    type Putting = (u64, RnodeId, Version, Vec<BlockHash>);

    #[derive(Debug, Clone, PartialEq, Eq)]
    enum Sweeper {
        Idle,
        /// The number, and whether the remaining blocks are condemned.
        Looks(u64, bool),
        Deletes(u64, Vec<BlockHash>),
    }

    fn block(n: u64) -> BlockHash {
        let mut hash = [7; 32];
        hash[..8].copy_from_slice(&n.to_be_bytes());
        BlockHash(hash)
    }

    fn file(id: RnodeId, count: u64, hashes: &[BlockHash]) -> Rnode {
        let content = Version { count, epoch: Epoch(1), seq: Seq(count) };
        let mut rnode = Rnode::root(Time::default());
        (rnode.id, rnode.version) = (id, content);
        let blocks = hashes.iter().map(|hash| Block { hash: *hash, len_bytes: 1 });
        rnode.body = Body::File {
            size_bytes: 1,
            block_bytes: 1,
            blocks: (0..).zip(blocks).collect(),
            content,
            kept: Version::default(),
        };
        rnode
    }

    fn open(store: &mut MemoryStore, now: Moment) -> Mds {
        Mds::open(store, now, Time::default(), MdsOptions::default()).expect("memory")
    }

    impl World {
        fn new(seed: u64) -> Self {
            let mut store = MemoryStore::new();
            let mut mds = open(&mut store, Moment(1));
            let info = ArchiveInfo { archive: ARCHIVE, url: Bytes(b"file:///a".to_vec()) };
            mds.add_archive(&mut store, &info).expect("the first");
            Self {
                rng: weft_block::Rng::new(seed),
                now: Moment(1),
                store,
                mds,
                archive: BTreeSet::new(),
                clients: vec![None; 3],
                changes: 0,
                sweeper: Sweeper::Idle,
                deleted: 0,
                archived: 0,
            }
        }

        fn rnode(&self, id: RnodeId) -> Option<Rnode> {
            records::load_rnode(&self.store, id).expect("memory")
        }

        /// Writes a file of a few blocks, which other files may share.
        fn change(&mut self) {
            let id = RnodeId(2 + self.rng.below(FILES));
            self.changes += 1;
            let hashes: Vec<_> =
                (0..1 + self.rng.below(2)).map(|_| block(self.rng.below(12))).collect();
            let rnode = file(id, self.changes, &hashes);
            let blocks =
                hashes.iter().map(|h| (0, Some(Block { hash: *h, len_bytes: 1 }))).collect();
            let op = Op::Write { id, blocks, end_bytes: 1, kill_privileges: false };
            let (epoch, stamp) = (Epoch(1), Time::default());
            let logged = Logged { seq: Seq(self.changes), epoch, stamp, op, base: Vec::new() };
            let mut transaction = Transaction::default();
            transaction.put(records::rnode_key(id), encode(&rnode));
            self.store.commit(&transaction).expect("memory");
            self.mds.archives.spare(&[logged]);
        }

        fn client(&mut self, i: usize) {
            match self.clients[i].take() {
                None => {
                    let id = RnodeId(2 + self.rng.below(FILES));
                    let Some(rnode) = self.rnode(id) else { return };
                    let Body::File { blocks, content, .. } = rnode.body else { return };
                    let era = self.mds.archives.era();
                    let hashes = blocks.values().map(|b| b.hash).collect();
                    self.clients[i] = Some((era, id, content, hashes));
                }
                Some((era, id, content, mut hashes)) => match hashes.pop() {
                    // A block that is already there is not put.
                    Some(hash) => {
                        self.archive.insert(hash);
                        self.clients[i] = Some((era, id, content, hashes));
                    }
                    None => {
                        let store = &mut self.store;
                        let told = self.mds.archived(store, id, content, ARCHIVE, era);
                        self.archived += u64::from(told.is_ok());
                    }
                },
            }
        }

        fn step(&mut self, number: u64, step: &SweepStep) -> Swept {
            self.mds.sweep(&mut self.store, self.now, number, step).expect("in order")
        }

        fn sweep(&mut self) {
            self.sweeper = match self.sweeper.clone() {
                Sweeper::Idle => {
                    let begin = SweepStep::Begin { archive: ARCHIVE };
                    let Ok(begun) = self.mds.sweep(&mut self.store, self.now, 0, &begin) else {
                        self.now = self.now.after(SILENCE_MICROS / 3);
                        return;
                    };
                    if begun.doomed.is_empty() {
                        let hashes = self.archive.iter().copied().collect();
                        self.step(begun.number, &SweepStep::Add { hashes });
                        Sweeper::Looks(begun.number, false)
                    } else {
                        Sweeper::Deletes(begun.number, begun.doomed)
                    }
                }
                Sweeper::Looks(number, condemned) => {
                    match (self.step(number, &SweepStep::Scan {}).scanned, condemned) {
                        (false, _) => Sweeper::Looks(number, condemned),
                        (true, false) => {
                            self.step(number, &SweepStep::Condemn {});
                            Sweeper::Looks(number, true)
                        }
                        (true, true) => self.doom(number),
                    }
                }
                Sweeper::Deletes(number, mut doomed) => match doomed.pop() {
                    Some(hash) => {
                        self.deleted += u64::from(self.archive.remove(&hash));
                        Sweeper::Deletes(number, doomed)
                    }
                    None => {
                        match self.mds.sweep(&mut self.store, self.now, number, &SweepStep::Doom {})
                        {
                            Ok(swept) if !swept.doomed.is_empty() => {
                                Sweeper::Deletes(number, swept.doomed)
                            }
                            Ok(_) => {
                                self.step(number, &SweepStep::End {});
                                Sweeper::Idle
                            }
                            Err(e) => panic!("{e}"),
                        }
                    }
                },
            };
        }

        fn doom(&mut self, number: u64) -> Sweeper {
            match self.mds.sweep(&mut self.store, self.now, number, &SweepStep::Doom {}) {
                Ok(swept) => Sweeper::Deletes(number, swept.doomed),
                Err(e) => panic!("{e}"),
            }
        }

        /// Kills the sweeper, or restarts the server.
        fn fail(&mut self) {
            if self.rng.below(2) == 0 {
                self.mds = open(&mut self.store, self.now);
            }
            self.sweeper = Sweeper::Idle;
        }

        /// Checks that every file that counts as archived has all its blocks there.
        fn check(&self, seed: u64) {
            for id in (2..2 + FILES).map(RnodeId) {
                let Some(rnode) = self.rnode(id) else { continue };
                let Body::File { blocks, content, .. } = rnode.body else { continue };
                let archived = self.mds.archived_of(&self.store, id).expect("memory");
                if archived.get(&ARCHIVE) == Some(&content) {
                    let lost = blocks.values().find(|b| !self.archive.contains(&b.hash));
                    assert_eq!(lost, None, "seed {seed}: {id} counts as archived");
                }
            }
        }
    }

    #[test]
    fn archived_blocks_survive_every_sweep() {
        let (mut deleted, mut archived) = (0, 0);
        for seed in 1..=400 {
            let mut world = World::new(seed);
            for _ in 0..400 {
                match world.rng.below(100) {
                    0..20 => world.change(),
                    20..65 => {
                        let i = world.rng.index(world.clients.len());
                        world.client(i);
                    }
                    65..99 => world.sweep(),
                    _ => world.fail(),
                }
                world.check(seed);
            }
            deleted += world.deleted;
            archived += world.archived;
        }
        assert!(deleted > 1000 && archived > 1000, "{deleted} deleted, {archived} archived");
    }

    #[test]
    fn blocks_doomed_by_a_dead_sweep_do_not_count() {
        let mut world = World::new(1);
        world.archive.insert(block(1));
        while !matches!(world.sweeper, Sweeper::Deletes(..)) {
            world.sweep();
        }
        // The blocks are not deleted yet; the server and the sweeper die.
        world.mds = open(&mut world.store, world.now);
        let id = RnodeId(2);
        let rnode = file(id, 1, &[block(1)]);
        let content = rnode.version;
        let mut transaction = Transaction::default();
        transaction.put(records::rnode_key(id), encode(&rnode));
        world.store.commit(&transaction).expect("memory");
        let tell = |world: &mut World| {
            let era = world.mds.archives.era();
            world.mds.archived(&mut world.store, id, content, ARCHIVE, era)
        };
        assert!(matches!(tell(&mut world), Err(Stop::Refused(Refusal::SweepRunning))));
        let begin = SweepStep::Begin { archive: ARCHIVE };
        let begun = world.mds.sweep(&mut world.store, world.now, 0, &begin);
        assert!(matches!(begun, Err(SweepError::Another(_))), "{begun:?}");
        world.now = world.now.after(SILENCE_MICROS);
        let begun = world.step(0, &begin);
        assert_eq!(begun.doomed, [block(1)]);
        let era = world.mds.archives.era();
        assert_eq!(world.step(begun.number, &SweepStep::Doom {}).doomed, []);
        assert!(world.mds.archives.era() > era);
        assert!(matches!(tell(&mut world), Ok(Reply::Held {})));
    }

    #[test]
    fn steps_out_of_order_are_refused() {
        let mut world = World::new(1);
        let sweep = |world: &mut World, number, step: &SweepStep| {
            world.mds.sweep(&mut world.store, world.now, number, step)
        };
        let unknown = SweepStep::Begin { archive: ArchiveId(9) };
        assert!(matches!(sweep(&mut world, 0, &unknown), Err(SweepError::NoArchive)));
        assert!(matches!(sweep(&mut world, 1, &SweepStep::Scan {}), Err(SweepError::Over)));
        let number =
            sweep(&mut world, 0, &SweepStep::Begin { archive: ARCHIVE }).expect("one").number;
        let early =
            [SweepStep::Condemn {}, SweepStep::Doom {}, SweepStep::Begin { archive: ARCHIVE }];
        for step in &early[..2] {
            assert!(matches!(sweep(&mut world, number, step), Err(SweepError::Order)), "{step:?}");
        }
        assert!(matches!(sweep(&mut world, 0, &early[2]), Err(SweepError::Another(_))));
        assert!(matches!(
            sweep(&mut world, number + 1, &SweepStep::Scan {}),
            Err(SweepError::Over)
        ));
        let many = (0..=SWEPT_MAX as u64).map(block).collect();
        let add = SweepStep::Add { hashes: many };
        assert!(matches!(sweep(&mut world, number, &add), Err(SweepError::TooMany)));
        sweep(&mut world, number, &SweepStep::End {}).expect("it ends");
        world.mds.remove_archive(&mut world.store, ARCHIVE).expect("there");
        assert!(matches!(
            world.mds.remove_archive(&mut world.store, ARCHIVE),
            Err(SweepError::NoArchive)
        ));
        assert!(world.mds.archives().is_empty());
    }
}
