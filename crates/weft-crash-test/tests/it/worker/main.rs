//! The worker of the tests; and by hand, `weft-crash-test-worker COUNT`, the cost of that many
//! commands.

#[path = "../protocol.rs"]
mod protocol;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use protocol::{Answer, Request};
use weft_crash_test::sandbox::{
    Error, Isolate, Output, Seat, ShellCommand, TestMount, Worker, WorkerOptions, run_if_worker,
};
use weft_vfs::memfs::{Snapshot, SnapshotAttr, SnapshotNode};
use weft_vfs::{Caller, Entry, FileKind, Ino, Layer, MemFs, OpenFlags, Opened};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    run_if_worker(|seat| {
        if let Err(e) = work(seat) {
            eprintln!("{e}");
        }
    });
    measure(std::env::args().nth(1).ok_or("give the number of commands")?.parse()?)
}

/// Drains the output of the command that runs before each call that makes a file, as a recorder
/// does.
#[derive(Default)]
struct Drains {
    below: MemFs,
    output: Mutex<Option<Arc<Output>>>,
    drained: Mutex<Vec<String>>,
}

impl Drains {
    fn drain(&self) {
        if let Some(output) = &*self.output.lock().expect("lock") {
            let text = String::from_utf8_lossy(&output.drain_now()).into_owned();
            self.drained.lock().expect("lock").push(text);
        }
    }
}

impl Layer for Drains {
    fn below(&self) -> &dyn weft_vfs::FileSystem {
        &self.below
    }

    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        perm: u16,
        flags: OpenFlags,
    ) -> weft_vfs::Result<(Entry, Opened)> {
        self.drain();
        self.below().create(caller, parent, name, perm, flags)
    }

    fn mknod(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        kind: FileKind,
        perm: u16,
        rdev: u32,
    ) -> weft_vfs::Result<Entry> {
        self.drain();
        self.below().mknod(caller, parent, name, kind, perm, rdev)
    }
}

fn work(mut seat: Seat) -> Result<(), Error> {
    let fs = Arc::new(Drains::default());
    let empty = empty_tree();
    let mount = TestMount::new(fs.clone(), &seat.mountpoint)?;
    while let Some(request) = seat.channel.receive()? {
        let answer = answer(&seat, &fs, &empty, &mount, request);
        seat.channel.send(&answer)?;
    }
    mount.unmount()
}

/// A tree of nothing but a root that belongs to this process' user, as a test's folder does.
fn empty_tree() -> Snapshot {
    let mut tree = Snapshot::new();
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let attr = SnapshotAttr { perm: 0o755, uid, gid, ..SnapshotAttr::default() };
    tree.set_attr(Snapshot::ROOT, &attr).expect("every tree has a root");
    tree
}

/// Prints what a command costs: restoring a tree, starting `true`, reaping it.
fn measure(times: u32) -> Result<(), Box<dyn std::error::Error>> {
    for isolate in [Isolate::Auto, Isolate::UserNamespace, Isolate::Subreaper] {
        let dir = tempfile::tempdir()?;
        let options = WorkerOptions { isolate, ..WorkerOptions::new(["worker"], dir.path()) };
        let mut worker = Worker::start(&options)?;
        for files in [0, 1000] {
            worker.channel().send(&Request::Repeat { times, files })?;
            let answer = worker.channel().receive_within(Duration::from_secs(3600))?;
            let Answer::Repeated { mean } = answer else {
                return Err(format!("{answer:?}").into());
            };
            let isolation = worker.isolation();
            println!("{isolation}, {files} files: {times} commands, {mean:?} each");
        }
        worker.end()?;
    }
    Ok(())
}

/// Makes a tree of files of 40 KiB, ten of them in the root and the others in directories of a hundred.
fn tree(files: u32) -> weft_vfs::Result<Snapshot> {
    let mut tree = empty_tree();
    let attr = SnapshotAttr { perm: 0o755, ..SnapshotAttr::default() };
    for nr in 0..u64::from(files) {
        let (file, name) = (2 * nr + 2, nr.to_string());
        let directory = if nr < 10 { Snapshot::ROOT } else { 2 * (nr / 100) + 3 };
        if tree.node(directory).is_none() {
            tree.insert(directory, SnapshotNode::new(FileKind::Directory, &attr))?;
            tree.set_entry(Snapshot::ROOT, format!("d{directory}").as_bytes(), directory)?;
        }
        tree.insert(file, SnapshotNode::new(FileKind::Regular, &attr))?;
        tree.write(file, 0, &[b'x'; 40 << 10])?;
        tree.set_size(file, 40 << 10)?;
        tree.set_entry(directory, name.as_bytes(), file)?;
    }
    Ok(tree)
}

fn answer(
    seat: &Seat,
    fs: &Drains,
    empty: &Snapshot,
    mount: &TestMount,
    request: Request,
) -> Answer {
    let isolation = &seat.isolation;
    let command = |line: &str, limit| {
        fs.below.restore(empty);
        ShellCommand::new(line, mount.path(), limit)
    };
    let limit = Duration::from_secs(10);
    let failed = |e: Error| Answer::Failed(e.to_string());
    match request {
        Request::Run { line, limit } => match command(&line, limit).run(isolation) {
            Ok(outcome) => Answer::Ran { outcome, in_place: mount.is_in_place() },
            Err(e) => failed(e),
        },
        Request::Repeat { times, files } => {
            let tree = match tree(files) {
                Ok(tree) => tree,
                Err(e) => return Answer::Failed(e.to_string()),
            };
            let began = Instant::now();
            for _ in 0..times {
                fs.below.restore(&tree);
                match ShellCommand::new("true", mount.path(), limit).run(isolation) {
                    Ok(outcome) if outcome.is_success() => {}
                    Ok(outcome) => return Answer::Failed(format!("{outcome:?}")),
                    Err(e) => return failed(e),
                }
            }
            Answer::Repeated { mean: began.elapsed() / times.max(1) }
        }
        Request::Drain { line } => {
            let ran = command(&line, limit).run_drained(isolation, |output| {
                *fs.output.lock().expect("lock") = Some(Arc::clone(output));
            });
            fs.drain();
            *fs.output.lock().expect("lock") = None;
            match ran {
                Ok(_) => Answer::Drained(std::mem::take(&mut *fs.drained.lock().expect("lock"))),
                Err(e) => failed(e),
            }
        }
    }
}
