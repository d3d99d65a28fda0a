//! The cell's archives as this client uses them: files are copied there where a policy asks for it,
//! and read from there when no other client has them.
//!
//! Invariants:
//! - The server is told that an archive has a content only after the archive has acknowledged each
//!   of its blocks, or had it, after the request for the era that the server is told as well, and
//!   after the archive was then still the one that it should be: its marker is read again for each
//!   report.
//! - A copy here is given up for one in an archive only after the archive has answered for each
//!   block. What it turns out to lack is reported to the server.
//! - An archive that fails is asked last, or skipped for reads, for a while (`opened_archives`).

use std::time::{Duration, Instant};

use weft_ringer::wire::{ArchiveInfo, Peeked, Reply, RequestBody};
use weft_ringer::{
    ArchiveId, Block, BlockHash, ENCRYPTED_OVERHEAD_BYTES, Holders, Refusal, RnodeId, is_encrypted,
};
use weft_vfs::{Error, Result};

use super::client_fs::ClientFs;
use super::copies::{Content, Wanted};
use super::errors::{ETIMEDOUT, io_error, unexpected};
use super::mutex::locked;
use crate::archive::{Archive, ArchiveError};

/// The time for which the list of archives is valid for reads.
const KNOWN_FOR: Duration = Duration::from_secs(30);
/// The time limit of one request to an archive: at least the first, or the patience of a call if
/// that is shorter, even after a deadline.
const REQUEST_MIN: Duration = Duration::from_secs(10);
const REQUEST_MAX: Duration = Duration::from_secs(60);
/// The time limit for reading a block from one archive.
const READ_LIMIT: Duration = Duration::from_secs(20);
/// The maximum number of blocks put in parallel, each with its bytes in memory.
const PUT_AT_ONCE: usize = 8;
/// The pause before an archive that is wanted now is tried again.
const TRY_AGAIN: Duration = Duration::from_millis(300);
/// `ENXIO`
const NO_ARCHIVE: i32 = 6;
/// `EACCES`
const DENIED: i32 = 13;

/// The error for the caller.
fn as_vfs(error: &ArchiveError) -> Error {
    let io = |errno| Error::Io { errno, message: error.to_string() };
    match error {
        ArchiveError::Full { .. } => Error::NoSpace,
        ArchiveError::Denied { .. } => io(DENIED),
        ArchiveError::Silent { .. } => io(ETIMEDOUT),
        _ => io(5),
    }
}

/// By how much a stored block of a file is longer than its content.
fn overhead_bytes(peeked: &Peeked) -> u64 {
    if is_encrypted(&peeked.rnode) { u64::from(ENCRYPTED_OVERHEAD_BYTES) } else { 0 }
}

impl ClientFs {
    /// Returns the present era and archives, from the server.
    fn ask_archives(&self) -> Result<(u64, Vec<ArchiveInfo>)> {
        let Reply::Archives { era, archives } = self.ask(RequestBody::Archives {})? else {
            return Err(unexpected());
        };
        let mut known = locked(&self.engine.archives.known);
        known.asked = Some(Instant::now());
        known.list.clone_from(&archives);
        known.used.retain(|id, _| archives.iter().any(|info| info.archive == *id));
        Ok((era, archives))
    }

    /// Returns the archives as they were a short while ago; if the server does not answer, the last
    /// known.
    pub(super) fn known_archives(&self) -> Vec<ArchiveInfo> {
        let (is_fresh, list) = {
            let known = locked(&self.engine.archives.known);
            let is_fresh = known.asked.is_some_and(|asked| asked.elapsed() < KNOWN_FOR);
            (is_fresh, known.list.clone())
        };
        if is_fresh {
            return list;
        }
        match self.ask_archives() {
            Ok((_, list)) => list,
            Err(e) => {
                tracing::debug!("cannot list the archives: {e}");
                // Not every read should wait for an unreachable server.
                locked(&self.engine.archives.known).asked = Some(Instant::now());
                list
            }
        }
    }

    /// Fetches a block of a file: from other clients, and if none of them has it, from an archive.
    ///
    /// # Errors
    /// The clients and archives that were asked, and the answer of each.
    pub(super) fn fetch_block(
        &self,
        id: RnodeId,
        hash: &BlockHash,
        holders: &Holders,
    ) -> Result<Vec<u8>, String> {
        let mut said =
            match self.engine.peers.fetch(id, hash, holders, self.engine.options.patience) {
                Ok(bytes) => return Ok(bytes),
                Err(e) => e.to_string(),
            };
        let archives = &self.engine.archives;
        let cell = self.engine.cell();
        let limit = READ_LIMIT.min(self.engine.options.patience);
        for info in archives.in_order(self.known_archives()) {
            match archives.read(&info, cell, hash, limit) {
                Ok(bytes) => return Ok(bytes),
                Err(e) => {
                    archives.went_wrong(info.archive, &e);
                    self.report_lack(id, info.archive, hash, &e);
                    said.push_str(&format!("; {e}"));
                }
            }
        }
        Err(said)
    }

    /// Copies a file, as the server has it, to archives.
    ///
    /// # Errors
    /// At once `ENXIO` if the cell has no archive, and `EACCES` if all refuse it. At `deadline`
    /// [`Error::NoSpace`] if the answering archives have no room, else `ETIMEDOUT` with the answer
    /// of each. All are tried at least once.
    pub(super) fn archive(&self, id: RnodeId, wanted: Wanted, deadline: Instant) -> Result<()> {
        let archives = &self.engine.archives;
        loop {
            // Before the first block is looked up.
            let (era, list) = self.ask_archives()?;
            if list.is_empty() {
                let message =
                    "the policy asks for an archive, but the cell has none: add one with `weft \
                    ringer archive add`"
                        .into();
                return Err(Error::Io { errno: NO_ARCHIVE, message });
            }
            let Some(peeked) = self.peek(id)? else { return Ok(()) };
            let Some(content) = Content::of(&peeked) else { return Ok(()) };
            let has =
                |info: &ArchiveInfo| peeked.archived.get(&info.archive) == Some(&content.version);
            let needed = if wanted == Wanted::One { 1 } else { list.len() };
            let mut have = list.iter().filter(|info| has(info)).count();
            let (mut said, mut full, mut denied, mut tried) = (String::new(), 0, 0, 0);
            for info in archives.in_order(list).iter().filter(|info| !has(info)) {
                if have >= needed {
                    break;
                }
                tried += 1;
                let body = RequestBody::Archived {
                    rnode: id,
                    content: content.version,
                    archive: info.archive,
                    era,
                };
                match self.put_all(info, id, &content, &peeked, deadline) {
                    Ok(()) => match self.ask(body)? {
                        Reply::Held {} => have += 1,
                        // A server of version 2 does not tell one from the other.
                        Reply::No {
                            why: why @ (Refusal::Changed | Refusal::SweepRunning | Refusal::Busy),
                        } => said.push_str(&format!("; {why}")),
                        Reply::No { why } => return Err(why.into()),
                        _ => return Err(unexpected()),
                    },
                    Err(e) => {
                        full += u32::from(matches!(e, Error::NoSpace));
                        denied += u32::from(matches!(e, Error::Io { errno: DENIED, .. }));
                        said.push_str(&format!("; {}: {e}", String::from_utf8_lossy(&info.url.0)));
                    }
                }
            }
            if have >= needed {
                return Ok(());
            }
            let is_over = Instant::now() >= deadline || self.engine.is_stopped();
            if is_over || denied == tried {
                let message = format!("inode {id} is in {have} of {needed} archives{said}");
                tracing::info!("{message}");
                if full == tried {
                    return Err(Error::NoSpace);
                }
                let errno = if denied == tried { DENIED } else { ETIMEDOUT };
                return Err(Error::Io { errno, message });
            }
            std::thread::sleep(TRY_AGAIN);
        }
    }

    /// Puts those blocks of a file into an archive that it lacks.
    fn put_all(
        &self,
        info: &ArchiveInfo,
        id: RnodeId,
        content: &Content,
        peeked: &Peeked,
        deadline: Instant,
    ) -> Result<()> {
        let archives = &self.engine.archives;
        let failed = |e: ArchiveError| {
            archives.went_wrong(info.archive, &e);
            as_vfs(&e)
        };
        let opened = archives.open(info, self.engine.cell(), self.request_limit(deadline));
        let archive = opened.map_err(failed)?;
        let blocks: Vec<&Block> = content.blocks.values().collect();
        for part in blocks.chunks(PUT_AT_ONCE) {
            let put = std::thread::scope(|scope| {
                let put = |block| self.put_block(&archive, id, block, peeked, deadline, &failed);
                let puts: Vec<_> =
                    part.iter().map(|block| scope.spawn(move || put(block))).collect();
                let panicked = |_| Err(Error::Io { errno: 5, message: "a thread panicked".into() });
                puts.into_iter().try_for_each(|put| put.join().unwrap_or_else(panicked))
            });
            put?;
            if self.engine.is_stopped() {
                return Err(Error::Io {
                    errno: ETIMEDOUT,
                    message: "the client is stopping".into(),
                });
            }
        }
        // The blocks went to whatever is there: it must be the archive, now.
        archive
            .check(info.archive, self.engine.cell(), self.request_limit(deadline))
            .map_err(failed)
    }

    /// Reports to the server that an archive does not have a block, if `error` says so.
    fn report_lack(&self, id: RnodeId, archive: ArchiveId, hash: &BlockHash, error: &ArchiveError) {
        if !matches!(error, ArchiveError::Absent { .. } | ArchiveError::Wrong { .. }) {
            return;
        }
        tracing::error!("inode {id} no longer counts as archived: {error}");
        match self.ask(RequestBody::ArchiveLacks { rnode: id, archive, hash: *hash }) {
            // A member that may only read is not believed, nor is there a file to correct.
            Ok(Reply::Held {} | Reply::No { .. }) => {}
            Ok(_) => tracing::warn!("{}", unexpected()),
            Err(e) => tracing::warn!("cannot report that: {e}"),
        }
    }

    /// Returns true if an archive that should have a file's present content has each block of it,
    /// as the archive itself says now.
    pub(super) fn is_in_an_archive(&self, id: RnodeId, content: &Content, peeked: &Peeked) -> bool {
        let should =
            |info: &ArchiveInfo| peeked.archived.get(&info.archive) == Some(&content.version);
        let archives = self.engine.archives.in_order(self.known_archives());
        archives.iter().filter(|info| should(info)).any(|info| {
            let has = self.has_all(info, id, content, peeked);
            has.inspect_err(|e| tracing::info!("the copy of inode {id} stays here: {e}")).is_ok()
        })
    }

    /// Asks an archive for each block of a file.
    fn has_all(
        &self,
        info: &ArchiveInfo,
        id: RnodeId,
        content: &Content,
        peeked: &Peeked,
    ) -> Result<(), ArchiveError> {
        let archives = &self.engine.archives;
        let limit = READ_LIMIT.min(self.engine.options.patience);
        let (cell, overhead) = (self.engine.cell(), overhead_bytes(peeked));
        let archive = archives.open(info, cell, limit)?;
        let has = |block: &Block| match archive.len_of(&block.hash, limit)? {
            Some(len) if len >= u64::from(block.len_bytes) + overhead => Ok(()),
            found => {
                let (archive, object) = (archive.url().to_owned(), block.hash.to_string());
                let error = match found {
                    Some(_) => ArchiveError::Wrong { archive, object },
                    None => ArchiveError::Absent { archive, object },
                };
                self.report_lack(id, info.archive, &block.hash, &error);
                Err(error)
            }
        };
        let blocks: Vec<&Block> = content.blocks.values().collect();
        for part in blocks.chunks(PUT_AT_ONCE) {
            std::thread::scope(|scope| {
                let asked: Vec<_> =
                    part.iter().map(|block| scope.spawn(move || has(block))).collect();
                asked.into_iter().try_for_each(|one| {
                    one.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
            })
            .inspect_err(|e| archives.went_wrong(info.archive, e))?;
        }
        archive.check(info.archive, cell, limit)
    }

    /// The time limit of one request.
    fn request_limit(&self, deadline: Instant) -> Duration {
        let left = deadline.saturating_duration_since(Instant::now());
        left.clamp(REQUEST_MIN.min(self.engine.options.patience), REQUEST_MAX)
    }

    fn put_block(
        &self,
        archive: &Archive,
        id: RnodeId,
        block: &Block,
        peeked: &Peeked,
        deadline: Instant,
        failed: &(dyn Fn(ArchiveError) -> Error + Sync),
    ) -> Result<()> {
        let limit = self.request_limit(deadline);
        // The file may use only the beginning of a stored block.
        let there = archive.len_of(&block.hash, limit).map_err(failed)?;
        if there.is_some_and(|len| len >= u64::from(block.len_bytes) + overhead_bytes(peeked)) {
            return Ok(());
        }
        let here = self.engine.blocks.whole(id, &block.hash);
        let bytes = match here.map_err(|e| io_error(&e))? {
            Some(bytes) => bytes,
            None => {
                let fetched = self.fetch_block(id, &block.hash, &peeked.holders);
                fetched.map_err(|message| Error::Io { errno: 5, message })?
            }
        };
        let len_bytes = bytes.len() as u64;
        archive.put(&block.hash, bytes, limit).map_err(failed)?;
        self.engine.archives.count_put(len_bytes);
        Ok(())
    }
}
