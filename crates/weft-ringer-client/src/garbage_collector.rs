//! The garbage collector: releases blocks and leases that are no longer needed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use weft_ringer::client::Call;
use weft_ringer::{BlockHash, Mode, RnodeId, Seq};
use weft_vfs::Error;

use super::client_fs::ClientFs;
use super::engine::{Engine, Superseded};
use super::mutex::locked;

const EVERY: Duration = Duration::from_millis(250);
/// The interval between scans of leases, and of rnodes without a name that other clients may still
/// use.
const SELDOM: Duration = Duration::from_secs(5);
/// The number of leases beyond which those on unused rnodes are released.
const LEASES_MAX: usize = 100_000;
/// The maximum number of rnodes without a name checked in one scan.
const ORPHANS_AT_ONCE: usize = 64;

/// The maximum number of doubtful rnodes that the server is asked about in one scan.
const DOUBTFUL_AT_ONCE: usize = 64;

/// Reads the list of rnodes that may have garbage, as the last mount left it, and removes it: it is
/// written again at the end. `None` if there is none: the last mount was killed.
pub(super) fn take_list(path: &Path) -> Option<BTreeSet<RnodeId>> {
    let text = std::fs::read_to_string(path).ok()?;
    let _ = std::fs::remove_file(path);
    let number = |line: &str| u64::from_str_radix(line, 16).ok().map(RnodeId);
    text.lines().map(number).collect()
}

impl Engine {
    /// Leaves the list of rnodes that may have garbage to the next mount.
    pub(super) fn leave_list(&self) {
        let mut left = locked(&self.doubtful).clone();
        left.extend(locked(&self.superseded).iter().map(|old| old.rnode));
        left.extend(locked(&self.orphans).iter());
        let text: String = left.iter().map(|id| format!("{:016x}\n", id.0)).collect();
        let path = self.home.path("garbage");
        // Without it the next mount looks through its whole store.
        if let Err(e) = weft_ringer_net::replace(&path, text.as_bytes()) {
            tracing::debug!("{}: {e}", path.display());
        }
    }
}

pub(super) fn run(engine: &Arc<Engine>, client: &Weak<ClientFs>) {
    let mut seldom = Instant::now();
    // Orphaned rnodes that this client does not use: their blocks are removed after the rnodes.
    let mut orphans = VecDeque::new();
    while !engine.is_stopped() {
        std::thread::sleep(EVERY);
        let Some(client) = client.upgrade() else { return };
        let mut useless: BTreeMap<RnodeId, Vec<BlockHash>> = BTreeMap::new();
        for (rnode, hash) in engine.useless_blocks() {
            useless.entry(rnode).or_default().push(hash);
        }
        for (rnode, hashes) in useless {
            client.remove_superseded(rnode, &hashes);
        }
        reap(&client, &mut orphans);
        *locked(&engine.orphans) = orphans.iter().copied().collect();
        if seldom.elapsed() < SELDOM {
            continue;
        }
        seldom = Instant::now();
        for _ in 0..ORPHANS_AT_ONCE.min(orphans.len()) {
            let Some(id) = orphans.pop_front() else { break };
            match client.get_any(id) {
                Err(Error::Stale(_)) => match client.scrub(id) {
                    // Kept versions stay until their time is over.
                    Ok(()) => engine.blocks.remove_cached(id),
                    Err(_) => orphans.push_back(id),
                },
                Ok(rnode) if rnode.nlink > 0 => {}
                _ => {
                    let _ = engine.call(Call::Evict { id });
                    orphans.push_back(id);
                }
            }
        }
        let doubtful: Vec<RnodeId> = {
            let mut doubtful = locked(&engine.doubtful);
            std::iter::from_fn(|| doubtful.pop_first()).take(DOUBTFUL_AT_ONCE).collect()
        };
        for id in doubtful {
            match client.scrub(id) {
                // It does nothing while the server lacks changes.
                Ok(()) if engine.is_all_flushed() => continue,
                Ok(()) => {}
                Err(e) => tracing::debug!("cannot remove the garbage of inode {id}: {e}"),
            }
            locked(&engine.doubtful).insert(id);
        }
        let leases = engine.leases();
        let mut excess = leases.len().saturating_sub(LEASES_MAX);
        for (id, mode) in leases {
            if client.is_used(id) || (mode > Mode::Hold && excess == 0) {
                continue;
            }
            excess = excess.saturating_sub(1);
            let _ = engine.call(Call::Evict { id });
        }
    }
}

impl ClientFs {
    /// Removes blocks that were replaced, and that no snapshot needs. A snapshot made after the
    /// server was asked does not have them: the server knew by then that they were replaced.
    fn remove_superseded(&self, rnode: RnodeId, hashes: &[BlockHash]) {
        match self.needed(rnode, hashes) {
            Ok(needed) => {
                for hash in hashes.iter().filter(|hash| !needed.contains(hash)) {
                    self.remove_useless(rnode, *hash);
                }
            }
            Err(e) => {
                tracing::debug!("cannot remove the blocks of inode {rnode}: {e}");
                let again =
                    |hash: &BlockHash| Superseded { seq: Seq::default(), rnode, hash: *hash };
                locked(&self.engine.superseded).extend(hashes.iter().map(again));
            }
        }
    }

    /// Removes a block that is of no use, unless the file has the same bytes again.
    fn remove_useless(&self, rnode: RnodeId, hash: BlockHash) {
        let Ok(_one) = self.writer(rnode).try_lock() else {
            let seq = Seq::default();
            return locked(&self.engine.superseded).push_back(Superseded { seq, rnode, hash });
        };
        let _sealed_by_nobody = self.engine.open.change(rnode);
        if self.engine.is_useless(rnode, &hash) {
            self.engine.blocks.remove_staying(rnode, &hash);
        }
    }
}

/// Releases the leases of rnodes that have lost their last name.
fn reap(client: &ClientFs, orphans: &mut VecDeque<RnodeId>) {
    let dead: BTreeSet<RnodeId> =
        std::mem::take(&mut *locked(&client.maybe_dead)).into_iter().collect();
    for id in dead {
        if client.is_used(id) || !client.engine.lost_its_names(id) {
            continue;
        }
        let evicted =
            client.engine.call(Call::Evict { id }).is_ok() && !client.engine.has_lease(id);
        if evicted {
            orphans.push_back(id);
        } else {
            // The server does not have its last change yet.
            locked(&client.maybe_dead).push(id);
        }
    }
}
