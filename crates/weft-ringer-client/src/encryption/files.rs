//! The content of encrypted files: their ciphers, and the checks before one is used.

use std::sync::Arc;

use weft_ringer::client::{Call, Outcome};
use weft_ringer::op::{Make, Op};
use weft_ringer::{
    Block, Body, Bytes, ENCRYPTION_XATTR, Encryption, FileId, KeyId, Refusal, Rnode, RnodeId,
};
use weft_ringer_net::fill_random;
use weft_vfs::{Error, Result};

use super::block::{BlockError, EncryptedBlock, FileCipher};
use super::keys::{DirectoryKey, KeyTextError};
use crate::blocks::hash;
use crate::client_fs::ClientFs;
use crate::content::Lack;
use crate::errors::io_error;
use crate::mutex::locked;

/// The maximum depth of a directory that is checked, in steps to the root.
pub(super) const DEPTH_MAX: usize = 4096;

/// The error for a key that this client does not have.
pub(super) fn no_key(id: RnodeId, key: KeyId) -> Error {
    Error::NoKey(format!(
        "inode {id} is encrypted with the key {key}, which this mount does not have"
    ))
}

/// The error for a statement of the server that contradicts an earlier one or this client's
/// knowledge.
pub(super) fn rejected(id: RnodeId, why: impl std::fmt::Display) -> Error {
    let message = format!("inode {id}: {why}");
    tracing::error!("{message}");
    Error::KeyRejected(message)
}

impl ClientFs {
    /// Returns the cipher for the blocks of a regular file; `None` if they are plain.
    ///
    /// # Errors
    /// [`Error::NoKey`]; [`Error::KeyRejected`] if it is not encrypted as it was, or should be.
    pub(in super::super) fn cipher(&self, rnode: &Rnode) -> Result<Option<Arc<FileCipher>>> {
        let id = rnode.id;
        let encryption = Encryption::of(rnode).map_err(|e| rejected(id, e))?;
        if encryption.is_none() && self.engine.keys.is_empty() {
            return Ok(None);
        }
        let known = locked(&self.encrypted.known).get(&id).cloned();
        if let Some(known) = known {
            return match known.as_ref().map(|cipher| cipher.encryption) == encryption {
                true => Ok(known),
                false => Err(rejected(id, "its encryption mark was changed or removed")),
            };
        }
        if let Some((dir, encryption)) = self.directory_of(id).zip(encryption) {
            // Another member may have handed it to this client.
            self.has_key(dir, encryption.key)?;
        }
        self.check_directory(rnode, encryption)?;
        let cipher = encryption.map(|encryption| {
            let cipher = self.engine.keys.cipher(encryption);
            cipher.map(Arc::new).ok_or_else(|| no_key(id, encryption.key))
        });
        let cipher = cipher.transpose()?;
        if self.is_used(id) {
            locked(&self.encrypted.known).insert(id, cipher.clone());
        }
        Ok(cipher)
    }

    /// Returns the cipher for the blocks of a file that may be gone: by the file's state, else by
    /// the header of its `first` block.
    pub(in super::super) fn cipher_of_kept(
        &self,
        id: RnodeId,
        first: impl FnOnce() -> Result<Option<Vec<u8>>>,
    ) -> Result<Option<Arc<FileCipher>>> {
        match self.get_any(id) {
            Ok(rnode) => return self.cipher(&rnode),
            Err(Error::Stale(_)) => {}
            Err(e) => return Err(e),
        }
        let Some(first) = first()? else { return Ok(None) };
        let Ok(EncryptedBlock { encryption, .. }) = EncryptedBlock::parse(&first) else {
            return Ok(None);
        };
        let cipher = self.engine.keys.cipher(encryption);
        cipher.map(|c| Some(Arc::new(c))).ok_or_else(|| no_key(id, encryption.key))
    }

    /// Checks that the content of a file may be copied to one that has the key `to`, or is in a
    /// directory of it.
    pub(in super::super) fn check_copy(
        from: Option<&Arc<FileCipher>>,
        to: Option<KeyId>,
    ) -> Result<()> {
        let is_allowed = from.is_none_or(|cipher| Some(cipher.encryption.key) == to);
        if is_allowed { Ok(()) } else { Err(Error::CrossDevice) }
    }

    /// Checks that a file is encrypted as files in its directory are, as far as that is known.
    fn check_directory(&self, rnode: &Rnode, encryption: Option<Encryption>) -> Result<()> {
        let is_alone = rnode.nlink == 0 || (encryption.is_none() && rnode.id.is_of_snapshot());
        let Some(dir) = self.directory_of(rnode.id).filter(|_| !is_alone) else { return Ok(()) };
        match self.key_for(dir) {
            Ok(key) if key == encryption.map(|e| e.key) => Ok(()),
            Ok(_) => Err(rejected(rnode.id, "it is not encrypted with the key of its directory")),
            // It was found there before it was moved.
            Err(Error::Stale(_)) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Returns the key for files that are made in a directory.
    pub(in super::super) fn key_for(&self, dir: RnodeId) -> Result<Option<KeyId>> {
        let keys = &self.engine.keys;
        let (mut at, mut is_plain, mut key) = (dir, false, None);
        for depth in 0..DEPTH_MAX {
            let rnode = match self.get_any(at) {
                // A user who may only traverse the directories above learns no more of them.
                Err(Error::NotPermitted | Error::Stale(_)) if depth > 0 => break,
                rnode => rnode?,
            };
            let Body::Directory { parent, .. } = rnode.body else {
                return Err(Error::NotADirectory);
            };
            let of_this = KeyId::of_directory(&rnode).map_err(|e| rejected(at, e))?;
            let wanted = keys.of_directory(at);
            let is_other = !wanted.is_empty() && !of_this.is_some_and(|key| wanted.contains(&key));
            if is_other || (is_plain && of_this.is_some()) {
                return Err(rejected(
                    dir,
                    "its encryption mark is missing, but it was encrypted or must be",
                ));
            }
            is_plain |= of_this.is_none();
            if depth == 0 {
                key = of_this;
            }
            // A client without keys has no secrets either.
            if parent == at || keys.is_empty() || !wanted.is_empty() {
                break;
            }
            at = parent;
        }
        Ok(key)
    }

    /// Describes a regular file to be made in a directory.
    pub(in super::super) fn new_file(&self, dir: RnodeId, block_bytes: u32) -> Result<Make> {
        let Some(key) = self.key_for(dir)? else { return Ok(Make::File { block_bytes }) };
        if !self.has_key(dir, key)? {
            return Err(no_key(dir, key));
        }
        let mut file = FileId([0; 16]);
        fill_random(&mut file.0).map_err(|e| io_error(&e))?;
        Ok(Make::EncryptedFile { block_bytes, file })
    }

    /// Returns the plaintext of a block of an encrypted file.
    pub(in super::super) fn open_block(
        &self,
        cipher: &FileCipher,
        id: RnodeId,
        index: u32,
        block: &Block,
    ) -> Result<Arc<Vec<u8>>, Lack> {
        let of = (block.hash, cipher.encryption, index);
        let check = |bytes: Arc<Vec<u8>>| {
            let (has, wanted) = (bytes.len(), block.len_bytes as usize);
            if has < wanted { Err(BlockError::Short { has, wanted }) } else { Ok(bytes) }
        };
        let failed = |e| Lack::Failed(rejected(id, format!("block {index}: {e}")));
        if let Some(bytes) = self.encrypted.opened.get(&of) {
            return check(bytes).map_err(failed);
        }
        let blocks = &self.engine.blocks;
        // An unreadable block is as good as damaged.
        let here = blocks.stored(id, &block.hash).unwrap_or_else(|e| {
            tracing::error!("block {:?} of inode {id}: {e}", block.hash);
            Some(Vec::new())
        });
        let here = here.map(|stored| (cipher.open_block(index, &stored), stored));
        let (opened, is_damaged) = match here {
            Some((Err(_), stored)) if hash(&stored) != block.hash => {
                tracing::error!("block {:?} of inode {id} is damaged", block.hash);
                (None, true)
            }
            here => (here.map(|(opened, _)| opened), false),
        };
        let opened = match opened {
            Some(opened) => opened,
            None => {
                let stored = self.fetch(id, &block.hash, is_damaged).map_err(Lack::Block)?;
                cipher.open_block(index, &stored)
            }
        };
        let bytes = opened.map(Arc::new).and_then(check).map_err(failed)?;
        self.encrypted.opened.put(of, &bytes);
        Ok(bytes)
    }

    /// Encrypts an empty directory with a new key. That is durable here before the directory relies
    /// on it.
    ///
    /// # Errors
    /// [`Error::NotEmpty`], [`Error::NotADirectory`], [`Error::Exists`] if it has a key of its own.
    pub(in super::super) fn encrypt(&self, dir: RnodeId) -> Result<()> {
        let keys = &self.engine.keys;
        loop {
            let rnode = self.get(dir)?;
            let parent = match rnode.body {
                Body::Directory { entries: 0, parent, .. } => parent,
                Body::Directory { .. } => return Err(Error::NotEmpty),
                _ => return Err(Error::NotADirectory),
            };
            let mark = rnode.xattrs.get(&Bytes(ENCRYPTION_XATTR.to_vec()));
            let inherited = match parent {
                _ if parent == dir => None,
                parent => self.get_any(parent)?.xattrs.remove(&Bytes(ENCRYPTION_XATTR.to_vec())),
            };
            if mark.is_some() && mark != inherited.as_ref() {
                return Err(Error::Exists);
            }
            // A key that is here already was made when the server's answer was lost.
            let (id, is_new) = match keys.of_directory(dir).first() {
                Some(id) => (*id, false),
                None => (self.new_key(dir)?, true),
            };
            let (name, value) = (Bytes(ENCRYPTION_XATTR.to_vec()), id.mark());
            let op = Op::SetXattr { id: dir, name, value };
            let if_version = Some((dir, rnode.version));
            let why = match self.engine.call(Call::Apply { op, if_version })?.0 {
                Outcome::Refused(why) => why,
                _ => return self.engine.sync(),
            };
            if is_new {
                keys.remove(&id).map_err(|e| io_error(&e))?;
            }
            if why != Refusal::Changed {
                return Err(self.refused(dir, why));
            }
        }
    }

    /// Makes a key for a directory, and keeps it, durably.
    fn new_key(&self, dir: RnodeId) -> Result<KeyId> {
        let key = DirectoryKey::generate(self.engine.cell(), dir).map_err(|e| io_error(&e))?;
        let id = key.id();
        self.engine.keys.add(key).map_err(|e| io_error(&e))?;
        Ok(id)
    }

    /// Lists the path of the local store, and the keys in it, a line each: `store` and the path, or
    /// `key`, its id and the inode of its directory; with tabs between them.
    pub(in super::super) fn list_keys(&self) -> Vec<u8> {
        let mut text = b"store\t".to_vec();
        let path = &self.engine.options.directory;
        text.extend_from_slice(std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()));
        text.push(b'\n');
        for (id, directory) in self.engine.keys.list() {
            text.extend_from_slice(format!("key\t{id}\t{}\n", directory.0).as_bytes());
        }
        text
    }

    /// Imports a key as text, which came from another client of the cell.
    ///
    /// # Errors
    /// [`Error::KeyRejected`] if the text is not a key, is damaged, or of another cell.
    pub(in super::super) fn import_key(&self, text: &[u8]) -> Result<()> {
        let key = std::str::from_utf8(text).map_err(|_| KeyTextError::Form);
        let key = key.and_then(str::parse::<DirectoryKey>);
        let key = key.map_err(|e| Error::KeyRejected(e.to_string()))?;
        let cell = self.engine.cell();
        if key.cell != cell {
            let why = format!(
                "the key is of cell {:016x}, but this mount is of cell {cell:016x}",
                key.cell
            );
            return Err(Error::KeyRejected(why));
        }
        self.engine.keys.add(key).map_err(|e| io_error(&e))
    }
}
