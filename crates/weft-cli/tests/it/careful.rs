//! What scripts and careless hands meet: standard error that is closed or full, hostile names, a
//! volume copied into itself, standard input and output by the name `-`, errors for machines.

use crate::run::{Bench, Ran, can_mount, ran, tool};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;

#[test]
fn an_error_that_nobody_can_read_is_an_exit_code_all_the_same() {
    let bench = Bench::with_volume("ext2");
    let full = || Stdio::from(OpenOptions::new().write(true).open("/dev/full").unwrap());
    // A pipe whose reader has gone.
    let closed = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        Stdio::from(writer)
    };
    for args in [&["ls", "missing.img:/"][..], &["rm", "v.img:/none"], &["ls"]] {
        let want = bench.run(args).code;
        for stderr in [full(), closed()] {
            let status = bench.command(args).stderr(stderr).status().unwrap();
            assert_eq!(status.code(), Some(want), "{args:?}: {status}");
        }
    }
    // Notes and logs, too.
    let mut command = bench.command(&["ls", "v.img:/"]);
    assert!(command.env("WEFT_LOG", "trace").stderr(full()).status().unwrap().success());
}

#[test]
fn logs_have_colours_on_terminals_only() {
    // Opened for reading only, with a warning.
    let bench = Bench::new();
    bench.write("v.img", &vec![0; 8 << 20]);
    let image = bench.path("v.img");
    let options = ["-q", "-t", "ext2", "-O", "dir_nlink"].map(OsStr::new);
    let Some(made) = tool("mke2fs", options.into_iter().chain([image.as_os_str()])) else { return };
    assert_eq!(made.code, 0, "{made:#?}");
    let ran = bench.run(&["mkdir", "v.img:/d"]);
    assert!(ran.err.contains("WARN"), "{ran:#?}");
    assert!(!ran.err.contains('\x1b'), "{ran:#?}");
}

#[test]
fn names_on_a_volume_cannot_steer_the_terminal_through_errors() {
    let bench = Bench::with_volume("ext2");
    let hostile = OsStr::from_bytes(b"a\x1b]0;owned\x07\x1b[2Jb");
    fs::create_dir(bench.path("d")).unwrap();
    fs::create_dir(bench.dir().join("d").join(hostile)).unwrap();
    fs::write(bench.dir().join("d").join(hostile).join("\x1b[31mfile"), b"x").unwrap();
    bench.ok(&["put", "d", "v.img:/"]);
    let hostile = hostile.to_str().unwrap();
    let inner = format!("v.img:/d/{hostile}");
    let check = |args: &[&str]| {
        let Ran { code, out, err } = bench.run(args);
        assert!(code != 0 && !err.is_empty(), "{args:?} fails: {err}");
        for text in [out, err] {
            assert!(!text.contains('\x1b') && !text.contains('\x07'), "{args:?}: {text:?}");
        }
    };
    check(&["rm", &inner]);
    check(&["cat", &inner]);
    check(&["ls", &format!("{inner}/none")]);
    check(&["mv", &inner, &format!("{inner}/x")]);
    check(&["get", &inner, "no/such/directory"]);
    check(&["ls", &format!("{hostile}.img:/")]);
    // Nor through what is no error.
    let image = "\x1b[31mred.img";
    fs::copy(bench.path("v.img"), bench.path(image)).unwrap();
    for args in [&["df", image][..], &["info", image], &["fsck", image]] {
        let out = bench.ok(args);
        assert!(!out.contains('\x1b'), "{args:?}: {out:?}");
    }
    // A tar stream is as little to be trusted.
    let (tar, dir) = (bench.path("t.tar"), bench.path("d"));
    let args = ["-cf", tar.to_str().unwrap(), "-C", dir.to_str().unwrap(), "."];
    if tool("tar", args.map(OsStr::new)).is_some() {
        let cut = fs::read(&tar).unwrap();
        let end = cut.windows(5).rposition(|w| w == b"ustar").unwrap() + 200;
        bench.write("cut.tar", &cut[..end]);
        check(&["import", "cut.tar", "v.img:/"]);
    }
}

#[test]
fn a_volume_is_not_copied_into_itself() {
    let bench = Bench::with_volume("ext2");
    for args in [
        &["put", "v.img", "v.img:/"][..],
        &["put", "./v.img", "v.img:/copy"],
        &["cp", "v.img", "v.img:/"],
    ] {
        let err = bench.fails(2, args);
        assert!(err.contains("is the volume itself"), "{err}");
    }
    // Out of it, it is not written over.
    let before = fs::read(bench.path("v.img")).unwrap();
    bench.write("file", b"content");
    for args in
        [&["export", "v.img:/", "v.img", "--tar"][..], &["get", "v.img:/lost+found", "v.img"]]
    {
        let err = bench.fails(2, args);
        assert!(err.contains("is the volume that is read"), "{err}");
    }
    assert!(fs::read(bench.path("v.img")).unwrap() == before);
    // The rest of a directory that it lies in is copied.
    let ran = bench.run(&["import", ".", "v.img:/all"]);
    assert_eq!(ran.code, 0, "{ran:#?}");
    assert!(ran.err.contains("v.img is left out"), "{ran:#?}");
    assert_eq!(bench.ok(&["ls", "v.img:/all"]), "file\n");
    bench.e2fsck_clean("v.img");
}

#[test]
fn a_dash_is_standard_input_and_output() {
    let bench = Bench::with_volume("ext2");
    let data: Vec<u8> = (0..3_000_000_u32).map(|i| (i / 7) as u8).collect();
    let with_input = |args: &[&str]| {
        let mut child = bench
            .command(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // One that refuses reads nothing.
        let _ = stdin.write_all(&data);
        drop(stdin);
        ran(&child.wait_with_output().unwrap())
    };
    assert_eq!(with_input(&["put", "-", "v.img:/file"]).code, 0);
    assert_eq!(with_input(&["cp", "-", "v.img:/second"]).code, 0);
    for name in ["file", "second"] {
        let output = bench.command(&["get", &format!("v.img:/{name}"), "-"]).output().unwrap();
        assert!(output.status.success() && output.stdout == data, "{name}");
    }
    assert!(!bench.path("-").exists());
    let refused = with_input(&["put", "-", "v.img:/"]);
    assert_eq!(refused.code, 2, "{refused:#?}");
    assert!(refused.err.contains("name the file"), "{refused:#?}");
    // A file of that name has a directory before it.
    bench.write("-", b"dash");
    bench.ok(&["put", "./-", "v.img:/"]);
    assert_eq!(bench.ok(&["get", "v.img:/-", "-"]), "dash");
    bench.e2fsck_clean("v.img");
}

#[test]
fn a_mkfs_that_fails_leaves_nothing() {
    let bench = Bench::new();
    for args in [
        &["mkfs", "ext2", "v.img", "--size", "8000000T"][..],
        &["mkfs", "hfs", "v.img", "--size", "8000000T"],
        &["mkfs", "ext2", "v.img", "--size", "1M", "--block-size", "777"],
        &["mkfs", "ext3", "v.img", "--size", "16K", "--journal", "j.img"],
        &["mkfs", "ext2", "v.img", "--size", "8M", "-d", "no-such-directory"],
        &["mkfs", "hfs", "v.img", "--size", "8M", "-d", "no-such-directory"],
    ] {
        let ran = bench.run(args);
        assert_ne!(ran.code, 0, "{args:?}: {ran:#?}");
        let left: Vec<_> = fs::read_dir(bench.dir()).unwrap().map(|e| e.unwrap().path()).collect();
        assert!(left.is_empty(), "{args:?} leaves {left:?}");
    }
}

#[test]
fn errors_are_json_where_json_was_asked_for() {
    let bench = Bench::with_volume("ext2");
    for (code, args) in [
        (1, &["ls", "missing.img:/", "--json"][..]),
        (2, &["ls", "--json"]),
        (2, &["--json", "mkfs", "ext9", "x.img"]),
        (2, &["mv", "a.img:/x", "b.img:/x", "--json"]),
        (8, &["fsck", "missing.img", "--json"]),
    ] {
        let ran = bench.run(args);
        assert_eq!((ran.code, ran.out.as_str()), (code, ""), "{args:?}: {ran:#?}");
        let said: serde_json::Value =
            serde_json::from_str(&ran.err).unwrap_or_else(|e| panic!("{e}: {ran:#?}"));
        assert_eq!(said["code"], code, "{said}");
        assert!(said["error"].as_str().is_some_and(|text| !text.is_empty()), "{said}");
    }
    // What is said twice has one name.
    let made = bench.json(&["mkfs", "ext2", "w.img", "--size", "8M"]);
    let info = bench.json(&["info", "w.img"]);
    let df = bench.json(&["df", "w.img"]);
    assert_eq!(made["blocks_free"], info["blocks_free"]);
    assert_eq!(made["blocks_reserved"], info["blocks_reserved"]);
    assert_eq!(df[0]["blocks_free"], info["blocks_free"]);
}

#[test]
fn who_has_a_volume_is_told() {
    let bench = Bench::with_volume("ext2");
    let out = bench.json(&["serve", "nbd", "v.img", "--socket", "s", "--background"]);
    let process = out["process"].as_u64().unwrap();
    let err = bench.fails(1, &["mkdir", "v.img:/x"]);
    let pid = rustix::process::Pid::from_raw(i32::try_from(process).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(err.contains(&format!("process {process}, weft")), "{err}");
    if !can_mount() {
        return;
    }
    for _ in 0..500 {
        if bench.run(&["mkdir", "v.img:/y"]).code == 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    fs::create_dir(bench.path("m")).unwrap();
    bench.ok(&["mount", "v.img", "m", "--background"]);
    let err = bench.fails(1, &["mkdir", "v.img:/x"]);
    bench.ok(&["umount", "m"]);
    let at = bench.path("m").canonicalize().unwrap();
    assert!(err.contains(&format!("mounted on {}", at.display())), "{err}");
    assert!(err.contains("it is process "), "{err}");
}

#[test]
fn completions_know_the_values() {
    let bench = Bench::new();
    let script = bench.ok(&["completions", "bash"]);
    for value in ["journal=ordered", "appledouble", "write-back", "macbinary"] {
        assert!(script.contains(value), "no {value} in the completions for bash");
    }
    let order = |script: &str| script.matches("journal=full").count();
    assert!(order(&bench.ok(&["completions", "zsh"])) > 2);
}

/// On a terminal, that of script(1), `q` ends `top`.
#[test]
fn top_ends_at_q() {
    let bench = Bench::with_volume("ext2");
    bench.ok(&["cache", "create", "c.img", "--size", "8M"]);
    let served =
        bench.json(&["serve", "nbd", "v.img", "--socket", "s", "--cache", "c.img", "--background"]);
    let process = i32::try_from(served["process"].as_i64().unwrap()).unwrap();
    let mut command = std::process::Command::new("timeout");
    let line = format!("{} top c.img", env!("CARGO_BIN_EXE_weft"));
    command.args(["60", "script", "-qec", &line, "/dev/null"]).current_dir(bench.dir());
    command.env("WEFT_RUNTIME_DIR", bench.path("run")).stdout(Stdio::piped()).stdin(Stdio::piped());
    let there = tool("script", [OsStr::new("--version")]).is_some();
    let output = there.then(|| {
        let mut child = command.spawn().unwrap();
        // Kept open: the end of standard input would end it, too.
        let mut keys = child.stdin.take().unwrap();
        keys.write_all(b"xq").unwrap();
        let output = child.wait_with_output().unwrap();
        drop(keys);
        output
    });
    let pid = rustix::process::Pid::from_raw(process).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    if let Some(output) = output {
        // 124: it had to be ended by timeout(1).
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
}

#[test]
fn a_server_for_other_machines_needs_tls_or_a_word() {
    let bench = Bench::with_volume("ext2");
    for more in [&[][..], &["--background"], &["--read-only"]] {
        let args = [&["serve", "nbd", "v.img", "--listen", "0.0.0.0:0"][..], more].concat();
        // One that does serve would wait for ever.
        let mut command = bench.command(&args);
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        for _ in 0..500 {
            if child.try_wait().unwrap().is_some() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let _ = child.kill();
        let ran = ran(&child.wait_with_output().unwrap());
        assert_eq!(ran.code, 2, "{more:?}: {ran:#?}");
        assert!(ran.err.contains("--insecure") && ran.err.contains("--tls require"), "{ran:#?}");
    }
    let args = ["serve", "nbd", "v.img", "--listen", "0.0.0.0:0", "--insecure", "--background"];
    let served = bench.json(&args);
    let pid = i32::try_from(served["process"].as_i64().unwrap()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
}

#[test]
fn tls_errors_say_that_it_was_tls() {
    let bench = Bench::with_volume("ext2");
    let (ours, others) = (bench.path("ours"), bench.path("others"));
    for dir in [&ours, &others] {
        weft_net::testing::make_certificates(dir, &["localhost"], &["client"]);
    }
    // What a client has that was given no certificate of its own.
    let trusting = bench.path("trusting");
    fs::create_dir(&trusting).unwrap();
    fs::copy(ours.join("ca-cert.pem"), trusting.join("ca-cert.pem")).unwrap();
    let uri = |scheme: &str, pki: Option<&std::path::Path>| {
        let pki = pki.map_or(String::new(), |p| format!("&tls-certificates={}", p.display()));
        let host = if pki.is_empty() { "" } else { "&tls-hostname=localhost" };
        format!("{scheme}:///?socket={}{pki}{host}", bench.path("s").display())
    };
    let serve = |more: &[&str]| {
        let args = ["serve", "nbd", "v.img", "--socket", "s", "--background"];
        let said = bench.json(&[&args[..], more].concat());
        let pid = i32::try_from(said["process"].as_i64().unwrap()).unwrap();
        move || {
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        }
    };
    let refused = |uri: &str| {
        let err = bench.fails(1, &["info", uri]);
        assert!(err.contains("TLS"), "{uri}: {err}");
        err
    };
    let end = serve(&[]);
    refused(&uri("nbds+unix", Some(&ours)));
    end();
    gone(&bench);
    let pki = ours.to_str().unwrap();
    let end = serve(&["--tls", "require", "--tls-verify-peer", "--tls-certificates", pki]);
    assert!(refused(&uri("nbd+unix", None)).contains("nbds"));
    refused(&uri("nbds+unix", Some(&others)));
    refused(&uri("nbds+unix", Some(&trusting)));
    refused(&uri("nbds+unix", None));
    bench.ok(&["info", &uri("nbds+unix", Some(&ours))]);
    end();
}

/// Waits until the server on the socket has ended.
fn gone(bench: &Bench) {
    for _ in 0..500 {
        if !bench.path("s").exists() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("the server does not end");
}

#[test]
fn a_trace_shows_the_workload_and_every_block_of_it() {
    let bench = Bench::with_volume("ext2");
    let fresh = bench.json(&["trace", "v.img", "--workload", "creat a"]);
    // So many that times of access would not wait in memory.
    for i in 0..4500 {
        bench.write(&format!("tree/{}/{i}", i % 40), b"x");
    }
    bench.ok(&["import", "tree", "v.img:/"]);
    let used = bench.json(&["trace", "v.img", "--workload", "creat a"]);
    let blocks = |v: &serde_json::Value| v.as_array().unwrap().len();
    assert!(blocks(&used) <= blocks(&fresh) + 1, "{} blocks: {used:#?}", blocks(&used));

    // File data in one patch that spans blocks.
    let workload = "creat a; write a 0 40000";
    let all = bench.json(&["trace", "v.img", "--workload", workload]);
    let dot = bench.ok(&["trace", "v.img", "--workload", workload, "--dot"]);
    let boxes: Vec<&str> = dot.split("subgraph").skip(1).collect();
    assert_eq!(boxes.len(), blocks(&all));
    let mut seen = std::collections::HashSet::new();
    for text in boxes {
        let inside = &text[..text.find('}').unwrap()];
        let nodes: Vec<&str> =
            inside.lines().filter_map(|l| l.trim().split_once(" [label=\"")).map(|n| n.0).collect();
        assert!(!nodes.is_empty(), "a block without a patch: {inside}");
        for node in nodes {
            // Graphviz draws a node in the first box that names it.
            assert!(seen.insert(node.to_owned()), "{node} is in two blocks");
        }
    }
}

#[test]
fn usage_errors_are_2() {
    let bench = Bench::with_volume("ext2");
    bench.write("file", b"x");
    let _ = File::create(bench.path("second"));
    for args in [
        &["mkfs", "ext2", "w.img"][..],
        &["mkfs", "ext2", "w.img", "--size", "8M", "--block-size", "777"],
        &["info", "v.img?partition=x"],
        &["info", "v.img?frobnicate=1"],
        &["ls", "nbd://?x:/"],
        &["get", "v.img:/lost+found", "v.img:/lost+found", "file"],
        &["cp", "file", "second", "v.img"],
        &["mount", "v.img", "m", "-o", "threads=none"],
        &["cache", "create", "c.img", "--size", "none"],
    ] {
        let ran = bench.run(args);
        assert_eq!(ran.code, 2, "{args:?}: {ran:#?}");
    }
}
