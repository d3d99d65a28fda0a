//! Peers that say nonsense, nothing, or the wrong thing.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use weft_block::Rng;
use weft_ringer::wire::frame::frame;
use weft_ringer::wire::{Request, RequestBody, ToServer};
use weft_ringer::{Bytes, ClientId, Epoch, Generation, RequestId};
use weft_ringer_net::{Answer, Ask, BlockBytes, Conversation, FromPeer, StoreRuns, ToPeer};
use weft_vfs::{FileSystem, Walker};

use super::Cell;
use weft_testing::{LIMIT, ends};

/// Whether the server ends this connection, whatever it says before.
fn is_closed_by_the_peer(mut stream: &UnixStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_millis(50))).expect("a limit");
    let end = Instant::now() + LIMIT;
    let mut buf = [0; 4096];
    while Instant::now() < end {
        match stream.read(&mut buf) {
            Ok(0) => return true,
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => return true,
            _ => {}
        }
    }
    false
}

#[test]
fn server_closes_connections_that_send_garbage() {
    let cell = Cell::new(Duration::from_secs(15));
    let fs = cell.join("a");
    let mut rng = Rng::new(1);
    let hello = frame(&Ask::Observe {}).expect("short");
    let noise: Vec<u8> = (0..5000).map(|_| rng.below(256) as u8).collect();
    let huge = [&u32::MAX.to_le_bytes()[..], &[0x72, 1]].concat();
    let long = [&8_000_000_u32.to_le_bytes()[..], &[0x72, 1], &[0; 100_000]].concat();
    let twice = [&hello[..], &hello[..]].concat();
    let speaks_for_another = {
        let request = Request { id: RequestId(1), body: RequestBody::Renew {} };
        let message =
            ToServer { client: ClientId(7), epoch: Epoch(1), generation: Generation(1), request };
        let ask = Ask::Mds { message: Box::new(message) };
        [&hello[..], &frame(&ask).expect("short")].concat()
    };
    let no_secret = frame(&Ask::Join {
        secret: Bytes(vec![1; 5]),
        listens: None,
        cell: 0,
        runs: StoreRuns::default(),
    })
    .expect("short");
    for (what, bytes) in [
        ("noise", noise),
        ("a huge frame", huge),
        ("a long first frame", long),
        ("two hellos", twice),
        ("another's message", speaks_for_another),
        ("a short secret", no_secret),
    ] {
        let mut stream = UnixStream::connect(cell.path("s")).expect("a connection");
        let _ = stream.write_all(&bytes);
        assert!(is_closed_by_the_peer(&stream), "{what}");
    }
    // Cut at every offset, and then silent: other clients are not affected.
    let silent: Vec<UnixStream> = (0..hello.len())
        .map(|len| {
            let mut stream = UnixStream::connect(cell.path("s")).expect("a connection");
            stream.write_all(&hello[..len]).expect("room");
            stream
        })
        .collect();
    Walker::new(&fs).write_file(b"/file", b"content", 0o644).expect("written");
    fs.sync().expect("durable");
    for stream in &silent {
        assert!(is_closed_by_the_peer(stream), "a silent one");
    }
}

/// A client of the cell that answers every request for a block with `answer`.
fn liar(cell: &Cell, name: &str, answer: Option<FromPeer>) -> Conversation {
    let path = cell.path(name);
    let listener = UnixListener::bind(&path).expect("a socket");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let answer = answer.clone();
            std::thread::spawn(move || {
                let mut buf = [0; 4096];
                while matches!(stream.read(&mut buf), Ok(1..)) {
                    let Some(answer) = &answer else { continue };
                    let _ = stream.write_all(&frame(answer).expect("short"));
                }
            });
        }
    });
    let address = format!("unix:{}", path.display());
    let mut link = Conversation::connect(&cell.address(), None, LIMIT).expect("a connection");
    let mut secret = vec![0; 32];
    secret[..name.len()].copy_from_slice(name.as_bytes());
    let join = Ask::Join {
        secret: Bytes(secret),
        listens: Some(Bytes(address.into_bytes())),
        cell: 0,
        runs: StoreRuns::default(),
    };
    link.send(&join).expect("sent");
    let answer = link.receive::<Answer>(Some(Instant::now() + LIMIT)).expect("an answer");
    assert!(matches!(answer, Answer::Joined { .. }), "{answer:?}");
    link
}

#[test]
fn wrong_blocks_of_a_peer_are_fetched_elsewhere() {
    let cell = Cell::new(Duration::from_secs(30));
    let a = cell.join("a");
    let content = vec![5; 300_000];
    Walker::new(&a).write_file(b"/file", &content, 0o644).expect("written");
    a.sync().expect("durable");
    let bytes = BlockBytes(vec![6; 64 << 10]);
    let _wrong = liar(&cell, "wrong", Some(FromPeer::Block { bytes }));
    let _absent = liar(&cell, "absent", Some(FromPeer::Absent {}));
    let b = cell.join("b");
    assert!(Walker::new(&b).read_file(b"/file").expect("a has it") == content);
    // Its holder goes; those that are left have nothing, or lie.
    Walker::new(&a).write_file(b"/other", &content, 0o644).expect("written");
    a.unmount().expect("it ends");
    let error = Walker::new(&b).read_file(b"/other").expect_err("no client has it");
    let text = error.to_string();
    assert!(
        text.contains("sent bytes with another hash") && text.contains("does not have it"),
        "{text}"
    );
}

#[test]
fn stalled_peer_times_out() {
    let cell = Cell::new(Duration::from_secs(3600));
    let a = cell.join("a");
    Walker::new(&a).write_file(b"/file", b"content", 0o644).expect("written");
    a.unmount().expect("it ends");
    let _silent = liar(&cell, "silent", None);
    let b = cell.join("b");
    let error = ends("the silent peer is given up", move || {
        Walker::new(&b).read_file(b"/file").expect_err("no client has it")
    });
    assert!(error.to_string().contains("timed out"), "{error}");
}

#[test]
fn blocks_are_served_by_hash_only() {
    let cell = Cell::new(Duration::from_secs(15));
    let a = cell.join("a");
    Walker::new(&a).write_file(b"/file", b"content", 0o644).expect("written");
    a.sync().expect("stored");
    let ino = a.lookup(a.root(), b"file").expect("there").attr.ino;
    let address = weft_net::Address::Unix(cell.path("a").join("peers.sock"));
    let mut link = Conversation::connect(&address, None, LIMIT).expect("a connection");
    let rnode = weft_ringer::RnodeId(ino.0);
    let mut fetch = |hash: [u8; 32]| {
        link.send(&ToPeer::Fetch { rnode, hash: weft_ringer::BlockHash(hash) }).expect("sent");
        link.receive::<FromPeer>(Some(Instant::now() + LIMIT)).expect("an answer")
    };
    assert_eq!(fetch([0; 32]), FromPeer::Absent {});
    let own = std::fs::read_dir(cell.path("a").join("own").join(format!("{:016x}", ino.0)));
    let name = own.expect("blocks").next().expect("one").expect("an entry").file_name();
    let name = name.to_str().expect("hex").to_owned();
    let mut hash = [0; 32];
    for (i, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&name[2 * i..2 * i + 2], 16).expect("hex");
    }
    assert_eq!(fetch(hash), FromPeer::Block { bytes: BlockBytes(b"content".to_vec()) });
}
