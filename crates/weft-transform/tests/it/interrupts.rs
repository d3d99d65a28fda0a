//! Readers that are interrupted while they wait for a program.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use weft_testing::{ends, wait_until};
use weft_transform::stages::Program;
use weft_transform::{Context, Registry, Rules, TransformFs, TransformOptions};
use weft_vfs::{
    Caller, Error, FileSystem, Handle, Ino, Interrupt, OpenFlags, Result, Walker, interruptible,
};

use crate::hooked::Hooked;

const TEXT: &[u8] = b"Some Words";

/// A program of the mode `once`, which waits at `gate` before it answers.
fn once(gate: &Path) -> String {
    format!("while ! [ -e {} ]; do sleep 0.02; done; tr a-zA-Z A-Za-z", gate.display())
}

/// A program that lives on, which waits at `gate` before it answers to data.
fn lives_on(gate: &Path) -> String {
    let script = r#"
        sub take { my $b = ""; while (length $b < $_[0]) {
            sysread(STDIN, $b, $_[0] - length $b, length $b) or exit 0 } $b }
        sub put { my $s = $_[0] . pack("V", length $_[1]) . $_[1]; syswrite(STDOUT, $s) }
        while (1) { my ($k, $n) = unpack("aV", take(5)); my $d = take($n);
            if ($k eq "h") { put("d", "weft filter 1") }
            elsif ($k eq "f" || $k eq "d") {
                while (! -e "GATE") { select undef, undef, undef, 0.02 }
                $d = substr($d, 8) if $k eq "f"; $d =~ tr/a-zA-Z/A-Za-z/; put("d", $d) }
            put("n", "") }"#;
    format!("exec perl -e '{}'", script.replace("GATE", &gate.display().to_string()))
}

/// A file system with a file, whose views wait for a file outside.
struct Waiting {
    fs: Arc<TransformFs>,
    /// Reads of the stored file.
    reads: Arc<AtomicUsize>,
    gate: PathBuf,
    /// The views that were looked up.
    views: Mutex<Vec<Ino>>,
    _dir: tempfile::TempDir,
}

impl Waiting {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let gate = dir.path().join("gate");
        let mut context = Context::default();
        context.programs.insert("once".to_owned(), Program::new(once(&gate)));
        context.programs.insert("lives".to_owned(), Program::new(lives_on(&gate)));
        let below = Arc::new(Hooked::default());
        let walker = Walker::new(&below.fs);
        walker.write_file(b"/file", TEXT, 0o644).expect("a file");
        let reads: Arc<AtomicUsize> = Arc::default();
        let count = reads.clone();
        below.before_read(move |_, _| {
            count.fetch_add(1, Ordering::AcqRel);
        });
        let rules = "*@once view: exec program=once deadline=3600000\n\
            *@stream view: exec program=lives mode=stream deadline=3600000\n\
            *@blocks view: exec program=lives mode=blocks deadline=3600000\n\
            *@above view: exec program=once deadline=3600000 | line-ends to=lf\n";
        let rules = Rules::parse(rules.as_bytes()).expect("rules");
        let options = TransformOptions { rules, ..TransformOptions::default() };
        let fs = TransformFs::new(below, Registry::new(context), options).expect("a root");
        Self { fs: Arc::new(fs), reads, gate, views: Mutex::default(), _dir: dir }
    }

    fn view(&self, name: &str) -> Ino {
        let path = format!("file@{name}");
        let ino = self.fs.lookup(self.fs.root(), path.as_bytes()).expect("a view").attr.ino;
        self.views.lock().expect("views").push(ino);
        ino
    }

    /// Starts to read a view in a thread that can be interrupted.
    fn reader(&self, ino: Ino) -> (std::thread::JoinHandle<Result<Vec<u8>>>, Arc<Interrupt>) {
        let (fs, interrupt) = (self.fs.clone(), Arc::new(Interrupt::default()));
        let ours = interrupt.clone();
        let read = move || interruptible(interrupt, || read(&*fs, ino));
        (std::thread::spawn(read), ours)
    }

    fn let_go(&self) {
        std::fs::write(&self.gate, "").expect("a file");
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // With its view a program ends, which would wait for the gate for ever.
        self.views.lock().expect("views").drain(..).for_each(|ino| self.fs.forget(ino, 1));
    }
}

fn read(fs: &dyn FileSystem, ino: Ino) -> Result<Vec<u8>> {
    let mut buf = vec![0; 1000];
    let got = fs.read(ino, Handle::NONE, 0, &mut buf)?;
    buf.truncate(got);
    Ok(buf)
}

fn swapped() -> Vec<u8> {
    TEXT.iter().map(|b| b ^ (u8::from(b.is_ascii_alphabetic()) << 5)).collect()
}

/// The program goes on for the next reader, from where it is.
#[test]
fn an_interrupted_reader_does_not_hurt_the_next() {
    for name in ["once", "stream", "blocks", "above"] {
        let waiting = Waiting::new();
        let ino = waiting.view(name);
        let (reader, interrupt) = waiting.reader(ino);
        wait_until("the program has its input", || waiting.reads.load(Ordering::Acquire) > 0);
        interrupt.raise();
        let result = ends(name, move || reader.join().expect("a reader"));
        assert!(matches!(result, Err(Error::Interrupted)), "{name}: {result:?}");
        // Of two the second goes on.
        let (first, interrupt) = waiting.reader(ino);
        let (second, _) = waiting.reader(ino);
        interrupt.raise();
        waiting.let_go();
        let result = ends(name, move || first.join().expect("a reader"));
        // It may have come too late for the wait; the front has answered it anyhow.
        assert!(
            matches!(&result, Err(Error::Interrupted)) || result.is_ok_and(|it| it == swapped()),
            "{name}"
        );
        let result = ends(name, move || second.join().expect("a reader"));
        assert_eq!(result.expect(name), swapped(), "{name}");
        if name != "blocks" {
            assert_eq!(waiting.reads.load(Ordering::Acquire), 1, "{name}: it began once");
        }
    }
}

/// With the last reader its program ends.
#[test]
fn a_program_ends_with_its_last_reader() {
    let waiting = Waiting::new();
    let ino = waiting.view("once");
    let opened = waiting.fs.open(&Caller::ROOT, ino, OpenFlags::READ).expect("open");
    let (reader, interrupt) = waiting.reader(ino);
    let gate = waiting.gate.display().to_string();
    let runs = || {
        let pids = std::fs::read_dir("/proc").expect("processes").flatten();
        let mut lines = pids.filter_map(|pid| std::fs::read(pid.path().join("cmdline")).ok());
        lines.any(|line| String::from_utf8_lossy(&line).contains(&gate))
    };
    wait_until("the program runs", runs);
    interrupt.raise();
    let result = ends("an interrupt", move || reader.join().expect("a reader"));
    assert!(matches!(result, Err(Error::Interrupted)), "{result:?}");
    waiting.fs.release(ino, opened.handle).expect("closed");
    wait_until("the program has ended", || !runs());
}

/// A file whose zeroes are stored is extended as far as the caller waits.
#[test]
fn a_long_truncation_can_be_interrupted() {
    let below = Arc::new(weft_vfs::MemFs::new());
    let rules = Rules::parse(b"* rot13 | xor hex=55\n").expect("rules");
    let options = TransformOptions { rules, ..TransformOptions::default() };
    let registry = Registry::new(Context::default());
    let fs = TransformFs::new(below, registry, options).expect("a root");
    let walker = Walker::new(&fs);
    drop(walker.write_file(b"/file", TEXT, 0o644).expect("a file"));
    let file = walker.resolve(b"/file").expect("the file");
    let interrupt = Arc::new(Interrupt::default());
    interrupt.raise();
    let long = weft_vfs::SetAttr { size_bytes: Some(1 << 50), ..weft_vfs::SetAttr::default() };
    let result = interruptible(interrupt, || fs.setattr(&Caller::ROOT, file.ino(), &long));
    assert!(matches!(result, Err(Error::Interrupted)), "{result:?}");
    let content = walker.read_file(b"/file").expect("as before");
    assert!(content.starts_with(TEXT) && content[TEXT.len()..].iter().all(|byte| *byte == 0));
}

/// Those who change the file itself, or make all durable, do not wait for the readers of its views.
#[test]
fn writers_do_not_wait_for_the_readers_of_views() {
    let waiting = Waiting::new();
    let ino = waiting.view("once");
    let (reader, interrupt) = waiting.reader(ino);
    wait_until("the program has its input", || waiting.reads.load(Ordering::Acquire) > 0);
    let fs = waiting.fs.clone();
    ends("the writers", move || {
        let file = fs.lookup(fs.root(), b"file").expect("the file").attr.ino;
        fs.write(&Caller::ROOT, file, Handle::NONE, 0, b"Else").expect("written");
        fs.sync().expect("durable");
        fs.unlink(&Caller::ROOT, fs.root(), b"file").expect("removed");
    });
    interrupt.raise();
    let result = ends("an interrupt", move || reader.join().expect("a reader"));
    assert!(matches!(result, Err(Error::Interrupted)), "{result:?}");
}
