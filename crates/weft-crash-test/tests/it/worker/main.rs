//! The worker of the tests; and by hand, `weft-crash-test-worker COUNT`, the cost of that many
//! commands.

#[path = "../protocol.rs"]
mod protocol;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use protocol::{Answer, Request};
use weft_crash_test::sandbox::{
    Error, Isolate, Output, Seat, ShellCommand, TestMount, Worker, WorkerOptions, empty_tree,
    run_if_worker,
};
use weft_vfs::memfs::Snapshot;
use weft_vfs::{FileSystem, MemFs};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    run_if_worker(|seat| {
        if let Err(e) = work(seat) {
            eprintln!("{e}");
        }
    });
    measure(std::env::args().nth(1).ok_or("give the number of commands")?.parse()?)
}

fn work(mut seat: Seat) -> Result<(), Error> {
    let fs = Arc::new(MemFs::new());
    let empty = empty_tree();
    let plug: Arc<dyn FileSystem> = fs.clone();
    let mount = TestMount::new(plug, &seat.mountpoint)?;
    while let Some(request) = seat.channel.receive()? {
        let answer = answer(&seat, &fs, &empty, &mount, request);
        seat.channel.send(&answer)?;
    }
    mount.unmount()
}

/// Prints what a command costs: restoring a tree, starting `true`, reaping it.
fn measure(times: u32) -> Result<(), Box<dyn std::error::Error>> {
    for isolate in [Isolate::Auto, Isolate::UserNamespace, Isolate::Subreaper] {
        let dir = tempfile::tempdir()?;
        let options = WorkerOptions { isolate, ..WorkerOptions::new(["worker"], dir.path()) };
        let mut worker = Worker::start(&options)?;
        worker.channel().send(&Request::Repeat { times })?;
        let answer = worker.channel().receive_within(Duration::from_secs(3600))?;
        let Answer::Repeated { mean } = answer else { return Err(format!("{answer:?}").into()) };
        println!("{}: {times} commands, {mean:?} each", worker.isolation());
        worker.end()?;
    }
    Ok(())
}

fn answer(
    seat: &Seat,
    fs: &MemFs,
    empty: &Snapshot,
    mount: &TestMount,
    request: Request,
) -> Answer {
    let isolation = &seat.isolation;
    let command = |line: &str, limit| {
        fs.restore(empty);
        ShellCommand::new(line, mount.path(), limit)
    };
    let failed = |e: Error| Answer::Failed(e.to_string());
    match request {
        Request::Run { line, limit } => match command(&line, limit).run(isolation) {
            Ok(outcome) => Answer::Ran { outcome, in_place: mount.is_in_place() },
            Err(e) => failed(e),
        },
        Request::Repeat { times } => {
            let began = Instant::now();
            for _ in 0..times {
                match command("true", Duration::from_secs(10)).run(isolation) {
                    Ok(outcome) if outcome.is_success() => {}
                    Ok(outcome) => return Answer::Failed(format!("{outcome:?}")),
                    Err(e) => return failed(e),
                }
            }
            Answer::Repeated { mean: began.elapsed() / times.max(1) }
        }
        Request::Drain { line } => {
            let drained = Mutex::new(Vec::new());
            let ended = AtomicBool::new(false);
            let kept: Mutex<Option<Arc<Output>>> = Mutex::default();
            // As a recorder does it: at each change that it sees.
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut files = 0;
                    while !ended.load(Ordering::Acquire) {
                        let now = fs.snapshot().nodes().count();
                        let output = kept.lock().expect("lock").clone();
                        if now != files
                            && let Some(output) = output
                        {
                            files = now;
                            let text = String::from_utf8_lossy(&output.drain_now()).into_owned();
                            drained.lock().expect("lock").push(text);
                        }
                    }
                });
                let outcome =
                    command(&line, Duration::from_secs(10)).run_drained(isolation, |output| {
                        *kept.lock().expect("lock") = Some(Arc::clone(output));
                    });
                ended.store(true, Ordering::Release);
                if let Err(e) = outcome {
                    drained.lock().expect("lock").push(e.to_string());
                }
            });
            let rest = kept.into_inner().expect("lock").map(|output| output.drain_now());
            let mut drained = drained.into_inner().expect("lock");
            drained.push(String::from_utf8_lossy(&rest.unwrap_or_default()).into_owned());
            Answer::Drained(drained)
        }
    }
}
