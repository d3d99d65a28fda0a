//! Clients that do not reach each other talk through the server.

use std::path::Path;
use std::time::{Duration, Instant};

use weft_net::Address;
use weft_ringer::{Bytes, ClientId, POLICY_XATTR};
use weft_ringer_client::RingerFs;
use weft_ringer_net::{Answer, Ask, Conversation, Rendezvous, StoreRuns};
use weft_ringer_server::{ProxyServeOptions, ServeOptions, Server};
use weft_testing::LIMIT;
use weft_vfs::{Caller, FileSystem, Walker, XattrSet};

use super::{Cell, content, write};

const EPOCH: Duration = Duration::from_secs(15);

/// Makes a client unreachable at the address on which it listens.
pub(super) fn hide(store: &Path) {
    std::fs::remove_file(store.join("peers.sock")).expect("it listens there");
}

/// Checks that one client reads a file that another writes.
pub(super) fn share(writer: &RingerFs, reader: &RingerFs, path: &str, seed: u8) {
    let bytes = content(seed, 700_000);
    write(writer, path, &bytes);
    assert!(Walker::new(reader).read_file(path.as_bytes()).expect("read") == bytes, "{path}");
}

#[test]
fn unreachable_peers_are_relayed_through_the_server() {
    let mut cell = Cell::new(EPOCH);
    let (a, b) = (cell.join("a"), cell.join("b"));
    hide(&cell.path("a"));
    hide(&cell.path("b"));
    share(&a, &b, "/of-a", 1);
    share(&b, &a, "/of-b", 2);
    // Both at once, and several files.
    std::thread::scope(|scope| {
        for n in 0..4 {
            let (a, b) = (&a, &b);
            scope.spawn(move || share(a, b, &format!("/a{n}"), n));
            scope.spawn(move || share(b, a, &format!("/b{n}"), n));
        }
    });
    // Copies are asked for on the same way.
    a.setxattr(&Caller::ROOT, a.root(), POLICY_XATTR, b"copies=1 fsync=1", XattrSet::Any)
        .expect("set");
    write(&a, "/copied", &content(3, 300_000));
    let copied = a.lookup(a.root(), b"copied").expect("there").attr.ino;
    a.fsync(&Caller::ROOT, copied, false).expect("on b");
    // The server that all passed through is another one now.
    cell.stop();
    cell.start();
    share(&a, &b, "/later", 4);
}

#[test]
fn clients_of_a_proxy_reach_all_peers() {
    let cell = Cell::new(EPOCH);
    let at = Address::Unix(cell.path("proxy"));
    let options = ProxyServeOptions {
        parents: vec![cell.address()],
        tls: None,
        directory: cell.path("proxy.store"),
    };
    let serve = ServeOptions { listen: vec![at.clone()], ..ServeOptions::new() };
    let proxy = Server::start_proxy(options, serve).expect("a proxy");
    let join = |name: &str| {
        RingerFs::join(super::options(at.clone(), &cell.path(name))).expect("it joins")
    };
    let (one, two, far) = (join("one"), join("two"), cell.join("far"));
    for name in ["one", "two", "far"] {
        hide(&cell.path(name));
    }
    share(&one, &two, "/between-two-of-the-proxy", 1);
    share(&one, &far, "/from-behind-it", 2);
    share(&far, &one, "/to-behind-it", 3);
    drop((one, two, far));
    proxy.stop().expect("it ends well");
}

#[test]
fn server_without_relays_reports_that() {
    let cell = Cell::new(EPOCH);
    let at = Address::Unix(cell.path("t"));
    let serve = ServeOptions { listen: vec![at.clone()], relays_max: 0, ..ServeOptions::new() };
    let server = Server::start(&cell.path("cell-of-two"), serve).expect("a server");
    let join = |name: &str| {
        RingerFs::join(super::options(at.clone(), &cell.path(name))).expect("it joins")
    };
    let (a, b) = (join("a"), join("b"));
    hide(&cell.path("a"));
    write(&a, "/file", &content(1, 100_000));
    let error = Walker::new(&b).read_file(b"/file").expect_err("a is unreachable");
    let text = error.to_string();
    assert!(text.contains("peers.sock") && text.contains("--relays-max"), "{text}");
    drop((a, b, server));
}

fn say(cell: &Cell, first: &Ask) -> Conversation {
    let mut link = Conversation::connect(&cell.address(), None, LIMIT).expect("a connection");
    link.send(first).expect("sent");
    link
}

fn hear(link: &mut Conversation) -> Answer {
    link.receive(Some(Instant::now() + LIMIT)).expect("an answer")
}

fn refusal(link: &mut Conversation) -> String {
    match hear(link) {
        Answer::Refused { why } => String::from_utf8(why.0).expect("text"),
        other => panic!("{other:?}"),
    }
}

/// A client that is called and does what a test has it do.
fn join_by_hand(cell: &Cell) -> (Conversation, ClientId) {
    let mut link = say(
        cell,
        &Ask::Join {
            secret: Bytes(vec![7; 32]),
            listens: None,
            cell: 0,
            runs: StoreRuns::default(),
        },
    );
    let Answer::Joined { client, .. } = hear(&mut link) else { panic!("it joins") };
    (link, client)
}

fn called(link: &mut Conversation) -> Rendezvous {
    loop {
        if let Answer::Called { rendezvous, .. } = hear(link) {
            return rendezvous;
        }
    }
}

#[test]
fn uncalled_client_joins_no_rendezvous() {
    let cell = Cell::new(EPOCH);
    let text = refusal(&mut say(&cell, &Ask::Come { rendezvous: Rendezvous([0; 16]) }));
    assert!(text.contains("expired rendezvous"), "{text}");
    let text = refusal(&mut say(&cell, &Ask::Meet { peer: ClientId(9) }));
    assert!(text.contains("not connected"), "{text}");
    // The called client does not come in time, and later finds its rendezvous gone.
    let (mut link, client) = join_by_hand(&cell);
    let mut waits = say(&cell, &Ask::Meet { peer: client });
    let rendezvous = called(&mut link);
    let text = refusal(&mut waits);
    assert!(text.contains("did not answer the call"), "{text}");
    let text = refusal(&mut say(&cell, &Ask::Come { rendezvous }));
    assert!(text.contains("expired rendezvous"), "{text}");
    // A second connection for the same rendezvous is refused.
    let mut waits = say(&cell, &Ask::Meet { peer: client });
    let rendezvous = called(&mut link);
    let mut first = say(&cell, &Ask::Come { rendezvous });
    assert_eq!(hear(&mut first), Answer::Met {});
    assert_eq!(hear(&mut waits), Answer::Met {});
    refusal(&mut say(&cell, &Ask::Come { rendezvous }));
    // The server relays any bytes; when one connection ends, so does the other.
    waits.send(&Ask::Ping {}).expect("passed on");
    assert_eq!(first.receive::<Ask>(Some(Instant::now() + LIMIT)).expect("heard"), Ask::Ping {});
    drop(waits);
    assert!(first.receive::<Ask>(Some(Instant::now() + LIMIT)).is_err(), "it has gone");
}
