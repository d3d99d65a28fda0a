//! Commands that misbehave, in workers with and without namespaces: each ends in a value, and nothing
//! of it stays.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_crash_test::sandbox::{Ended, Error, Isolate, Isolation, Outcome, Worker, WorkerOptions};
use weft_testing::wait_until;

use super::protocol::{Answer, Request};

const EVERY_WAY: [Isolate; 3] = [Isolate::Auto, Isolate::UserNamespace, Isolate::Subreaper];

/// A worker in a directory of its own.
struct Bench {
    worker: Worker,
    dir: tempfile::TempDir,
}

impl Bench {
    /// Starts a worker, or says why not.
    fn start(isolate: Isolate) -> Option<Self> {
        if !Path::new("/dev/fuse").exists() {
            eprintln!("skipped: there is no /dev/fuse here");
            return None;
        }
        let dir = tempfile::tempdir().expect("temporary directory");
        let options = WorkerOptions { isolate, ..options(dir.path()) };
        match Worker::start(&options) {
            Ok(worker) => {
                if isolate == Isolate::Auto && !worker.isolation().is_namespace() {
                    eprintln!("without namespaces: {}", worker.isolation());
                }
                Some(Self { worker, dir })
            }
            Err(Error::NoNamespaces(why)) if isolate == Isolate::UserNamespace => {
                eprintln!("not here: namespaces of users: {why}");
                None
            }
            Err(e) => panic!("{isolate:?}: {e}"),
        }
    }

    fn ask(&mut self, request: &Request) -> Answer {
        self.worker.channel().send(request).expect("send");
        self.worker.channel().receive_within(Duration::from_secs(60)).expect("receive")
    }

    /// Runs a line; returns also whether the mount was in place afterwards.
    fn run(&mut self, line: &str, limit_ms: u64) -> (Outcome, bool) {
        let limit = Duration::from_millis(limit_ms);
        match self.ask(&Request::Run { line: line.into(), limit }) {
            Answer::Ran { outcome, in_place } => (outcome, in_place),
            other => panic!("{line}: {other:?}"),
        }
    }

    /// Ends the worker, and checks that nothing of it is left.
    fn end(self) {
        let Self { worker, dir } = self;
        let supervisor = worker.supervisor();
        worker.end().expect("end");
        assert!(!Path::new(&format!("/proc/{supervisor}")).exists());
        assert!(is_gone(dir.path()), "something of {} stays", dir.path().display());
    }
}

fn options(dir: &Path) -> WorkerOptions {
    // A program of its own: that of the tests has threads from the beginning, with which no process
    // can make a namespace of users.
    let program = env!("CARGO_BIN_EXE_weft-crash-test-worker").into();
    WorkerOptions { program, ..WorkerOptions::new([dir], dir) }
}

/// The mark of a process that a test has started, in its command line.
fn is_running(mark: &str) -> bool {
    let entries = fs::read_dir("/proc").expect("list").flatten();
    entries.into_iter().any(|entry| {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(mark)
    })
}

fn is_mounted_below(dir: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
    mounts.contains(dir.to_str().expect("a path of letters"))
}

/// Returns true if there is no mount below a directory, and no process whose command line has it.
fn is_gone(dir: &Path) -> bool {
    !is_mounted_below(dir) && !is_running(dir.to_str().expect("a path of letters"))
}

/// Runs a test for each way in which a worker is kept apart from the host.
fn in_every_way(test: impl Fn(&mut Bench)) {
    for isolate in EVERY_WAY {
        let Some(mut bench) = Bench::start(isolate) else { continue };
        test(&mut bench);
        // It goes on as if nothing had been.
        let (outcome, in_place) = bench.run("echo fine > file; cat file", 10_000);
        assert!(outcome.is_success() && in_place, "{isolate:?}: {outcome:?}");
        assert_eq!(outcome.stdout.to_string(), "fine\n");
        bench.end();
    }
}

#[test]
fn a_command_runs_in_the_mounted_folder() {
    in_every_way(|bench| {
        let line =
            "pwd; echo $WEFT_MNT; id -u; ls -A | wc -l; echo problem >&2; echo x > f; exit 7";
        let (outcome, in_place) = bench.run(line, 10_000);
        let path = bench.worker.mountpoint().display();
        let uid = rustix::process::getuid().as_raw();
        assert_eq!(outcome.stdout.to_string(), format!("{path}\n{path}\n{uid}\n0\n"));
        assert_eq!(outcome.stderr.to_string(), "problem\n");
        assert_eq!((outcome.ended, outcome.left_running), (Ended::Exit(7), 0));
        assert!(in_place && !outcome.remain && outcome.duration < Duration::from_secs(10));
        // A tree restored in between.
        assert_eq!(bench.run("test ! -e f", 10_000).0.ended, Ended::Exit(0));
        assert_eq!(bench.run("kill -SEGV $$", 10_000).0.ended, Ended::Signal(11));
        assert_eq!(bench.run("no-such-program", 10_000).0.ended, Ended::Exit(127));
        assert!(bench.run("env", 10_000).0.stdout.to_string().find("WEFT_CRASH").is_none());
        // Standard input is empty.
        assert_eq!(bench.run("cat", 10_000).0.ended, Ended::Exit(0));
    });
}

#[test]
fn mounts_of_workers_are_at_one_path_and_not_seen_outside() {
    let Some(mut first) = Bench::start(Isolate::Auto) else { return };
    if !first.worker.isolation().is_namespace() {
        eprintln!("not here: namespaces: {}", first.worker.isolation());
        return;
    }
    let second = WorkerOptions { number: 1, ..options(first.dir.path()) };
    let second = Worker::start(&second).expect("start");
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut second = Bench { worker: second, dir };
    assert_eq!(first.worker.mountpoint(), second.worker.mountpoint());
    let proc = matches!(first.worker.isolation(), Isolation::Namespaces { proc: true, .. });
    for (bench, name) in [(&mut first, "a"), (&mut second, "b")] {
        let line = format!("touch {name}; ls; set -- /proc/[0-9]*; echo $#");
        let (outcome, _) = bench.run(&line, 10_000);
        let text = outcome.stdout.to_string();
        assert!(text.starts_with(&format!("{name}\n")), "{text}");
        // The worker and the shell.
        assert!(!proc || text.ends_with("\n2\n"), "{text}");
    }
    assert!(!is_mounted_below(first.dir.path()));
    assert_eq!(fs::read_dir(first.worker.mountpoint()).expect("list").count(), 0);
    second.end();
    first.end();
}

#[test]
fn other_mounts_of_weft_are_let_go() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root may unmount in a worker's namespace");
        return;
    }
    let outside = tempfile::tempdir().expect("temporary directory");
    let memory = Arc::new(weft_vfs::memfs::MemFs::new());
    let options = weft_fuse::MountOptions::default();
    let mut mount = weft_fuse::mount(memory, outside.path(), &options).expect("mount");
    let Some(mut bench) = Bench::start(Isolate::Auto) else { return };
    if bench.worker.isolation().is_namespace() {
        let line = format!("grep -c {} /proc/self/mountinfo", outside.path().display());
        assert_eq!(bench.run(&line, 10_000).0.stdout.to_string(), "0\n");
    }
    // It would wait for the worker.
    mount.unmount().expect("unmount");
    bench.end();
}

#[test]
fn a_command_that_never_ends_is_killed_at_the_time_limit() {
    in_every_way(|bench| {
        let began = Instant::now();
        for line in ["sleep 1000", "trap '' TERM INT HUP; while :; do sleep 1000; done"] {
            let (outcome, in_place) = bench.run(line, 300);
            assert_eq!(outcome.ended, Ended::TimedOut, "{line}");
            assert!(outcome.duration >= Duration::from_millis(300) && in_place);
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    });
}

#[test]
fn processes_that_left_their_group_are_killed_and_counted() {
    in_every_way(|bench| {
        let mark = format!("98{:06}", std::process::id());
        // Each one twice removed from the shell, in a session of its own.
        let left = format!(": > $0a; (: > $0b; exec sleep {mark}) & exec sleep {mark}");
        let line = format!(
            "for i in 1 2 3; do (setsid sh -c '{left}' $i &); done
             until set -- *; [ $# = 6 ]; do sleep 0.02; done"
        );
        let (outcome, _) = bench.run(&line, 10_000);
        assert_eq!((outcome.ended, outcome.left_running), (Ended::Exit(0), 6));
        assert!(!is_running(&mark));
        // One that holds a file of the mount open, and the output.
        let (outcome, in_place) = bench.run("sleep 1000 > held & echo said", 10_000);
        assert_eq!((outcome.ended, outcome.left_running), (Ended::Exit(0), 1));
        assert!(in_place && outcome.duration < Duration::from_secs(5));
        assert_eq!(outcome.stdout.to_string(), "said\n");
        // A daemon that has ended by itself is none.
        let (outcome, _) = bench.run(": $( (setsid true &) ); sleep 0.2", 10_000);
        assert_eq!((outcome.ended, outcome.left_running), (Ended::Exit(0), 0));
    });
}

/// One that starts others faster than they are looked for.
#[test]
fn a_command_that_forks_all_the_time_is_ended() {
    in_every_way(|bench| {
        let mark = format!("97{:06}", std::process::id());
        let line = format!(
            "f() {{ sleep 0.01; f {mark} & }}; for i in 1 2 3 4; do f & done; sleep {mark}"
        );
        let (outcome, _) = bench.run(&line, 500);
        assert_eq!(outcome.ended, Ended::TimedOut);
        assert!(!outcome.remain, "{outcome:?}");
        assert!(!is_running(&mark));
    });
}

#[test]
fn output_unbounded_is_kept_up_to_a_bound() {
    in_every_way(|bench| {
        let line =
            "echo first; echo wrong >&2; yes 'a line of the middle' | head -c 30000000; echo last";
        let (outcome, _) = bench.run(line, 60_000);
        assert_eq!(outcome.ended, Ended::Exit(0));
        let text = outcome.stdout.to_string();
        assert!(text.starts_with("first\n") && text.ends_with("last\n"));
        let kept = outcome.stdout.first.len() + outcome.stdout.last.len();
        assert_eq!(kept, 64 << 10);
        assert_eq!(outcome.stdout.dropped_bytes, 30_000_000 + 6 + 5 - (64 << 10));
        assert!(text.contains("bytes left out"));
        assert_eq!(outcome.stderr.to_string(), "wrong\n");
        let (outcome, _) = bench.run("yes", 300);
        assert_eq!(outcome.ended, Ended::TimedOut);
        assert!(outcome.stdout.dropped_bytes > 0);
    });
}

/// In its own namespace root can; elsewhere it does in the host's.
#[test]
fn a_command_that_unmounts_the_folder_is_noticed() {
    for isolate in EVERY_WAY {
        for line in [
            "umount -l .",
            "mount -t tmpfs none . && echo x > x",
            "mkdir sub; mount -t tmpfs none sub",
        ] {
            let Some(mut bench) = Bench::start(isolate) else { continue };
            let (outcome, in_place) = bench.run(line, 10_000);
            let inside = line.contains("sub");
            // Who mounted by the helper may unmount, too.
            assert!(outcome.is_success() || !rustix::process::geteuid().is_root(), "{outcome:?}");
            assert_eq!(in_place, inside || !outcome.is_success(), "{isolate:?} {line}");
            bench.end();
        }
    }
}

#[test]
fn a_command_cannot_kill_the_first_process_of_its_namespace() {
    for isolate in [Isolate::Auto, Isolate::UserNamespace] {
        let Some(mut bench) = Bench::start(isolate) else { continue };
        if !bench.worker.isolation().is_namespace() {
            eprintln!("not here: namespaces: {}", bench.worker.isolation());
            continue;
        }
        let (outcome, in_place) = bench.run("kill -9 $PPID; sleep 0.1; echo $PPID", 10_000);
        assert_eq!((outcome.ended, in_place), (Ended::Exit(0), true));
        assert_eq!(outcome.stdout.to_string(), "1\n");
        // Everything but the shell itself, and the first.
        let (outcome, in_place) = bench.run("sleep 1000 & kill -9 -1; wait; echo on", 10_000);
        assert!(in_place, "{outcome:?}");
        assert_eq!(outcome.left_running, 0);
        assert!(bench.run("echo x > file", 10_000).0.is_success());
        bench.end();
    }
}

/// Without namespaces it can.
#[test]
fn a_worker_that_was_killed_is_gone_and_leaves_nothing() {
    let Some(mut bench) = Bench::start(Isolate::Subreaper) else { return };
    assert!(is_mounted_below(bench.dir.path()) || bench.run("true", 1000).1);
    let mark = format!("96{:06}", std::process::id());
    let line = format!("(setsid sleep {mark} &) ; sleep 0.1; kill -9 $PPID; sleep {mark}");
    let request = Request::Run { line, limit: Duration::from_secs(100) };
    bench.worker.channel().send(&request).expect("send");
    let gone = bench.worker.channel().receive_within::<Answer>(Duration::from_secs(20));
    assert!(matches!(gone, Err(Error::Gone)), "{gone:?}");
    assert!(!is_running(&mark), "the parent sees the end when all has ended");
    assert!(!is_mounted_below(bench.dir.path()));
    bench.end();
}

/// By somebody outside, in a namespace and without.
#[test]
fn a_worker_killed_by_hand() {
    for isolate in EVERY_WAY {
        for supervisor_too in [false, true] {
            let Some(mut bench) = Bench::start(isolate) else { continue };
            let mark = format!("95{:06}", std::process::id());
            let line = format!("(setsid sleep {mark} &); sleep {mark}");
            let request = Request::Run { line, limit: Duration::from_secs(100) };
            bench.worker.channel().send(&request).expect("send");
            wait_until("it runs", || is_running(&mark));
            let supervisor = bench.worker.supervisor();
            let children = format!("/proc/{supervisor}/task/{supervisor}/children");
            let worker = fs::read_to_string(children).expect("children").trim().to_owned();
            let mut killed = vec![worker];
            if supervisor_too {
                // Without namespaces what the worker has started would go on then.
                if !bench.worker.isolation().is_namespace() {
                    continue;
                }
                killed = vec![supervisor.to_string()];
            }
            assert!(Command::new("kill").arg("-9").args(killed).status().expect("kill").success());
            let gone = bench.worker.channel().receive_within::<Answer>(Duration::from_secs(20));
            assert!(matches!(gone, Err(Error::Gone)), "{gone:?}");
            let Bench { worker, dir } = bench;
            drop(worker);
            // A worker ends a moment after its supervisor was killed.
            wait_until("all has ended", || !is_running(&mark) && is_gone(dir.path()));
        }
    }
}

/// Runs this test again in a process of its own, which starts a worker and is killed.
#[test]
fn nothing_stays_of_a_parent_that_is_killed() {
    const DIRECTORY: &str = "WEFT_TEST_DIRECTORY";
    const ISOLATE: &str = "WEFT_TEST_ISOLATE";
    let mark = |pid: u32| format!("94{pid:06}");
    if let Some(dir) = std::env::var_os(DIRECTORY) {
        let nr: usize = std::env::var(ISOLATE).expect("a number").parse().expect("a number");
        let options = WorkerOptions { isolate: EVERY_WAY[nr], ..options(Path::new(&dir)) };
        let mut worker = Worker::start(&options).expect("start");
        let mark = mark(std::process::id());
        let line = format!("(setsid sleep {mark} &); sleep {mark}");
        let limit = Duration::from_secs(100);
        worker.channel().send(&Request::Run { line, limit }).expect("send");
        let _ = worker.channel().receive::<Answer>();
        return;
    }
    for (nr, isolate) in EVERY_WAY.into_iter().enumerate() {
        if Bench::start(isolate).is_none() {
            continue;
        }
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut parent = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "sandbox::nothing_stays_of_a_parent_that_is_killed"])
            .env(DIRECTORY, dir.path())
            .env(ISOLATE, nr.to_string())
            .stdout(Stdio::null())
            .spawn()
            .expect("start");
        let mark = mark(parent.id());
        wait_until("it runs", || is_running(&mark));
        parent.kill().expect("kill");
        parent.wait().expect("wait");
        wait_until("all has ended", || !is_running(&mark) && is_gone(dir.path()));
    }
}

#[test]
fn printed_lines_are_ordered_with_calls() {
    let Some(mut bench) = Bench::start(Isolate::Auto) else { return };
    // In the call that makes a file, the line before it is there, and nothing else.
    let line = "for i in 1 2 3; do echo line $i; echo x > $i; done; printf rest";
    let answer = bench.ask(&Request::Drain { line: line.into() });
    let Answer::Drained(drained) = answer else { panic!("{answer:?}") };
    assert_eq!(drained, ["line 1\n", "line 2\n", "line 3\n", "rest"]);
    bench.end();
}

#[test]
fn a_program_that_is_no_worker_is_said_to_have_ended() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let options = WorkerOptions { program: "/bin/true".into(), ..options(dir.path()) };
    let ended = Worker::start(&options);
    assert!(matches!(ended, Err(Error::Gone)), "{ended:?}");
    let file = dir.path().join("file");
    fs::write(&file, b"").expect("write");
    let options = self::options(&file);
    let refused = Worker::start(&options);
    assert!(matches!(refused, Err(Error::Mountpoint { .. })), "{refused:?}");
}

/// Not asserted, as it depends on the machine: read it with `--nocapture`.
#[test]
fn cost_of_a_command() {
    for isolate in EVERY_WAY {
        let Some(mut bench) = Bench::start(isolate) else { continue };
        let times = 300;
        match bench.ask(&Request::Repeat { times, files: 10 }) {
            Answer::Repeated { mean } => {
                println!("{}: {times} commands, {mean:?} each", bench.worker.isolation());
            }
            other => panic!("{other:?}"),
        }
        bench.end();
    }
}
