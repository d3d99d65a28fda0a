//! Snapshots as a mount shows them: `DIR/.snapshots/NAME/` is an earlier state of the directory.
//!
//! `.snapshots` is in every directory but those of snapshots, and in no listing. Its contents are
//! rnodes of the cell, read under leases as all others, and read-only. Their blocks are stored
//! under the numbers of the original files.
//!
//! A file made private since is private in a snapshot too: no user has more permissions there than
//! on the present file or directory, nor than the snapshot's state gave ([`no_more_than`]).

use weft_ringer::client::Call;
use weft_ringer::mds::origin;
use weft_ringer::wire::{KeptOwner, Reply, RequestBody, SnapshotEntry};
use weft_ringer::{Name, Refusal, Rnode, RnodeId};
use weft_ringer_net::fill_random;
use weft_vfs::{Attr, DirCursor, DirEntry, Error, FileKind, Ino, Result};

use super::client_fs::ClientFs;
use super::errors::{io_error, unexpected};

/// The longest list that an attribute holds, in bytes.
const LIST_MAX_BYTES: usize = 60 << 10;

/// The permission bits of a snapshot's copy that give no user more than `now`, the present file or
/// directory. Where the owners differ, a user may be of another class there: the bits of all
/// classes that it can be of count.
pub(super) fn no_more_than(then: &Rnode, now: &Rnode) -> u16 {
    let owner = KeptOwner { uid: now.uid, gid: now.gid };
    allowed_by(then, now.perm, Some(owner))
}

/// The permission bits of `shown` that give no user more than `perm` gives on a file of owner
/// `other`; if the owner is not known, no more than it gives any possible owner.
pub(super) fn allowed_by(shown: &Rnode, perm: u16, other: Option<KeptOwner>) -> u16 {
    let class = |perm: u16, shift: u16| (perm >> shift) & 0o7;
    let (owner, group, others) = (class(perm, 6), class(perm, 3), class(perm, 0));
    let is_owner_same = other.is_some_and(|other| other.uid == shown.uid);
    let is_group_same = other.is_some_and(|other| other.gid == shown.gid);
    // Users who are the owner, or of the group, of one of the two and not of the other.
    let mut strangers = others;
    if !is_owner_same {
        strangers &= owner;
    }
    if !is_group_same {
        strangers &= group;
    }
    let allowed_owner = if is_owner_same { owner } else { group & others };
    let allowed_group = match (is_owner_same, is_group_same) {
        (true, true) => group,
        (false, true) => group & owner,
        (_, false) => strangers,
    };
    shown.perm & (0o7000 | allowed_owner << 6 | allowed_group << 3 | strangers)
}

impl ClientFs {
    /// The attributes of an rnode. A file in a snapshot has no more permissions than the present
    /// file.
    pub(super) fn attr(&self, rnode: &Rnode) -> Result<Attr> {
        let mut attr = rnode.attr();
        let of = origin(rnode);
        if of != rnode.id {
            // A reference, so that its lease is given up should it have lost its last name.
            self.add_reference(of);
            let now = self.get_any(of);
            self.drop_references(of, 1);
            match now {
                // It was removed since.
                Ok(now) if now.nlink == 0 => {}
                Err(Error::Stale(_)) => {}
                Ok(now) => attr.perm = no_more_than(rnode, &now),
                // It was moved to a directory that this client may not read.
                Err(Error::NotPermitted) => attr.perm &= 0o7700,
                Err(e) => return Err(e),
            }
        }
        self.with_shown_owner(attr)
    }

    fn snapshots(&self, dir: RnodeId) -> Result<Vec<SnapshotEntry>> {
        let mut reply = self.ask(RequestBody::Snapshots { dir })?;
        if reply == (Reply::No { why: Refusal::Stale }) {
            // It may have been made here just now.
            self.engine.call(Call::Sync)?;
            reply = self.ask(RequestBody::Snapshots { dir })?;
        }
        match reply {
            Reply::Snapshots { snapshots } => Ok(snapshots),
            Reply::No { why } => Err(self.refused(dir, why)),
            _ => Err(unexpected()),
        }
    }

    /// Finds the root of a snapshot.
    pub(super) fn find_snapshot(&self, dir: RnodeId, name: &[u8]) -> Result<RnodeId> {
        let all = self.snapshots(dir)?;
        let found = all.iter().find(|snapshot| snapshot.name.bytes() == name);
        found.map(|snapshot| snapshot.root).ok_or(Error::NotFound)
    }

    /// Calls `each` with the snapshots of a directory, from `cursor` on: the first is after 2.
    pub(super) fn read_snapshots(
        &self,
        dir: RnodeId,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        for (index, snapshot) in (2_u64..).zip(self.snapshots(dir)?) {
            let entry = DirEntry {
                ino: Ino(snapshot.root.0),
                kind: FileKind::Directory,
                name: snapshot.name.bytes(),
                next: DirCursor(index + 1),
            };
            if index >= cursor.0 && !each(entry) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Lists the snapshots of a directory, a line each: time in seconds, number of names, snapshot
    /// name; with tabs between them. A list that is too long ends with the line `more`.
    pub(super) fn list_snapshots(&self, dir: RnodeId) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        for SnapshotEntry { name, at, names, .. } in self.snapshots(dir)? {
            if text.len() > LIST_MAX_BYTES {
                text.extend_from_slice(b"more\n");
                break;
            }
            text.extend_from_slice(format!("{}\t{names}\t", at.secs).as_bytes());
            text.extend_from_slice(name.bytes());
            text.push(b'\n');
        }
        Ok(text)
    }

    /// Carries out the setting of the attribute: `create NAME` or `remove NAME`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid text or a snapshot inside a snapshot, [`Error::Exists`],
    /// [`Error::NotFound`], [`Error::TooLarge`] if there are more names below the directory than a
    /// snapshot may have.
    pub(super) fn change_snapshots(&self, dir: RnodeId, text: &[u8]) -> Result<()> {
        const WHAT: Error = Error::Invalid("write create NAME, or remove NAME");
        let (creates, name) = match (text.strip_prefix(b"create "), text.strip_prefix(b"remove ")) {
            (Some(name), _) => (true, name),
            (None, Some(name)) => (false, name),
            (None, None) => return Err(WHAT),
        };
        let name = Name::new(name).map_err(Error::from)?;
        // The server must know the directory.
        self.engine.call(Call::Sync)?;
        let body = if creates {
            let mut mark = [0; 8];
            fill_random(&mut mark).map_err(|e| io_error(&e))?;
            RequestBody::Snapshot { dir, name, mark: u64::from_le_bytes(mark) }
        } else {
            RequestBody::RemoveSnapshot { dir, name }
        };
        match self.ask(body)? {
            Reply::Held {} => Ok(()),
            Reply::No { why } => Err(self.refused(dir, why)),
            _ => Err(unexpected()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_ringer::Body;
    use weft_ringer::{Cookie, Version};
    use weft_vfs::Time;

    fn directory(perm: u16, uid: u32, gid: u32) -> Rnode {
        let now = Time::default();
        let body = Body::Directory { parent: RnodeId::ROOT, entries: 0, last: Cookie(0) };
        let (atime, mtime, ctime, btime) = (now, now, now, now);
        let (id, version, nlink, xattrs) = (RnodeId(7), Version::default(), 2, [].into());
        Rnode { id, version, perm, nlink, uid, gid, atime, mtime, ctime, btime, xattrs, body }
    }

    /// The permissions of an unprivileged user.
    fn has(perm: u16, of: &Rnode, uid: u32, gid: u32) -> u16 {
        match (uid == of.uid, gid == of.gid) {
            (true, _) => perm >> 6 & 7,
            (false, true) => perm >> 3 & 7,
            _ => perm & 7,
        }
    }

    #[test]
    fn snapshots_grant_no_additional_permissions() {
        let modes = [0o000, 0o600, 0o640, 0o604, 0o070, 0o007, 0o755, 0o777, 0o712, 0o164];
        for (uid, gid) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
            for (a, b) in modes.iter().flat_map(|a| modes.iter().map(move |b| (*a, *b))) {
                let (then, now) = (directory(a, 1, 1), directory(b, uid, gid));
                let perm = no_more_than(&then, &now);
                for user in [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (3, 3)]
                {
                    let shown = has(perm, &then, user.0, user.1);
                    let (before, present) =
                        (has(a, &then, user.0, user.1), has(b, &now, user.0, user.1));
                    assert_eq!(shown & !before, 0, "{a:o} {b:o} {uid} {gid} {user:?}: {perm:o}");
                    assert_eq!(shown & !present, 0, "{a:o} {b:o} {uid} {gid} {user:?}: {perm:o}");
                    if (uid, gid) == (1, 1) {
                        assert_eq!(shown, before & present, "and no less");
                    }
                }
            }
        }
    }
}
