//! Server and clients in one process, over real sockets, with real files.

#[cfg(feature = "archive")]
mod archives;
mod cells;
mod conformance;
mod copied_store;
mod copies;
mod encrypted;
mod encrypted_hostile;
mod etcd;
mod faults;
mod file_locks;
mod history;
mod hostile;
mod joining;
mod proxied;
mod relay;
mod search;
mod shared_keys;
mod sharing;
mod small_writes;
mod snapshots;
mod text;
mod tls;

use std::path::{Path, PathBuf};
use std::time::Duration;

use weft_net::Address;
use weft_ringer::{ENCRYPTION_XATTR, POLICY_XATTR};
use weft_ringer_client::{ENCRYPT, KEYS_XATTR, RingerFs, RingerFsOptions};
use weft_ringer_server::{ServeOptions, Server};
use weft_vfs::{Caller, FileSystem, Ino, Walker, XattrSet};

/// A cell on a Unix socket in a directory of its own.
#[derive(Debug)]
pub struct Cell {
    pub dir: tempfile::TempDir,
    pub server: Option<Server>,
    pub epoch: Duration,
}

impl Cell {
    pub fn new(epoch: Duration) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let mut cell = Self { dir, server: None, epoch };
        cell.start();
        cell
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn address(&self) -> Address {
        Address::Unix(self.path("s"))
    }

    pub fn start(&mut self) {
        let mut options = ServeOptions { listen: vec![self.address()], ..ServeOptions::new() };
        options.mds.epoch_micros = u64::try_from(self.epoch.as_micros()).expect("short");
        let server = Server::start(&self.path("cell"), options);
        self.server = Some(server.expect("a server"));
    }

    pub fn stop(&mut self) {
        self.server.take().expect("a server").stop().expect("it ends well");
    }

    pub fn options(&self, name: &str) -> RingerFsOptions {
        options(self.address(), &self.path(name))
    }

    pub fn join(&self, name: &str) -> RingerFs {
        RingerFs::join(self.options(name)).expect("it joins")
    }
}

pub fn options(server: Address, store: &Path) -> RingerFsOptions {
    let mut options = RingerFsOptions::new(server, store.into());
    options.block_bytes = 64 << 10;
    options.patience = Duration::from_secs(20);
    options.client.retry_micros = 100_000;
    options
}

/// Encrypts an empty directory.
pub fn encrypt(fs: &RingerFs, dir: Ino) {
    fs.setxattr(&Caller::ROOT, dir, ENCRYPTION_XATTR, ENCRYPT, XattrSet::Any).expect("encrypted");
}

/// Gives a client the keys that the one called `from` has.
pub fn give_keys(cell: &Cell, from: &str, to: &RingerFs) {
    let keys = std::fs::read_to_string(cell.path(from).join("keys")).expect("keys");
    for key in keys.lines() {
        to.setxattr(&Caller::ROOT, to.root(), KEYS_XATTR, key.as_bytes(), XattrSet::Any)
            .expect("taken");
    }
}

/// Returns the inode number of a path.
pub fn ino(fs: &RingerFs, path: &str) -> Ino {
    let names = path.split('/').filter(|part| !part.is_empty());
    names.fold(fs.root(), |at, name| fs.lookup(at, name.as_bytes()).expect("there").attr.ino)
}

/// Returns bytes that are the same for the same seed.
pub fn content(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|n| (n % 251) as u8 ^ seed).collect()
}

pub fn write(fs: &RingerFs, path: &str, bytes: &[u8]) {
    Walker::new(fs).write_file(path.as_bytes(), bytes, 0o644).expect("written");
}

pub fn attribute(fs: &RingerFs, path: &str, name: &[u8]) -> String {
    String::from_utf8(fs.getxattr(ino(fs, path), name).expect("a value")).expect("text")
}

pub fn set_policy(fs: &RingerFs, path: &str, policy: &str) {
    fs.setxattr(&Caller::ROOT, ino(fs, path), POLICY_XATTR, policy.as_bytes(), XattrSet::Any)
        .expect("a policy");
}
