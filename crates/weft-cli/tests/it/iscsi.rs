//! docs/iscsi.md, done: a volume on an iSCSI disk, through QEMU's storage daemon.

use crate::run::{Bench, tool};
use std::ffi::OsStr;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use weft_testing::wait_until;

const TARGET: &str = "iqn.2024-01.example:disk";

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(name: &str, args: &[&str]) -> Option<Running> {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new(name);
    command.env("PATH", path).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match command.spawn() {
        Ok(child) => Some(Running(child)),
        Err(_) => {
            println!("skipped: {name} is not installed");
            None
        }
    }
}

/// Whether the daemon can load its driver; the daemon says nothing useful where it cannot.
fn has_iscsi_driver() -> bool {
    let there = ["/usr/lib/x86_64-linux-gnu/qemu", "/usr/lib/aarch64-linux-gnu/qemu"]
        .iter()
        .any(|dir| fs::metadata(format!("{dir}/block-iscsi.so")).is_ok());
    if !there {
        println!("skipped: QEMU's iSCSI driver (qemu-block-extra) is not installed");
    }
    there
}

#[test]
fn a_volume_lives_on_an_iscsi_disk() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: a target needs root");
    }
    if !has_iscsi_driver() {
        return;
    }
    let bench = Bench::new();
    bench.write("lun.img", &vec![0; 32 << 20]);
    // A port of our own for the target, and a control channel.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let control = format!("{}", 1000 + port % 30_000);
    let portal = format!("127.0.0.1:{port}");
    let listen = format!("portal={portal}");
    let Some(_target) = start("tgtd", &["-f", "-C", &control, "--iscsi", &listen]) else { return };
    wait_until("the target listens", || TcpStream::connect(&portal).is_ok());
    let lun = bench.path("lun.img").display().to_string();
    for (mode, more) in [
        ("target", &["--op", "new", "-T", TARGET][..]),
        ("logicalunit", &["--op", "new", "--lun", "1", "-b", &lun]),
        ("target", &["--op", "bind", "-I", "ALL"]),
    ] {
        let args = ["-C", &control, "--lld", "iscsi", "--mode", mode, "--tid", "1"];
        let all: Vec<&OsStr> = args.iter().chain(more).map(OsStr::new).collect();
        let ran = tool("tgtadm", all).expect("it comes with tgtd");
        assert_eq!(ran.code, 0, "{ran:#?}");
    }
    let socket = bench.path("bridge").display().to_string();
    let disk = format!(
        "driver=iscsi,node-name=disk,transport=tcp,portal={portal},target={TARGET},lun=1,\
         initiator-name=iqn.2024-01.example:weft"
    );
    let server = format!("addr.type=unix,addr.path={socket},max-connections=16");
    let export = "type=nbd,id=disk,node-name=disk,name=disk,writable=on";
    let args = ["--blockdev", &disk, "--nbd-server", &server, "--export", export];
    let Some(_bridge) = start("qemu-storage-daemon", &args) else { return };
    let uri = format!("nbd+unix:///disk?socket={socket}");
    let stands = || std::os::unix::net::UnixStream::connect(&socket).is_ok();
    wait_until("the bridge stands", stands);
    bench.ok(&["mkfs", "ext2", &uri]);
    bench.write("hello", b"over iSCSI");
    bench.ok(&["put", "hello", &format!("{uri}:/")]);
    assert_eq!(bench.ok(&["cat", &format!("{uri}:/hello")]), "over iSCSI");
    bench.ok(&["fsck", &uri]);
    // It is on the target's disk, and nowhere else.
    assert_eq!(bench.ok(&["cat", "lun.img:/hello"]), "over iSCSI");
    bench.e2fsck_clean("lun.img");
}
