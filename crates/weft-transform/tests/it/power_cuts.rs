//! Power cuts while networks are attached, changed and detached, and while files move between rules:
//! in each state that a file system below may leave (the models of `weft crash run`), each file reads
//! as one of its contents, never in its stored form, and never not at all.

use std::sync::Arc;

use weft_crash_test::{
    Case, Header, Judge, Limits, Model, Outcome, Recorder, Recording, Subject, Verdict, search,
};
use weft_testing::Rng;
use weft_transform::{
    CONVERT_ATTRIBUTE, Context, Key, KeyRing, NETWORK_ATTRIBUTE, Registry, Rules, STORED_ATTRIBUTE,
    TransformFs, TransformOptions,
};
use weft_vfs::memfs::Snapshot;
use weft_vfs::{
    Caller, Error, FileKind, FileSystem, MemFs, OpenFlags, RenameFlags, Result, Walker, XattrSet,
};

use crate::common::{lines, registry};

/// What is done, and what may be found afterwards.
struct Verb {
    rules: &'static str,
    /// Makes what is there before, which is durable.
    before: fn(&Walker<'_>) -> Result<()>,
    /// With these keys.
    before_keys: fn() -> Registry,
    verb: fn(&TransformFs) -> Result<()>,
    /// The contents that a file may have.
    contents: Vec<Vec<u8>>,
    /// A file with this content is there in each state; in the state of some models only, if the
    /// file below is renamed: its two names may be apart.
    kept: Option<Vec<u8>>,
    is_renamed: bool,
}

fn text() -> Vec<u8> {
    lines(&mut Rng::new(7), 9000)
}

fn other() -> Vec<u8> {
    lines(&mut Rng::new(8), 5000)
}

impl Verb {
    fn new(
        rules: &'static str,
        before: fn(&Walker<'_>) -> Result<()>,
        verb: fn(&TransformFs) -> Result<()>,
    ) -> Self {
        let (contents, kept) = (vec![text()], Some(text()));
        Self { rules, before, before_keys: registry, verb, contents, kept, is_renamed: false }
    }

    fn or(mut self, content: Vec<u8>) -> Self {
        self.contents.push(content);
        self
    }
}

fn mounted(below: Arc<dyn FileSystem>, rules: &str, registry: Registry) -> TransformFs {
    let rules = Rules::parse(rules.as_bytes()).expect("rules");
    let options = TransformOptions { rules, ..TransformOptions::default() };
    TransformFs::new(below, registry, options).expect("a root")
}

fn set(fs: &TransformFs, path: &[u8], attribute: &[u8], text: &str) -> Result<()> {
    let node = Walker::new(fs).resolve(path)?;
    fs.setxattr(&Caller::ROOT, node.ino(), attribute, text.as_bytes(), XattrSet::Any)
}

fn attach(fs: &TransformFs, path: &[u8], text: &str) -> Result<()> {
    set(fs, path, CONVERT_ATTRIBUTE, text)
}

fn mv(fs: &TransformFs, from: &[u8], to: &[u8]) -> Result<()> {
    Walker::new(fs).rename(from, to, RenameFlags::empty())
}

/// Looks at each file of a state.
#[derive(Clone)]
struct Check {
    rules: &'static str,
    contents: Arc<Vec<Vec<u8>>>,
    kept: Option<Vec<u8>>,
    is_renamed: bool,
    model: Model,
}

impl Check {
    /// Returns what is wrong with a state.
    fn wrong(&self, tree: &Snapshot) -> Option<String> {
        let below = Arc::new(MemFs::new());
        below.restore(tree);
        let fs = mounted(below, self.rules, registry());
        let walker = Walker::new(&fs);
        let mut found = Vec::new();
        for entry in walker.tree(b"/").expect("a tree") {
            let entry = match entry {
                Ok(entry) => entry,
                Err(e) => return Some(format!("the tree cannot be read: {e}")),
            };
            let shown = String::from_utf8_lossy(&entry.path).into_owned();
            let is_file = entry.node.kind() == FileKind::Regular;
            if !is_file || entry.path.ends_with(b".weftattributes") {
                continue;
            }
            // As a program does: an empty file is read by nobody.
            let opened = fs.open(&Caller::ROOT, entry.node.ino(), OpenFlags::READ);
            match opened.and_then(|_| entry.node.read_all()) {
                Ok(content) if self.contents.contains(&content) => found.push(content),
                Ok(content) => {
                    let begin = String::from_utf8_lossy(&content[..content.len().min(8)]);
                    let len = content.len();
                    return Some(format!("{shown} has {len} other bytes: {begin:?}..."));
                }
                Err(e) => return Some(format!("{shown} cannot be read: {e}")),
            }
        }
        let is_apart = self.is_renamed && matches!(self.model, Model::Posix | Model::BtrfsLike);
        let kept = self.kept.as_ref().filter(|_| !is_apart)?;
        (!found.contains(kept)).then(|| "the file is lost".to_owned())
    }
}

impl Judge for Check {
    fn begin(&mut self, model: Model) -> weft_crash_test::Result<()> {
        self.model = model;
        Ok(())
    }

    fn judge(&mut self, case: &Case<'_>) -> weft_crash_test::Result<Verdict> {
        let wrong = self.wrong(case.tree);
        let outcome = if wrong.is_some() { Outcome::Failed(1) } else { Outcome::Passed };
        Ok(Verdict { outcome, output: wrong.unwrap_or_default() })
    }
}

/// Records the calls below of a verb.
fn record(verb: &Verb) -> Recording {
    let below = Arc::new(MemFs::new());
    let fs = mounted(below.clone(), verb.rules, (verb.before_keys)());
    (verb.before)(&Walker::new(&fs)).expect("prepared");
    fs.unmount().expect("durable");
    let base = below.snapshot();
    let recorder = Arc::new(Recorder::new(below, 64 << 20));
    recorder.start(None, None);
    let fs = mounted(recorder.clone(), verb.rules, registry());
    (verb.verb)(&fs).expect("done");
    fs.unmount().expect("unmounted");
    Recording {
        header: Header::default(),
        base,
        calls: recorder.stop().expect("calls"),
        volume: None,
    }
}

/// Searches all states of a verb.
fn survives(name: &str, verb: Verb) {
    let recording = record(&verb);
    assert!(recording.calls.len() > 1, "{name}: it changes something");
    let Verb { rules, contents, kept, is_renamed, .. } = verb;
    let contents = Arc::new(contents);
    let mut states = 0;
    for model in Model::ALL {
        let (contents, kept) = (contents.clone(), kept.clone());
        let check = Check { rules, contents, kept, is_renamed, model };
        let subject = Subject::new(&recording, model, &[]);
        let mut judges: Vec<Box<dyn Judge>> = vec![Box::new(check.clone()), Box::new(check)];
        let found = search(&subject, &mut judges, Limits::default(), &|_| {});
        let found = found.unwrap_or_else(|e| panic!("{name}, {model}: {e}"));
        for finding in &found.findings {
            eprintln!("{name}, {model}: {}: {}", finding.headline, finding.output);
        }
        assert_eq!(found.progress.failed, 0, "{name}, {model}: states that fail");
        states += found.progress.judged;
    }
    assert!(states > 4, "{name}: {states} states");
}

#[test]
fn an_attached_network_and_its_attribute_are_one() {
    let plain: fn(&Walker<'_>) -> Result<()> = |walker| {
        walker.write_file(b"/f", &text(), 0o640)?;
        Ok(())
    };
    survives("attach zstd", Verb::new("", plain, |fs| attach(fs, b"/f", "zstd")));
    survives("attach aead", Verb::new("", plain, |fs| attach(fs, b"/f", "aead key=work")));
    survives("attach rot13", Verb::new("", plain, |fs| attach(fs, b"/f", "rot13")));
    survives("attach two", Verb::new("", plain, |fs| attach(fs, b"/f", "lz4 | aead key=work")));
    // A network that was there, by a rule.
    let ruled = "# none\n/g zstd\n";
    let copied: fn(&TransformFs) -> Result<()> =
        |fs| set(fs, b"/f", NETWORK_ATTRIBUTE, "zstd | aead key=work");
    survives("as by a copying program", Verb::new("", plain, copied));
    survives("attach beside", Verb::new(ruled, plain, |fs| attach(fs, b"/f", "guard block=4K")));
}

#[test]
fn a_network_that_is_changed_or_detached_and_its_attribute_are_one() {
    let zstd: fn(&Walker<'_>) -> Result<()> = |walker| {
        walker.write_file(b"/f", &text(), 0o640)?;
        let node = walker.resolve(b"/f")?;
        let ino = node.ino();
        walker.fs().setxattr(&Caller::ROOT, ino, CONVERT_ATTRIBUTE, b"zstd", XattrSet::Any)
    };
    let aead: fn(&Walker<'_>) -> Result<()> = |walker| {
        walker.write_file(b"/f", &text(), 0o640)?;
        let node = walker.resolve(b"/f")?;
        let ino = node.ino();
        let network = b"aead key=rotated";
        walker.fs().setxattr(&Caller::ROOT, ino, CONVERT_ATTRIBUTE, network, XattrSet::Any)
    };
    survives("detach zstd", Verb::new("", zstd, |fs| attach(fs, b"/f", "")));
    survives("detach aead", Verb::new("", aead, |fs| attach(fs, b"/f", "")));
    survives("zstd to aead", Verb::new("", zstd, |fs| attach(fs, b"/f", "aead key=work")));
    survives("zstd to lz4", Verb::new("", zstd, |fs| attach(fs, b"/f", "lz4")));
    survives("aead to zstd", Verb::new("", aead, |fs| attach(fs, b"/f", "zstd | aead key=work")));
    let rotate = Verb::new("", aead, |fs| attach(fs, b"/f", "aead key=rotated"));
    survives("a key is rotated", Verb { before_keys: one_key, ..rotate });
    let two_names: fn(&Walker<'_>) -> Result<()> = |walker| {
        walker.write_file(b"/f", &text(), 0o640)?;
        let node = walker.resolve(b"/f")?;
        let ino = node.ino();
        let network = b"aead key=rotated";
        walker.fs().setxattr(&Caller::ROOT, ino, CONVERT_ATTRIBUTE, network, XattrSet::Any)?;
        walker.link(b"/f", b"/g")
    };
    let rotate = Verb::new("", two_names, |fs| attach(fs, b"/f", "aead key=rotated"));
    survives("of a file with two names", Verb { before_keys: one_key, ..rotate });
}

/// The keys before the key was rotated.
fn one_key() -> Registry {
    let mut keys = KeyRing::default();
    keys.add("rotated", Key::new([7; 32]));
    Registry::new(Context { keys, ..Context::default() })
}

#[test]
fn a_network_that_is_attached_as_stored_is_as_durable_as_the_bytes() {
    // A zstd file that is shown as it is stored.
    let stored: fn(&Walker<'_>) -> Result<()> = |walker| {
        walker.write_file(b"/f", &text(), 0o640)?;
        let node = walker.resolve(b"/f")?;
        let (fs, ino) = (walker.fs(), node.ino());
        fs.setxattr(&Caller::ROOT, ino, CONVERT_ATTRIBUTE, b"zstd", XattrSet::Any)?;
        fs.setxattr(&Caller::ROOT, ino, STORED_ATTRIBUTE, b"", XattrSet::Any)
    };
    let below = Arc::new(MemFs::new());
    let fs = mounted(below, "", registry());
    stored(&Walker::new(&fs)).expect("prepared");
    let raw = Walker::new(&fs).read_file(b"/f").expect("read");
    assert!(raw != text());
    let as_stored = Verb::new("", stored, |fs| set(fs, b"/f", STORED_ATTRIBUTE, "zstd"));
    survives("as stored", Verb { kept: None, ..as_stored.or(raw.clone()) });
    // What is written through it afterwards, in place, finds the attribute there.
    let rot13 = |text: &[u8]| -> Vec<u8> {
        text.iter()
            .map(|b| match b {
                b'a'..=b'z' => (b - b'a' + 13) % 26 + b'a',
                b'A'..=b'Z' => (b - b'A' + 13) % 26 + b'A',
                b => *b,
            })
            .collect()
    };
    let write = Verb::new(
        "",
        |walker| walker.write_file(b"/f", b"Hello", 0o640).map(drop),
        |fs| {
            set(fs, b"/f", STORED_ATTRIBUTE, "rot13")?;
            let node = Walker::new(fs).resolve(b"/f")?;
            node.write_at(&Caller::ROOT, 0, b"Again")?;
            fs.fsync(&Caller::ROOT, node.ino(), true)
        },
    );
    let contents = vec![b"Hello".to_vec(), rot13(b"Hello"), b"Again".to_vec()];
    survives("written in place", Verb { contents, kept: None, ..write });
}

#[test]
fn an_empty_file_gets_its_header_with_the_attribute() {
    let empty: fn(&Walker<'_>) -> Result<()> =
        |walker| walker.write_file(b"/f", b"", 0o640).map(drop);
    let verb = Verb::new("", empty, |fs| set(fs, b"/f", NETWORK_ATTRIBUTE, "aead key=work"));
    survives("as stored", Verb { contents: vec![Vec::new()], kept: Some(Vec::new()), ..verb });
    let verb = Verb::new("", empty, |fs| attach(fs, b"/f", "zstd | aead key=work"));
    survives("attached", Verb { contents: vec![Vec::new()], kept: Some(Vec::new()), ..verb });
    // By the rule that is about it when the attribute goes.
    let none: fn(&Walker<'_>) -> Result<()> = |walker| {
        walker.write_file(b"/f", b"", 0o640)?;
        let rules = b"/.weftattributes";
        let node = walker.resolve(b"/f")?;
        let ino = node.ino();
        walker.fs().setxattr(&Caller::ROOT, ino, NETWORK_ATTRIBUTE, b"", XattrSet::Any)?;
        walker.write_file(rules, b"/f aead key=work\n", 0o644).map(drop)
    };
    let verb = Verb::new("", none, |fs| {
        let node = Walker::new(fs).resolve(b"/f")?;
        let ino = node.ino();
        fs.removexattr(&Caller::ROOT, ino, NETWORK_ATTRIBUTE)
    });
    survives("by a rule", Verb { contents: vec![Vec::new()], kept: Some(Vec::new()), ..verb });
}

const RULES: &str = "/a/ zstd\n/b/ lz4\n/e/ aead key=work\n/n/ none\n*.log zstd\n";

/// A file in each directory that is asked for, and all directories.
fn tree_with(walker: &Walker<'_>, files: &[(&[u8], Vec<u8>)]) -> Result<()> {
    for directory in [&b"/a"[..], b"/b", b"/c", b"/e", b"/n", b"/w"] {
        walker.mkdir(directory, 0o755)?;
    }
    walker.write_file(b"/w/.weftattributes", b"* zstd | aead key=work\n", 0o644)?;
    for (path, content) in files {
        walker.write_file(path, content, 0o640)?;
    }
    Ok(())
}

#[test]
fn a_file_that_moves_between_rules_is_whole_under_each_name() {
    let plain: fn(&Walker<'_>) -> Result<()> = |walker| tree_with(walker, &[(b"/c/f", text())]);
    survives("to zstd", Verb::new(RULES, plain, |fs| mv(fs, b"/c/f", b"/a/f")));
    survives("to aead", Verb::new(RULES, plain, |fs| mv(fs, b"/c/f", b"/e/f")));
    survives("in a directory", Verb::new(RULES, plain, |fs| mv(fs, b"/c/f", b"/c/f.log")));
    survives("to a rules file", Verb::new(RULES, plain, |fs| mv(fs, b"/c/f", b"/w/f")));
    let zstd: fn(&Walker<'_>) -> Result<()> = |walker| tree_with(walker, &[(b"/a/f", text())]);
    survives("zstd to lz4", Verb::new(RULES, zstd, |fs| mv(fs, b"/a/f", b"/b/f")));
    survives("zstd to none", Verb::new(RULES, zstd, |fs| mv(fs, b"/a/f", b"/n/f")));
    let both: fn(&Walker<'_>) -> Result<()> =
        |walker| tree_with(walker, &[(b"/c/f", text()), (b"/e/f", other())]);
    survives("over another", Verb::new(RULES, both, |fs| mv(fs, b"/c/f", b"/e/f")).or(other()));
}

#[test]
fn a_file_that_keeps_its_network_has_it_under_its_new_name() {
    let sealed: fn(&Walker<'_>) -> Result<()> = |walker| tree_with(walker, &[(b"/e/f", text())]);
    let verb = Verb::new(RULES, sealed, |fs| mv(fs, b"/e/f", b"/c/f"));
    survives("out of a rule", Verb { is_renamed: true, ..verb });
    let inside: fn(&Walker<'_>) -> Result<()> = |walker| {
        tree_with(walker, &[])?;
        walker.mkdir(b"/e/d", 0o755)?;
        walker.write_file(b"/e/d/f", &text(), 0o600).map(drop)
    };
    let verb = Verb::new(RULES, inside, |fs| mv(fs, b"/e/d", b"/c/d"));
    survives("a directory out of a rule", Verb { is_renamed: true, ..verb });
    let none: fn(&Walker<'_>) -> Result<()> = |walker| tree_with(walker, &[(b"/n/f", text())]);
    let verb = Verb::new(RULES, none, |fs| mv(fs, b"/n/f", b"/c/f"));
    survives("out of none", Verb { is_renamed: true, ..verb });
    // A file from before the rules: it has no attribute.
    let by_rules_file: fn(&Walker<'_>) -> Result<()> = |walker| {
        tree_with(walker, &[(b"/w/f", text())])?;
        let fs = walker.fs();
        let node = walker.resolve(b"/w/f")?;
        fs.removexattr(&Caller::ROOT, node.ino(), NETWORK_ATTRIBUTE)
    };
    let verb = Verb::new(RULES, by_rules_file, |fs| mv(fs, b"/w/f", b"/c/f"));
    survives("out of a rules file", Verb { is_renamed: true, ..verb });
    let verb = Verb::new(RULES, by_rules_file, |fs| mv(fs, b"/w", b"/c/w"));
    survives("with its directory", Verb { is_renamed: true, ..verb });
}

#[test]
fn a_new_file_is_never_without_its_header() {
    let nothing: fn(&Walker<'_>) -> Result<()> = |walker| tree_with(walker, &[]);
    type Make = fn(&TransformFs) -> Result<()>;
    let verbs: [(&str, Make); 3] = [
        ("aead", |fs| Walker::new(fs).write_file(b"/e/f", &text(), 0o600).map(drop)),
        ("by a rules file", |fs| Walker::new(fs).write_file(b"/w/f", &text(), 0o600).map(drop)),
        ("zstd", |fs| Walker::new(fs).write_file(b"/a/f", &text(), 0o600).map(drop)),
    ];
    for (name, verb) in verbs {
        let verb = Verb::new(RULES, nothing, verb).or(Vec::new());
        survives(name, Verb { kept: None, ..verb });
    }
    let sealed: fn(&Walker<'_>) -> Result<()> = |walker| tree_with(walker, &[(b"/e/f", text())]);
    let again: fn(&TransformFs) -> Result<()> = |fs| {
        let node = Walker::new(fs).resolve(b"/e/f")?;
        node.write_at(&Caller::ROOT, 0, &other())
    };
    let new = [&other()[..], &text()[other().len()..]].concat();
    survives("written again", Verb { kept: None, ..Verb::new(RULES, sealed, again).or(new) });
}

#[test]
fn a_directory_stays_where_its_files_would_get_another_network() {
    for (directory, to) in [(&b"/w/d"[..], &b"/c/d"[..]), (b"/c/d", b"/w/d"), (b"/c/d", b"/e/d")] {
        let below = Arc::new(MemFs::new());
        let fs = mounted(below.clone(), RULES, registry());
        let walker = Walker::new(&fs);
        tree_with(&walker, &[]).expect("a tree");
        let file = [directory, b"/f"].concat();
        walker.mkdir(directory, 0o755).expect("made");
        let node = walker.write_file(&file, &text(), 0o644).expect("written");
        let _ = fs.removexattr(&Caller::ROOT, node.ino(), NETWORK_ATTRIBUTE);
        drop(node);
        let moved = mv(&fs, directory, to);
        assert!(matches!(moved, Err(Error::CrossDevice)), "{moved:?}");
        // With an attribute of its own it moves, but under a rule of the mount.
        set(&fs, &file, STORED_ATTRIBUTE, "").expect("set");
        let moved = mv(&fs, directory, to);
        assert_eq!(moved.is_ok(), to != b"/e/d", "{moved:?}");
        fs.unmount().expect("unmounted");
        let fs = mounted(below, RULES, registry());
        let at = if moved.is_ok() { [to, b"/f"].concat() } else { file };
        Walker::new(&fs).read_file(&at).expect("read");
    }
}
