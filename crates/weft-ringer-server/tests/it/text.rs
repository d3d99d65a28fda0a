//! Texts that a server accepts, and their removal: for each check a message that no other check stops.

use std::collections::BTreeMap;

use weft_ringer::mds::{Checked, Mds, MdsEvent, MdsOptions, check};
use weft_ringer::op::{Change, Logged, Make, Op};
use weft_ringer::query::Query;
use weft_ringer::store::{CellStore, IndexChange, Store, Transaction};
use weft_ringer::wire::{FromServer, Reply, Request, RequestBody, ToServer, Welcome};
use weft_ringer::{
    Block, BlockHash, Body, Bytes, ClientId, Epoch, Incarnation, Mode, Moment, Name, POLICY_XATTR,
    Refusal, RequestId, Rnode, RnodeId, Seq, Text, ToldText, Version,
};
use weft_ringer_server::store::SqliteStore;
use weft_vfs::Time;

const NOW: Moment = Moment(1_000_000);
const ROOT: RnodeId = RnodeId::ROOT;
const CLIENT: ClientId = ClientId(7);

/// A server with an index, and one client of it.
struct Harness {
    dir: tempfile::TempDir,
    store: SqliteStore,
    mds: Mds,
    epoch: Epoch,
    slot: u32,
    made: u32,
    requests: u64,
    seq: u64,
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("a name")
}

fn text(words: &str) -> Text {
    Text::of(words.as_bytes().to_vec()).expect("a text")
}

fn begin(store: &mut SqliteStore) -> Mds {
    Mds::open(store, NOW, Time::default(), MdsOptions::default()).expect("opens")
}

impl Harness {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let mut store = SqliteStore::open(&dir.path().join("cell")).expect("a store");
        let mds = begin(&mut store);
        let (epoch, slot) = (Epoch(0), 0);
        let mut harness = Self { dir, store, mds, epoch, slot, made: 0, requests: 0, seq: 0 };
        harness.hello(1);
        harness
    }

    fn hello(&mut self, life: u64) {
        self.epoch = Epoch(0);
        let said = self.say(RequestBody::Hello { incarnation: Incarnation(life) });
        let Reply::Welcome { welcome: Welcome { epoch, slot, .. } } = said else {
            panic!("{said:?}")
        };
        (self.epoch, self.slot) = (epoch, slot);
    }

    fn say(&mut self, body: RequestBody) -> Reply {
        self.requests += 1;
        let request = Request { id: RequestId(self.requests), body };
        let generation = self.mds.generation();
        let message = ToServer { client: CLIENT, epoch: self.epoch, generation, request };
        let out = self.mds.handle(&mut self.store, NOW, MdsEvent::Message(message));
        match out.expect("the store").pop().map(|m| m.message) {
            Some(FromServer::Reply { reply, .. }) => reply,
            other => panic!("{other:?}"),
        }
    }

    fn rnode(&mut self, id: RnodeId) -> Option<Rnode> {
        match self.say(RequestBody::Peek { rnode: id }) {
            Reply::Peeked { peeked } => Some(peeked.rnode),
            Reply::No { why: Refusal::Stale } => None,
            other => panic!("{other:?}"),
        }
    }

    fn told(&mut self, id: RnodeId) -> Option<Version> {
        match self.say(RequestBody::Peek { rnode: id }) {
            Reply::Peeked { peeked } => peeked.told,
            other => panic!("{other:?}"),
        }
    }

    fn content(&mut self, id: RnodeId) -> Version {
        match self.rnode(id).expect("there").body {
            Body::File { content, .. } => content,
            other => panic!("{other:?}"),
        }
    }

    /// Makes a change of what is at `on`.
    fn change(&mut self, op: Op, on: &[RnodeId]) {
        for id in on {
            let said = self.say(RequestBody::Acquire { rnode: *id, mode: Mode::Write });
            assert!(matches!(said, Reply::Granted { .. }), "{said:?}");
        }
        let mut base = Vec::new();
        for id in on {
            base.push((*id, self.rnode(*id).expect("there").version));
        }
        let prev = Seq(self.seq);
        self.seq += 1;
        let (seq, epoch, stamp) = (Seq(self.seq), self.epoch, Time::default());
        let logged = Logged { seq, epoch, stamp, op, base };
        let said = self.say(RequestBody::Commit { prev, ops: vec![logged] });
        assert_eq!(said, Reply::Committed { applied: seq, refused: None });
    }

    fn make(&mut self, parent: RnodeId, of: &str, make: Make) -> RnodeId {
        self.made += 1;
        let id = RnodeId::new(self.slot, self.made);
        let op = Op::Create { parent, name: name(of), id, make, perm: 0o644, uid: 0, gid: 0 };
        self.change(op, &[parent]);
        id
    }

    /// Makes a file that is as long as these words.
    fn file(&mut self, parent: RnodeId, of: &str, words: &str) -> RnodeId {
        let id = self.make(parent, of, Make::File { block_bytes: 1 << 16 });
        self.write(id, words);
        id
    }

    fn write(&mut self, id: RnodeId, words: &str) {
        let len_bytes = u32::try_from(words.len()).expect("short");
        let block = Block { hash: BlockHash([len_bytes as u8; 32]), len_bytes };
        let end_bytes = u64::from(len_bytes);
        let cut = Change { size_bytes: Some(0), ..Change::default() };
        self.change(Op::SetAttr { id, change: cut }, &[id]);
        let blocks = vec![(0, Some(block))];
        self.change(Op::Write { id, blocks, end_bytes, kill_privileges: false }, &[id]);
    }

    fn policy(&mut self, dir: RnodeId, policy: &str) {
        let (name, value) = (Bytes(POLICY_XATTR.to_vec()), Bytes(policy.into()));
        self.change(Op::SetXattr { id: dir, name, value }, &[dir]);
    }

    fn tell(&mut self, id: RnodeId, content: Version, words: &str) -> Reply {
        self.say(RequestBody::Text { rnode: id, content, text: text(words) })
    }

    fn tell_now(&mut self, id: RnodeId, words: &str) {
        let content = self.content(id);
        assert_eq!(self.tell(id, content, words), Reply::Held {});
    }

    /// Gives the server all the time that it wants.
    fn rest(&mut self) {
        for _ in 0..20 {
            self.mds.handle(&mut self.store, NOW, MdsEvent::Tick).expect("the store");
        }
    }

    fn found(&self, query: &str) -> Vec<String> {
        let query: Query = query.parse().expect("a query");
        let found = self.store.search(&query, 1000).expect("an index");
        let mut paths: Vec<String> =
            found.into_iter().map(|(_, path)| String::from_utf8(path).expect("text")).collect();
        paths.sort();
        paths
    }

    fn texts(&self) -> BTreeMap<RnodeId, Version> {
        self.store
            .texts(RnodeId(0), usize::MAX)
            .expect("an index")
            .expect("made")
            .into_iter()
            .collect()
    }

    fn checked(&mut self) -> Checked {
        let mut checked = check(&self.store).expect("readable");
        self.mds.check_texts(&mut self.store, &mut checked).expect("the store");
        checked
    }

    fn problems(&mut self) -> Vec<&'static str> {
        self.checked().problems.into_iter().map(|p| p.code).collect()
    }
}

fn no(why: Refusal) -> Reply {
    Reply::No { why }
}

#[test]
fn text_is_stored_for_the_present_content_only() {
    let mut harness = Harness::new();
    let file = harness.file(ROOT, "a", "red apples");
    let first = harness.content(file);
    assert_eq!(harness.tell(file, first, "red apples"), no(Refusal::NotPermitted), "no policy");
    harness.policy(ROOT, "text=10");
    assert_eq!(harness.tell(file, first, "red apple"), no(Refusal::Invalid), "another length");
    assert_eq!(harness.tell(ROOT, first, "red apples"), no(Refusal::Invalid), "a directory");
    assert_eq!(harness.tell(RnodeId(99), first, "red apples"), no(Refusal::Stale));
    assert_eq!(harness.told(file), None);
    assert_eq!(harness.tell(file, first, "red apples"), Reply::Held {});
    assert_eq!(harness.tell(file, first, "red apples"), Reply::Held {}, "repeated");
    assert_eq!(
        (harness.told(file), harness.found("text:apples")),
        (Some(first), vec!["/a".into()])
    );

    // Another content: the text is gone with the change, and one that comes late is not taken.
    harness.write(file, "green pear");
    assert_eq!((harness.told(file), harness.found("text:apples")), (None, vec![]));
    assert_eq!(harness.tell(file, first, "red apples"), no(Refusal::Changed));
    harness.tell_now(file, "green pear");
    assert_eq!(harness.found("text:pear -text:red"), ["/a"]);
    // Too long for the policy.
    harness.write(file, "green pears");
    let content = harness.content(file);
    assert_eq!(harness.tell(file, content, "green pears"), no(Refusal::NotPermitted));
    // Cut.
    harness.write(file, "green pear");
    harness.tell_now(file, "green pear");
    let cut = Change { size_bytes: Some(5), ..Change::default() };
    harness.change(Op::SetAttr { id: file, change: cut }, &[file]);
    assert_eq!(harness.found("text:green"), [""; 0]);
    harness.tell_now(file, "green");
    assert_eq!(harness.found("text:gre*"), ["/a"]);
    // Other changes leave it.
    let mode = Change { perm: Some(0o600), ..Change::default() };
    harness.change(Op::SetAttr { id: file, change: mode }, &[file]);
    assert_eq!(harness.found("text:green"), ["/a"]);
    assert_eq!(harness.problems(), [""; 0]);
}

#[test]
fn text_is_found_by_every_name_and_removed_with_its_file() {
    let mut harness = Harness::new();
    harness.policy(ROOT, "text=1K");
    let dir = harness.make(ROOT, "d", Make::Directory {});
    let file = harness.file(ROOT, "a", "some words");
    harness.tell_now(file, "some words");
    harness.change(Op::Link { id: file, parent: dir, name: name("b") }, &[file, dir]);
    assert_eq!(harness.found("text:\"some words\""), ["/a", "/d/b"]);
    harness.change(Op::Unlink { parent: ROOT, name: name("a") }, &[ROOT, file]);
    assert_eq!(harness.found("text:some"), ["/d/b"]);
    harness.change(Op::Unlink { parent: dir, name: name("b") }, &[dir, file]);
    assert_eq!(harness.found("text:some"), [""; 0]);
    // Held still, and then not.
    assert_eq!(harness.texts().len(), 1);
    harness.hello(2);
    assert_eq!((harness.rnode(file), harness.texts().len()), (None, 0));
    assert_eq!(harness.problems(), [""; 0]);
}

#[test]
fn texts_outside_every_policy_are_removed() {
    let mut harness = Harness::new();
    let (open, shut) = (
        harness.make(ROOT, "open", Make::Directory {}),
        harness.make(ROOT, "shut", Make::Directory {}),
    );
    harness.policy(open, "text=1K");
    // More than are looked at at once.
    let files: Vec<RnodeId> = (0..250)
        .map(|n| {
            let file = harness.file(open, &format!("f{n}"), "some words");
            harness.tell_now(file, "some words");
            file
        })
        .collect();
    harness.rest();
    assert_eq!(harness.found("text:words").len(), 250);
    let out = |n: usize| Op::Rename {
        parent: open,
        name: name(&format!("f{n}")),
        new_parent: shut,
        new_name: name(&format!("g{n}")),
        flags: 0,
    };
    harness.change(out(200), &[open, shut, files[200]]);
    harness.rest();
    assert_eq!((harness.found("text:words").len(), harness.told(files[200])), (249, None));
    // Another change while a sweep is under way is seen to as well.
    harness.change(out(240), &[open, shut, files[240]]);
    harness.mds.handle(&mut harness.store, NOW, MdsEvent::Tick).expect("the store");
    harness.change(out(0), &[open, shut, files[0]]);
    harness.rest();
    assert_eq!(harness.found("text:words").len(), 247);
    harness.policy(open, "text=5");
    harness.rest();
    assert_eq!((harness.found("text:words").len(), harness.texts().len()), (0, 0));
    assert_eq!(harness.problems(), [""; 0]);
}

#[test]
fn check_finds_and_repairs_text_records() {
    let mut harness = Harness::new();
    harness.policy(ROOT, "text=1K");
    let file = harness.file(ROOT, "a", "right");
    harness.tell_now(file, "right");
    let content = harness.content(file);
    let other = Version { count: 99, ..content };
    let index = |rnode, told| {
        let mut transaction = Transaction::default();
        transaction.put(b"~".to_vec(), Vec::new());
        transaction.index.push(IndexChange::Text { rnode, told });
        transaction
    };
    let wrong = |content| Some(ToldText { content, text: text("wrong") });
    // In the index, and not kept; not in it; in it with another text.
    for (rnode, told) in [(RnodeId(5), wrong(other)), (file, None), (file, wrong(other))] {
        harness.store.commit(&index(rnode, told)).expect("broken");
        assert_eq!(harness.problems(), ["text-index"]);
        assert_eq!(harness.problems(), [""; 0], "mended");
        assert_eq!(harness.texts(), [(file, content)].into());
        assert_eq!(
            (harness.found("text:right"), harness.found("text:wrong")),
            (vec!["/a".into()], vec![])
        );
    }
    // As an earlier server without texts leaves it.
    let key = |kind: u8| [&[kind][..], &file.0.to_be_bytes()].concat();
    let mut broken = Transaction::default();
    let told = wrong(other).expect("some");
    broken.put(key(b't'), weft_ringer::wire::encode(&told.content));
    broken.put(key(b'T'), weft_ringer::wire::encode(&told));
    broken.index.push(IndexChange::Text { rnode: file, told: Some(told) });
    harness.store.commit(&broken).expect("broken");
    assert_eq!(harness.problems(), ["text"]);
    harness.rest();
    assert_eq!(harness.problems(), [""; 0]);
    assert_eq!((harness.found("text:wrong"), harness.told(file)), (vec![], None));
    // The same when a server begins.
    harness.store.commit(&broken).expect("broken");
    harness.mds = begin(&mut harness.store);
    harness.rest();
    assert_eq!(harness.problems(), [""; 0]);
    // A record that cannot be read is no end of the server.
    let mut broken = Transaction::default();
    broken.put(key(b't'), vec![1]);
    harness.store.commit(&broken).expect("broken");
    assert_eq!(harness.problems().first(), Some(&"damaged-record"));
    harness.rest();
    assert_eq!(harness.problems(), [""; 0]);
}

#[test]
fn older_cell_gets_text_tables() {
    let mut harness = Harness::new();
    harness.policy(ROOT, "text=1K");
    let path = harness.dir.path().join("old");
    drop(SqliteStore::open(&path).expect("made"));
    let db = rusqlite::Connection::open(&path).expect("opens");
    db.execute_batch("DROP TABLE text; DROP TABLE text_words; PRAGMA user_version = 1")
        .expect("as it was");
    drop(db);
    harness.store = SqliteStore::open(&path).expect("brought up to date");
    assert!(harness.texts().is_empty());
    assert_eq!(harness.found("text:words"), [""; 0]);
}
