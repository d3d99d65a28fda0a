//! Copies of files: the clients that hold them, and permission to drop one.
//!
//! Invariants:
//! - A copy counts for one content of a file ([`Body::File`]): a client reports that it has all
//!   blocks of the content that the file has now, or is refused.
//! - A client may drop its copy only while at least one other client with a live epoch, or an
//!   archive, has a copy of the file's present content. So the last copy is never dropped; two
//!   clients that ask at once are answered one after the other.

use std::collections::{BTreeMap, BTreeSet};

use super::archives::{Archives, archived_key};
use super::paths::{path_of, policy};
use super::records::{self, holders_key, load_holders};
use super::stop::Stop;
use super::{Mds, history, snapshots, text};
use crate::error::Refusal;
use crate::rnode::{Body, Holders};
use crate::store::{Store, StoreResult, Transaction};
use crate::types::{ArchiveId, BlockHash, ClientId, RnodeId, Version};
use crate::wire::{Peeked, Reply, RequestBody, encode};

/// The most copies of one file that are recorded.
const COPIES_MAX: usize = 64;
/// Files in one transaction when a client is dropped permanently.
const FORGET_AT_ONCE: usize = 50;
/// The most files that are named of many.
const NAMED_MAX: usize = 3;

impl Mds {
    /// Answers requests about copies and kept contents; `None` for any other request.
    pub(super) fn answer_about_copies(
        &mut self,
        store: &mut dyn Store,
        client: ClientId,
        body: &RequestBody,
    ) -> StoreResult<Option<Reply>> {
        let answer = match body {
            RequestBody::Peek { rnode } => self.peek(store, *rnode),
            RequestBody::Hold { rnode, content } => self.hold(store, client, *rnode, *content),
            RequestBody::Release { rnode, content, others } => {
                self.release(store, client, *rnode, *content, *others)
            }
            RequestBody::Needed { rnode, hashes } => self.needed(store, *rnode, hashes),
            RequestBody::Archives {} => {
                Ok(Reply::Archives { era: self.archives.era(), archives: self.archives() })
            }
            RequestBody::Archived { rnode, content, archive, era } => {
                self.archived(store, *rnode, *content, *archive, *era)
            }
            RequestBody::ArchiveLacks { rnode, archive, hash } => {
                self.archive_lacks(store, *rnode, *archive, hash)
            }
            RequestBody::Versions { rnode } => Ok(history::versions(store, *rnode)?),
            RequestBody::OldVersion { rnode, number } => history::version(store, *rnode, *number),
            RequestBody::Removed { dir } => history::removed_below(store, *dir),
            RequestBody::Snapshots { dir } => snapshots::list(store, *dir),
            RequestBody::Text { rnode, content, text } => {
                self.take_text(store, *rnode, *content, text)
            }
            _ => return Ok(None),
        };
        match answer {
            Ok(reply) => Ok(Some(reply)),
            Err(Stop::Refused(why)) => Ok(Some(Reply::No { why })),
            Err(Stop::Store(e)) => Err(e),
        }
    }

    fn peek(&self, store: &dyn Store, id: RnodeId) -> Result<Reply, Stop> {
        let rnode = records::load_rnode(store, id)?.ok_or(Refusal::Stale)?;
        let holders = load_holders(store, id)?;
        let archived = self.archived_of(store, id)?;
        let policy = policy(store, &rnode)?;
        let told = text::told(store, id)?;
        let peeked = Box::new(Peeked { rnode, holders, archived, policy, told });
        Ok(Reply::Peeked { peeked })
    }

    fn hold(
        &self,
        store: &mut dyn Store,
        client: ClientId,
        id: RnodeId,
        of: Version,
    ) -> Result<Reply, Stop> {
        let rnode = records::load_rnode(store, id)?.ok_or(Refusal::Stale)?;
        if id.is_of_snapshot() {
            // Blocks belong to the original file, and are recorded under its number.
            return Err(Refusal::Invalid.into());
        }
        if rnode.content() != Some(of) {
            return Err(Refusal::Changed.into());
        }
        let mut holders = load_holders(store, id)?;
        if holders.copies.get(&client) == Some(&of) {
            return Ok(Reply::Held {});
        }
        if holders.copies.len() >= COPIES_MAX && !holders.copies.contains_key(&client) {
            return Err(Refusal::NoSpace.into());
        }
        holders.copies.insert(client, of);
        holders.clients.entry(client).or_insert(rnode.version);
        self.put_holders(store, id, &holders)?;
        Ok(Reply::Held {})
    }

    fn release(
        &self,
        store: &mut dyn Store,
        client: ClientId,
        id: RnodeId,
        of: Version,
        others: u32,
    ) -> Result<Reply, Stop> {
        let rnode = records::load_rnode(store, id)?.ok_or(Refusal::Stale)?;
        let mut holders = load_holders(store, id)?;
        let is_here = |c: &ClientId| self.is_here(*c);
        let have = holders.copies.iter().filter(|(c, v)| **c != client && **v == of && is_here(c));
        let clients = have.count() as u64;
        let archives = self.archived_of(store, id)?.values().filter(|v| **v == of).count() as u64;
        if rnode.content() != Some(of) {
            return Err(Refusal::Changed.into());
        }
        if clients < u64::from(others) || clients + archives == 0 {
            return Err(Refusal::TooFewCopies.into());
        }
        holders.copies.remove(&client);
        holders.clients.remove(&client);
        self.put_holders(store, id, &holders)?;
        Ok(Reply::Held {})
    }

    /// Drops a client permanently: its copies no longer count. Returns the number of copies that it
    /// had; `None` if its epoch is still live.
    ///
    /// # Errors
    /// Those of the store.
    pub fn forget_client(
        &mut self,
        store: &mut dyn Store,
        client: ClientId,
    ) -> StoreResult<Option<u64>> {
        if self.is_here(client) {
            return Ok(None);
        }
        let (mut from, mut files) = (b"h".to_vec(), 0);
        loop {
            let part = store.range(&from, b"i", FORGET_AT_ONCE)?;
            let mut transaction = Transaction::default();
            for (key, record) in &part {
                let mut holders: Holders = crate::wire::decode(&record.value)
                    .map_err(|_| records::damaged("holders", key))?;
                let had = holders.copies.remove(&client).is_some();
                if holders.clients.remove(&client).is_some() || had {
                    transaction.put(key.clone(), encode(&holders));
                }
                files += u64::from(had);
            }
            if !transaction.changes.is_empty() {
                self.commit(store, transaction)?;
            }
            match part.last() {
                Some((last, _)) => from = [&last[..], &[0]].concat(),
                None => return Ok(Some(files)),
            }
        }
    }

    fn put_holders(
        &self,
        store: &mut dyn Store,
        id: RnodeId,
        holders: &Holders,
    ) -> Result<(), Stop> {
        let mut transaction = Transaction::default();
        transaction.put(holders_key(id), encode(holders));
        match self.commit(store, transaction) {
            Ok(_) => Ok(()),
            Err(crate::store::StoreError::Full) => Err(Refusal::NoSpace.into()),
            Err(e) => Err(e.into()),
        }
    }

    /// Returns those of `hashes` that the file, its history or a snapshot of it has.
    fn needed(&self, store: &dyn Store, id: RnodeId, hashes: &[BlockHash]) -> Result<Reply, Stop> {
        let mut used = history::blocks(store, id)?;
        used.extend(snapshots::blocks(store, id)?);
        if let Some(rnode) = records::load_rnode(store, id)?
            && let Body::File { blocks, .. } = &rnode.body
        {
            used.extend(blocks.values().map(|b| b.hash));
        }
        let hashes = hashes.iter().filter(|hash| used.contains(hash)).copied().collect();
        Ok(Reply::Needed { hashes })
    }
}

/// Returns the number of files whose content only these clients have, as far as the cell knows: no
/// other client, and no archive. And the paths of the first of them.
///
/// # Errors
/// Those of the store.
pub fn sole_holders(
    store: &dyn Store,
    clients: &BTreeSet<ClientId>,
) -> StoreResult<(u64, Vec<Vec<u8>>)> {
    let archives = Archives::ids(store)?;
    let (mut from, mut files, mut paths) = (b"h".to_vec(), 0, Vec::new());
    loop {
        let part = store.range(&from, b"i", FORGET_AT_ONCE)?;
        for (key, record) in &part {
            let holders: Holders =
                crate::wire::decode(&record.value).map_err(|_| records::damaged("holders", key))?;
            let mut all = holders.clients.keys().chain(holders.copies.keys()).peekable();
            if all.peek().is_none() || !all.all(|client| clients.contains(client)) {
                continue;
            }
            let id = RnodeId(records::number_of(key)?);
            let Some(rnode) = records::load_rnode(store, id)? else { continue };
            let Body::File { blocks, content, .. } = &rnode.body else { continue };
            let archived: BTreeMap<ArchiveId, Version> =
                records::load(store, &archived_key(id), "archived file")?.unwrap_or_default();
            let is_archived = archived.iter().any(|(a, of)| archives.contains(a) && of == content);
            if blocks.stored_bytes() == 0 || is_archived {
                continue;
            }
            files += 1;
            if paths.len() < NAMED_MAX {
                paths.extend(path_of(store, id)?);
            }
        }
        match part.last() {
            Some((last, _)) => from = [&last[..], &[0]].concat(),
            None => return Ok((files, paths)),
        }
    }
}
