//! Requests that a server rejects and replies that a client ignores: each check by a message that no
//! other check stops. The random worlds of `sim` seldom come to these.

use weft_ringer::client::{
    Call, CallId, Client, ClientAction, ClientEvent, ClientOptions, Outcome,
};
use weft_ringer::mds::{Mds, MdsEvent, MdsOptions};
use weft_ringer::op::{Logged, Make, Op};
use weft_ringer::store::MemoryStore;
use weft_ringer::wire::{FromServer, Reply, Request, RequestBody, ToServer, Welcome};
use weft_ringer::{
    Bytes, ClientId, Cookie, Dirent, Epoch, Generation, Holders, Incarnation, Mode, Moment, Name,
    Refusal, RequestId, Rnode, RnodeId, Seq, Token, Version,
};
use weft_vfs::{FileKind, Time};

const NOW: Moment = Moment(1_000_000);
const ROOT: RnodeId = RnodeId::ROOT;

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("a name")
}

/// A server, spoken to by hand.
struct Harness {
    store: MemoryStore,
    mds: Mds,
    requests: u64,
}

/// A session as the client has it.
#[derive(Clone, Copy)]
struct Session {
    client: ClientId,
    epoch: Epoch,
    slot: u32,
}

impl Harness {
    fn new() -> Self {
        let mut store = MemoryStore::new();
        let mds = Mds::open(&mut store, NOW, Time::default(), MdsOptions::default());
        Self { store, mds: mds.expect("memory"), requests: 0 }
    }

    /// Another life of the server, which hears of all that clients had.
    fn restart(&mut self, sessions: &[Session]) {
        let mds = Mds::open(&mut self.store, NOW, Time::default(), MdsOptions::default());
        self.mds = mds.expect("memory");
        for session in sessions {
            let body = RequestBody::Reclaim { claims: Vec::new(), last: true };
            assert_eq!(self.say(session.client, session.epoch, body), [Reply::Reclaimed {}]);
        }
    }

    fn say(&mut self, client: ClientId, epoch: Epoch, body: RequestBody) -> Vec<Reply> {
        self.requests += 1;
        self.repeat(client, epoch, RequestId(self.requests), body)
    }

    /// Says something by a number that may have been used.
    fn repeat(
        &mut self,
        client: ClientId,
        epoch: Epoch,
        id: RequestId,
        body: RequestBody,
    ) -> Vec<Reply> {
        let request = Request { id, body };
        let generation = self.mds.generation();
        let message = ToServer { client, epoch, generation, request };
        let out = self.mds.handle(&mut self.store, NOW, MdsEvent::Message(message));
        let replies = out.expect("memory").into_iter().filter(|m| m.client == client);
        replies
            .filter_map(|m| match m.message {
                FromServer::Reply { reply, .. } => Some(reply),
                _ => None,
            })
            .collect()
    }

    fn hello(&mut self, client: u64, life: u64) -> Session {
        let client = ClientId(client);
        let body = RequestBody::Hello { incarnation: Incarnation(life) };
        let said = self.say(client, Epoch(0), body);
        let [Reply::Welcome { welcome: Welcome { epoch, slot, .. } }] = said[..] else {
            panic!("{said:?}")
        };
        Session { client, epoch, slot }
    }

    fn acquire(&mut self, session: Session, rnode: RnodeId, mode: Mode) -> Vec<Reply> {
        self.say(session.client, session.epoch, RequestBody::Acquire { rnode, mode })
    }

    fn commit(&mut self, session: Session, prev: u64, ops: Vec<Logged>) -> Reply {
        let body = RequestBody::Commit { prev: Seq(prev), ops };
        let said = self.say(session.client, session.epoch, body);
        assert_eq!(said.len(), 1, "{said:?}");
        said.into_iter().next().expect("one")
    }

    /// The root as a client with a read lease sees it.
    fn root(&mut self, session: Session) -> Box<Rnode> {
        let said = self.acquire(session, ROOT, Mode::Read);
        match said.into_iter().next() {
            Some(Reply::Granted { rnode, .. }) => rnode,
            other => panic!("{other:?}"),
        }
    }
}

/// The root's version when `session` has changed it until it has this count, each time by the change
/// with a number one smaller.
fn root_version(session: Session, count: u64) -> Version {
    (2..=count).fold(Version::FIRST, |v, count| v.next(session.epoch, Seq(count - 1)))
}

/// The file "f" in the root.
fn new_file(id: RnodeId) -> Op {
    let make = Make::File { block_bytes: 1 << 16 };
    Op::Create { parent: ROOT, name: name("f"), id, make, perm: 0o644, uid: 0, gid: 0 }
}

/// Makes a directory in the root, which has a version of this count.
fn mkdir(session: Session, seq: u64, count: u32, root: u64) -> Logged {
    let op = Op::Create {
        parent: ROOT,
        name: name(&format!("d{count}")),
        id: RnodeId::new(session.slot, count),
        make: Make::Directory {},
        perm: 0o755,
        uid: 0,
        gid: 0,
    };
    let base = vec![(ROOT, root_version(session, root))];
    Logged { seq: Seq(seq), epoch: session.epoch, stamp: Time::default(), op, base }
}

fn applied(seq: u64) -> Reply {
    Reply::Committed { applied: Seq(seq), refused: None }
}

#[test]
fn commit_in_an_ended_epoch_changes_nothing() {
    let mut harness = Harness::new();
    let old = harness.hello(1, 1);
    let new = harness.hello(1, 2);
    assert_ne!(old.epoch, new.epoch);
    harness.acquire(new, ROOT, Mode::Write);
    // All is right with it but the epoch.
    assert_eq!(harness.commit(old, 0, vec![mkdir(old, 1, 1, 1)]), Reply::NoSession {});
    assert_eq!(harness.acquire(old, ROOT, Mode::Read), [Reply::NoSession {}]);
    assert_eq!(harness.root(new).version, Version::FIRST);
    assert_eq!(harness.commit(new, 0, vec![mkdir(new, 1, 1, 1)]), applied(1));
}

#[test]
fn a_log_has_no_gaps_and_each_change_is_made_once() {
    let mut harness = Harness::new();
    let session = harness.hello(1, 1);
    harness.acquire(session, ROOT, Mode::Write);
    let broken = |seq| Reply::Broken { applied: Seq(seq), refused: None };
    // A change before these has not come.
    assert_eq!(harness.commit(session, 1, vec![mkdir(session, 2, 2, 1)]), broken(0));
    assert_eq!(harness.commit(session, 0, vec![mkdir(session, 1, 1, 1)]), applied(1));
    let twice = harness.root(session);
    // The same again, alone and with one behind it.
    assert_eq!(harness.commit(session, 0, vec![mkdir(session, 1, 1, 1)]), applied(1));
    assert_eq!(harness.root(session), twice);
    let both = vec![mkdir(session, 1, 1, 1), mkdir(session, 2, 2, 2)];
    assert_eq!(harness.commit(session, 0, both), applied(2));
    // Out of order.
    let ops = vec![mkdir(session, 4, 4, 3), mkdir(session, 3, 3, 4)];
    assert_eq!(harness.commit(session, 2, ops), broken(2));
    assert_eq!(harness.root(session).version, root_version(session, 3));
}

#[test]
fn changes_need_write_leases_and_their_base_versions() {
    let mut harness = Harness::new();
    let session = harness.hello(1, 1);
    let fenced = |reply: Reply| {
        let Reply::Broken { applied: Seq(0), refused: Some(refused) } = reply else {
            panic!("{reply:?}")
        };
        assert_eq!((refused.seq, refused.why), (Seq(1), Refusal::Fenced));
    };
    fenced(harness.commit(session, 0, vec![mkdir(session, 1, 1, 1)]));
    harness.acquire(session, ROOT, Mode::Read);
    fenced(harness.commit(session, 0, vec![mkdir(session, 1, 1, 1)]));
    harness.acquire(session, ROOT, Mode::Write);
    // Each way in which a base can be another.
    let of_another_branch = Version { seq: Seq(7), ..Version::FIRST };
    for base in [
        vec![],
        vec![(ROOT, root_version(session, 2))],
        vec![(ROOT, of_another_branch)],
        vec![(ROOT, Version::FIRST), (RnodeId(9), Version::FIRST)],
    ] {
        fenced(harness.commit(session, 0, vec![Logged { base, ..mkdir(session, 1, 1, 1) }]));
    }
    // In an epoch that was never begun.
    for epoch in [Epoch(0), Epoch(session.epoch.0 + 1)] {
        let early = Logged { epoch, ..mkdir(session, 1, 1, 1) };
        let reply = harness.commit(session, 0, vec![early]);
        assert!(matches!(reply, Reply::Broken { applied: Seq(0), .. }), "{reply:?}");
    }
    // Numbers of another client's, and one used before.
    let other = harness.hello(2, 1);
    let foreign = harness.commit(session, 0, vec![mkdir(other, 1, 1, 1)]);
    assert!(matches!(foreign, Reply::Broken { .. }), "{foreign:?}");
    assert_eq!(harness.root(session).version, Version::FIRST);
    assert_eq!(harness.commit(session, 0, vec![mkdir(session, 1, 1, 1)]), applied(1));
    let again = Op::Create {
        parent: ROOT,
        name: name("again"),
        id: RnodeId::new(session.slot, 1),
        make: Make::Symlink { target: Bytes(b"x".to_vec()) },
        perm: 0,
        uid: 0,
        gid: 0,
    };
    let again = Logged { op: again, ..mkdir(session, 2, 2, 2) };
    let reply = harness.commit(session, 1, vec![again]);
    assert!(matches!(reply, Reply::Broken { applied: Seq(1), .. }), "{reply:?}");
}

/// A client whose server is played by hand.
struct Played {
    client: Client,
    sent: Vec<Request>,
    back: Vec<Outcome>,
}

impl Played {
    fn tell(&mut self, event: ClientEvent) {
        for action in self.client.handle(NOW, Time::default(), event) {
            match action {
                ClientAction::Send(message) => self.sent.push(message.request),
                ClientAction::Return { outcome, .. } => self.back.push(outcome),
                _ => {}
            }
        }
    }

    /// The number of the last request that was sent, if it is such a one.
    fn asked(&self, is: impl Fn(&RequestBody) -> bool) -> RequestId {
        let last = self.sent.last().expect("a request");
        assert!(is(&last.body), "{last:?}");
        last.id
    }

    fn reply(&mut self, id: RequestId, reply: Reply) {
        let generation = Generation(1);
        self.tell(ClientEvent::Message(FromServer::Reply { generation, id, reply }));
    }

    /// A client in its first epoch.
    fn new() -> Self {
        let client = Client::new(ClientId(1), Incarnation(1), [], ClientOptions::default());
        let mut played = Self { client, sent: Vec::new(), back: Vec::new() };
        played.tell(ClientEvent::Tick);
        let hello = played.asked(|b| matches!(b, RequestBody::Hello { .. }));
        let welcome = Welcome {
            epoch: Epoch(1),
            lasts_micros: 15_000_000,
            slot: 1,
            last_count: 0,
            applied: Seq(0),
            refused: None,
            reclaim: false,
        };
        played.reply(hello, Reply::Welcome { welcome });
        played
    }

    /// Wants the root back, but that it is there.
    fn recall(&mut self, count: u32) {
        self.tell(ClientEvent::Message(FromServer::Recall {
            generation: Generation(1),
            epoch: Epoch(1),
            rnode: ROOT,
            token: Token::new(Generation(1), count),
            to: Some(Mode::Hold),
        }));
    }

    /// The number of the last such request.
    fn last(&self, is: impl Fn(&RequestBody) -> bool) -> RequestId {
        self.sent.iter().rev().find(|r| is(&r.body)).expect("a request").id
    }

    fn grant(&mut self, count: u32, mode: Mode) {
        let id = self.last(|b| matches!(b, RequestBody::Acquire { .. }));
        let rnode = Box::new(Rnode::root(Time::default()));
        let token = Token::new(Generation(1), count);
        let holders = Holders::default();
        self.reply(id, Reply::Granted { rnode, holders, mode, token });
    }
}

#[test]
fn lookup_reply_counts_only_under_its_lease() {
    let mut played = Played::new();
    let lookup = || Call::Lookup { dir: ROOT, name: name("f") };
    played.tell(ClientEvent::Call(CallId(1), lookup()));
    played.grant(1, Mode::Read);
    let early = played.last(|b| matches!(b, RequestBody::Lookup { .. }));
    // Its caller goes, so the lease may: then others make that name. It comes back under another
    // grant, and only now comes the answer.
    played.tell(ClientEvent::Cancel(CallId(1)));
    played.recall(1);
    played.asked(|b| matches!(b, RequestBody::Lower { .. }));
    played.tell(ClientEvent::Call(CallId(2), Call::Get { id: ROOT }));
    played.grant(2, Mode::Read);
    assert!(matches!(played.back[..], [Outcome::Rnode(_)]), "{:?}", played.back);
    let token = Token::new(Generation(1), 1);
    played.reply(early, Reply::Found { dirent: None, token });
    played.tell(ClientEvent::Call(CallId(3), lookup()));
    let late = played.last(|b| matches!(b, RequestBody::Lookup { .. }));
    assert_ne!(early, late);
    let dirent = Dirent { id: RnodeId::new(2, 1), kind: FileKind::Regular, cookie: Cookie(1) };
    let token = Token::new(Generation(1), 2);
    played.reply(late, Reply::Found { dirent: Some(dirent), token });
    assert_eq!(played.back.last(), Some(&Outcome::Found(Some(dirent))));
}

#[test]
fn repeated_snapshot_request_is_carried_out_once() {
    let mut harness = Harness::new();
    let (one, other) = (harness.hello(1, 1), harness.hello(2, 1));
    let make = |mark| RequestBody::Snapshot { dir: ROOT, name: name("s"), mark };
    let remove = || RequestBody::RemoveSnapshot { dir: ROOT, name: name("s") };
    let names = |harness: &mut Harness| {
        let body = RequestBody::Snapshots { dir: ROOT };
        match &harness.say(one.client, one.epoch, body)[..] {
            [Reply::Snapshots { snapshots }] => snapshots.len(),
            said => panic!("{said:?}"),
        }
    };
    let held = vec![Reply::Held {}];
    // Removed by another meanwhile, it does not come back.
    assert_eq!(harness.say(one.client, one.epoch, make(7)), held);
    let made = RequestId(harness.requests);
    assert_eq!(harness.say(other.client, other.epoch, remove()), held);
    let removed = RequestId(harness.requests);
    assert_eq!(harness.repeat(one.client, one.epoch, made, make(7)), held);
    assert_eq!(names(&mut harness), 0);
    // Made by another meanwhile, it does not go.
    assert_eq!(harness.say(one.client, one.epoch, make(8)), held);
    assert_eq!(harness.repeat(other.client, other.epoch, removed, remove()), held);
    assert_eq!(names(&mut harness), 1);
    // A refused request is not carried out later.
    let no = |why| vec![Reply::No { why }];
    assert_eq!(harness.say(other.client, other.epoch, make(9)), no(Refusal::Exists));
    let refused = RequestId(harness.requests);
    assert_eq!(harness.say(one.client, one.epoch, remove()), held);
    // A later life of the server knows of all that as well.
    harness.restart(&[one, other]);
    assert_eq!(harness.repeat(other.client, other.epoch, refused, make(9)), no(Refusal::Exists));
    assert_eq!(harness.repeat(one.client, one.epoch, made, make(7)), held);
    assert_eq!(names(&mut harness), 0);
    assert_eq!(harness.say(one.client, one.epoch, make(10)), held);
    assert_eq!(harness.repeat(other.client, other.epoch, removed, remove()), held);
    assert_eq!(names(&mut harness), 1);
}

#[test]
fn recalled_lease_is_requested_again_after_its_release() {
    let mut played = Played::new();
    let op = new_file(ROOT);
    played.tell(ClientEvent::Call(CallId(1), Call::Apply { op, if_version: None }));
    played.grant(1, Mode::Write);
    let lookup = played.last(|b| matches!(b, RequestBody::Lookup { .. }));
    let token = Token::new(Generation(1), 1);
    played.reply(lookup, Reply::Found { dirent: None, token });
    assert!(matches!(played.back[..], [Outcome::Done(Some(_))]), "{:?}", played.back);
    // A server that began anew knows of no recall: it would answer at once, with what was there before
    // the change that is on its way.
    played.recall(1);
    let commit = played.asked(|b| matches!(b, RequestBody::Commit { .. }));
    played.tell(ClientEvent::Call(CallId(2), Call::Get { id: ROOT }));
    assert_eq!(played.asked(|b| matches!(b, RequestBody::Commit { .. })), commit);
    played.reply(commit, applied(1));
    let [.., lower, acquire] = &played.sent[..] else { panic!("{:?}", played.sent) };
    assert!(matches!(lower.body, RequestBody::Lower { .. }), "{lower:?}");
    assert!(matches!(acquire.body, RequestBody::Acquire { .. }), "{acquire:?}");
    played.grant(2, Mode::Read);
    assert!(matches!(played.back.last(), Some(Outcome::Rnode(_))), "{:?}", played.back);
}

/// A file that another client has made, with a lease that was asked for by its name.
fn played_by_name() -> (Played, RequestId, Box<Rnode>) {
    let mut played = Played::new();
    played.tell(ClientEvent::Call(CallId(1), Call::Lookup { dir: ROOT, name: name("f") }));
    played.grant(1, Mode::Read);
    let named = played.asked(|b| matches!(b, RequestBody::AcquireNamed { .. }));
    let lookup = played.last(|b| matches!(b, RequestBody::Lookup { .. }));
    let file = Rnode { id: RnodeId::new(2, 1), ..Rnode::root(Time::default()) };
    let dirent = Dirent { id: file.id, kind: FileKind::Directory, cookie: Cookie(1) };
    let token = Token::new(Generation(1), 1);
    played.reply(lookup, Reply::Found { dirent: Some(dirent), token });
    (played, named, Box::new(file))
}

fn granted(rnode: &Rnode, count: u32) -> Reply {
    let (mode, token) = (Mode::Read, Token::new(Generation(1), count));
    Reply::Granted { rnode: Box::new(rnode.clone()), holders: Holders::default(), mode, token }
}

#[test]
fn lease_requested_by_name_serves_the_next_call() {
    let (mut played, named, file) = played_by_name();
    played.reply(named, granted(&file, 2));
    let sent = played.sent.len();
    played.tell(ClientEvent::Call(CallId(2), Call::Get { id: file.id }));
    assert_eq!(played.back.last(), Some(&Outcome::Rnode(file)));
    assert_eq!(played.sent.len(), sent);
}

#[test]
fn grant_by_name_is_ignored_after_a_recall() {
    let (mut played, named, file) = played_by_name();
    // The recall may concern the rnode that the name leads to, and the grant be older than its last change.
    played.recall(1);
    played.reply(named, granted(&file, 2));
    let id = played.asked(|b| matches!(b, RequestBody::Lower { to: None, .. }));
    assert!(id > named, "it is given back");
    played.tell(ClientEvent::Call(CallId(2), Call::Get { id: file.id }));
    played.last(|b| matches!(b, RequestBody::Acquire { rnode, .. } if *rnode == file.id));
    assert!(!matches!(played.back.last(), Some(Outcome::Rnode(_))), "{:?}", played.back);
}

#[test]
fn request_by_name_waits_and_yields_to_requests_by_number() {
    let mut harness = Harness::new();
    let (one, other) = (harness.hello(1, 1), harness.hello(2, 1));
    let by_name = || RequestBody::AcquireNamed { dir: ROOT, name: name("f") };
    let no = |why| vec![Reply::No { why }];
    assert_eq!(harness.say(one.client, one.epoch, by_name()), no(Refusal::Fenced));
    assert_eq!(harness.acquire(one, ROOT, Mode::Write).len(), 1);
    let file = RnodeId::new(one.slot, 1);
    let op = new_file(file);
    let base = vec![(ROOT, harness.root(one).version)];
    let logged = Logged { seq: Seq(1), epoch: one.epoch, stamp: Time::default(), op, base };
    assert_eq!(
        harness.commit(one, 0, vec![logged]),
        Reply::Committed { applied: Seq(1), refused: None }
    );
    let token = |said: &[Reply]| match said {
        [Reply::Granted { token, .. }] => *token,
        said => panic!("{said:?}"),
    };
    let written = token(&harness.acquire(one, file, Mode::Write));
    let dir = token(&harness.acquire(one, ROOT, Mode::Read));
    let lower = |rnode, token| RequestBody::Lower { rnode, token, to: Some(Mode::Read) };
    harness.say(one.client, one.epoch, lower(ROOT, dir));
    assert_eq!(harness.acquire(other, ROOT, Mode::Read).len(), 1);
    assert_eq!(
        harness.say(one.client, one.epoch, by_name()),
        no(Refusal::AlreadyLeased),
        "it has one"
    );
    // The writer is asked to release the lease; meanwhile the other client repeats an earlier request
    // for it by number.
    harness.requests += 1;
    let before = RequestId(harness.requests);
    assert_eq!(harness.say(other.client, other.epoch, by_name()), []);
    assert_eq!(
        harness.say(other.client, other.epoch, by_name()),
        no(Refusal::AlreadyLeased),
        "it waits for it"
    );
    let by_number = || RequestBody::Acquire { rnode: file, mode: Mode::Read };
    assert_eq!(harness.repeat(other.client, other.epoch, before, by_number()), []);
    harness.say(one.client, one.epoch, lower(file, written));
    token(&harness.repeat(other.client, other.epoch, before, by_number()));
    let nothing = RequestBody::AcquireNamed { dir: ROOT, name: name("g") };
    assert_eq!(harness.say(other.client, other.epoch, nothing), no(Refusal::NotFound));
}

#[test]
fn lookup_waits_with_the_request_for_its_lease() {
    let mut harness = Harness::new();
    let (one, other) = (harness.hello(1, 1), harness.hello(2, 1));
    let [Reply::Granted { token, .. }] = harness.acquire(one, ROOT, Mode::Write)[..] else {
        panic!("a lease")
    };
    let lookup = || RequestBody::Lookup { dir: ROOT, name: name("f") };
    let fenced = [Reply::No { why: Refusal::Fenced }];
    assert_eq!(harness.say(other.client, other.epoch, lookup()), fenced, "it asks for no lease");
    assert_eq!(harness.acquire(other, ROOT, Mode::Read), []);
    assert_eq!(harness.say(other.client, other.epoch, lookup()), []);
    let list = RequestBody::List { dir: ROOT, after: Cookie(0) };
    assert_eq!(harness.say(other.client, other.epoch, list), []);
    let again = RequestId(harness.requests - 1);
    assert_eq!(harness.repeat(other.client, other.epoch, again, lookup()), []);
    // Granted and answered at once, each once.
    let request = RequestBody::Lower { rnode: ROOT, token, to: Some(Mode::Read) };
    let message = ToServer {
        client: one.client,
        epoch: one.epoch,
        generation: harness.mds.generation(),
        request: Request { id: RequestId(1000), body: request },
    };
    let out =
        harness.mds.handle(&mut harness.store, NOW, MdsEvent::Message(message)).expect("memory");
    let said: Vec<_> = out
        .into_iter()
        .map(|m| match m.message {
            FromServer::Reply { id, reply, .. } if m.client == other.client => (id, reply),
            said => panic!("{said:?}"),
        })
        .collect();
    let [(_, Reply::Granted { token: at, .. }), listed, found] = &said[..] else {
        panic!("{said:?}")
    };
    assert!(matches!(&listed.1, Reply::Listed { listed } if listed.token == *at), "{listed:?}");
    assert_eq!(found, &(again, Reply::Found { dirent: None, token: *at }));
    // A client that no longer waits gets no reply.
    assert_eq!(harness.acquire(other, ROOT, Mode::Write), []);
    harness.hello(2, 2);
    assert_eq!(harness.say(other.client, other.epoch, lookup()), [Reply::NoSession {}]);
}
