//! The systems between the reader and the slow origin, each in a process of its own: weft's cache,
//! nbdkit's cache filter, none.

use crate::{machine, proxy};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weft::block::{BlockDevice, FileDevice, OpenMode};
use weft::cache::admission::{AdmissionOptions, SequentialBypass};
use weft::cache::{AttachOptions, Cache, CreateOptions, OpenOptions, OriginId};
use weft::{nbd, net};

/// Longest wait for a server to listen or to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Adds room for the cache's metadata to the size of the data, in bytes: 1/32 is more than it
/// takes.
fn with_metadata(len_bytes: u64) -> u64 {
    len_bytes + len_bytes / 32 + (32 << 20)
}

/// weft's cache behind an NBD server, as a subcommand of this program: it serves until its standard
/// input ends, then closes the cache and prints the counters.
#[derive(Debug, Clone, clap::Args)]
pub struct Server {
    /// The origin: HOST:PORT of an NBD server
    #[arg(long)]
    origin: String,
    /// The cache file; it is made if it does not exist
    #[arg(long)]
    cache: PathBuf,
    /// Room for data in a new cache, in bytes
    #[arg(long)]
    len_bytes: u64,
    /// Discard the cache's content when it is closed, and write no metadata
    #[arg(long)]
    forgetful: bool,
}

impl Server {
    /// Serves until the end of standard input.
    pub fn run(&self) -> Result<()> {
        let device: Arc<dyn BlockDevice> = if self.cache.exists() {
            Arc::new(FileDevice::open(&self.cache, OpenMode::READ_WRITE)?)
        } else {
            let file = FileDevice::create(&self.cache, with_metadata(self.len_bytes))?;
            Cache::create(&file, &CreateOptions::default())?;
            Arc::new(file)
        };
        // All reads are cached, as in the original experiment.
        let admission =
            AdmissionOptions { sequential: SequentialBypass::Never, ..AdmissionOptions::default() };
        let options =
            OpenOptions { persistence: !self.forgetful, admission, ..OpenOptions::default() };
        let cache = Cache::open(device, options)?;
        let uri: nbd::Uri = format!("nbd://{}", self.origin).parse()?;
        let mut link = uri.options()?;
        link.read_only = true;
        let origin: Arc<dyn BlockDevice> = Arc::new(nbd::NbdDevice::connect(link)?);
        let id = OriginId {
            len_bytes: origin.geometry().len_bytes,
            label: "origin".into(),
            ..OriginId::default()
        };
        let volume = cache.attach(origin, &id, &AttachOptions::default())?;
        let export = nbd::Export::new("", volume);
        let mut server = nbd::Server::new(vec![export], nbd::server::Options::default())?;
        let net::Address::Tcp(_, port) = server.listen(&loopback())? else {
            bail!("not a port of the loopback")
        };
        println!("listening {port}");
        std::io::stdout().flush()?;
        std::io::stdin().read_to_end(&mut Vec::new())?;
        server.stop(PATIENCE)?;
        cache.close()?;
        for figure in cache.stats().counters() {
            println!("{} {}", figure.name, figure.value);
        }
        Ok(())
    }
}

/// A system in front of the origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    Weft { persistent: bool },
    Nbdkit,
    Uncached,
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Weft { persistent: true } => "weft",
            Self::Weft { persistent: false } => "weft, persistence off",
            Self::Nbdkit => "nbdkit's cache filter",
            Self::Uncached => "no cache",
        })
    }
}

/// A TCP address of the loopback with any port.
fn loopback() -> net::Address {
    net::Address::Tcp("127.0.0.1".into(), 0)
}

/// The origin and the network in front of it, in this process.
pub struct Origin {
    _server: nbd::Server,
    /// The address of the origin through the network.
    pub address: SocketAddr,
    /// The delay that the network adds to a round trip.
    pub added: Duration,
}

impl Origin {
    /// Serves `image` behind a link of `round_trip`.
    pub fn serve(image: &Path, round_trip: Duration) -> Result<Self> {
        let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(image, OpenMode::READ_ONLY)?);
        let export = nbd::Export::new("", device);
        let mut server = nbd::Server::new(vec![export], nbd::server::Options::default())?;
        let near = proxy::Address::Tcp(server.listen(&loopback())?.to_string());
        let far = proxy::Address::Tcp("127.0.0.1:0".into());
        let link = proxy::Proxy::start(&far, &near, round_trip)?;
        let address = link.address.to_string().parse().context("a port of the loopback")?;
        Ok(Self { _server: server, address, added: link.added })
    }
}

/// A running system.
pub struct Running {
    child: Option<Child>,
    lines: Option<BufReader<std::process::ChildStdout>>,
    /// The address for the reader.
    pub uri: String,
}

/// The parameters of one cache, which is kept over restarts.
#[derive(Debug, Clone)]
pub struct Place<'a> {
    pub origin: &'a SocketAddr,
    pub work: &'a Path,
    /// Room for data in the cache, in bytes.
    pub len_bytes: u64,
    /// The unit of nbdkit's cache; weft's is 4 KiB throughout.
    pub nbdkit_block_bytes: u32,
}

impl Place<'_> {
    fn cache_file(&self) -> PathBuf {
        self.work.join("cache.img")
    }

    /// Removes the cache file.
    pub fn clear(&self) -> Result<()> {
        match std::fs::remove_file(self.cache_file()) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e.into()),
            _ => Ok(()),
        }
    }

    /// Starts `system`.
    pub fn start(&self, system: System) -> Result<Running> {
        match system {
            System::Uncached => {
                let uri = format!("nbd://{}", self.origin);
                Ok(Running { child: None, lines: None, uri })
            }
            System::Weft { persistent } => self.weft(persistent),
            System::Nbdkit => self.nbdkit(),
        }
    }

    fn weft(&self, persistent: bool) -> Result<Running> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("cached").arg(format!("--origin={}", self.origin));
        command.arg("--cache").arg(self.cache_file());
        command.arg(format!("--len-bytes={}", self.len_bytes));
        if !persistent {
            command.arg("--forgetful");
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("run this program again")?;
        let mut lines = BufReader::new(child.stdout.take().context("its output")?);
        let mut line = String::new();
        lines.read_line(&mut line)?;
        let Some(port) = line.trim().strip_prefix("listening ") else {
            let status = child.wait()?;
            bail!("weft's cache did not start: {status}");
        };
        let uri = format!("nbd://127.0.0.1:{port}");
        Ok(Running { child: Some(child), lines: Some(lines), uri })
    }

    fn nbdkit(&self) -> Result<Running> {
        let port = free_port()?;
        let child = Command::new("nbdkit")
            .args(["-f", "--exit-with-parent", "-i", "127.0.0.1", "-p"])
            .arg(port.to_string())
            .args(["--filter=cache", "nbd"])
            .arg(format!("hostname={}", self.origin.ip()))
            .arg(format!("port={}", self.origin.port()))
            // The fastest settings: reads are cached, flushes ignored.
            .args(["cache=unsafe", "cache-on-read=true"])
            .arg(format!("cache-min-block-size={}", self.nbdkit_block_bytes))
            .env("TMPDIR", self.work)
            .stdin(Stdio::null())
            .spawn()
            .context("run nbdkit")?;
        let mut running =
            Running { child: Some(child), lines: None, uri: format!("nbd://127.0.0.1:{port}") };
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if let Some(status) = running.child.as_mut().and_then(|c| c.try_wait().ok()).flatten() {
                bail!("nbdkit ended with {status}");
            }
            ensure!(Instant::now() < deadline, "nbdkit does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(running)
    }
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Counters by name.
pub type Counts = BTreeMap<String, u64>;

impl Running {
    /// CPU seconds that its process has used so far; `None` if it has none.
    pub fn cpu_seconds(&self) -> Option<f64> {
        Some(machine::cpu_seconds(&self.child.as_ref()?.id().to_string()))
    }

    /// Ends it cleanly; returns the counters of weft's cache.
    pub fn finish(mut self) -> Result<Counts> {
        let mut counts = Counts::new();
        let Some(mut child) = self.child.take() else { return Ok(counts) };
        let Some(mut lines) = self.lines.take() else {
            child.kill()?;
            child.wait()?;
            return Ok(counts);
        };
        drop(child.stdin.take());
        let mut said = String::new();
        lines.read_to_string(&mut said)?;
        let status = child.wait()?;
        ensure!(status.success(), "weft's cache ended with {status}");
        for line in said.lines() {
            let (name, count) = line.split_once(' ').context("a counter")?;
            counts.insert(name.to_owned(), count.parse()?);
        }
        Ok(counts)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
