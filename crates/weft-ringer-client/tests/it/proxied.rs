//! What clients of a proxy hear, beside what clients of the cell's own server hear; and what becomes
//! of a client whose server behind the proxy is restarted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use weft_net::{Address, ClientTls, Role, ServerTls};
use weft_ringer::mds::Level;
use weft_ringer::wire::{FromServer, Reply, Request, RequestBody, ToServer};
use weft_ringer::{
    BlockHash, Bytes, ClientId, Epoch, Generation, Incarnation, Mode, RequestId, RnodeId,
};
use weft_ringer_client::{CONFLICTS_XATTR, RingerFs};
use weft_ringer_net::{Answer, Ask, Conversation, Denial, KnownCell, ServerGeneration, StoreRuns};
use weft_ringer_server::{ProxyServeOptions, ServeOptions, Server};
use weft_testing::{LIMIT, wait_until};
use weft_vfs::{FileSystem, Walker};

use super::joining::Cell as MembersCell;
use super::{Cell, attribute, content, write};

/// What a client knows from the messages on its connections, and of which kinds these were.
#[derive(Debug, Default)]
struct Heard {
    generations: Vec<ServerGeneration>,
    reached: u64,
    peers: BTreeMap<ClientId, Bytes>,
    revoked: BTreeSet<BlockHash>,
    called: u64,
    denied: Option<Denial>,
    kinds: BTreeSet<&'static str>,
}

/// A client that speaks the protocol by itself.
struct Raw {
    address: Address,
    tls: ClientTls,
    secret: Vec<u8>,
    link: Conversation,
    client: ClientId,
    epoch: Epoch,
    generation: Generation,
    number: u64,
    heard: Heard,
    /// What the client itself would make of it.
    known: KnownCell,
}

impl Raw {
    fn new(address: &Address, tls: ClientTls, secret: u8) -> Self {
        let mut raw = Self {
            link: Conversation::connect(address, Some((&tls, "127.0.0.1")), LIMIT)
                .expect("a connection"),
            address: address.clone(),
            tls,
            secret: vec![secret; 32],
            client: ClientId(0),
            epoch: Epoch(0),
            generation: Generation(0),
            number: 0,
            heard: Heard::default(),
            known: KnownCell::in_memory(),
        };
        raw.join();
        raw
    }

    /// Calls the server again.
    fn reconnect(&mut self) {
        let connect =
            || Conversation::connect(&self.address, Some((&self.tls, "127.0.0.1")), LIMIT).ok();
        let mut link = None;
        wait_until("the server is back", || {
            link = connect();
            link.is_some()
        });
        self.link = link.expect("a connection");
        self.join();
    }

    fn join(&mut self) {
        let (secret, listens) = (Bytes(self.secret.clone()), Bytes(b"127.0.0.1:9".to_vec()));
        self.link
            .send(&Ask::Join {
                secret,
                listens: Some(listens),
                cell: 0,
                runs: StoreRuns::default(),
            })
            .expect("sent");
        let Answer::Joined { client, .. } = self.hear() else { panic!("it joins") };
        self.client = client;
        let reply = self.request(&RequestBody::Hello { incarnation: Incarnation(1) });
        let Reply::Welcome { welcome } = reply else { panic!("{reply:?}") };
        self.epoch = welcome.epoch;
        if welcome.reclaim {
            self.request(&RequestBody::Reclaim { claims: Vec::new(), last: true });
        }
    }

    fn hear(&mut self) -> Answer {
        let answer = self.link.receive::<Answer>(Some(Instant::now() + LIMIT)).expect("an answer");
        self.note(&answer);
        answer
    }

    /// Hears whatever comes at once.
    fn listen(&mut self) {
        let soon = Instant::now() + Duration::from_millis(20);
        while let Ok(answer) = self.link.receive::<Answer>(Some(soon)) {
            self.note(&answer);
        }
    }

    fn say(&mut self, body: RequestBody) {
        self.number += 1;
        let (client, epoch, generation) = (self.client, self.epoch, self.generation);
        let request = Request { id: RequestId(self.number), body };
        let message = Box::new(ToServer { client, epoch, generation, request });
        self.link.send(&Ask::Mds { message }).expect("sent");
    }

    /// Sends a request until it is answered, as clients do: a proxy or a server that has just begun
    /// may not answer the first time.
    fn request(&mut self, body: &RequestBody) -> Reply {
        let end = Instant::now() + LIMIT;
        let first = self.number + 1;
        loop {
            self.say(body.clone());
            let again = Instant::now() + Duration::from_millis(300);
            assert!(Instant::now() < end, "no reply to {body:?}");
            while let Ok(answer) = self.link.receive::<Answer>(Some(again)) {
                self.note(&answer);
                if let Answer::Mds { message } = answer
                    && let FromServer::Reply { generation, id, reply } = *message
                    && id.0 >= first
                {
                    self.generation = generation;
                    return reply;
                }
            }
        }
    }

    /// Notes a message. Without a wildcard: what a new kind of message is to the clients of a proxy
    /// must be decided here too.
    fn note(&mut self, answer: &Answer) {
        let heard = &mut self.heard;
        let kind = match answer {
            Answer::Joined { .. } => "joined",
            Answer::Generations { generations, revision } => {
                self.known.meet(generations, *revision).expect("one history");
                heard.generations.clone_from(generations);
                heard.reached = *revision;
                "generations"
            }
            Answer::Reached { revision } => {
                self.known.reached(*revision);
                heard.reached = heard.reached.max(*revision);
                "reached"
            }
            Answer::Peers { peers } => {
                heard.peers.extend(peers.iter().map(|p| (p.client, p.listens.clone())));
                "peers"
            }
            Answer::RevokedMembers { certificates } => {
                heard.revoked = certificates.iter().copied().collect();
                "revoked members"
            }
            Answer::Called { .. } => {
                heard.called += 1;
                "called"
            }
            Answer::Denied { denial } => {
                heard.denied = Some(*denial);
                "denied"
            }
            Answer::Pong {} => "pong",
            Answer::Mds { message } => match &**message {
                FromServer::Reply { .. } => "reply",
                FromServer::Recall { rnode, token, .. } => {
                    let (rnode, token) = (*rnode, *token);
                    self.say(RequestBody::Lower { rnode, token, to: None });
                    "recall"
                }
                FromServer::RecallLocks { rnode, token, .. } => {
                    let (rnode, token, locks) = (*rnode, *token, Default::default());
                    self.say(RequestBody::LowerLocks { rnode, token, locks });
                    "recall of locks"
                }
                FromServer::LocksChanged { .. } => "locks changed",
                relayed @ (FromServer::Relayed { .. }
                | FromServer::RelayedRecallLocks { .. }
                | FromServer::RelayedLocksChanged { .. }) => {
                    panic!("only a proxy hears {relayed:?}")
                }
            },
            other @ (Answer::Welcome {}
            | Answer::Refused { .. }
            | Answer::Status { .. }
            | Answer::Found { .. }
            | Answer::Standby { .. }
            | Answer::Checked { .. }
            | Answer::Enrolled { .. }
            | Answer::Invited { .. }
            | Answer::Revoked { .. }
            | Answer::Members { .. }
            | Answer::Forgotten { .. }
            | Answer::Archives { .. }
            | Answer::Leases { .. }
            | Answer::CellMounts { .. }
            | Answer::Summary { .. }
            | Answer::Swept { .. }
            | Answer::Introduced { .. }
            | Answer::NotIntroduced { .. }
            | Answer::Met {}
            | Answer::Copied { .. }
            | Answer::Changed { .. }) => panic!("a client hears {other:?} unasked"),
        };
        self.heard.kinds.insert(kind);
    }
}

/// The two clients, which know the same after each step.
struct Pair {
    direct: Raw,
    proxied: Raw,
}

impl Pair {
    fn wait(&mut self, what: &str, is_so: impl Fn(&Heard) -> bool) {
        for raw in [&mut self.direct, &mut self.proxied] {
            wait_until(what, || {
                raw.listen();
                is_so(&raw.heard)
            });
        }
    }

    /// Both ask the server for something, and then know the same: soon, as the cell may change
    /// between the two.
    fn compare(&mut self, step: &str) {
        let both = [self.direct.client, self.proxied.client];
        let of = |raw: &Raw| {
            let mut peers = raw.heard.peers.clone();
            peers.retain(|client, _| !both.contains(client));
            let Heard { generations, reached, revoked, called, denied, kinds, .. } = &raw.heard;
            format!(
                "{generations:?} {reached} {peers:?} {revoked:?} {called} {denied:?} {kinds:?} {:?}",
                raw.known.seen()
            )
        };
        for last in [false, false, false, false, true] {
            for raw in [&mut self.direct, &mut self.proxied] {
                let reply = raw.request(&RequestBody::Peek { rnode: RnodeId::ROOT });
                assert!(matches!(reply, Reply::Peeked { .. }), "{step}: {reply:?}");
            }
            let (direct, proxied) = (of(&self.direct), of(&self.proxied));
            if direct == proxied {
                return;
            }
            assert!(!last, "{step}: direct\n{direct}\nand behind the proxy\n{proxied}");
        }
    }
}

fn tls(cell: &MembersCell, name: &str) -> ClientTls {
    ClientTls::mutual(&cell.path(name)).expect("certificates")
}

#[test]
fn proxied_clients_hear_what_direct_clients_hear() {
    let mut cell = MembersCell::with_long_epochs();
    for (name, level) in
        [("proxy", Level::Write), ("raw", Level::Write), ("t", Level::Write), ("x", Level::Read)]
    {
        cell.member(name, &[("/", level)]);
    }
    let options = ProxyServeOptions {
        parents: vec![cell.address.clone()],
        tls: Some(tls(&cell, "proxy")),
        directory: cell.path("proxy.store"),
    };
    let serve = ServeOptions {
        listen: vec![Address::Tcp("127.0.0.1".into(), 0)],
        tls: Some(ServerTls::mutual(&cell.path("pki"), Role::Server).expect("certificates")),
        ..ServeOptions::new()
    };
    let proxy = Server::start_proxy(options, serve).expect("a proxy");
    let direct = Raw::new(&cell.address, tls(&cell, "raw"), 7);
    let proxied = Raw::new(&proxy.addresses()[0], tls(&cell, "raw"), 8);
    let mut pair = Pair { direct, proxied };
    pair.wait("both have joined", |heard| heard.kinds.contains("revoked members"));
    pair.compare("joined");

    let t = cell.mount("t");
    pair.wait("another client is announced", |heard| heard.peers.len() >= 2);
    write(&t, "/file", b"content");
    t.sync().expect("with the server");
    pair.compare("another client");

    for raw in [&mut pair.direct, &mut pair.proxied] {
        raw.request(&RequestBody::Acquire { rnode: RnodeId::ROOT, mode: Mode::Read });
    }
    std::thread::scope(|scope| {
        let writes = scope.spawn(|| {
            write(&t, "/another", b"content");
            t.sync().expect("with the server");
        });
        pair.wait("the lease is recalled", |heard| heard.kinds.contains("recall"));
        wait_until("the change is made", || {
            pair.direct.listen();
            pair.proxied.listen();
            writes.is_finished()
        });
    });
    pair.compare("a lease was recalled");

    cell.server.take().expect("a server").stop().expect("it ends well");
    cell.start();
    pair.direct.reconnect();
    pair.wait("the server is another generation", |heard| heard.generations.len() == 3);
    write(&t, "/later", b"content");
    t.sync().expect("with the server");
    pair.compare("the server was restarted");

    cell.ask("pki", &Ask::Revoke { name: Bytes(b"x".to_vec()), force: true }).expect("revoked");
    pair.wait("a member was revoked", |heard| heard.revoked.len() == 1);
    pair.compare("a member was revoked");

    // They stay connected until both are called.
    let mut callers = Vec::new();
    for peer in [pair.direct.client, pair.proxied.client] {
        let secured = tls(&cell, "t");
        let mut link = Conversation::connect(&cell.address, Some((&secured, "127.0.0.1")), LIMIT)
            .expect("a connection");
        link.send(&Ask::Meet { peer }).expect("sent");
        callers.push(link);
    }
    pair.wait("both are called", |heard| heard.called == 1);
    drop(callers);
    pair.compare("called");

    cell.ask("pki", &Ask::Revoke { name: Bytes(b"raw".to_vec()), force: true }).expect("revoked");
    pair.wait("both are denied", |heard| heard.denied == Some(Denial::Revoked));
    drop(t);
    proxy.stop().expect("it ends well");
}

/// A proxy of a cell without certificates.
fn start_proxy(cell: &Cell) -> (Server, Address) {
    let at = Address::Unix(cell.path("proxy"));
    let options = ProxyServeOptions {
        parents: vec![cell.address()],
        tls: None,
        directory: cell.path("proxy.store"),
    };
    let serve = ServeOptions { listen: vec![at.clone()], ..ServeOptions::new() };
    (Server::start_proxy(options, serve).expect("a proxy"), at)
}

fn join_at(cell: &Cell, at: &Address, name: &str) -> RingerFs {
    RingerFs::join(super::options(at.clone(), &cell.path(name))).expect("it joins")
}

#[test]
fn restart_of_the_server_behind_a_proxy_locks_no_client_out() {
    let mut cell = Cell::new(Duration::from_secs(2));
    let (mut proxy, at) = start_proxy(&cell);
    let a = join_at(&cell, &at, "a");
    write(&a, "/one", b"1");
    a.sync().expect("with the server");
    for round in 0..2 {
        cell.stop();
        cell.start();
        for n in 0..20 {
            write(&a, &format!("/{round}-{n}"), b"content");
        }
        a.sync().expect("with the server");
        // The clients behind it meet the server again, through another proxy.
        proxy.stop().expect("it ends well");
        (proxy, _) = start_proxy(&cell);
        write(&a, "/one", &[round]);
        a.sync().expect("the cell is not older");
    }
    a.unmount().expect("with the server");
    drop(a);
    let a = join_at(&cell, &at, "a");
    assert_eq!(Walker::new(&a).read_file(b"/one").expect("there"), [1]);
    drop(a);
    // Directly as well.
    let a = cell.join("a");
    assert_eq!(Walker::new(&a).read_file(b"/one").expect("there"), [1]);
    drop(a);
    proxy.stop().expect("it ends well");
}

/// A client of a proxy that has seen a later state than the cell has is known to an administrator of
/// the cell, as a client of the cell's server is.
#[test]
fn proxied_client_that_saw_a_later_state_is_reported() {
    let mut cell = Cell::new(Duration::from_secs(2));
    let (proxy, at) = start_proxy(&cell);
    let a = join_at(&cell, &at, "a");
    write(&a, "/old", b"before");
    a.sync().expect("with the server");
    a.unmount().expect("with the server");
    drop(a);
    proxy.stop().expect("it ends well");
    cell.stop();
    std::fs::copy(cell.path("cell"), cell.path("copy")).expect("copied");
    cell.start();
    let a = cell.join("a");
    write(&a, "/new", b"after");
    a.sync().expect("with the server");
    a.unmount().expect("with the server");
    drop(a);
    cell.stop();
    std::fs::copy(cell.path("copy"), cell.path("cell")).expect("rolled back");
    let _ = std::fs::remove_file(cell.path("cell-wal"));
    cell.start();
    std::fs::remove_dir_all(cell.path("proxy.store")).expect("removed");
    let (proxy, at) = start_proxy(&cell);
    let error = RingerFs::join(super::options(at, &cell.path("a"))).expect_err("older");
    assert!(error.to_string().contains("older"), "{error}");
    wait_until("the administrator is told", || {
        let asked = weft_ringer_net::ask(&cell.address(), None, &Ask::Check {});
        let Ok(Answer::Checked { problems, .. }) = asked else { panic!("{asked:?}") };
        problems.iter().any(|(code, _)| code.0 == b"older-copy")
    });
    proxy.stop().expect("it ends well");
}

/// Changes that returned and that no server has are conflicts once an older cell is accepted.
#[test]
fn accepting_an_older_cell_gives_nothing_up_silently() {
    // The changes are made within an epoch of losing the server.
    let mut cell = Cell::new(Duration::from_secs(8));
    let a = cell.join("a");
    let (old, new) = (content(1, 200_000), content(2, 200_000));
    write(&a, "/file", &old);
    a.sync().expect("with the server");
    a.unmount().expect("with the server");
    drop(a);
    cell.stop();
    std::fs::copy(cell.path("cell"), cell.path("copy")).expect("copied");
    cell.start();
    let a = cell.join("a");
    write(&a, "/later", b"content");
    a.sync().expect("with the server");
    // Written under leases, while no server is there.
    Walker::new(&a).read_file(b"/file").expect("a lease");
    write(&a, "/file", &old);
    a.sync().expect("with the server");
    // The name is known to be free, under the lease of the directory.
    assert!(!Walker::new(&a).exists(b"/made").expect("looked up"));
    cell.stop();
    write(&a, "/file", &new);
    write(&a, "/made", b"made");
    a.vanish();
    drop(a);
    std::fs::copy(cell.path("copy"), cell.path("cell")).expect("rolled back");
    let _ = std::fs::remove_file(cell.path("cell-wal"));
    cell.start();
    for round in 0..2 {
        let mut options = cell.options("a");
        options.accept_older_cell = round == 0;
        let a = RingerFs::join(options).expect("the cell is accepted");
        let notes = a.notes().join("\n");
        assert_eq!(notes.contains("ringer conflicts"), round == 0, "{notes}");
        assert!(Walker::new(&a).read_file(b"/file").expect("there") == old, "as the cell has it");
        let conflicts = attribute(&a, "", CONFLICTS_XATTR);
        assert!(conflicts.contains("make made"), "{conflicts}");
        let is_of_file = |line: &&str| line.contains("write ") && !line.contains("make made");
        let of_file = conflicts.lines().find(is_of_file);
        let of_file = of_file.unwrap_or_else(|| panic!("the writes are there: {conflicts}"));
        assert!(of_file.contains("older copy of the cell"), "{of_file}");
        if round == 1 {
            // No change made since has the number of one of these.
            write(&a, "/new", b"content");
            a.sync().expect("with the server");
            assert_eq!(attribute(&a, "", CONFLICTS_XATTR), conflicts);
            let number = of_file.split('\t').next().expect("a number");
            let set = |text: String| {
                let caller = weft_vfs::Caller::ROOT;
                let any = weft_vfs::XattrSet::Any;
                a.setxattr(&caller, a.root(), CONFLICTS_XATTR, text.as_bytes(), any)
            };
            set(format!("mine {number}")).expect("resolved");
            assert!(Walker::new(&a).read_file(b"/file").expect("there") == new, "made again");
        }
        a.unmount().expect("with the server");
    }
}
