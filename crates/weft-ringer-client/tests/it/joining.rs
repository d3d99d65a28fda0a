//! Joining by invitation, what members may do, and being sent away.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_net::{Address, ClientTls, Role, ServerTls};
use weft_ringer::mds::Level;
use weft_ringer::op::{Logged, Op};
use weft_ringer::wire::{FromServer, Reply, Request, RequestBody, ToServer};
use weft_ringer::{
    BlockHash, Bytes, ClientId, Epoch, Generation, Incarnation, Mode, Name, Refusal, RequestId,
    RnodeId, Seq,
};
use weft_ringer_client::{RingerFs, RingerFsOptions};
use weft_ringer_net::pki::{self, Authority, NewKey, Token};
use weft_ringer_net::{
    Answer, Ask, Conversation, Denial, Error, FromPeer, MEMBER_NAME, StoreRuns, ToPeer, ask, join,
};
use weft_ringer_server::{ServeOptions, Server};
use weft_testing::{LIMIT, ends, wait_until};
use weft_vfs::{FileSystem, Time, Walker};

/// A cell that one joins by invitation.
pub struct Cell {
    dir: tempfile::TempDir,
    pub server: Option<Server>,
    pub address: Address,
    pub epoch_micros: u64,
}

impl Cell {
    pub fn new() -> Self {
        Self::at(Address::Tcp("127.0.0.1".into(), 0))
    }

    fn at(address: Address) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        pki::create(&dir.path().join("pki"), &["127.0.0.1".to_owned()]).expect("made");
        let mut cell = Self { dir, server: None, address, epoch_micros: 2_000_000 };
        cell.start();
        cell
    }

    /// One in which no epoch ends during a test.
    pub fn with_long_epochs() -> Self {
        let mut cell = Self::new();
        cell.server.take().expect("a server").stop().expect("it ends");
        cell.epoch_micros = 3_600_000_000;
        cell.start();
        cell
    }

    pub fn start(&mut self) {
        let pki = self.path("pki");
        let mut options = ServeOptions {
            listen: vec![self.address.clone()],
            tls: Some(ServerTls::joining(&pki).expect("certificates")),
            authority: Authority::open(&pki).expect("readable").map(Arc::new),
            admins: vec![pki::fingerprint_in(&pki.join("client-cert.pem")).expect("there")],
            ..ServeOptions::new()
        };
        options.mds.epoch_micros = self.epoch_micros;
        let server = Server::start(&self.path("cell"), options).expect("a server");
        self.address = server.addresses()[0].clone();
        self.server = Some(server);
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn ask(&self, who: &str, question: &Ask) -> Result<Answer, Error> {
        let tls = ClientTls::mutual(&self.path(who)).expect("certificates");
        ask(&self.address, Some(&tls), question)
    }

    fn invite(&self, grants: &[(&str, Level)], lasts_secs: u64) -> Token {
        let grants = grants.iter().map(|(path, l)| (Bytes(path.as_bytes().to_vec()), *l)).collect();
        let answer = self.ask("pki", &Ask::Invite { grants, lasts_secs }).expect("an invitation");
        let Answer::Invited { secret } = answer else { panic!("{answer:?}") };
        let authority = pki::fingerprint_in(&self.path("pki/ca-cert.pem")).expect("there");
        let secret = secret.0.try_into().expect("16 bytes");
        Token { secret, authority, server: self.address.clone() }
    }

    /// Makes a member who may do this.
    pub fn member(&self, name: &str, grants: &[(&str, Level)]) {
        join(&self.invite(grants, 100), &self.path(name), name).expect("a member");
    }

    pub fn options(&self, name: &str) -> RingerFsOptions {
        let store = self.path(&format!("{name}.store"));
        let mut options = super::options(self.address.clone(), &store);
        options.patience = Duration::from_secs(5);
        let client = ClientTls::mutual(&self.path(name)).expect("certificates");
        let member = ServerTls::mutual(&self.path(name), Role::Client).expect("certificates");
        options.tls = Some((client, member));
        #[cfg(feature = "quic")]
        if matches!(self.address, Address::Quic(..)) {
            options.listen = Some(Address::Quic("127.0.0.1".into(), 0));
        }
        options
    }

    pub fn mount(&self, name: &str) -> RingerFs {
        RingerFs::join(self.options(name)).expect("it is let in")
    }
}

#[cfg(feature = "quic")]
fn over_quic() -> Cell {
    Cell::at(Address::Quic("127.0.0.1".into(), 0))
}

fn denial<T: std::fmt::Debug>(result: Result<T, Error>) -> Denial {
    match result {
        Err(Error::Denied(denial)) => denial,
        other => panic!("{other:?}"),
    }
}

fn files(dir: &Path) -> usize {
    std::fs::read_dir(dir).map_or(0, Iterator::count)
}

#[test]
fn invitation_is_valid_once_and_for_one_cell() {
    tokens(Cell::new());
}

#[cfg(feature = "quic")]
#[test]
fn invitation_is_valid_once_and_for_one_cell_over_quic() {
    tokens(over_quic());
}

fn tokens(mut cell: Cell) {
    let everything = [("/", Level::Write)];
    let token = cell.invite(&everything, 100);
    // Over the text that people hand on, and a restart.
    let token: Token = token.to_string().parse().expect("a token");
    cell.server.take().expect("a server").stop().expect("it ends");
    cell.start();
    join(&token, &cell.path("a"), "a").expect("a member");
    assert_eq!(denial(join(&token, &cell.path("b"), "b")), Denial::Used);
    assert_eq!(files(&cell.path("b")), 0, "nothing is left");
    let expired = cell.invite(&everything, 0);
    assert_eq!(denial(join(&expired, &cell.path("b"), "b")), Denial::Expired);
    let unknown = Token { secret: [1; 16], ..token.clone() };
    assert_eq!(denial(join(&unknown, &cell.path("b"), "b")), Denial::NoInvitation);
    let fresh = cell.invite(&everything, 100);
    for taken in ["a", "admin", "", "x y"] {
        assert_eq!(denial(join(&fresh, &cell.path("b"), taken)), Denial::Name);
    }
    join(&fresh, &cell.path("a"), "b").expect_err("there are keys already");
    // Another server answers at that address: the secret is not sent.
    let other = Token { authority: BlockHash([9; 32]), ..fresh.clone() };
    let error = join(&other, &cell.path("b"), "b").expect_err("another authority");
    assert!(error.to_string().contains("TLS"), "{error}");
    join(&fresh, &cell.path("b"), "b").expect("it is good still");

    let (a, b) = (cell.mount("a"), cell.mount("b"));
    Walker::new(&a).write_file(b"/file", &[5; 100_000], 0o644).expect("written");
    assert!(Walker::new(&b).read_file(b"/file").expect("from a") == [5; 100_000]);
}

#[test]
fn strangers_are_denied() {
    strangers(&Cell::new());
}

#[cfg(feature = "quic")]
#[test]
fn strangers_are_denied_over_quic() {
    strangers(&over_quic());
}

fn strangers(cell: &Cell) {
    // Without a certificate nothing but joining is heard.
    let prints = pki::fingerprint_in(&cell.path("pki/ca-cert.pem")).expect("there");
    let pinned = ClientTls::pinned(move |der| pki::fingerprint(der) == prints).expect("TLS");
    assert_eq!(denial(ask(&cell.address, Some(&pinned), &Ask::Status {})), Denial::Stranger);
    // A certificate that the authority has signed, of a client that was not invited.
    let authority = Authority::open(&cell.path("pki")).expect("readable").expect("there");
    let key = NewKey::generate().expect("a key");
    let (chain, _) = authority.admit("mallory", key.public()).expect("a certificate");
    let dir = cell.path("m");
    std::fs::create_dir(&dir).expect("a directory");
    std::fs::write(dir.join("client-key.pem"), key.pem().expect("PEM")).expect("a file");
    std::fs::write(dir.join("client-cert.pem"), chain).expect("a file");
    std::fs::copy(cell.path("pki/ca-cert.pem"), dir.join("ca-cert.pem")).expect("a file");
    assert_eq!(denial(cell.ask("m", &Ask::Status {})), Denial::Stranger);
    let error = RingerFs::join(cell.options("m")).expect_err("not a member");
    assert!(error.to_string().contains("belongs to no member"), "{error}");
    // Another authority's.
    pki::create(&cell.path("theirs"), &["127.0.0.1".to_owned()]).expect("made");
    cell.ask("theirs", &Ask::Status {}).expect_err("another authority");
    // Members do not make members, nor send them away.
    cell.member("a", &[("/", Level::Write)]);
    let invite = Ask::Invite { grants: Vec::new(), lasts_secs: 9 };
    let revoke = Ask::Revoke { name: Bytes(b"a".to_vec()), force: true };
    for question in [invite, revoke, Ask::Members {}] {
        assert_eq!(denial(cell.ask("a", &question)), Denial::NotAdmin);
    }
    cell.member("chief", &[("/", Level::Admin)]);
    let Ok(Answer::Members { members }) = cell.ask("chief", &Ask::Members {}) else { panic!() };
    assert_eq!(members.len(), 2);
}

/// A connection that speaks the protocol by itself.
struct Raw {
    link: Conversation,
    client: ClientId,
    epoch: Epoch,
    generation: Generation,
    number: u64,
}

impl Raw {
    fn new(cell: &Cell, name: &str) -> Self {
        let tls = ClientTls::mutual(&cell.path(name)).expect("certificates");
        let tls = Some((&tls, "127.0.0.1"));
        let mut link = Conversation::connect(&cell.address, tls, LIMIT).expect("a connection");
        let secret = Bytes(vec![7; 32]);
        link.send(&Ask::Join { secret, listens: None, cell: 0, runs: StoreRuns::default() })
            .expect("sent");
        let answer = link.receive(Some(Instant::now() + LIMIT)).expect("an answer");
        let Answer::Joined { client, .. } = answer else { panic!("{answer:?}") };
        let (epoch, generation) = (Epoch(0), Generation(0));
        let mut raw = Self { link, client, epoch, generation, number: 1 };
        let reply = raw.request(RequestBody::Hello { incarnation: Incarnation(1) });
        let Reply::Welcome { welcome } = reply else { panic!("{reply:?}") };
        raw.epoch = welcome.epoch;
        raw
    }

    fn request(&mut self, body: RequestBody) -> Reply {
        self.number += 1;
        let (client, epoch, generation) = (self.client, self.epoch, self.generation);
        let request = Request { id: RequestId(self.number), body };
        let message = Box::new(ToServer { client, epoch, generation, request });
        self.link.send(&Ask::Mds { message }).expect("sent");
        loop {
            match self.link.receive::<Answer>(Some(Instant::now() + LIMIT)).expect("an answer") {
                Answer::Mds { message } => match *message {
                    FromServer::Reply { generation, id, reply } if id.0 == self.number => {
                        self.generation = generation;
                        return reply;
                    }
                    other => panic!("{other:?}"),
                },
                Answer::Peers { .. }
                | Answer::RevokedMembers { .. }
                | Answer::Generations { .. }
                | Answer::Reached { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn read_only_member_changes_nothing() {
    let cell = Cell::new();
    cell.member("writer", &[("/", Level::Write)]);
    cell.member("reader", &[("/", Level::Read)]);
    let writer = cell.mount("writer");
    Walker::new(&writer).write_file(b"/file", b"content", 0o644).expect("written");
    writer.sync().expect("with the server");
    let id = RnodeId(writer.lookup(writer.root(), b"file").expect("there").attr.ino.0);

    let mut raw = Raw::new(&cell, "reader");
    let denied = Reply::No { why: Refusal::NotPermitted };
    let mode = Mode::Write;
    assert_eq!(raw.request(RequestBody::Acquire { rnode: id, mode }), denied);
    assert_eq!(raw.request(RequestBody::Acquire { rnode: RnodeId::ROOT, mode }), denied);
    let granted = raw.request(RequestBody::Acquire { rnode: id, mode: Mode::Read });
    let Reply::Granted { rnode, .. } = granted else { panic!("{granted:?}") };
    let (name, value) = (Bytes(b"user.x".to_vec()), Bytes(b"1".to_vec()));
    let logged = Logged {
        seq: Seq(1),
        epoch: raw.epoch,
        stamp: Time::default(),
        op: Op::SetXattr { id, name, value },
        base: vec![(id, rnode.version)],
    };
    let commit = RequestBody::Commit { prev: Seq(0), ops: vec![logged] };
    let reply = raw.request(commit);
    assert!(matches!(reply, Reply::Broken { refused: Some(_), .. }), "{reply:?}");
    drop(raw);

    // With so much patience, trying again and again would be a hang.
    let mut options = cell.options("reader");
    options.patience = Duration::from_secs(3600);
    let reader = RingerFs::join(options).expect("it joins");
    let _reader = ends("it is told at once", move || {
        let walker = Walker::new(&reader);
        assert_eq!(walker.read_file(b"/file").expect("it may"), b"content");
        for refused in [
            walker.write_file(b"/file", b"other", 0o644).map(|_| ()),
            walker.write_file(b"/new", b"other", 0o644).map(|_| ()),
            walker.mkdir(b"/dir", 0o755).map(|_| ()),
            walker.remove(b"/file"),
            walker.rename(b"/file", b"/moved", weft_vfs::RenameFlags::empty()),
        ] {
            assert_eq!(refused.expect_err("it may not").errno(), 1);
        }
        reader
    });
    assert_eq!(Walker::new(&writer).read_file(b"/file").expect("there"), b"content");
}

#[test]
fn a_grant_is_for_a_subtree() {
    let cell = Cell::new();
    cell.member("writer", &[("/", Level::Write)]);
    let writer = cell.mount("writer");
    let walker = Walker::new(&writer);
    walker.mkdir_all(b"/a/shared/deep", 0o755).expect("made");
    walker.mkdir_all(b"/b", 0o755).expect("made");
    walker.write_file(b"/a/secret", b"secret", 0o644).expect("written");
    walker.write_file(b"/a/shared/file", b"shared", 0o644).expect("written");
    walker.write_file(b"/b/looked at", b"looked at", 0o644).expect("written");
    writer.sync().expect("with the server");
    let missing =
        Ask::Invite { grants: vec![(Bytes(b"/no".to_vec()), Level::Read)], lasts_secs: 9 };
    cell.ask("pki", &missing).expect_err("no such directory");

    cell.member("guest", &[("/a/shared", Level::Write), ("/b", Level::Read)]);
    let guest = cell.mount("guest");
    let walker = Walker::new(&guest);
    assert_eq!(walker.read_file(b"/a/shared/file").expect("it may"), b"shared");
    assert_eq!(walker.read_file(b"/b/looked at").expect("it may"), b"looked at");
    walker.write_file(b"/a/shared/deep/new", b"new", 0o644).expect("it may");
    guest.sync().expect("with the server");
    for refused in [
        walker.read_file(b"/a/secret").map(|_| ()),
        walker.write_file(b"/a/new", b"new", 0o644).map(|_| ()),
        walker.write_file(b"/b/new", b"new", 0o644).map(|_| ()),
        walker.rename(b"/a/shared/file", b"/b/file", weft_vfs::RenameFlags::empty()),
    ] {
        assert_eq!(refused.expect_err("it may not").errno(), 1);
    }
    // Not by its name either, whatever that is by the time when it is granted.
    let mut raw = Raw::new(&cell, "guest");
    let read = |rnode| RequestBody::Acquire { rnode, mode: Mode::Read };
    let Reply::Granted { .. } = raw.request(read(RnodeId::ROOT)) else { panic!("on its way") };
    let above = RnodeId(guest.lookup(guest.root(), b"a").expect("on its way").attr.ino.0);
    let Reply::Granted { .. } = raw.request(read(above)) else { panic!("on its way") };
    for name in [&b"secret"[..], b"shared"] {
        let name = Name::new(name).expect("a name");
        let reply = raw.request(RequestBody::AcquireNamed { dir: above, name });
        assert_eq!(reply, Reply::No { why: Refusal::NotPermitted });
    }
    drop(raw);
    // Found is what may be read.
    let found = |who: &str, query: &str| {
        let question = Ask::Search { query: Bytes(query.as_bytes().to_vec()), limit: 10 };
        let Ok(Answer::Found { hits, .. }) = cell.ask(who, &question) else { panic!() };
        hits.len()
    };
    assert_eq!((found("guest", "secret"), found("writer", "secret")), (0, 1));
    assert_eq!((found("guest", "file"), found("guest", "looked")), (1, 1));
}

#[test]
fn revocation_is_immediate_and_permanent() {
    sending_away(Cell::new());
}

#[cfg(feature = "quic")]
#[test]
fn revocation_is_immediate_and_permanent_over_quic() {
    sending_away(over_quic());
}

fn sending_away(mut cell: Cell) {
    cell.member("a", &[("/", Level::Write)]);
    cell.member("b", &[("/", Level::Write)]);
    let a = cell.mount("a");
    // The address at which a serves blocks.
    let Ok(Answer::Status { status }) = cell.ask("pki", &Ask::Status {}) else { panic!() };
    let listens = status.clients[0].listens.clone().expect("it listens").0;
    let listens = String::from_utf8(listens).expect("text");
    let b = cell.mount("b");
    Walker::new(&a).write_file(b"/file", b"content", 0o644).expect("written");
    a.sync().expect("with the server");
    assert_eq!(Walker::new(&b).read_file(b"/file").expect("it may"), b"content");
    let fetch = || {
        let address = Address::parse(&listens, 1).expect("an address");
        let tls = ClientTls::mutual(&cell.path("b")).expect("certificates");
        let mut link = Conversation::connect(&address, Some((&tls, MEMBER_NAME)), LIMIT)?;
        link.send(&ToPeer::Fetch { rnode: RnodeId(9), hash: BlockHash([0; 32]) })?;
        link.receive::<FromPeer>(Some(Instant::now() + LIMIT))
    };
    assert_eq!(fetch().expect("an answer"), FromPeer::Absent {});

    let revoke =
        |name: &str| cell.ask("pki", &Ask::Revoke { name: Bytes(name.into()), force: true });
    revoke("stranger").expect_err("no such member");
    // Of a file that nobody else has the content of.
    Walker::new(&b).write_file(b"/of-b", b"content", 0o644).expect("written");
    b.sync().expect("with the server");
    let gently = Ask::Revoke { name: Bytes(b"b".to_vec()), force: false };
    let why = cell.ask("pki", &gently).expect_err("a file would be lost").to_string();
    assert!(why.contains("1 files") && why.contains("/of-b") && why.contains("--force"), "{why}");
    b.sync().expect("it was not revoked");
    revoke("b").expect("sent away");
    assert_eq!(denial(cell.ask("b", &Ask::Status {})), Denial::Revoked);
    // Its leases end with its epoch, and others go on.
    Walker::new(&a).write_file(b"/file", b"without b", 0o644).expect("written");
    a.sync().expect("with the server");
    Walker::new(&b).read_file(b"/file").expect_err("it has no epoch any more");
    wait_until("it gets no blocks from others", || fetch().is_err());
    drop(b);
    let error = RingerFs::join(cell.options("b")).expect_err("it was revoked");
    assert!(error.to_string().contains("revoked"), "{error}");
    let token = cell.invite(&[("/", Level::Read)], 100);
    assert_eq!(denial(join(&token, &cell.path("b2"), "b")), Denial::Name);
    drop(a);
    cell.server.take().expect("a server").stop().expect("it ends");
    cell.start();
    assert_eq!(denial(cell.ask("b", &Ask::Status {})), Denial::Revoked);
}

#[test]
fn members_are_relayed_through_the_server() {
    check_relayed_members(&Cell::new());
}

#[cfg(feature = "quic")]
#[test]
fn members_are_relayed_through_the_server_over_quic() {
    check_relayed_members(&over_quic());
}

fn check_relayed_members(cell: &Cell) {
    let mount = |name: &str| {
        cell.member(name, &[("/", Level::Write)]);
        let mut options = cell.options(name);
        options.listen = Some(Address::Unix(options.directory.join("peers.sock")));
        let fs = RingerFs::join(options).expect("it is let in");
        super::relay::hide(&cell.path(&format!("{name}.store")));
        fs
    };
    let (a, b) = (mount("a"), mount("b"));
    super::relay::share(&a, &b, "/of-a", 1);
    super::relay::share(&b, &a, "/of-b", 2);
    // A revoked member reaches no client, nor does a client without a certificate.
    cell.ask("pki", &Ask::Revoke { name: Bytes(b"b".to_vec()), force: true }).expect("revoked");
    let Answer::Status { status } = cell.ask("a", &Ask::Status {}).expect("an answer") else {
        panic!("no status")
    };
    let peer = status.clients.iter().find(|c| c.connected).expect("a is there").client;
    let tls = ClientTls::mutual(&cell.path("b")).expect("certificates");
    let tls = Some((&tls, cell.address.host()));
    let mut link = Conversation::connect(&cell.address, tls, LIMIT).expect("a connection");
    link.send(&Ask::Meet { peer }).expect("sent");
    let answer = link.receive::<Answer>(Some(Instant::now() + LIMIT)).expect("an answer");
    assert_eq!(answer, Answer::Denied { denial: Denial::Revoked });
    let bare = Conversation::connect(&cell.address, None, LIMIT).and_then(|mut link| {
        link.send(&Ask::Meet { peer })?;
        link.receive::<Answer>(Some(Instant::now() + LIMIT))
    });
    assert!(bare.is_err(), "{bare:?}");
}
