//! Changes of this client that came too late: kept until the user has settled them, with the blocks
//! that they wrote.
//!
//! All changes of one file are one conflict, named by the number of its first change. Settling it
//! for *theirs* forgets it. For *mine*, its changes are made again on the present state. For
//! *both*, a copy of the present file is made under another name, and they are made again on that.

use std::fmt::Write as _;
use std::sync::Arc;

use weft_ringer::client::Conflict;
use weft_ringer::op::{Make, Op};
use weft_ringer::{Block, Body, Name, RnodeId, Seq};
use weft_vfs::{Caller, Error, FileSystem, Handle, Ino, OpenFlags, Result, Walker};

use super::client_fs::ClientFs;
use super::conflict_log::{Kept, blocks_of, subject};
use super::content::Source;
use super::encryption::FileCipher;
use super::errors::io_error;
use super::fs::RingerFs;
use super::mutex::locked;

/// The attribute of a mount's root that lists conflicts, and that settles them when it is set.
pub const CONFLICTS_XATTR: &[u8] = b"user.weft.conflicts";
/// The longest list that an attribute holds, in bytes.
const LIST_MAX_BYTES: usize = 60 << 10;
/// The size of one copy step, in bytes.
const COPY_BYTES: usize = 1 << 20;

/// A way to settle a conflict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Choice {
    /// Other clients' changes stay as they are.
    Theirs,
    /// The changes are made again.
    Mine,
    /// They are made again on a copy with this path, which begins with `/` at the root of the cell.
    Both(Vec<u8>),
}

impl Choice {
    /// `theirs SEQ`, `mine SEQ` or `both SEQ /PATH`, as [`CONFLICTS_XATTR`] takes it.
    fn parse(text: &[u8]) -> Option<(Self, Seq)> {
        let mut words = text.splitn(3, |b| *b == b' ');
        let (what, number, rest) = (words.next()?, words.next()?, words.next());
        let seq = Seq(std::str::from_utf8(number).ok()?.trim().parse().ok()?);
        match (what, rest) {
            (b"theirs", None) => Some((Self::Theirs, seq)),
            (b"mine", None) => Some((Self::Mine, seq)),
            (b"both", Some(path)) => Some((Self::Both(path.to_vec()), seq)),
            _ => None,
        }
    }
}

fn describe(op: &Op) -> String {
    let name = |n: &Name| String::from_utf8_lossy(n.bytes()).into_owned();
    match op {
        Op::Create { name: n, .. } => format!("make {}", name(n)),
        Op::Link { name: n, .. } => format!("link {}", name(n)),
        Op::Unlink { name: n, .. } | Op::Rmdir { name: n, .. } => format!("remove {}", name(n)),
        Op::Rename { name: n, new_name, .. } => format!("rename {} to {}", name(n), name(new_name)),
        Op::SetAttr { change, .. } => match change.size_bytes {
            Some(size) => format!("cut to {size} bytes"),
            None => "set attributes".into(),
        },
        Op::SetXattr { name, .. } => format!("set {}", String::from_utf8_lossy(&name.0)),
        Op::RemoveXattr { name, .. } => format!("remove {}", String::from_utf8_lossy(&name.0)),
        Op::Write { blocks, end_bytes, .. } => {
            format!("write {} blocks, up to byte {end_bytes}", blocks.len())
        }
        Op::Keep { .. } => "keep what it was".into(),
    }
}

impl RingerFs {
    /// Lists the conflicts, a line each: number, inode number (0 for names), time in seconds,
    /// reason, changes; with tabs between them. A list that is too long ends with the line `more`.
    pub(super) fn list_conflicts(&self) -> Vec<u8> {
        let groups = locked(&self.client.engine.conflicts).groups();
        let mut text = String::new();
        for (number, group) in &groups {
            let Some(last) = group.last() else { continue };
            let about = subject(&last.logged.op).map_or(0, |id| id.0);
            let what: Vec<String> = group.iter().map(|c| describe(&c.logged.op)).collect();
            let what = what.join("; ");
            let secs = last.logged.stamp.secs;
            let _ = writeln!(text, "{}\t{about}\t{secs}\t{}\t{what}", number.0, last.why);
            if text.len() > LIST_MAX_BYTES {
                text.push_str("more\n");
                break;
            }
        }
        text.into_bytes()
    }

    /// Settles a conflict as `text` says.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid text, [`Error::NotFound`] if there is no such conflict;
    /// errors of the changes that are made again, and then the conflict stays.
    pub(super) fn settle_conflict(&self, text: &[u8]) -> Result<()> {
        let (choice, number) =
            Choice::parse(text).ok_or(Error::Invalid("write mine N, theirs N or both N /PATH"))?;
        let group = locked(&self.client.engine.conflicts).groups().remove(&number);
        let group = group.ok_or(Error::NotFound)?;
        match &choice {
            Choice::Theirs => {}
            Choice::Mine => {
                group.iter().try_for_each(|c| self.make_again(&c.logged.op, None, &group))?;
            }
            Choice::Both(path) => {
                let copy = self.copy_to(&group, path)?;
                let again = |c: &Conflict| self.make_again(&c.logged.op, Some(copy), &group);
                group.iter().try_for_each(again)?;
            }
        }
        self.client.engine.sync()?;
        for conflict in &group {
            let seq = conflict.logged.seq;
            let kept = locked(&self.client.engine.conflicts).keep(Kept::Settled { seq });
            kept.map_err(|e| io_error(&e))?;
            for (rnode, hash) in blocks_of(&conflict.logged.op) {
                self.client.engine.blocks.let_go(rnode, &hash);
            }
        }
        Ok(())
    }

    /// The present number of an rnode that a change names.
    fn present(&self, id: RnodeId) -> RnodeId {
        locked(&self.client.engine.conflicts).remade.get(&id).copied().unwrap_or(id)
    }

    /// Makes a change again, of another file if one is given.
    fn make_again(&self, op: &Op, instead: Option<RnodeId>, group: &[Conflict]) -> Result<()> {
        let at = |id: RnodeId| instead.unwrap_or_else(|| self.present(id));
        let mut op = op.clone();
        if let Op::Create {
            parent,
            make: make @ (Make::File { .. } | Make::EncryptedFile { .. }),
            ..
        } = &mut op
        {
            // The directory may have been encrypted meanwhile.
            let (Make::File { block_bytes } | Make::EncryptedFile { block_bytes, .. }) = *make
            else {
                return Err(Error::Invalid("not a regular file"));
            };
            *make = self.client.new_file(self.present(*parent), block_bytes)?;
        }
        match &mut op {
            Op::Write { id, blocks, end_bytes, .. } => {
                let cipher = self.cipher_of_conflict(*id, group)?;
                let from = Source { id: *id, cipher: cipher.as_ref() };
                return self.write_again(from, at(*id), blocks, *end_bytes);
            }
            Op::Create { .. } if instead.is_some() => return Ok(()),
            Op::SetAttr { id, .. }
            | Op::SetXattr { id, .. }
            | Op::RemoveXattr { id, .. }
            | Op::Keep { id } => {
                *id = at(*id);
            }
            Op::Create { parent, .. } | Op::Unlink { parent, .. } | Op::Rmdir { parent, .. } => {
                *parent = self.present(*parent);
            }
            Op::Link { id, parent, .. } => {
                (*id, *parent) = (self.present(*id), self.present(*parent));
            }
            Op::Rename { parent, new_parent, .. } => {
                (*parent, *new_parent) = (self.present(*parent), self.present(*new_parent));
            }
        }
        let was = match &op {
            Op::Create { id, .. } => Some(*id),
            _ => None,
        };
        let about = subject(&op).unwrap_or(RnodeId::ROOT);
        let (made, _) = self.client.apply(op, about)?;
        if let (Some(old), Some(new)) = (was, made) {
            let kept = locked(&self.client.engine.conflicts).keep(Kept::Remade { old, new });
            kept.map_err(|e| io_error(&e))?;
        }
        Ok(())
    }

    /// Returns the cipher for the blocks that changes of a file wrote.
    fn cipher_of_conflict(
        &self,
        id: RnodeId,
        group: &[Conflict],
    ) -> Result<Option<Arc<FileCipher>>> {
        self.client.cipher_of_kept(id, || {
            let mut blocks = group.iter().flat_map(|c| blocks_of(&c.logged.op));
            let Some((_, hash)) = blocks.find(|(of, _)| *of == id) else { return Ok(None) };
            self.client.engine.blocks.whole(id, &hash).map_err(|e| io_error(&e))
        })
    }

    /// Writes blocks kept for one file into another, or the same.
    fn write_again(
        &self,
        from: Source<'_>,
        to: RnodeId,
        blocks: &[(u32, Option<Block>)],
        end_bytes: u64,
    ) -> Result<()> {
        let rnode = self.client.get_any(to)?;
        let Body::File { block_bytes, .. } = rnode.body else {
            return Err(Error::IsADirectory);
        };
        let key = self.client.cipher(&rnode)?.map(|cipher| cipher.encryption.key);
        ClientFs::check_copy(from.cipher, key)?;
        for (at, block) in blocks {
            let offset = u64::from(*at) * u64::from(block_bytes);
            let Some(block) = block else {
                let len = u64::from(block_bytes);
                self.client.fallocate(to, weft_vfs::FallocateMode::PunchHole, offset, len)?;
                continue;
            };
            let mut bytes = vec![0; block.len_bytes as usize];
            self.client.load_kept(from, *at, block, &mut bytes)?;
            let mut done = 0;
            while done < bytes.len() {
                done += self.client.write(to, Some(offset + done as u64), &bytes[done..])?;
            }
        }
        if self.client.get_any(to)?.size_bytes() < end_bytes {
            let change =
                weft_ringer::op::Change { size_bytes: Some(end_bytes), ..Default::default() };
            self.client.apply(Op::SetAttr { id: to, change }, to)?;
            self.client.has_changed(to);
        }
        Ok(())
    }

    /// Makes a copy of the file that a conflict is about, as it is now.
    fn copy_to(&self, group: &[Conflict], path: &[u8]) -> Result<RnodeId> {
        let about = group.iter().find_map(|c| subject(&c.logged.op));
        let about = about
            .ok_or(Error::Invalid("--keep both is only for conflicts on the content of a file"))?;
        let there = self.client.get_any(self.present(about)).ok();
        let walker = Walker::new(self);
        if walker.exists(path)? {
            return Err(Error::Exists);
        }
        let cipher = self.cipher_of_conflict(about, group)?;
        let made = walker.create_file(path, there.as_ref().map_or(0o644, |r| r.perm))?;
        let to = RnodeId(made.ino().0);
        let key =
            self.client.cipher(&*self.client.get_any(to)?)?.map(|cipher| cipher.encryption.key);
        if let Err(e) = ClientFs::check_copy(cipher.as_ref(), key) {
            walker.remove(path)?;
            return Err(e);
        }
        if let Some(there) = there {
            self.copy(Ino(there.id.0), made.ino())?;
        }
        Ok(to)
    }

    fn copy(&self, from: Ino, to: Ino) -> Result<()> {
        let opened = self.open(&Caller::ROOT, from, OpenFlags::READ)?;
        let copied = self.copy_open(from, opened.handle, to);
        self.release(from, opened.handle)?;
        copied
    }

    fn copy_open(&self, from: Ino, handle: Handle, to: Ino) -> Result<()> {
        let (mut at, mut buf) = (0, vec![0; COPY_BYTES]);
        loop {
            let n = self.read(from, handle, at, &mut buf)?;
            if n == 0 {
                return Ok(());
            }
            let mut done = 0;
            while done < n {
                done += self.client.write(RnodeId(to.0), Some(at + done as u64), &buf[done..n])?;
            }
            at += n as u64;
        }
    }
}
