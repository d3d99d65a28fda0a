//! A server in a directory of its own.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use weft_block::BlockDevice;
use weft_nbd::client::Options;
use weft_nbd::server::Options as ServerOptions;
use weft_nbd::{Export, NbdDevice, Server};
use weft_net::Address;

/// A directory with a socket in it.
pub struct Bench {
    dir: TempDir,
}

impl Bench {
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a directory") }
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    /// Serves one export.
    pub fn serve(&self, device: Arc<dyn BlockDevice>) -> Server {
        self.serve_with(vec![Export::new("", device)], ServerOptions::default())
    }

    pub fn serve_with(&self, exports: Vec<Export>, options: ServerOptions) -> Server {
        let mut server = Server::new(exports, options).expect("a server");
        server.listen(&Address::Unix(self.socket())).expect("it listens");
        server
    }

    /// How to reach it, with little patience.
    pub fn options(&self) -> Options {
        let mut options = Options::new(Address::Unix(self.socket()), "");
        options.reconnect_limit = Duration::from_secs(10);
        options
    }

    pub fn connect(&self) -> NbdDevice {
        NbdDevice::connect(self.options()).expect("it connects")
    }
}
