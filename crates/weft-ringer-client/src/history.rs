//! Earlier versions of files: kept before a change, listed, and restored.
//!
//! A content is kept when it is about to change for the first time since the file was last opened
//! for writing, closed after that, or synced: so a version is a state that a user left, and not
//! every write.
//!
//! Users who may write a file as it is now bring back the versions that they owned themselves, and
//! those that all users could read ([`ClientFs::is_open_to`]); root and the mount's own user bring
//! back any. A version without a recorded owner counts as another user's.

use std::time::{Duration, Instant};

use weft_ringer::client::{Call, Outcome};
use weft_ringer::op::{Change, Op};
use weft_ringer::wire::{Kept, KeptOwner, Reply, RequestBody};
use weft_ringer::{Block, BlockHash, Body, Name, OwnerKind, Refusal, RnodeId, Seq};
use weft_vfs::{Error, FileSystem, Ino, Result};

use super::client_fs::ClientFs;
use super::content::Source;
use super::errors::{io_error, unexpected};
use super::fs::RingerFs;
use super::mutex::locked;
use super::snapshots::allowed_by;

/// The longest list that an attribute holds, in bytes.
const LIST_MAX_BYTES: usize = 60 << 10;

impl ClientFs {
    /// Keeps the present content as a version, if the policy asks for it, before it changes.
    pub(super) fn before_change(&self, id: RnodeId) -> Result<()> {
        let last = {
            let mut changing = locked(&self.changing);
            let entry = changing.entry(id).or_default();
            if std::mem::replace(&mut entry.begun, true) {
                return Ok(());
            }
            entry.kept
        };
        let kept = self.policy(id, self.directory_of(id)).and_then(|policy| {
            let every = Duration::from_secs(policy.every_secs);
            if policy.versions == 0 || last.is_some_and(|at| at.elapsed() < every) {
                return Ok(());
            }
            self.keep(id)
        });
        if kept.is_err() {
            self.is_left(id);
        }
        kept
    }

    /// Keeps the present content of a file as a version.
    fn keep(&self, id: RnodeId) -> Result<()> {
        let rnode = self.get(id)?;
        let Body::File { size_bytes, content, kept, .. } = rnode.body else { return Ok(()) };
        if size_bytes == 0 || content == kept {
            return Ok(());
        }
        let (_, seq) = self.apply(Op::Keep { id }, id)?;
        self.wrote(id, rnode.version, seq);
        locked(&self.changing).entry(id).or_default().kept = Some(Instant::now());
        Ok(())
    }

    /// Records that a file was closed after a change, or synced: its next change is the first
    /// again.
    pub(super) fn is_left(&self, id: RnodeId) {
        if let Some(entry) = locked(&self.changing).get_mut(&id) {
            entry.begun = false;
        }
    }

    /// Lists the versions of a file, a line each: `version`, number, time of its last change in
    /// seconds, length; or the files removed below a directory: `removed`, inode number, time,
    /// length, path from there; with tabs between them, the newest first. A list that is too long
    /// ends with the line `more`.
    pub(super) fn list_history(&self, id: RnodeId) -> Result<Vec<u8>> {
        self.engine.call(Call::Sync)?;
        let body = match self.get(id)?.body {
            Body::File { .. } => RequestBody::Versions { rnode: id },
            Body::Directory { .. } => RequestBody::Removed { dir: id },
            _ => return Ok(Vec::new()),
        };
        let mut text = Vec::new();
        match self.ask(body)? {
            Reply::Versions { versions } => {
                for v in versions {
                    let line =
                        format!("version\t{}\t{}\t{}\n", v.number, v.mtime.secs, v.size_bytes);
                    text.extend_from_slice(line.as_bytes());
                }
            }
            Reply::Removed { files } => {
                for f in files {
                    let line = format!("removed\t{}\t{}\t{}\t", f.rnode.0, f.at.secs, f.size_bytes);
                    if text.len() + line.len() + f.path.0.len() > LIST_MAX_BYTES {
                        text.extend_from_slice(b"more\n");
                        break;
                    }
                    text.extend_from_slice(line.as_bytes());
                    text.extend_from_slice(&f.path.0);
                    text.push(b'\n');
                }
            }
            Reply::No { why } => return Err(self.refused(id, why)),
            _ => return Err(unexpected()),
        }
        Ok(text)
    }

    fn old_version(&self, id: RnodeId, number: u64) -> Result<(Box<Kept>, Option<KeptOwner>)> {
        self.engine.call(Call::Sync)?;
        match self.ask(RequestBody::OldVersion { rnode: id, number })? {
            Reply::OwnedVersion { kept, owner } => Ok((kept, Some(owner))),
            Reply::OldVersion { kept } => Ok((kept, None)),
            Reply::No { why } => Err(self.refused(id, why)),
            _ => Err(unexpected()),
        }
    }

    /// Returns true if a user who may write a file may restore a version of it: the user owned it,
    /// or all users could read it. It is not enough that the file's permissions are restored with
    /// the content: the user may have it open.
    fn is_open_to(&self, user: u32, id: RnodeId, number: u64) -> Result<bool> {
        const READ_BY_ALL: u16 = 0o044;
        let (old, owner) = self.old_version(id, number)?;
        let was_owner = match owner {
            Some(owner) => self.shown(OwnerKind::User, owner.uid)? == user,
            None => false,
        };
        Ok(was_owner || old.perm & READ_BY_ALL == READ_BY_ALL)
    }

    /// Restores a version of a file; the present content is kept. Its blocks are fetched on
    /// reading.
    fn restore(&self, id: RnodeId, number: u64) -> Result<()> {
        let (old, owner) = self.old_version(id, number)?;
        let _one = locked(self.writer(id));
        self.keep(id)?;
        loop {
            let rnode = self.get(id)?;
            let Body::File { size_bytes, blocks, .. } = &rnode.body else {
                return Err(Error::IsADirectory);
            };
            // A version that was closed to other users stays closed to them when it is restored.
            let mut perm = allowed_by(&rnode, old.perm, owner);
            if owner.is_none_or(|owner| owner.uid != rnode.uid) {
                // A user who gives it to another owner wants the new owner to have it.
                perm |= rnode.perm & 0o700;
            }
            if perm != rnode.perm {
                let change = Change { perm: Some(perm), ..Change::default() };
                self.apply(Op::SetAttr { id, change }, id)?;
                continue;
            }
            if *size_bytes > old.size_bytes {
                let change = Change { size_bytes: Some(old.size_bytes), ..Change::default() };
                let (_, seq) = self.apply(Op::SetAttr { id, change }, id)?;
                self.was_cut(&rnode, old.size_bytes, seq);
                continue;
            }
            let places = blocks.keys().chain(old.blocks.keys());
            let mut changed: Vec<(u32, Option<Block>)> = places
                .filter(|at| blocks.get(at) != old.blocks.get(at))
                .map(|at| (*at, old.blocks.get(at).copied()))
                .collect();
            changed.sort_by_key(|(at, _)| *at);
            changed.dedup_by_key(|(at, _)| *at);
            let (end_bytes, kill_privileges) = (old.size_bytes, false);
            let op = Op::Write { id, blocks: changed, end_bytes, kill_privileges };
            let call = Call::Apply { op, if_version: Some((id, rnode.version)) };
            match self.engine.call(call)? {
                (Outcome::Refused(Refusal::Changed), _) => {}
                (Outcome::Refused(why), _) => return Err(self.refused(id, why)),
                (_, seq) => {
                    self.wrote(id, rnode.version, seq);
                    self.has_changed(id);
                    self.is_left(id);
                    return Ok(());
                }
            }
        }
    }

    /// Makes a new file from a version of another.
    fn restore_as(&self, from: RnodeId, number: u64, dir: RnodeId, name: Name) -> Result<()> {
        let (old, owner) = self.old_version(from, number)?;
        let dir_rnode = self.get(dir)?;
        let cipher = self.cipher_of_kept(from, || {
            let Some(block) = old.blocks.values().next() else { return Ok(None) };
            self.block_as_stored(from, &block.hash).map(Some)
        })?;
        // The server cannot cause a copy to a less protected place by false statements about the
        // past.
        Self::check_copy(cipher.as_ref(), self.key_for(dir)?)?;
        let is_owner_same = owner.is_some_and(|owner| owner.uid == dir_rnode.uid);
        let is_group_same = owner.is_some_and(|owner| owner.gid == dir_rnode.gid);
        let mut perm = old.perm;
        if !is_group_same {
            // Another group gets the permissions of others, and no more.
            perm &= 0o7707 | old.perm << 3;
        }
        if !is_owner_same || !is_group_same {
            // As when a file is given away: it ran as another user.
            perm &= !0o6000;
        }
        let op = Op::Create {
            parent: dir,
            name: name.clone(),
            id: RnodeId::ROOT,
            make: self.new_file(dir, old.block_bytes)?,
            perm,
            // A user who may write here could have copied it.
            uid: dir_rnode.uid,
            gid: dir_rnode.gid,
        };
        let (made, _): (Option<RnodeId>, Seq) = self.apply(op, dir)?;
        let to = made.ok_or(Error::Stale(0))?;
        let copied = self.copy_blocks(Source { id: from, cipher: cipher.as_ref() }, to, &old);
        if copied.is_err() {
            // A partial file would look like a whole one.
            let _ = self.apply(Op::Unlink { parent: dir, name }, dir);
        }
        copied
    }

    /// Returns a block as it is stored, here or elsewhere.
    fn block_as_stored(&self, id: RnodeId, hash: &BlockHash) -> Result<Vec<u8>> {
        if let Some(bytes) = self.engine.blocks.whole(id, hash).map_err(|e| io_error(&e))? {
            return Ok(bytes);
        }
        let fetched = self.fetch_block(id, hash, &self.engine.holders(id));
        fetched.map_err(|message| Error::Io { errno: 5, message })
    }

    fn copy_blocks(&self, from: Source<'_>, to: RnodeId, old: &Kept) -> Result<()> {
        for (at, block) in old.blocks.iter() {
            let mut bytes = vec![0; block.len_bytes as usize];
            self.load_block(from, *at, block, &mut bytes)?;
            let offset = u64::from(*at) * u64::from(old.block_bytes);
            let mut done = 0;
            while done < bytes.len() {
                done += self.write(to, Some(offset + done as u64), &bytes[done..])?;
            }
        }
        let change = Change {
            size_bytes: Some(old.size_bytes),
            mtime: Some(old.mtime),
            ..Change::default()
        };
        self.apply(Op::SetAttr { id: to, change }, to)?;
        self.has_changed(to);
        self.is_left(to);
        Ok(())
    }
}

impl RingerFs {
    /// Returns true if only the mount's own user and root, and not `user`, may write `text` into
    /// the attribute: of a directory always, for it brings back files from anywhere; of a file, for
    /// versions that were closed to `user`.
    pub(super) fn restores_for_owner(&self, user: u32, ino: Ino, text: Option<&[u8]>) -> bool {
        let id = RnodeId(ino.0);
        if !self.client.get(id).is_ok_and(|rnode| !rnode.is_dir()) {
            return true;
        }
        match text.and_then(version_number) {
            Some(number) => match self.client.is_open_to(user, id, number) {
                Ok(is_open) => !is_open,
                // Others may learn that there is no such version.
                Err(Error::NotFound) => false,
                Err(_) => true,
            },
            None => false,
        }
    }

    /// Carries out the setting of the attribute: `NUMBER` restores that version of a file; for a
    /// directory, `INODE NUMBER NAME` makes a new file there from a version of another, where
    /// number 0 is the content of a removed file.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid text, [`Error::NotFound`] if there is no such version,
    /// [`Error::Exists`] if the name is taken.
    pub(super) fn restore_from(&self, ino: Ino, text: &[u8]) -> Result<()> {
        const WHAT: Error = Error::Invalid("write NUMBER, or of a directory INODE NUMBER NAME");
        let id = RnodeId(ino.0);
        if !self.client.get(id)?.is_dir() {
            return self.client.restore(id, version_number(text).filter(|n| *n > 0).ok_or(WHAT)?);
        }
        let mut words = text.splitn(3, |b| *b == b' ');
        let from = words.next().and_then(version_number).filter(|n| *n > 0).ok_or(WHAT)?;
        let version = words.next().and_then(version_number).ok_or(WHAT)?;
        let name = Name::new(words.next().ok_or(WHAT)?).map_err(Error::from)?;
        if self.lookup(ino, name.bytes()).map(|e| self.forget(e.attr.ino, 1)).is_ok() {
            return Err(Error::Exists);
        }
        self.client.restore_as(RnodeId(from), version, id, name)
    }
}

fn version_number(word: &[u8]) -> Option<u64> {
    std::str::from_utf8(word).ok()?.trim().parse().ok()
}
