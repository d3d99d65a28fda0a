//! The shared file service over QUIC, through the real command and real mounts.

use crate::ringer::{Cell, has_ended, kill};
use crate::run::{Bench, can_mount};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::net::UdpSocket;
use weft_testing::wait_until;

/// A cell that is reached over QUIC alone; whatever a test does, nothing stays mounted or running.
struct Quic {
    cell: Cell,
    address: String,
}

impl Quic {
    fn new() -> Self {
        let cell = Cell { bench: Bench::new() };
        cell.bench.ok(&["ringer", "init", "pki", "--host", "127.0.0.1"]);
        let mut quic = Self { cell, address: "quic://127.0.0.1:0".into() };
        quic.serve();
        quic
    }

    /// At the same address if it has been one before.
    fn serve(&mut self) {
        let args = ["ringer", "serve", "cell", "--listen", &self.address, "--epoch", "2"];
        let more = ["--tls-certificates", "pki", "--background", "--pid-file", "server.pid"];
        let out = self.cell.bench.json(&[&args[..], &more].concat());
        self.address = out["addresses"][0].as_str().unwrap().to_owned();
        assert!(self.address.starts_with("quic://127.0.0.1:"), "{out}");
    }

    fn admin<'a>(&'a self, verb: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let args = ["ringer", verb, &self.address];
        [&args[..], more, &["--tls-certificates", "pki"]].concat()
    }

    fn join(&self, name: &str) {
        let out = self.cell.bench.json(&self.admin("invite", &[]));
        let token = out["token"].as_str().unwrap();
        self.cell.bench.ok(&["ringer", "join", token, &format!("{name}.keys"), "--name", name]);
    }

    fn mount(&self, name: &str, more: &[&str]) {
        let _ = fs::create_dir(self.cell.bench.path(name));
        let of = |kind: &str| format!("{name}.{kind}");
        let (store, keys, pid) = (of("store"), of("keys"), of("pid"));
        let args = ["ringer", "mount", &self.address, name, "--store", &store];
        let tls = ["--tls-certificates", &keys, "--background", "--pid-file", &pid];
        self.cell.bench.ok(&[&args[..], &tls, more].concat());
    }

    fn shares(&self, from: &str, to: &str, file: &str, seed: u8) {
        let content: Vec<u8> = (0..1_500_000_u32).map(|n| (n % 251) as u8 ^ seed).collect();
        let bench = &self.cell.bench;
        fs::write(bench.path(&format!("{from}/{file}")), &content).unwrap();
        let read = fs::read(bench.path(&format!("{to}/{file}"))).unwrap();
        assert!(read == content, "{file} of {from}, read by {to}");
    }
}

#[test]
fn a_cell_over_quic_outlives_what_befalls_it() {
    if !can_mount() {
        return;
    }
    let mut quic = Quic::new();
    quic.join("a");
    quic.join("b");
    // One gives blocks over TCP, the other over QUIC.
    quic.mount("a", &[]);
    quic.mount("b", &["--listen", "quic://127.0.0.1:0"]);
    quic.shares("a", "b", "of-a", 1);
    quic.shares("b", "a", "of-b", 2);
    let status = quic.cell.bench.json(&quic.admin("status", &[]));
    let listens: Vec<&str> = status["clients"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|c| c["listens"].as_str())
        .collect();
    assert_eq!(listens.iter().filter(|at| at.starts_with("quic://")).count(), 1, "{status}");

    // What strangers send to the port is nobody's business.
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    for n in 0..500_usize {
        let garbage: Vec<u8> = (0..n * 3 % 1400).map(|i| ((i * 7 + n) % 256) as u8).collect();
        let _ = stranger.send_to(&garbage, quic.address.trim_start_matches("quic://"));
    }
    quic.shares("a", "b", "through-garbage", 3);

    // A server that is killed, and there again.
    kill(&quic.cell.bench, "server");
    let address = quic.address.clone();
    quic.serve();
    assert_eq!(quic.address, address);
    quic.shares("b", "a", "after-the-server", 4);

    // One that ends in order says so.
    let pid = fs::read_to_string(quic.cell.bench.path("server.pid")).unwrap();
    let pid = Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    wait_until("the server ends", || has_ended(pid));
    quic.serve();
    quic.shares("a", "b", "after-its-end", 5);

    // The leases of a client that is killed run out, and it comes back as who it was.
    kill(&quic.cell.bench, "a");
    fs::write(quic.cell.bench.path("b/without-a"), "content").unwrap();
    quic.mount("a", &[]);
    let read = fs::read_to_string(quic.cell.bench.path("a/without-a")).unwrap();
    assert_eq!(read, "content");
    quic.shares("a", "b", "again", 6);
}

#[test]
fn over_quic_only_members_get_in() {
    let quic = Quic::new();
    let bench = &quic.cell.bench;
    quic.join("a");
    let status = |keys: &'static str| {
        ["ringer", "status", &quic.address, "--tls-certificates", keys].map(str::to_owned)
    };
    let fails = |keys: &'static str| {
        let args = status(keys);
        bench.fails(1, &args.each_ref().map(String::as_str))
    };
    bench.ok(&status("a.keys").each_ref().map(String::as_str));
    // Another cell's, without certificates, and sent away.
    bench.ok(&["ringer", "init", "theirs", "--host", "127.0.0.1"]);
    let said = fails("theirs");
    assert!(said.contains("certificate"), "{said}");
    let said = bench.fails(1, &["ringer", "status", &quic.address]);
    assert!(said.contains("QUIC requires certificates"), "{said}");
    bench.ok(&quic.admin("revoke", &["a", "--force"]));
    let said = fails("a.keys");
    assert!(said.contains("revoked"), "{said}");
    // Nor is a cell served so.
    let said = bench.fails(1, &["ringer", "serve", "bare", "--listen", "quic://127.0.0.1:0"]);
    assert!(said.contains("QUIC requires certificates"), "{said}");
    assert!(!bench.path("bare").exists());
}
