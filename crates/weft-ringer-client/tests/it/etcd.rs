//! Several servers of one cell, and clients that go to the one that owns it.

use std::path::Path;
use std::time::Duration;

use weft_net::Address;
use weft_ringer::Bytes;
use weft_ringer_client::RingerFs;
use weft_ringer_net::{Answer, Ask, CellStatus, Error, ask};
use weft_ringer_server::store::EtcdOptions;
use weft_ringer_server::testing::{Cluster, Lossy};
use weft_ringer_server::{ServeOptions, Server};
use weft_testing::{LIMIT, ends, wait_until};
use weft_vfs::{FileSystem, Walker};

fn address(dir: &Path, name: &str) -> Address {
    Address::Unix(dir.join(name))
}

fn serve(endpoints: Vec<String>, listen: Address) -> Server {
    let mut etcd = EtcdOptions::new(endpoints, "cell".into());
    etcd.session = Duration::from_secs(10);
    let mut options = ServeOptions { listen: vec![listen], ..ServeOptions::new() };
    options.mds.epoch_micros = 3_000_000;
    Server::start_member(&etcd, None, options).expect("a server")
}

fn status(server: &Address) -> Result<CellStatus, Error> {
    match ask(server, None, &Ask::Status {})? {
        Answer::Status { status } => Ok(status),
        other => panic!("{other:?}"),
    }
}

fn join(dir: &Path, name: &str, servers: &[Address]) -> RingerFs {
    let mut options = crate::options(servers[0].clone(), &dir.join(name));
    options.servers = servers.to_vec();
    options.patience = LIMIT;
    RingerFs::join(options).expect("it joins")
}

fn write(fs: &RingerFs, path: &str, content: &[u8]) {
    Walker::new(fs).write_file(path.as_bytes(), content, 0o644).expect("written");
    fs.sync().expect("with the server");
}

fn read(fs: &RingerFs, path: &str) -> Vec<u8> {
    Walker::new(fs).read_file(path.as_bytes()).expect("read")
}

fn search(server: &Address, query: &str) -> Vec<String> {
    let mut hits = Vec::new();
    wait_until("the index is made", || {
        let query = Bytes(query.as_bytes().to_vec());
        match ask(server, None, &Ask::Search { query, limit: 100 }) {
            Ok(Answer::Found { hits: found, .. }) => hits = found,
            Err(Error::Refused(why)) if why.contains("index") => return false,
            other => panic!("{other:?}"),
        }
        true
    });
    hits.into_iter().map(|hit| String::from_utf8(hit.path.0).expect("text")).collect()
}

#[test]
fn another_server_takes_over() {
    let Some(etcd) = Cluster::start(1) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let (a, b) = (address(dir, "a"), address(dir, "b"));
    let first = serve(etcd.endpoints(), a.clone());
    wait_until("an owner", || status(&a).is_ok());
    let second = serve(etcd.endpoints(), b.clone());
    wait_until(
        "a standby that knows the owner",
        || matches!(status(&b), Err(Error::Standby { owner: Some(owner) }) if owner == a.to_string()),
    );
    // The first it calls is the wrong one.
    let fs = join(dir, "one", &[b.clone(), a.clone()]);
    write(&fs, "/before", b"before");
    assert_eq!(search(&a, "before"), ["/before"]);
    assert_eq!(status(&a).expect("owner").generation.0, 1);
    first.stop().expect("it ends well");
    write(&fs, "/after", b"after");
    assert_eq!(status(&b).expect("the owner now").generation.0, 2);
    let other = join(dir, "two", &[a.clone(), b.clone()]);
    assert_eq!(read(&other, "/before"), b"before");
    assert_eq!(read(&other, "/after"), b"after");
    // Made of what was there, and of what is changed since.
    let found = search(&b, "kind:file");
    assert_eq!(found, ["/after", "/before"]);
    write(&other, "/later", b"");
    assert_eq!(search(&b, "later"), ["/later"]);
    drop((fs, other));
    second.stop().expect("it ends well");
}

#[test]
fn a_server_that_is_cut_off_from_etcd_refuses() {
    let Some(etcd) = Cluster::start(1) else { return };
    let proxy = Lossy::new(etcd.port(0));
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let (a, b) = (address(dir, "a"), address(dir, "b"));
    let first = serve(vec![proxy.endpoint()], a.clone());
    wait_until("an owner", || status(&a).is_ok());
    let second = serve(etcd.endpoints(), b.clone());
    let fs = join(dir, "one", &[a.clone(), b.clone()]);
    write(&fs, "/before", b"before");
    proxy.cut();
    // The old owner has no connection to etcd and stops by itself; the client switches to the other
    // server without an error.
    let fs = ends("the other server serves", move || {
        write(&fs, "/after", b"after");
        fs
    });
    wait_until("it refuses", || matches!(status(&a), Err(Error::Standby { .. })));
    assert_eq!(status(&b).expect("the owner").generation.0, 2);
    // Healed, it stands by.
    proxy.heal();
    wait_until(
        "a standby that knows the owner",
        || matches!(status(&a), Err(Error::Standby { owner: Some(owner) }) if owner == b.to_string()),
    );
    assert_eq!(read(&fs, "/before"), b"before");
    drop(fs);
    drop((first, second));
}
