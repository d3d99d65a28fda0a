//! Requests that wait, and whose callers are killed or interrupted.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Signal, kill_process};
use weft_fuse::{IoUring, Mount, MountOptions};
use weft_testing::wait_until;
use weft_vfs::{
    Caller, DirCursor, DirEntry, Entry, FileSystem, Handle, Ino, Layer, MemFs, Node, OpenFlags,
    Opened, Result,
};

use super::slow::{Gate, Slow, make_slow};
use super::{give_root_away, options, unmount};

/// Runs a test over both ways of requests, and over `/dev/fuse` with a file system that cannot be kept
/// from waiting, too.
fn over_all_ways(test: impl Fn(&Slow, &Path)) {
    for way in ["io_uring", "/dev/fuse", "/dev/fuse without tries"] {
        let dir = tempfile::tempdir().expect("directory");
        let slow = Arc::new(Slow::default());
        let fs = Direct { slow: slow.clone(), is_tried: !way.ends_with("tries") };
        let io_uring = if way == "io_uring" { IoUring::On } else { IoUring::Off };
        let Some(mut mount) = mounted(Arc::new(fs), dir.path(), io_uring) else { continue };
        println!("{way}");
        test(&slow, dir.path());
        slow.release();
        unmount(&mut mount);
    }
}

fn mounted(fs: Arc<dyn FileSystem>, dir: &Path, io_uring: IoUring) -> Option<Mount> {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: there is no /dev/fuse here");
        return None;
    }
    give_root_away(&*fs);
    match weft_fuse::mount(fs, dir, &MountOptions { io_uring, ..options() }) {
        Ok(mount) => Some(mount),
        Err(weft_fuse::Error::IoUring(why)) => {
            eprintln!("not here: {why}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// Its files are read past the page cache, where each reader waits for its own request.
struct Direct {
    slow: Arc<Slow>,
    is_tried: bool,
}

impl Layer for Direct {
    fn below(&self) -> &dyn FileSystem {
        &*self.slow
    }

    fn is_stateful(&self) -> bool {
        true
    }

    fn without_waiting(&self, call: &mut dyn FnMut()) -> bool {
        self.is_tried && FileSystem::without_waiting(&*self.slow, call)
    }

    fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Opened> {
        let opened = FileSystem::open(&*self.slow, caller, ino, flags)?;
        Ok(Opened { direct_io: true, ..opened })
    }
}

/// Starts a program that reads a file.
fn reader(path: &Path) -> Child {
    Command::new("cat").arg(path).stdout(Stdio::piped()).spawn().expect("cat")
}

fn signal(child: &Child, signal: Signal) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a process");
    kill_process(pid, signal).expect("a signal");
}

/// The wait of a request ends for its caller when that is killed, whatever the file system does; who
/// waits for the same goes on.
#[test]
fn a_caller_can_be_killed_and_others_wait_on() {
    over_all_ways(|slow, dir| {
        let path = dir.join("slow");
        make_slow(&path);
        for sent in [Signal::KILL, Signal::TERM, Signal::INT] {
            let held = slow.held().len();
            let mut killed = reader(&path);
            wait_until("the reader waits", || slow.held().len() > held);
            signal(&killed, sent);
            assert_eq!(killed.wait().expect("ended").signal(), Some(sent.as_raw()));
        }
        let held = slow.held().len();
        let stays = reader(&path);
        let mut killed = reader(&path);
        wait_until("both wait", || slow.held().len() > held + 1);
        signal(&killed, Signal::KILL);
        killed.wait().expect("ended");
        // The file system is as usable as before.
        fs::write(dir.join("quick"), "soon").expect("write");
        slow.release();
        let output = stays.wait_with_output().expect("ended");
        assert!(output.status.success() && output.stdout == b"at last");
    });
}

/// Signals that end no program end no request either: `stat` of it would fail for no reason.
#[test]
fn signals_that_come_by_interrupt_nothing() {
    over_all_ways(|slow, dir| {
        let path = dir.join("slow");
        make_slow(&path);
        // It handles the first signal, and then dies of the second: there is one `INTERRUPT` for both.
        let script = "$SIG{USR1} = sub {}; open F, '<', $ARGV[0] or die; \
            sysread F, $b, 100 or die $!; print $b";
        let run = || {
            let mut perl = Command::new("perl");
            perl.args(["-e", script]).arg(&path).stdout(Stdio::piped()).spawn().expect("perl")
        };
        let held = slow.held().len();
        let mut killed = run();
        let patient = run();
        wait_until("they wait", || slow.held().len() > held + 1);
        signal(&killed, Signal::USR1);
        signal(&patient, Signal::USR1);
        let pending = |child: &Child| {
            let status =
                fs::read_to_string(format!("/proc/{}/status", child.id())).expect("status");
            status.contains("ShdPnd:\t0000000000000200")
        };
        wait_until("the signal is pending", || pending(&killed) && pending(&patient));
        signal(&killed, Signal::KILL);
        assert_eq!(killed.wait().expect("ended").signal(), Some(9));
        slow.release();
        let output = patient.wait_with_output().expect("ended");
        assert!(output.status.success(), "{output:?}");
        assert_eq!(output.stdout, b"at last");
    });
}

/// More callers than there may be threads: those whose callers were killed do not count.
#[test]
fn killed_callers_leave_room_for_others() {
    const TIMES: usize = 200;
    let dir = tempfile::tempdir().expect("directory");
    let slow = Arc::new(Slow::default());
    let fs = Direct { slow: slow.clone(), is_tried: true };
    let Some(mut mount) = mounted(Arc::new(fs), dir.path(), IoUring::Off) else { return };
    let path = dir.path().join("slow");
    make_slow(&path);
    for nr in 0..TIMES {
        let mut killed = reader(&path);
        wait_until("it waits", || slow.held().len() > nr);
        signal(&killed, Signal::KILL);
        killed.wait().expect("ended");
    }
    super::slow::use_quick_files(dir.path());
    slow.release();
    unmount(&mut mount);
}

/// The call in progress when its caller is killed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Step {
    #[default]
    None,
    Open,
    Lookup,
    List,
}

/// A file system that counts open files and references, and in which one kind of calls waits.
#[derive(Default)]
struct Counting {
    gate: Gate,
    below: MemFs,
    slow: Mutex<Step>,
    opened: AtomicI64,
    references: AtomicI64,
}

impl Counting {
    fn wait_if(&self, step: Step) {
        if *self.slow.lock().expect("lock") == step {
            self.gate.pass().expect("a call that may wait");
        }
    }

    fn counts(&self) -> (i64, i64) {
        (self.opened.load(Ordering::Acquire), self.references.load(Ordering::Acquire))
    }
}

impl Layer for Counting {
    fn below(&self) -> &dyn FileSystem {
        &self.below
    }

    fn is_stateful(&self) -> bool {
        true
    }

    fn without_waiting(&self, _call: &mut dyn FnMut()) -> bool {
        false
    }

    fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Opened> {
        self.wait_if(Step::Open);
        self.opened.fetch_add(1, Ordering::AcqRel);
        self.below.open(caller, ino, flags)
    }

    fn release(&self, ino: Ino, handle: Handle) -> Result<()> {
        self.opened.fetch_sub(1, Ordering::AcqRel);
        self.below.release(ino, handle)
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.wait_if(Step::Lookup);
        let found = self.below.lookup(parent, name);
        self.references.fetch_add(i64::from(found.is_ok()), Ordering::AcqRel);
        found
    }

    fn readdir_plus(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>, Entry) -> bool,
    ) -> Result<()> {
        self.wait_if(Step::List);
        self.below.readdir_plus(ino, cursor, &mut |dirent, entry| {
            let dots = matches!(dirent.name, b"." | b"..");
            let taken = each(dirent, entry);
            self.references.fetch_add(i64::from(taken && !dots), Ordering::AcqRel);
            taken
        })
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.references.fetch_sub(count.cast_signed(), Ordering::AcqRel);
        self.below.forget(ino, count);
    }

    fn forget_many(&self, references: &[(Ino, u64)]) {
        references.iter().for_each(|&(ino, count)| Layer::forget(self, ino, count));
    }
}

/// A reply that came too late, because the caller had been killed, is undone: open files are closed, and
/// inodes forgotten.
#[test]
fn nothing_is_kept_for_a_caller_that_was_killed() {
    for (step, program) in [(Step::Open, "cat"), (Step::Lookup, "stat"), (Step::List, "ls")] {
        let dir = tempfile::tempdir().expect("directory");
        let fs = Arc::new(Counting::default());
        for name in [&b"one"[..], b"two", b"three"] {
            let root = Node::root(&fs.below).expect("root");
            root.create(&Caller::ROOT, name, 0o644).expect("create");
        }
        let Some(mut mount) = mounted(fs.clone(), dir.path(), IoUring::Off) else { return };
        let path = dir.path().join("one");
        if step == Step::Open {
            fs::metadata(&path).expect("a look at the file that is to be opened");
        }
        let before = fs.counts();
        *fs.slow.lock().expect("lock") = step;
        let path = if step == Step::List { dir.path() } else { &path };
        let mut command = Command::new(program);
        let mut killed = command.arg(path).stdout(Stdio::null()).spawn().expect(program);
        wait_until(program, || !fs.gate.held().is_empty());
        signal(&killed, Signal::KILL);
        assert_eq!(killed.wait().expect("ended").signal(), Some(9), "{step:?}");
        assert_eq!(fs.counts(), before, "{step:?}: it has not gone on yet");
        let done = fs.gate.held().len();
        fs.gate.release();
        // Another request of the same kind goes through, and comes after the first.
        *fs.slow.lock().expect("lock") = Step::None;
        wait_until("the mount is as it was", || {
            let threads = fs.gate.waiting();
            threads == 0 && fs.counts() == before
        });
        assert_eq!(done, 1, "{step:?}");
        unmount(&mut mount);
    }
}
