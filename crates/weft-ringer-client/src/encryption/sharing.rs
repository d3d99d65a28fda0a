//! Exchange of keys between members through the cell.
//!
//! A member with a directory's key wraps it for others, and stores that with the directory
//! ([`Shares`]). A client that finds something encrypted without having its key looks there, up to
//! the root, and takes the key if a member that it trusts wrapped it for this client.
//!
//! Invariants:
//! - The server is not trusted. It can make key pairs, so a key that no trusted member wrapped is
//!   never taken: data written with it would be readable for the server. It can show a key wrapped
//!   for one directory at another, which does not open.
//! - A directory that this client has keys of gets no other key in this way, except one that
//!   follows them.
//! - A key is durable here before anything is opened or written with it.

use std::collections::BTreeSet;

use weft_ringer::client::{Call, Outcome};
use weft_ringer::mds::origin;
use weft_ringer::op::Op;
use weft_ringer::{Body, Bytes, KeyId, Refusal, Rnode, RnodeId, SHARES_XATTR};
use weft_vfs::{Error, Result};

use super::SHARE;
use super::files::{DEPTH_MAX, no_key, rejected};
use super::keys::DirectoryKey;
use super::member::{MemberId, Purpose};
use super::shares::{Inside, MEMBERS_MAX, Share, Shares};
use crate::client_fs::ClientFs;
use crate::errors::io_error;

fn ids<'a>(words: impl Iterator<Item = &'a str>) -> Result<Vec<MemberId>> {
    let parsed = words.map(str::parse).collect::<std::result::Result<Vec<MemberId>, _>>();
    parsed.map_err(|e| {
        tracing::info!("{e}");
        Error::Invalid("not a member id")
    })
}

fn text(value: &[u8]) -> Result<&str> {
    std::str::from_utf8(value).map_err(|_| Error::Invalid("not text"))
}

impl ClientFs {
    /// The id by which others hand keys to this client.
    pub(in super::super) fn member_id(&self) -> Result<Vec<u8>> {
        let own = self.engine.members.own().map_err(|e| io_error(&e))?;
        Ok(own.id().to_string().into_bytes())
    }

    /// Lists the members whose keys this client accepts, a line each.
    pub(in super::super) fn list_trusted(&self) -> Vec<u8> {
        let lines = self.engine.members.trusted().into_iter().map(|id| format!("{id}\n"));
        lines.collect::<String>().into_bytes()
    }

    /// Trusts members, or no longer, as the lines of `value` say.
    pub(in super::super) fn change_trusted(&self, value: &[u8]) -> Result<()> {
        for line in text(value)?.lines() {
            let (line, is_trusted) = match line.strip_prefix('-') {
                Some(line) => (line, false),
                None => (line, true),
            };
            let trusted = self.engine.members.trust(&ids([line].into_iter())?, is_trusted);
            trusted.map_err(|e| io_error(&e))?;
        }
        Ok(())
    }

    /// Returns an encrypted directory and the key it was encrypted with, which must be here and its
    /// own.
    fn encrypted_with_own(&self, dir: RnodeId) -> Result<(Box<Rnode>, DirectoryKey)> {
        let ring = self.key_for(dir)?.ok_or(Error::NoAttribute)?;
        if !self.has_key(dir, ring)? {
            return Err(no_key(dir, ring));
        }
        let key = self.engine.keys.get(&ring).ok_or_else(|| no_key(dir, ring))?;
        if key.directory != dir {
            return Err(Error::Invalid("the key belongs to a directory above it: share that one"));
        }
        Ok((self.get(dir)?, key))
    }

    fn purpose(key: &DirectoryKey) -> Purpose {
        let DirectoryKey { cell, directory, .. } = *key;
        Purpose { cell, directory, ring: key.id(), generation: 0, key: key.id() }
    }

    /// Returns the shares of a directory, and their sealed part.
    fn shares(rnode: &Rnode, key: &DirectoryKey) -> Result<(Vec<Share>, Inside)> {
        let shares = Shares::of(rnode).map_err(|e| rejected(rnode.id, e))?;
        let Some(shares) = shares else { return Ok(Default::default()) };
        let inside = shares.open(Self::purpose(key), &key.secret);
        let inside = inside.map_err(|e| rejected(rnode.id, e))?;
        Ok((shares.shares, inside))
    }

    /// Lists the members that a directory is shared with, a line each: the member's id, or `-` if
    /// the key is not here and so no id is known; the fingerprints of the member and of the one
    /// that shared it with that member; and `own` if it is this client. With tabs between them.
    pub(in super::super) fn list_shares(&self, dir: RnodeId) -> Result<Vec<u8>> {
        let own = self.engine.members.own_if_made().map(|own| own.id().fingerprint());
        let (shares, members) = match self.encrypted_with_own(dir) {
            Ok((rnode, key)) => {
                let (shares, inside) = Self::shares(&rnode, &key)?;
                (shares, inside.members)
            }
            Err(Error::NoKey(_)) => {
                let shares = Shares::of(&*self.get(dir)?).map_err(|e| rejected(dir, e))?;
                (shares.map(|shares| shares.shares).unwrap_or_default(), Vec::new())
            }
            Err(e) => return Err(e),
        };
        let mut text = String::new();
        for (n, share) in shares.iter().enumerate() {
            let id = members.get(n).map_or_else(|| "-".to_owned(), MemberId::to_string);
            let whose = if Some(share.to) == own { "own" } else { "" };
            text.push_str(&format!("{id}\t{}\t{}\t{whose}\n", share.to, share.from));
        }
        Ok(text.into_bytes())
    }

    /// Lists the keys of this client, a line each: its id, the inode of its directory, and the ids
    /// of the members that it is shared with, `?` if that cannot be read; with tabs between them.
    pub(in super::super) fn list_shared_keys(&self) -> Vec<u8> {
        let mut text = String::new();
        for (id, directory) in self.engine.keys.list() {
            text.push_str(&format!("{id}\t{}", directory.0));
            let key = self.engine.keys.get(&id);
            let shared = self.get_any(directory).and_then(|rnode| match &key {
                Some(key) => Self::shares(&rnode, key).map(|(_, inside)| inside.members),
                None => Ok(Vec::new()),
            });
            match shared {
                Ok(members) => members.iter().for_each(|m| text.push_str(&format!("\t{m}"))),
                Err(_) => text.push_str("\t?"),
            }
            text.push('\n');
        }
        text.into_bytes()
    }

    /// Carries out the setting of [`SHARES_XATTR`].
    pub(in super::super) fn change_shares(&self, dir: RnodeId, value: &[u8]) -> Result<()> {
        let mut words = text(value)?.split_whitespace();
        match words.next() {
            Some(SHARE) => self.share(dir, &ids(words)?),
            _ => Err(Error::Invalid("unknown operation on shares")),
        }
    }

    /// Shares a directory with members, and with this client itself, so that a member that changes
    /// the key later finds this client among them.
    fn share(&self, dir: RnodeId, with: &[MemberId]) -> Result<()> {
        let own = self.engine.members.own().map_err(|e| io_error(&e))?;
        loop {
            let (rnode, key) = self.encrypted_with_own(dir)?;
            let purpose = Self::purpose(&key);
            let (mut shares, mut inside) = Self::shares(&rnode, &key)?;
            let known: BTreeSet<MemberId> = inside.members.iter().copied().collect();
            let new: BTreeSet<MemberId> = with.iter().copied().chain([own.id()]).collect();
            for member in new.difference(&known) {
                let wrapped = own.wrap(member, purpose, &key.secret);
                let wrapped = wrapped.map_err(|e| match e.kind() {
                    std::io::ErrorKind::InvalidInput => {
                        Error::Invalid("invalid member id: not a valid public key")
                    }
                    _ => io_error(&e),
                })?;
                let (to, from) = (member.fingerprint(), own.id().fingerprint());
                shares.push(Share { to, from, wrapped });
                inside.members.push(*member);
            }
            if shares.len() > MEMBERS_MAX {
                return Err(Error::NoSpace);
            }
            let shares = Shares::seal(purpose, &key.secret, shares, &inside);
            if self.put_shares(&rnode, &shares.map_err(|e| io_error(&e))?)? {
                return Ok(());
            }
        }
    }

    /// Stores shares with a directory, on the server; `false` if the directory has changed.
    fn put_shares(&self, rnode: &Rnode, shares: &Shares) -> Result<bool> {
        let (name, value) = (Bytes(SHARES_XATTR.to_vec()), Bytes(shares.to_bytes()));
        let op = Op::SetXattr { id: rnode.id, name, value };
        let if_version = Some((rnode.id, rnode.version));
        match self.engine.call(Call::Apply { op, if_version })?.0 {
            Outcome::Refused(Refusal::Changed) => Ok(false),
            Outcome::Refused(why) => Err(self.refused(rnode.id, why)),
            _ => self.engine.sync().map(|()| true),
        }
    }

    /// Returns true if the key of a directory's content is here; takes it if it was handed to this
    /// client.
    pub(super) fn has_key(&self, dir: RnodeId, key: KeyId) -> Result<bool> {
        Ok(self.engine.keys.has(&key) || self.take_key(dir, key)?)
    }

    /// Takes the key of a directory, or one above it, if it was wrapped for this client.
    fn take_key(&self, dir: RnodeId, key: KeyId) -> Result<bool> {
        let Some(own) = self.engine.members.own_if_made() else { return Ok(false) };
        let mut at = dir;
        for depth in 0..DEPTH_MAX {
            let rnode = match self.get_any(at) {
                // A user who may only traverse the directories above learns no more of them.
                Err(Error::NotPermitted | Error::Stale(_)) if depth > 0 => return Ok(false),
                rnode => rnode?,
            };
            let Body::Directory { parent, .. } = rnode.body else { return Ok(false) };
            if KeyId::of_directory(&rnode) != Ok(Some(key)) {
                return Ok(false);
            }
            if let Some(shares) = Shares::of(&rnode).map_err(|e| rejected(at, e))? {
                return self.take_shared(&own, &rnode, &shares, key);
            }
            if parent == at {
                return Ok(false);
            }
            at = parent;
        }
        Ok(false)
    }

    fn take_shared(
        &self,
        own: &super::member::MemberSecret,
        rnode: &Rnode,
        shares: &Shares,
        key: KeyId,
    ) -> Result<bool> {
        let (id, members) = (own.id(), &self.engine.members);
        let own_share = shares.shares.iter().find(|share| share.to == id.fingerprint());
        let Some(share) = own_share.filter(|_| shares.key == key) else { return Ok(false) };
        let Some(giver) = members.giver(&id, &share.from) else {
            let why = format!("the key {key} was shared with this mount by {}", share.from);
            return Err(Error::NoKey(format!(
                "inode {}: {why}, whose id this mount does not trust; see `weft ringer key trust`",
                rnode.id
            )));
        };
        // A snapshot has the keys wrapped for the directory that it was made of.
        let directory = origin(rnode);
        let (keys, cell) = (&self.engine.keys, self.engine.cell());
        if keys.of_directory(directory).iter().any(|known| *known != key) {
            return Err(rejected(rnode.id, "its key was replaced"));
        }
        let purpose = shares.purpose(cell, directory);
        let secret = own.unwrap(&giver, purpose, &share.wrapped);
        let forged = || {
            rejected(
                rnode.id,
                format!("authentication failed: its key was not shared by {}", share.from),
            )
        };
        let secret = secret.ok_or_else(forged)?;
        shares.open(purpose, &secret).map_err(|e| rejected(rnode.id, e))?;
        let taken = DirectoryKey { cell, directory, secret };
        keys.add(taken).map_err(|e| io_error(&e))?;
        tracing::info!("received the key {key} of inode {directory} from {}", share.from);
        Ok(true)
    }
}
