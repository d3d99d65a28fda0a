//! The user at the other end of a connection of this machine.

use crate::LIMIT;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use weft_net::{Address, Listener, Listening, Socket};

/// A user that owns nothing here.
const STRANGER: u32 = 65_533;

/// What comes in at `host`.
fn listen(host: &str) -> Option<(Listening, Receiver<Socket>)> {
    let listener = match Listener::bind(&Address::Tcp(host.into(), 0), 0o600) {
        Ok(listener) => listener,
        Err(e) if e.kind() == std::io::ErrorKind::AddrNotAvailable => {
            println!("not here: {host}: this machine does without IPv6");
            return None;
        }
        Err(e) => panic!("{e}"),
    };
    let (tell, sockets) = channel();
    let listening = listener.start("test", move |socket| {
        let _ = tell.send(socket);
    });
    Some((listening.expect("a thread"), sockets))
}

fn port(listening: &Listening) -> u16 {
    let Address::Tcp(_, port) = listening.address() else { panic!("TCP") };
    *port
}

/// A shell of another user, if this one may have one.
fn shell(script: &str) -> Option<Child> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can be another user");
        return None;
    }
    let mut bash = Command::new("bash");
    bash.args(["-c", script]).uid(STRANGER).gid(STRANGER).stdin(Stdio::piped());
    Some(bash.spawn().expect("bash"))
}

#[test]
fn this_process_is_known_at_the_other_end() {
    let own = rustix::process::geteuid().as_raw();
    for (host, called) in
        [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("127.0.0.1", "::ffff:127.0.0.1")]
    {
        let Some((listening, sockets)) = listen(host) else { continue };
        let near = Address::Tcp(called.into(), port(&listening)).connect(LIMIT).expect("a call");
        let far = sockets.recv_timeout(LIMIT).expect("a connection");
        assert_eq!(far.peer_user(), Some(own), "{called}");
        assert_eq!(near.peer_user(), Some(own), "{called}");
        drop(near);
        // It hears of its end first.
        assert_eq!((&far).read(&mut [0; 1]).expect("an end"), 0);
        assert_eq!(far.peer_user(), None, "{called}");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let listener = Listener::bind(&Address::Unix(dir.path().join("s")), 0o600).expect("it listens");
    let address = listener.address().clone();
    let (tell, sockets) = channel();
    let _listening = listener.start("test", move |socket| {
        let _ = tell.send(socket.peer_user());
    });
    let _near = address.connect(LIMIT).expect("a call");
    assert_eq!(sockets.recv_timeout(LIMIT).expect("a connection"), Some(own));
}

#[test]
fn another_user_is_known() {
    let Some((listening, sockets)) = listen("127.0.0.1") else { return };
    let script = format!("exec 3<>/dev/tcp/127.0.0.1/{}; read", port(&listening));
    let Some(mut child) = shell(&script) else { return };
    let far = sockets.recv_timeout(LIMIT).expect("a connection");
    assert_eq!(far.peer_user(), Some(STRANGER));
    drop(child.stdin.take());
    let _ = child.wait();
}

/// The kernel's table has root for a socket that its process has closed.
#[test]
fn who_hangs_up_at_once_is_not_taken_for_root() {
    const CALLS: usize = 60;
    let Some((listening, sockets)) = listen("127.0.0.1") else { return };
    let script = format!(
        "for i in $(seq {CALLS}); do exec 3<>/dev/tcp/127.0.0.1/{}; echo x >&3; exec 3>&-; done",
        port(&listening)
    );
    let Some(mut child) = shell(&script) else { return };
    let mut seen = [0; 2];
    for call in 0..CALLS {
        let far = sockets.recv_timeout(LIMIT).expect("a connection");
        match far.peer_user() {
            None => seen[0] += 1,
            Some(STRANGER) => seen[1] += 1,
            other => panic!("call {call}: {other:?}"),
        }
        if call % 2 == 0 {
            // With what it has said read, and its end.
            assert_eq!((&far).read_to_end(&mut Vec::new()).expect("two bytes"), 2);
            assert_eq!(far.peer_user(), None, "call {call}");
        }
    }
    assert!(child.wait().expect("an end").success());
    println!("of {CALLS} calls {} had gone, {} not yet", seen[0], seen[1]);
}
