//! Replication, in a thread of its own: files that changed are copied and their texts sent to the
//! server; pinned ones are fetched, and at times all blocks that stay are scanned.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use weft_ringer::wire::ArchiveInfo;
use weft_ringer::{Archiving, Body, Mode, RnodeId};
use weft_vfs::{Error, Result};

use super::client_fs::ClientFs;
use super::copies::Wanted;
use super::engine::{Engine, UnderReplicated};
use super::errors::io_error;
use super::mutex::locked;
use super::peers::Held;

const EVERY: Duration = Duration::from_millis(200);
/// The delay before an under-replicated file is checked again.
const LATER: Duration = Duration::from_secs(5);
/// The minimum interval between walks of pinned trees.
const PINS_EVERY: Duration = Duration::from_secs(1);
/// The interval at which an overfull store asks which files it may release.
const ROOM_EVERY: Duration = Duration::from_secs(5);
/// The maximum number of files in one round of that.
const ROOM_AT_ONCE: usize = 256;
/// The delay of the first scan after a mount that did not end well.
const SOON: Duration = Duration::from_secs(30);
/// The pause between two files of a scan, which leaves the server to others.
const PACE: Duration = Duration::from_millis(5);

pub(super) fn run(engine: &Arc<Engine>, client: &Weak<ClientFs>) {
    let mut walked = (Instant::now(), PINS_EVERY);
    let (mut scanned, mut made_room) = (Instant::now(), Instant::now());
    let every = engine.options.scan_every;
    // A mount that was killed has left no list of what it had not removed yet.
    let mut scan_after = if engine.must_scan_soon { every.min(SOON) } else { every };
    while !engine.is_stopped() {
        std::thread::sleep(EVERY);
        let Some(client) = client.upgrade() else { return };
        client.spread_what_changed();
        if walked.0.elapsed() >= walked.1 {
            let begun = Instant::now();
            client.fetch_what_is_pinned();
            // A large tree that is whole takes little of the time.
            walked = (Instant::now(), PINS_EVERY.max(begun.elapsed() * 10));
        }
        if made_room.elapsed() >= ROOM_EVERY.min(engine.options.scan_every) {
            client.make_room();
            made_room = Instant::now();
        }
        if scanned.elapsed() >= scan_after {
            client.look_through();
            (scanned, scan_after) = (Instant::now(), every);
        }
    }
}

impl ClientFs {
    fn spread_what_changed(&self) {
        let now = Instant::now();
        let due: Vec<(RnodeId, UnderReplicated)> = {
            let under_replicated = locked(&self.engine.under_replicated);
            under_replicated.iter().filter(|(_, u)| u.due <= now).map(|(id, u)| (*id, *u)).collect()
        };
        for (id, seen) in due {
            if self.engine.is_stopped() {
                return;
            }
            let done = self.policy(id, seen.dir).and_then(|policy| {
                let is_archived = policy.archive != Archiving::No;
                if policy.copies == 0 && policy.text_bytes == 0 && !is_archived {
                    return Ok(());
                }
                // The server must know the content that is copied and whose text is sent.
                self.engine.call(weft_ringer::client::Call::Sync)?;
                let told = if policy.text_bytes > 0 { self.tell_text(id) } else { Ok(()) };
                let spread = match policy.copies {
                    0 => Ok(()),
                    copies => self.spread(id, copies, Instant::now()),
                };
                // Copying and archiving do not wait for each other.
                let archived = if is_archived {
                    self.archive(id, Wanted::All, Instant::now())
                } else {
                    Ok(())
                };
                spread.and(archived).and(told)
            });
            let mut under_replicated = locked(&self.engine.under_replicated);
            let Some(entry) = under_replicated.get_mut(&id).filter(|entry| entry.due == seen.due)
            else {
                continue; // It changed meanwhile.
            };
            match done {
                Ok(()) | Err(Error::Stale(_)) => drop(under_replicated.remove(&id)),
                Err(e) => {
                    tracing::debug!("copies of inode {id}: {e}");
                    entry.due = Instant::now() + LATER;
                }
            }
        }
    }

    /// Lists everything below a pinned root that is not a directory.
    fn pinned(&self) -> BTreeSet<RnodeId> {
        let mut left: Vec<RnodeId> = locked(&self.engine.pins).roots.iter().copied().collect();
        let (mut files, mut seen) = (BTreeSet::new(), BTreeSet::new());
        while let Some(id) = left.pop() {
            if self.engine.is_stopped() || !seen.insert(id) {
                continue;
            }
            match self.list(id) {
                Ok(entries) => {
                    for entry in entries {
                        match entry.dirent.kind {
                            weft_vfs::FileKind::Directory => left.push(entry.dirent.id),
                            weft_vfs::FileKind::Regular => drop(files.insert(entry.dirent.id)),
                            _ => {}
                        }
                    }
                }
                Err(Error::NotADirectory) => drop(files.insert(id)),
                Err(Error::Stale(_)) => self.unpin_what_is_gone(id),
                Err(e) => tracing::debug!("pinned inode {id}: {e}"),
            }
        }
        files
    }

    fn unpin_what_is_gone(&self, id: RnodeId) {
        let mut pins = locked(&self.engine.pins);
        if pins.roots.remove(&id)
            && let Err(e) = pins.save(&self.engine.pins_path())
        {
            tracing::error!("cannot write the list of pins: {e}");
        }
    }

    fn fetch_what_is_pinned(&self) {
        if locked(&self.engine.pins).roots.is_empty() {
            return;
        }
        let files = self.pinned();
        let mut lacking = 0;
        for id in &files {
            let Ok(rnode) = self.get_any(*id) else { continue };
            let Body::File { content, .. } = rnode.body else { continue };
            if locked(&self.engine.pins).have.get(id) == Some(&content) {
                continue;
            }
            // The copy is of the content that the server has.
            let held = self.hold(*id, &mut || !self.engine.is_stopped());
            match held {
                Held::Yes => drop(locked(&self.engine.pins).have.insert(*id, content)),
                Held::No { why, .. } => {
                    lacking += 1;
                    tracing::debug!("pinned inode {id}: {why}");
                }
            }
        }
        let mut pins = locked(&self.engine.pins);
        pins.have.retain(|id, _| files.contains(id));
        pins.lacking = lacking;
    }

    /// Pins or unpins an rnode and everything below it.
    pub(super) fn pin(&self, id: RnodeId, pinned: bool) -> Result<()> {
        let mut pins = locked(&self.engine.pins);
        let changed = if pinned { pins.roots.insert(id) } else { pins.roots.remove(&id) };
        if !changed && !pinned {
            return Err(Error::NoAttribute);
        }
        if pins.roots.is_empty() {
            (pins.have, pins.lacking) = (BTreeMap::new(), 0);
        }
        pins.save(&self.engine.pins_path()).map_err(|e| io_error(&e))
    }

    pub(super) fn is_pinned(&self, id: RnodeId) -> bool {
        locked(&self.engine.pins).roots.contains(&id)
    }

    /// Releases files of which others have enough copies, while the store exceeds its limit.
    fn make_room(&self) {
        let blocks = &self.engine.blocks;
        if blocks.staying_bytes() <= self.engine.options.store_max_bytes {
            return;
        }
        let pinned = self.pinned();
        let ids = blocks.staying().unwrap_or_default();
        let candidates = ids.into_iter().filter(|id| !pinned.contains(id) && !self.is_open(*id));
        for id in candidates.take(ROOM_AT_ONCE) {
            let is_enough = blocks.staying_bytes() <= self.engine.options.store_max_bytes;
            if is_enough || self.engine.is_stopped() {
                return;
            }
            let gone = self.scrub(id).and_then(|()| self.let_go(id));
            if let Err(e) = gone {
                tracing::debug!("cannot release the copy of inode {id}: {e}");
            }
        }
    }

    /// Scans everything that stays here: removes unneeded blocks, and queues under-replicated
    /// files.
    fn look_through(&self) {
        for id in self.engine.blocks.staying().unwrap_or_default() {
            std::thread::sleep(PACE);
            if self.engine.is_stopped() {
                return;
            }
            let looked = self.scrub(id).and_then(|()| self.peek(id));
            let Ok(Some(peeked)) = looked else { continue };
            let Body::File { content, .. } = peeked.rnode.body else { continue };
            let have = peeked.holders.copies.values().filter(|v| **v == content).count() as u64;
            // The one beyond `copies` is the writer's, or the only copy.
            let lacks_copies = peeked.policy.copies > 0 && have <= u64::from(peeked.policy.copies);
            let text_unsent = self.lacks_text(&peeked).is_some();
            let lacks_archives = peeked.policy.archive != Archiving::No && {
                let has = |info: &ArchiveInfo| peeked.archived.get(&info.archive) == Some(&content);
                !self.known_archives().iter().all(has)
            };
            if lacks_copies || lacks_archives || text_unsent {
                let under_replicated =
                    UnderReplicated { dir: None, due: Instant::now(), text_unsent };
                locked(&self.engine.under_replicated).entry(id).or_insert(under_replicated);
            }
        }
    }

    /// Describes the local store, a line for each number: name and value, with a tab between.
    pub(super) fn describe_store(&self) -> Vec<u8> {
        let engine = &self.engine;
        let (pins, lacking) = {
            let pins = locked(&engine.pins);
            (pins.roots.len() as u64, pins.lacking)
        };
        let limit = engine.options.store_max_bytes;
        let leases = engine.leases();
        let held = |mode: Mode| leases.iter().filter(|(_, m)| *m == mode).count() as u64;
        let transfers = &engine.peers.transfers;
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let lines = [
            ("cell", engine.cell()),
            ("client", engine.client().map_or(0, |c| c.0)),
            ("staying_bytes", engine.blocks.staying_bytes()),
            ("staying_limit_bytes", if limit == u64::MAX { 0 } else { limit }),
            ("cached_bytes", engine.blocks.cached_bytes()),
            ("cached_limit_bytes", engine.options.cache_max_bytes),
            ("pins", pins),
            ("pinned_files_lacking", lacking),
            ("files_with_copies_to_make", locked(&engine.under_replicated).len() as u64),
            ("changes_not_sent", engine.unflushed() as u64),
            ("read_leases", held(Mode::Read)),
            ("write_leases", held(Mode::Write)),
            ("peer_blocks_read", of(&transfers.blocks_read)),
            ("peer_bytes_read", of(&transfers.bytes_read)),
            ("peer_blocks_given", of(&transfers.blocks_given)),
            ("peer_bytes_given", of(&transfers.bytes_given)),
        ];
        #[cfg(feature = "archive")]
        let archives = engine.archives.figures();
        #[cfg(not(feature = "archive"))]
        let archives = [];
        lines
            .iter()
            .chain(&archives)
            .map(|(name, n)| format!("{name}\t{n}\n"))
            .collect::<String>()
            .into_bytes()
    }
}
