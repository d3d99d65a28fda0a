//! The shared file service: the cost of each operation of its protocol, the effect of the size of a
//! read or write, and searches.
//!
//! A network of a given delay is [`crate::proxy`] on Unix sockets: the socket of the metadata
//! server, or that on which a client serves blocks to others, is renamed and the proxy put in its
//! place. SSHFS goes through the same proxy.

mod bulk;
mod encrypted;
mod listing;
mod raw_client;
mod scale;
mod search;
mod sizes;
mod sshfs;

pub use self::bulk::bulk;
pub use self::encrypted::encrypted;
pub use self::listing::listing;
use self::raw_client::RawClient;
pub use self::scale::scale;
pub use self::search::search;
pub use self::sizes::sizes;
use crate::report::Section;
use crate::{Bench, machine, proxy};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use weft::net::Address;
use weft::ringer::{Mode, RnodeId};
use weft::ringer_client::{RingerFs, RingerFsOptions};
use weft::ringer_server::{ProxyServeOptions, ServeOptions, Server};
use weft::vfs::{Caller, FileSystem, Walker};

/// One-way delays: a local network and a DSL line, as in the original paper.
const LAN: Duration = Duration::from_micros(350);
const DSL: Duration = Duration::from_millis(17);

const COUNT: u32 = 1000;
const QUICK_COUNT: u32 = 100;

/// A cell that is served in this process, on a Unix socket and, with a delay, behind proxies.
pub struct Served {
    dir: tempfile::TempDir,
    _server: Server,
}

impl Served {
    fn new(bench: &Bench) -> Result<Self> {
        let dir = tempfile::tempdir_in(&bench.work)?;
        let listen = vec![Address::Unix(dir.path().join("mds"))];
        let options = ServeOptions { listen, ..ServeOptions::new() };
        let server = Server::start(&dir.path().join("cell"), options)?;
        Ok(Self { dir, _server: server })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The server's address with the one-way delay `way`.
    fn at(&self, way: Duration) -> Result<Address> {
        let near = self.path("mds");
        if way.is_zero() {
            return Ok(Address::Unix(near));
        }
        let far = self.path(&format!("mds-{}", way.as_micros()));
        if !far.exists() {
            let ends = [&far, &near].map(|p| proxy::Address::Unix(p.clone()));
            proxy::Proxy::start(&ends[0], &ends[1], 2 * way)?;
        }
        Ok(Address::Unix(far))
    }

    /// Joins as the client with the store `name`, with the one-way delay `way` to the server.
    fn client(&self, name: &str, way: Duration) -> Result<RingerFs> {
        let mut options = RingerFsOptions::new(self.at(way)?, self.path(name));
        options.block_bytes = 64 << 10;
        Ok(RingerFs::join(options)?)
    }

    /// Adds the one-way delay `way` between the client `name` and others.
    fn move_away(&self, name: &str, way: Duration) -> Result<()> {
        let socket = self.path(name).join("peers.sock");
        let moved = self.path(name).join("peers.near");
        std::fs::rename(&socket, &moved).with_context(|| format!("move {}", socket.display()))?;
        let ends = [socket, moved].map(proxy::Address::Unix);
        proxy::Proxy::start(&ends[0], &ends[1], 2 * way).map(drop)
    }
}

/// Times of one kind of operation, in microseconds.
#[derive(Debug, Default)]
pub struct Micros(Vec<f64>);

impl Micros {
    /// Times `work`, and returns its value.
    pub fn time<T>(&mut self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let began = Instant::now();
        let value = work()?;
        self.0.push(began.elapsed().as_secs_f64() * 1e6);
        Ok(value)
    }

    fn percentile(&self, of_hundred: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().saturating_sub(1);
        sorted.get((sorted.len() * of_hundred / 100).min(last)).copied().unwrap_or(0.0)
    }

    /// Formats `p50 / p99 / mean`.
    fn show(&self) -> String {
        let mean = self.0.iter().sum::<f64>() / self.0.len().max(1) as f64;
        format!("{:.0} / {:.0} / {mean:.0}", self.percentile(50), self.percentile(99))
    }
}

/// An operation at one distance: name and times.
/// Times of reads and writes for each size.
type ReadsAndWrites = Vec<(Micros, Micros)>;

type Row = (&'static str, Micros);

/// Measures each operation, by distance, beside SSHFS.
pub fn operations(bench: &Bench) -> Result<()> {
    let count = if bench.quick { QUICK_COUNT } else { COUNT };
    let mut section = Section::new("ringer", "The shared file service: one operation");
    section.line(
        "Microseconds, p50 / p99 / mean, each of as many files as the second line says; the \
         metadata server's store is SQLite, durable with each transaction. The protocol is spoken by \
         hand, one request at a time. *put rnode*: a change of attributes, until it is durable at \
         the server. *get rnode*: the lease to read a file and, with it, the rnode. *get read*: the \
         same of a file that this client had written to. *get write*: the lease to write. *end read*, \
         *end write*: the lease given back; as nothing answers to that, with a round trip behind it. \
         *round trip*: a renewal of the session, the shortest question there is. *proxy*: a server \
         beside the client in front of the cell's own; first by a client when nobody has looked at \
         anything yet, then by another.",
    );
    section.line(&format!("{count} files, one after the other."));
    let distances = [("local", Duration::ZERO), ("0.35 ms one way", LAN), ("17 ms one way", DSL)];
    let mut columns: Vec<(String, Vec<Row>)> = Vec::new();
    let served = Served::new(bench)?;
    let mut maker = RawClient::join(&served.at(Duration::ZERO)?, 1)?;
    let files = maker.make_files(count)?;
    for (number, (name, way)) in (2_u8..).zip(distances) {
        let mut raw_client = RawClient::join(&served.at(way)?, number)?;
        columns.push((name.to_owned(), protocol(&mut raw_client, &files)?));
    }
    if let Some((address, _apart)) = namespace(bench, &served.path("apart"))? {
        let mut maker = RawClient::join(&address, 1)?;
        let files = maker.make_files(count)?;
        let mut raw_client = RawClient::join(&address, 2)?;
        columns.insert(1, ("network namespace, TCP".into(), protocol(&mut raw_client, &files)?));
    } else {
        section.line("No network namespace: `ip netns add` is not allowed here.");
    }
    for (name, way) in [("0.35 ms", LAN), ("17 ms", DSL)] {
        let (_proxy, near) = proxy(&served, way)?;
        let mut cold = RawClient::join(&near, 20)?;
        columns.push((format!("proxy, the cell {name} away"), protocol(&mut cold, &files)?));
        let mut again = RawClient::join(&near, 21)?;
        columns.push(("the same, once more by another".to_owned(), protocol(&mut again, &files)?));
    }
    #[cfg(feature = "etcd")]
    match on_etcd(bench, count)? {
        Some(rows) => columns.push(("local, etcd of three members".into(), rows)),
        None => section.line("etcd is left out: it is not installed."),
    }
    #[cfg(not(feature = "etcd"))]
    section.line("etcd is left out: this was built without it.");
    for (name, way) in distances {
        let files = (count / 5).max(20);
        match sshfs::stat_and_open(bench, way, files)? {
            Some((stat, open)) => section.line(&format!(
                "SSHFS on a link with {name}, caches off, {files} files: stat {}, open {}.",
                stat.show(),
                open.show()
            )),
            None => {
                section.line("SSHFS is left out: sshfs and sshd are not installed.");
                break;
            }
        }
    }
    let head: Vec<&str> =
        std::iter::once("").chain(columns.iter().map(|(name, _)| name.as_str())).collect();
    let rows = columns[0].1.iter().enumerate().map(|(i, (name, _))| {
        let cells = columns.iter().map(|(_, rows)| rows[i].1.show());
        std::iter::once((*name).to_owned()).chain(cells).collect()
    });
    section.table(&head, &rows.collect::<Vec<_>>());
    again(&served, &mut section)?;
    section.signed(&machine::describe(), "weft-bench ringer").save(&bench.report)
}

/// Starts a proxy of the cell's server near the client; returns it and its address.
fn proxy(served: &Served, way: Duration) -> Result<(Server, Address)> {
    let near = Address::Unix(served.path(&format!("proxy-{}", way.as_micros())));
    let proxy = ProxyServeOptions {
        parents: vec![served.at(way)?],
        tls: None,
        directory: served.path(&format!("proxy-{}.store", way.as_micros())),
    };
    let options = ServeOptions { listen: vec![near.clone()], ..ServeOptions::new() };
    Ok((Server::start_proxy(proxy, options)?, near))
}

/// The same with the cell in etcd; `None` if etcd is not installed.
#[cfg(feature = "etcd")]
fn on_etcd(bench: &Bench, count: u32) -> Result<Option<Vec<Row>>> {
    use weft::ringer_server::store::EtcdOptions;
    let Some(cluster) = weft::ringer_server::testing::Cluster::start(3) else { return Ok(None) };
    let dir = tempfile::tempdir_in(&bench.work)?;
    let address = Address::Unix(dir.path().join("mds"));
    let options = ServeOptions { listen: vec![address.clone()], ..ServeOptions::new() };
    let etcd = EtcdOptions::new(cluster.endpoints(), "bench".into());
    let _server = Server::start_member(&etcd, None, options)?;
    let began = Instant::now();
    let mut maker = loop {
        match RawClient::join(&address, 1) {
            Ok(raw_client) => break raw_client,
            Err(e) if began.elapsed() > Duration::from_secs(20) => return Err(e),
            // The server does not own the cell yet.
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    let files = maker.make_files(count)?;
    let mut raw_client = RawClient::join(&address, 2)?;
    protocol(&mut raw_client, &files).map(Some)
}

/// Measures the operations of the original paper's table.
fn protocol(raw_client: &mut RawClient, files: &[RnodeId]) -> Result<Vec<Row>> {
    let mut rows: [Row; 7] =
        ["put rnode", "get rnode", "get read", "get write", "end read", "end write", "round trip"]
            .map(|name| (name, Micros::default()));
    let [put, get, get_read, get_write, end_read, end_write, trip] = &mut rows;
    for &file in files {
        raw_client.keep()?;
        trip.1.time(|| raw_client.renew())?;
        let read = get.1.time(|| raw_client.acquire(file, Mode::Read))?;
        end_read.1.time(|| raw_client.lower(file, read.token))?;
        let write = get_write.1.time(|| raw_client.acquire(file, Mode::Write))?;
        let change = raw_client.chmod(&write.rnode, 0o600);
        put.1.time(|| raw_client.commit(vec![change]))?;
        end_write.1.time(|| raw_client.lower(file, write.token))?;
        let read = get_read.1.time(|| raw_client.acquire(file, Mode::Read))?;
        raw_client.lower(file, read.token)?;
    }
    Ok(rows.into())
}

/// Measures repeated operations under a lease: times, and the bytes sent to the server for them.
fn again(served: &Served, section: &mut Section) -> Result<()> {
    const TIMES: usize = 1000;
    let near = served.path("mds");
    let watched = served.path("mds-watched");
    let ends = [&watched, &near].map(|p| proxy::Address::Unix(p.clone()));
    let watch = proxy::Proxy::start(&ends[0], &ends[1], Duration::ZERO)?;
    let options = RingerFsOptions::new(Address::Unix(watched), served.path("again"));
    let fs = RingerFs::join(options)?;
    let walker = Walker::new(&fs);
    walker.write_file(b"/again", &[7; 4096], 0o644)?;
    let file = fs.lookup(fs.root(), b"again")?.attr.ino;
    let opened =
        fs.open(&Caller::ROOT, file, weft::vfs::OpenFlags::READ | weft::vfs::OpenFlags::WRITE)?;
    let mut buf = [0; 4096];
    let (mut read, mut write, mut stat) = (Micros::default(), Micros::default(), Micros::default());
    fs.write(&Caller::ROOT, file, opened.handle, 0, &buf)?;
    fs.sync()?;
    let before = watch.carried();
    let mut reads_bytes = 0;
    for _ in 0..TIMES {
        read.time(|| Ok(fs.read(file, opened.handle, 0, &mut buf)?))?;
        stat.time(|| Ok(fs.getattr(file)?))?;
    }
    reads_bytes += watch.carried() - before;
    // Changes are sent after a second; only the bytes before that are counted.
    let before = watch.carried();
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(500) && write.0.len() < TIMES {
        buf[0] = buf[0].wrapping_add(1);
        write.time(|| Ok(fs.write(&Caller::ROOT, file, opened.handle, 0, &buf)?))?;
    }
    let writes_bytes = watch.carried() - before;
    fs.release(file, opened.handle)?;
    section.line(&format!(
        "Done again under a lease, through the client as a file system, 4 KiB: read {}, stat {}, write \
         {} us. On the connection to the server, meanwhile: {reads_bytes} bytes in {} reads and stats, \
         {writes_bytes} bytes in {} writes (a change is sent after a second, all in one message).",
        read.show(),
        stat.show(),
        write.show(),
        2 * TIMES,
        write.0.len(),
    ));
    fs.unmount()?;
    Ok(())
}

/// A network namespace with a server in it, both removed on drop.
struct Apart {
    name: String,
    child: std::process::Child,
}

impl Drop for Apart {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = ip(&["netns", "del", &self.name]);
    }
}

fn ip(args: &[&str]) -> bool {
    let mut run = std::process::Command::new("ip");
    run.args(args).stderr(std::process::Stdio::null());
    run.status().is_ok_and(|s| s.success())
}

/// Serves a cell in its own network namespace, reached over a pair of virtual interfaces.
fn namespace(bench: &Bench, cell: &Path) -> Result<Option<(Address, Apart)>> {
    let id = std::process::id() % 10_000;
    let name = format!("weftbench{id}");
    if !ip(&["netns", "add", &name]) {
        return Ok(None);
    }
    let (near, far) = (format!("wfb{id}a"), format!("wfb{id}b"));
    let steps: [&[&str]; 6] = [
        &["link", "add", &near, "type", "veth", "peer", "name", &far],
        &["link", "set", &far, "netns", &name],
        &["addr", "add", "10.231.77.1/30", "dev", &near],
        &["link", "set", &near, "up"],
        &["-n", &name, "addr", "add", "10.231.77.2/30", "dev", &far],
        &["-n", &name, "link", "set", &far, "up"],
    ];
    if !steps.iter().all(|step| ip(step)) {
        ip(&["netns", "del", &name]);
        return Ok(None);
    }
    let child = std::process::Command::new("ip")
        .args(["netns", "exec", &name])
        .arg(&bench.weft)
        .args(["ringer", "serve", "--insecure", "--listen", "10.231.77.2:7473"])
        .arg(cell)
        .stdout(std::process::Stdio::null())
        .spawn();
    let child = child.context("serve in a network namespace")?;
    let apart = Apart { name, child };
    let address = Address::Tcp("10.231.77.2".into(), 7473);
    let until = Instant::now() + Duration::from_secs(10);
    while address.connect(Duration::from_millis(200)).is_err() {
        anyhow::ensure!(Instant::now() < until, "the server in the namespace does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(Some((address, apart)))
}
