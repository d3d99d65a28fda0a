//! Transfers that are watched, and ended by a signal: progress within a file, and what Ctrl-C leaves.

use crate::run::{Bench, tool};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use weft_testing::wait_until;

fn spawn(bench: &Bench, args: &[&str]) -> Child {
    let mut command = bench.command(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("weft runs")
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// The lines of standard error, as they come.
fn lines(child: &mut Child) -> Receiver<String> {
    let (to, lines) = channel();
    let stderr = BufReader::new(child.stderr.take().unwrap());
    std::thread::spawn(move || {
        for line in stderr.lines() {
            if to.send(line.unwrap()).is_err() {
                return;
            }
        }
    });
    lines
}

#[test]
fn a_put_that_is_stopped_leaves_nothing_half() {
    for (format, number, code) in
        [("ext2", Signal::INT, 130), ("ext3", Signal::TERM, 143), ("hfs", Signal::INT, 130)]
    {
        let bench = Bench::new();
        bench.ok(&["mkfs", format, "v.img", "--size", "64M", "--quiet"]);
        bench.write("old", b"the old content");
        bench.ok(&["put", "old", "v.img:/doc"]);
        let names = bench.ok(&["ls", "-a", "v.img:/"]);
        for to in ["v.img:/new", "v.img:/doc"] {
            let mut child = spawn(&bench, &["put", "-", to]);
            let err = lines(&mut child);
            let mut stdin = child.stdin.take().unwrap();
            // More than a pipe holds: when this is written, weft has begun to read.
            stdin.write_all(&vec![7; 3 << 20]).unwrap();
            signal(&child, number);
            let said = err.recv().unwrap();
            assert!(said.contains("stopping"), "{said}");
            // The end of the stream that the same signal has ended is no end of the file.
            drop(stdin);
            assert_eq!(child.wait().unwrap().code(), Some(code), "{format}, {to}");
            let last: Vec<String> = err.iter().collect();
            assert!(last.concat().contains("is incomplete and not kept"), "{last:?}");
            assert_eq!(bench.ok(&["ls", "-a", "v.img:/"]), names, "{format}, {to}");
            assert_eq!(bench.ok(&["cat", "v.img:/doc"]), "the old content", "{format}, {to}");
            assert_eq!(bench.run(&["fsck", "v.img"]).code, 0, "{format}, {to}");
        }
    }
}

#[test]
fn an_import_that_is_stopped_keeps_what_is_complete() {
    let bench = Bench::with_volume("ext2");
    bench.write("tree/d/a", b"first");
    bench.write("tree/d/big", &vec![b'b'; 20 << 20]);
    bench.write("tree/z", b"last");
    let (archive, tree) = (bench.path("t.tar"), bench.path("tree"));
    let args = ["-cf", archive.to_str().unwrap(), "-C", tree.to_str().unwrap(), "d", "z"];
    let Some(made) = tool("tar", args.map(std::ffi::OsStr::new)) else { return };
    assert_eq!(made.code, 0, "{made:#?}");
    let stream = fs::read(&archive).unwrap();
    let mut child = spawn(&bench, &["import", "-", "v.img:/in"]);
    let err = lines(&mut child);
    let mut stdin = child.stdin.take().unwrap();
    // What is read ahead is less than what has been written by then.
    stdin.write_all(&stream[..12 << 20]).unwrap();
    signal(&child, Signal::INT);
    assert!(err.recv().unwrap().contains("stopping"));
    let _ = stdin.write_all(&stream[12 << 20..]);
    drop(stdin);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let last: Vec<String> = err.iter().collect();
    assert!(last.concat().contains("stopped while d/big was copied"), "{last:?}");
    assert_eq!(bench.ok(&["ls", "-aR", "v.img:/in"]), "/in:\nd\n\n/in/d:\na\n");
    // The directory has its mode, though it is not complete.
    assert_eq!(bench.json(&["stat", "v.img:/in/d"])[0]["mode"], "0755");
    bench.e2fsck_clean("v.img");
}

#[test]
fn an_export_to_a_pipe_ends_at_a_signal() {
    let bench = Bench::with_volume("ext2");
    bench.write("big", &vec![b'b'; 20 << 20]);
    bench.ok(&["put", "big", "v.img:/"]);
    let mut child = spawn(&bench, &["export", "v.img:/", "-"]);
    let err = lines(&mut child);
    let mut stdout = child.stdout.take().unwrap();
    let mut some = vec![0; 1 << 20];
    stdout.read_exact(&mut some).unwrap();
    signal(&child, Signal::INT);
    assert!(err.recv().unwrap().contains("stopping"));
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).unwrap();
    assert!(rest.len() < 18 << 20, "{} bytes after the signal", rest.len());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let last: Vec<String> = err.iter().collect();
    assert!(last.concat().contains("the tar stream is incomplete"), "{last:?}");
}

#[test]
fn progress_goes_on_within_a_file() {
    let bench = Bench::with_volume("ext2");
    let weft = env!("CARGO_BIN_EXE_weft");
    let (fifo, typescript) = (bench.path("fifo"), bench.path("typescript"));
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, kind, rustix::fs::Mode::from_raw_mode(0o600), 0)
        .unwrap();
    if tool("script", [std::ffi::OsStr::new("--version")]).is_none() {
        return;
    }
    // On a terminal of its own.
    let command = format!("{weft} put - v.img:/file < fifo");
    let mut child = std::process::Command::new("script")
        .args(["-qefc", &command, "typescript"])
        .current_dir(bench.dir())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut to = fs::File::options().write(true).open(&fifo).unwrap();
    let shown = || {
        let text = fs::read(&typescript).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        text.contains("copying 0 names, ") && text.contains(" MiB, ") && text.contains("/s")
    };
    let mut pieces = 0;
    wait_until("progress within the file is shown", || {
        if pieces < 40 {
            to.write_all(&vec![b'x'; 1 << 20]).unwrap();
            pieces += 1;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
        shown()
    });
    drop(to);
    assert!(child.wait().unwrap().success());
    let len = bench.json(&["stat", "v.img:/file"])[0]["size_bytes"].as_u64().unwrap();
    assert_eq!(len, pieces << 20);
}
