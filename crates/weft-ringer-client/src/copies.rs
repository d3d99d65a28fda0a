//! Replication of files to several clients: copies are made where a policy asks for them, and
//! dropped when other clients have enough.
//!
//! Invariants:
//! - A client tells the server that it holds a file only when all its blocks are here, checked by
//!   their hashes, durable, and among those that stay.
//! - A block that the server was told of is dropped only when the server allows it, or the file no
//!   longer contains it. Both happen under the lock of the file's writers, so that the check still
//!   holds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use weft_ringer::client::{Call, Outcome};
use weft_ringer::wire::{Peeked, Reply, RequestBody};
use weft_ringer::{Archiving, Block, BlockHash, Body, ClientId, Policy, Refusal, RnodeId, Version};
use weft_vfs::{Error, Result};

use super::client_fs::ClientFs;
use super::engine::UnderReplicated;
use super::errors::{ETIMEDOUT, io_error, unexpected};
use super::mutex::locked;
use super::peers::Held;

/// The maximum number of restarts of a copy because the file has changed meanwhile.
const CHANGES_MAX: usize = 16;
/// The interval between requests to other clients for copies that are wanted now.
const ASK_AGAIN: Duration = Duration::from_millis(300);
/// The maximum number of blocks in one question to the server.
const NEEDED_MAX: usize = 1000;
/// The most disk space that copies leave free, in bytes.
const RESERVE_MAX_BYTES: u64 = 64 << 20;

/// The number of archives that should have a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    One,
    All,
}

/// The content of a regular file.
pub(super) struct Content {
    pub(super) version: Version,
    pub(super) blocks: BTreeMap<BlockHash, Block>,
}

impl Content {
    pub(super) fn of(peeked: &Peeked) -> Option<Self> {
        let Body::File { blocks, content, .. } = &peeked.rnode.body else { return None };
        let blocks = blocks.values().map(|block| (block.hash, *block)).collect();
        Some(Self { version: *content, blocks })
    }
}

fn no(why: impl Into<String>) -> Held {
    Held::No { full: false, why: why.into() }
}

impl ClientFs {
    fn own(&self) -> Option<ClientId> {
        self.engine.client()
    }

    pub(super) fn ask(&self, body: RequestBody) -> Result<Reply> {
        match self.engine.call(Call::Ask { body })?.0 {
            Outcome::Answered(reply) => Ok(*reply),
            _ => Err(unexpected()),
        }
    }

    /// Returns an rnode as the server has it; `None` if it is gone.
    pub(super) fn peek(&self, id: RnodeId) -> Result<Option<Box<Peeked>>> {
        match self.ask(RequestBody::Peek { rnode: id })? {
            Reply::Peeked { peeked } => Ok(Some(peeked)),
            Reply::No { why: Refusal::Stale } => Ok(None),
            Reply::No { why } => Err(why.into()),
            _ => Err(unexpected()),
        }
    }

    /// Returns the policy for a file, which has a name in `dir`. Costs no message if the
    /// directories above are under leases.
    pub(super) fn policy(&self, id: RnodeId, dir: Option<RnodeId>) -> Result<Policy> {
        if let Some(policy) = dir.and_then(|dir| self.engine.known_policy(dir)) {
            return Ok(policy);
        }
        Ok(self.peek(id)?.map(|peeked| peeked.policy).unwrap_or_default())
    }

    /// Records that the content of a file has changed here.
    pub(super) fn has_changed(&self, id: RnodeId) {
        let dir = self.directory_of(id);
        let due = Instant::now() + self.engine.options.settle;
        locked(&self.engine.under_replicated)
            .insert(id, UnderReplicated { dir, due, text_unsent: true });
    }

    /// Makes a copy of a file that stays, or updates it. Calls `go_on` after each block, and stops
    /// when it returns false.
    pub(super) fn hold(&self, id: RnodeId, go_on: &mut dyn FnMut() -> bool) -> Held {
        self.try_hold(id, go_on)
            .unwrap_or_else(|e| Held::No { full: matches!(e, Error::NoSpace), why: e.to_string() })
    }

    fn try_hold(&self, id: RnodeId, go_on: &mut dyn FnMut() -> bool) -> Result<Held> {
        for _ in 0..CHANGES_MAX {
            let Some(peeked) = self.peek(id)? else { return Ok(no("the file was removed")) };
            let Some(content) = Content::of(&peeked) else { return Ok(no("not a regular file")) };
            let mut lacks = None;
            for block in content.blocks.values() {
                if !go_on() {
                    return Ok(no("the client is stopping"));
                }
                if let Err(e) = self.copy_block(id, block, &peeked) {
                    lacks = Some(e);
                    break;
                }
            }
            match lacks {
                None => {}
                Some(Error::NoSpace) => return Err(Error::NoSpace),
                // The block may be unavailable because the file has changed by now.
                Some(e) => match self.peek(id)? {
                    Some(now) if Content::of(&now).map(|c| c.version) == Some(content.version) => {
                        return Err(e);
                    }
                    _ => continue,
                },
            }
            match self.promise(id, &content)? {
                Some(Reply::Held {}) => return Ok(Held::Yes),
                // A server of version 2 says that a file that has changed is busy.
                None | Some(Reply::No { why: Refusal::Changed | Refusal::Busy }) => {}
                Some(Reply::No { why }) => return Err(why.into()),
                Some(_) => return Ok(no("protocol error: unexpected reply from the server")),
            }
        }
        Ok(no("the file changes faster than it can be copied"))
    }

    /// Promises the server to keep a file, and returns its reply; `None` if blocks are missing.
    fn promise(&self, id: RnodeId, content: &Content) -> Result<Option<Reply>> {
        let _one = locked(self.writer(id));
        let blocks = &self.engine.blocks;
        if content.blocks.keys().any(|hash| !blocks.stays(id, hash)) {
            return Ok(None);
        }
        blocks.sync().map_err(|e| io_error(&e))?;
        self.ask(RequestBody::Hold { rnode: id, content: content.version }).map(Some)
    }

    fn copy_block(&self, id: RnodeId, block: &Block, peeked: &Peeked) -> Result<()> {
        let blocks = &self.engine.blocks;
        if blocks.stays(id, &block.hash) {
            return Ok(());
        }
        self.check_room(u64::from(block.len_bytes))?;
        let here = blocks.whole(id, &block.hash).map_err(|e| io_error(&e))?;
        let bytes = match here {
            Some(bytes) => bytes,
            None => {
                let fetched = self.fetch_block(id, &block.hash, &peeked.holders);
                fetched.map_err(|message| Error::Io { errno: 5, message })?
            }
        };
        blocks.put_copy(id, &block.hash, &bytes).map_err(|e| io_error(&e))
    }

    /// Checks that there is room for a copy of this many bytes.
    fn check_room(&self, len_bytes: u64) -> Result<()> {
        let blocks = &self.engine.blocks;
        let space = blocks.space().map_err(|e| io_error(&e))?;
        let reserve = RESERVE_MAX_BYTES.min(space.f_blocks.saturating_mul(space.f_frsize) / 16);
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        let would_stay = blocks.staying_bytes().saturating_add(len_bytes);
        if would_stay > self.engine.options.store_max_bytes || free < len_bytes + reserve {
            return Err(Error::NoSpace);
        }
        Ok(())
    }

    /// Makes other clients copy a file, as the server has it, until `wanted` have a copy.
    ///
    /// # Errors
    /// At `deadline`, [`Error::NoSpace`] if the connected clients have no room, else `ETIMEDOUT`
    /// with the answer of each. They are all asked at least once.
    pub(super) fn spread(&self, id: RnodeId, wanted: u32, deadline: Instant) -> Result<()> {
        loop {
            let Some(peeked) = self.peek(id)? else { return Ok(()) };
            let Some(content) = Content::of(&peeked) else { return Ok(()) };
            let copies = &peeked.holders.copies;
            let has = |client: &ClientId| copies.get(client) == Some(&content.version);
            let own = self.own();
            if own.is_some_and(|own| !has(&own)) {
                // So that others know that they may drop their copies.
                self.promise(id, &content)?;
            }
            let mut have = copies.keys().filter(|c| Some(**c) != own && has(c)).count() as u64;
            if have >= u64::from(wanted) {
                return Ok(());
            }
            let mut ask = self.engine.peers.others(id);
            ask.retain(|client| !has(client));
            // A former holder has most of the blocks.
            ask.sort_by_key(|client| !copies.contains_key(client));
            let (mut said, mut full, mut failed) = (String::new(), 0, 0);
            for client in ask {
                let limit = deadline.max(Instant::now() + Duration::from_secs(10));
                match self.engine.peers.ask_to_hold(client, id, limit) {
                    Ok(Held::Yes) => have += 1,
                    Ok(Held::No { full: is_full, why }) => {
                        full += u32::from(is_full);
                        failed += 1;
                        said.push_str(&format!("; client {:016x}: {why}", client.0));
                    }
                    Err(e) => {
                        failed += 1;
                        said.push_str(&format!("; client {:016x}: {e}", client.0));
                    }
                }
                if have >= u64::from(wanted) {
                    return Ok(());
                }
            }
            if Instant::now() >= deadline || self.engine.is_stopped() {
                let message = format!("inode {id} has {have} of {wanted} copies{said}");
                tracing::info!("{message}");
                if failed > 0 && full == failed {
                    return Err(Error::NoSpace);
                }
                return Err(Error::Io { errno: ETIMEDOUT, message });
            }
            std::thread::sleep(ASK_AGAIN);
        }
    }

    /// Waits for as many copies at other clients, and in an archive, as the policy demands for
    /// `fsync`.
    pub(super) fn wait_for_copies(&self, id: RnodeId) -> Result<()> {
        let policy = self.policy(id, self.directory_of(id))?;
        let deadline = Instant::now() + self.engine.options.patience;
        if policy.fsync > 0 {
            self.spread(id, policy.fsync, deadline)?;
        }
        match policy.archive {
            Archiving::Fsync => self.archive(id, Wanted::One, deadline),
            Archiving::No | Archiving::Later => Ok(()),
        }
    }

    /// Removes those blocks of an rnode that stay and that no client needs.
    pub(super) fn scrub(&self, id: RnodeId) -> Result<()> {
        self.engine.call(Call::Sync)?;
        let _one = locked(self.writer(id));
        let blocks = &self.engine.blocks;
        let here: Vec<BlockHash> =
            blocks.staying_of(id).map_err(|e| io_error(&e))?.into_keys().collect();
        // Changes that the server does not have yet may consist of any of them.
        if !self.engine.is_all_flushed() {
            return Ok(());
        }
        let needed = self.needed(id, &here)?;
        for hash in here.iter().filter(|hash| !needed.contains(hash)) {
            blocks.remove_staying(id, hash);
        }
        Ok(())
    }

    /// Returns the blocks that a file, its history, or a snapshot needs.
    pub(super) fn needed(&self, id: RnodeId, hashes: &[BlockHash]) -> Result<BTreeSet<BlockHash>> {
        let mut needed = BTreeSet::new();
        for part in hashes.chunks(NEEDED_MAX) {
            let body = RequestBody::Needed { rnode: id, hashes: part.to_vec() };
            match self.ask(body)? {
                Reply::Needed { hashes } => needed.extend(hashes),
                _ => return Err(unexpected()),
            }
        }
        Ok(needed)
    }

    /// Asks the server to release a file of which `others` have a copy, or an archive. If it
    /// agrees, returns the lock under which that is so.
    fn release(
        &self,
        id: RnodeId,
        content: &Content,
        others: u32,
    ) -> Result<Option<MutexGuard<'_, ()>>> {
        let lock = locked(self.writer(id));
        let body = RequestBody::Release { rnode: id, content: content.version, others };
        let is_released = self.engine.is_all_flushed() && self.ask(body)? == (Reply::Held {});
        Ok(is_released.then_some(lock))
    }

    /// Asks the server to release a file, and if it agrees, moves the blocks to the cache. `false`
    /// if they must stay.
    pub(super) fn let_go(&self, id: RnodeId) -> Result<bool> {
        if !self.engine.is_all_flushed() {
            return Ok(false);
        }
        let Some(peeked) = self.peek(id)? else { return Ok(false) };
        let Some(content) = Content::of(&peeked) else { return Ok(false) };
        // An archive is asked, not believed from a record, before it alone has the file.
        let others = peeked.policy.copies;
        let _one = match self.release(id, &content, others.max(1))? {
            Some(lock) => lock,
            None if others > 0 || !self.is_in_an_archive(id, &content, &peeked) => {
                return Ok(false);
            }
            None => match self.release(id, &content, 0)? {
                Some(lock) => lock,
                None => return Ok(false),
            },
        };
        for hash in content.blocks.keys() {
            self.engine.blocks.demote(id, hash).map_err(|e| io_error(&e))?;
        }
        Ok(true)
    }

    /// Lists the holders of a file's copies, a line each: the client's number, `current` or `old`,
    /// and `here` if it is this one; with tabs between them. For an archive its number and
    /// `archive`. The first line is the policy.
    pub(super) fn list_holders(&self, id: RnodeId) -> Result<Vec<u8>> {
        // Changes made here must be included.
        self.engine.call(Call::Sync)?;
        let peeked = self.peek(id)?.ok_or(Error::Stale(id.0))?;
        let mut text = format!("policy\t{}\n", peeked.policy);
        if let Some(content) = Content::of(&peeked) {
            for (client, version) in &peeked.holders.copies {
                let state = if *version == content.version { "current" } else { "old" };
                let here = if self.own() == Some(*client) { "here" } else { "" };
                text.push_str(&format!("{:016x}\t{state}\t{here}\n", client.0));
            }
            for (archive, version) in &peeked.archived {
                let state = if *version == content.version { "current" } else { "old" };
                text.push_str(&format!("{:016x}\t{state}\tarchive\n", archive.0));
            }
        }
        Ok(text.into_bytes())
    }
}
