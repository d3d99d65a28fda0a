//! Programs and guests as stages of files on mounts, what mounts count, and archives as directories.

use crate::run::{Bench, can_mount};
use crate::transformed::over_both;
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use weft_testing::{ends, wait_for};

#[test]
fn programs_show_files_and_hang_nobody() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    fs::create_dir_all(bench.path("m")).unwrap();
    bench.write("data/words", "quiet words\n".repeat(50_000).as_bytes());
    bench.write("rules", b"*@loud exec program=loud\n*@hangs exec program=hangs deadline=500\n*@dies exec program=dies\n*@none exec program=loud\n");
    bench.ok(&[
        "mount",
        "hostdir:data",
        "m",
        "--background",
        "--transform",
        "rules",
        "--program",
        "loud=tr a-z A-Z",
        "--program",
        "hangs=sleep 1000",
        "--program",
        "dies=head -c 70000; echo broken >&2; exit 7",
    ]);
    let read = |name: &str| {
        let path = bench.path("m").join(name);
        ends(name, move || fs::read(path))
    };
    assert!(read("words@loud").unwrap() == "QUIET WORDS\n".repeat(50_000).into_bytes());
    assert_eq!(read("words@hangs").expect_err("hangs").raw_os_error(), Some(5));
    assert_eq!(read("words@dies").expect_err("dies").raw_os_error(), Some(5));
    // Everybody else goes on.
    assert!(read("words@loud").unwrap().starts_with(b"QUIET"));
    assert!(read("words").unwrap().starts_with(b"quiet"));
    bench.ok(&["umount", "m"]);
    bench.write("rules", b"*.x view: exec program=other\n");
    let err = bench.fails(1, &["mount", "hostdir:data", "m", "--transform", "rules"]);
    assert!(err.contains("no program named \"other\""), "{err}");
}

/// A program that lives on, in Perl: turns letters around, and hangs at an `x`.
const LIVES: &str = r#"exec perl -e 'sub take { my $b = ""; while (length $b < $_[0]) {
    sysread(STDIN, $b, $_[0] - length $b, length $b) or exit 0 } $b }
  while (1) { my ($k, $n) = unpack("aV", take(5)); my $d = take($n);
    if ($k eq "h") { $d = "weft filter 1" } else { $d = substr($d, 8); sleep 1000 if $d =~ /^x/;
      $d =~ tr/a-zA-Z/A-Za-z/ }
    syswrite(STDOUT, "d" . pack("V", length $d) . $d . "n" . pack("V", 0)) }'"#;

#[test]
fn programs_that_live_on_are_read_and_written_through() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    fs::create_dir_all(bench.path("m")).unwrap();
    fs::create_dir_all(bench.path("data")).unwrap();
    bench.write("rules", b"* exec program=turn mode=blocks inverse=yes deadline=700\n");
    let program = format!("turn={LIVES}");
    let options = ["--background", "--transform", "rules", "--program", &program];
    bench.ok(&[&["mount", "hostdir:data", "m"], &options[..]].concat());
    let at = |name: &str| bench.path("m").join(name);
    let text = "Some Words\n".repeat(2000);
    fs::write(at("file"), &text).unwrap();
    let mut file = OpenOptions::new().write(true).open(at("file")).unwrap();
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(5000)).unwrap();
    file.write_all(b"Middle").unwrap();
    drop(file);
    let mut want = text.clone();
    want.replace_range(5000..5006, "Middle");
    assert!(fs::read_to_string(at("file")).unwrap() == want);
    let stored = fs::read_to_string(bench.path("data/file")).unwrap();
    assert!(stored.starts_with("sOME wORDS\n") && stored[5000..].starts_with("mIDDLE"));
    // One that hangs is its reader's business alone, and that for a while only.
    bench.write("data/hangs", b"x");
    let hangs = at("hangs");
    let read = ends("its reader gets an error", move || fs::read(hangs));
    assert_eq!(read.expect_err("hangs").raw_os_error(), Some(5));
    assert!(fs::read_to_string(at("file")).unwrap() == want);
    bench.ok(&["umount", "m"]);
}

/// A program that says hello as it should, and does this when it is asked for anything else.
fn harmful(harm: &str) -> String {
    format!(
        "exec perl -e 'sub take {{ my $b = \"\"; while (length $b < $_[0]) {{
    sysread(STDIN, $b, $_[0] - length $b, length $b) or exit 0 }} $b }}
  sub put {{ my $s = $_[0] . pack(\"V\", length $_[1]) . $_[1]; my $o = 0;
    while ($o < length $s) {{ $o += syswrite(STDOUT, $s, length($s) - $o, $o) || exit 0 }} }}
  while (1) {{ my ($k, $n) = unpack(\"aV\", take(5)); my $d = take($n);
    if ($k eq \"h\") {{ put(\"d\", \"weft filter 1\"); put(\"n\", \"\") }} else {{ {harm} }} }}'"
    )
}

/// The process that serves a mount, and how many descriptors and children it has.
fn server_of(bench: &Bench) -> impl Fn() -> (usize, Vec<String>) {
    let mountpoint = bench.path("m").display().to_string();
    let cmdline =
        |pid: &str| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let pids = || {
        let names = fs::read_dir("/proc").unwrap().map(|e| e.unwrap().file_name());
        let names = names.filter_map(|name| name.into_string().ok());
        names.filter(|name| name.bytes().all(|b| b.is_ascii_digit()))
    };
    let server = pids().find(|pid| cmdline(pid).split('\0').any(|arg| arg == mountpoint));
    let server = server.expect("the process that serves the mount");
    move || {
        let descriptors = fs::read_dir(format!("/proc/{server}/fd")).unwrap().count();
        let is_child = |pid: &String| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            status.lines().any(|line| line == format!("PPid:\t{server}"))
        };
        (descriptors, pids().filter(is_child).collect())
    }
}

/// What a program writes that is no answer costs its reader the file, and nobody anything else.
#[test]
fn programs_that_write_garbage_are_ended() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    fs::create_dir_all(bench.path("m")).unwrap();
    bench.write("data/words", "quiet words\n".repeat(5).as_bytes());
    let lives = [
        ("noise", "yes".to_owned()),
        ("echo", "cat".to_owned()),
        ("letters", harmful("put(\"?\", \"x\")")),
        ("absurd", harmful("syswrite(STDOUT, \"d\" . pack(\"V\", 4294967295))")),
        ("promise", harmful("syswrite(STDOUT, \"d\" . pack(\"V\", 16000000) . \"x\")")),
        ("short", harmful("syswrite(STDOUT, \"d\\x01\"); exit 0")),
        ("endless", harmful("while (1) { put(\"d\", \"x\" x 100000) }")),
        ("empty", harmful("while (1) { put(\"d\", \"\") }")),
        ("silence", harmful("close STDOUT; sleep 1000")),
    ];
    let once = [
        ("endless", "yes"),
        ("flood", "yes >&2"),
        ("cut", "head -c 20; kill -9 $$"),
        ("fork", "while :; do sleep 1000 & sleep 0.01; done"),
    ];
    let mut rules = "*@loud exec program=loud\n".to_owned();
    let mut options = vec!["--program=loud=tr a-z A-Z".to_owned()];
    let mut views = Vec::new();
    for (name, program) in &lives {
        options.push(format!("--program=l{name}={program}"));
        for mode in ["blocks", "stream"] {
            rules +=
                &format!("*@{name}-{mode} view: exec program=l{name} mode={mode} deadline=700\n");
            views.push(format!("words@{name}-{mode}"));
        }
    }
    for (name, program) in once {
        options.push(format!("--program=o{name}={program}"));
        rules += &format!("*@{name}-once view: exec program=o{name} deadline=700\n");
        views.push(format!("words@{name}-once"));
    }
    bench.write("rules", rules.as_bytes());
    let mut mount = vec!["mount", "hostdir:data", "m", "--background", "--transform", "rules"];
    mount.extend(options.iter().map(String::as_str));
    bench.ok(&mount);
    let at = bench.path("m");
    let read = move |name: &str| fs::read(at.join(name));
    let loud = b"QUIET WORDS\n".repeat(5);
    assert!(read("words@loud").unwrap() == loud);
    let server = server_of(&bench);
    let before = server();
    assert_eq!(before.1, [""; 0], "nothing runs yet that lives on");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..200 {
                let read = read.clone();
                let found = ends("everybody else goes on", move || read("words@loud"));
                assert!(found.unwrap() == loud, "everybody else goes on");
            }
        });
        for view in &views {
            let path = bench.path("m").join(view);
            let found = ends(view, move || fs::read(path));
            assert_eq!(found.expect_err(view).raw_os_error(), Some(5), "{view}");
        }
    });
    // One that would never end, and of which somebody wanted a few bytes only.
    let mut begin = [0; 10];
    let endless = bench.path("m").join("words@endless-once");
    fs::File::open(endless).and_then(|mut f| f.read_exact(&mut begin)).unwrap();
    assert_eq!(&begin, b"y\ny\ny\ny\ny\n");
    // Nothing is left of them: neither processes nor descriptors.
    wait_for(&format!("as little is left as before, {before:?}"), || {
        let after = server();
        if after.1.is_empty() && after.0 <= before.0 + 2 { Ok(()) } else { Err(after) }
    });
    bench.ok(&["umount", "m"]);
}

#[cfg(feature = "wasm")]
#[test]
fn guests_are_read_and_written_through_and_hang_nobody() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    fs::create_dir_all(bench.path("m")).unwrap();
    fs::create_dir_all(bench.path("data")).unwrap();
    let module = |name: &str, text: &str| bench.write(name, &wat::parse_str(text).unwrap());
    module("add.wasm", include_str!("../../../weft-transform/guests/increment.wat"));
    module(
        "loop.wasm",
        "(module (memory (export \"memory\") 10) (global $free (mut i32) (i32.const 8)) \
         (func (export \"weft_buffer\") (param i32) (result i32) (global.get $free) \
           (global.set $free (i32.add (global.get $free) (local.get 0)))) \
         (func (export \"weft_bytes\") (param i32 i32 i64) (result i32) \
           (loop $on (br $on)) (i32.const 0)))",
    );
    bench.write("rules", b"*.w wasm module=add\n*@loop view: wasm module=loop deadline=300\n");
    let mount = ["mount", "hostdir:data", "m", "--background", "--transform", "rules"];
    let modules = ["--module", "add=add.wasm", "--module", "loop=loop.wasm"];
    bench.ok(&[&mount[..], &modules].concat());
    let at = |name: &str| bench.path("m").join(name);
    let text: Vec<u8> = (0..500_000_u32).map(|n| (n % 253) as u8).collect();
    fs::write(at("file.w"), &text).unwrap();
    assert!(fs::read(at("file.w")).unwrap() == text);
    let stored = fs::read(bench.path("data/file.w")).unwrap();
    assert!(stored.iter().zip(&text).all(|(s, t)| *s == t.wrapping_add(1)));
    let loops = at("file.w@loop");
    let read = ends("its reader gets an error", move || fs::read(loops));
    assert_eq!(read.expect_err("loops").raw_os_error(), Some(5));
    assert!(fs::read(at("file.w")).unwrap() == text, "others go on");
    bench.ok(&["umount", "m"]);
    let run = |args: &[&str]| bench.ok(&[&["transform", "run"], args].concat());
    run(&["wasm module=add", "--module", "add=add.wasm", "-i", "rules", "-o", "sealed"]);
    run(&[
        "wasm module=add",
        "--inverse",
        "--module",
        "add=add.wasm",
        "-i",
        "sealed",
        "-o",
        "back",
    ]);
    assert_eq!(fs::read(bench.path("back")).unwrap(), fs::read(bench.path("rules")).unwrap());
}

#[test]
fn a_mount_counts_what_its_networks_do() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    fs::create_dir_all(bench.path("m")).unwrap();
    fs::create_dir_all(bench.path("data")).unwrap();
    bench.write("rules", b"*.z zstd | rot13\n");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let metrics = format!("--metrics={port}");
    bench.ok(&["mount", "hostdir:data", "m", "--background", "--transform", "rules", &metrics]);
    let at = |name: &str| bench.path("m").join(name);
    fs::write(at("f.z"), "x".repeat(300_000)).unwrap();
    assert_eq!(fs::read(at("f.z")).unwrap().len(), 300_000);
    let table = fs::read_to_string(at(".weft/networks")).unwrap();
    assert!(table.contains("zstd | rot13\n") && table.contains("written 300000 in"), "{table}");
    assert!(
        table.lines().any(|l| l.trim().starts_with("zstd ") && !l.contains(" 0 bytes")),
        "{table}"
    );
    // The same for Prometheus, in a file and over the network.
    let value = |text: &str, name: &str| -> f64 {
        let line = text.lines().find(|line| line.starts_with(name)).expect(name);
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let file = fs::read_to_string(at(".weft/metrics")).unwrap();
    let mut stream = std::net::TcpStream::connect(port).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut served = String::new();
    stream.read_to_string(&mut served).unwrap();
    for text in [&file, &served] {
        assert_eq!(
            value(text, "weft_network_write_bytes_total{network=\"zstd | rot13\"}"),
            300_000.0
        );
        assert!(
            value(text, "weft_stage_bytes_total{network=\"zstd | rot13\",stage=\"zstd\"")
                >= 300_000.0
        );
        assert!(
            value(text, "weft_stage_nanoseconds_total{network=\"zstd | rot13\",stage=\"zstd\"")
                > 0.0
        );
    }
    // In no listing, and nobody's to change.
    let names: Vec<_> = fs::read_dir(at("")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["f.z"]);
    let own: Vec<_> = fs::read_dir(at(".weft")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(own, ["networks", "metrics"]);
    assert!(
        fs::write(at(".weft/networks"), "x").is_err() && fs::write(at(".weft/new"), "x").is_err()
    );
    assert!(fs::remove_file(at(".weft/metrics")).is_err() && fs::remove_dir(at(".weft")).is_err());
    let top = bench.ok(&["top", at("").to_str().unwrap(), "-n", "1", "-i", "100"]);
    assert!(top.contains("zstd | rot13"), "{top}");
    bench.ok(&["umount", "m"]);
}

#[test]
fn archives_are_directories_for_tools() {
    over_both(|m| {
        m.sh_ok(
            "mkdir -p src/deep/er; seq 1 50000 > src/numbers; echo text > src/deep/er/text;
             ln -s numbers src/link; ln src/numbers src/hard;
             tar -czf x.tgz -C src .; tar -cf secret.tar -C src .; mkdir -p secret;
             tar -cf secret/x.tar x.tgz
             diff -r src x.tgz@tree && diff -r src secret.tar@tree
             diff -r src secret/x.tar@tree/x.tgz@tree
             test \"$(readlink x.tgz@tree/link)\" = numbers
             grep -rq text x.tgz@tree/deep
             test \"$(cd x.tgz@tree && find . -type f | wc -l)\" = 3
             cp -r x.tgz@tree copy && diff -r src copy && chmod -R u+w copy
             tar -cf again.tar -C x.tgz@tree . && diff -r src again.tar@tree",
        );
        let (ok, _) = m.sh("echo x > x.tgz@tree/new");
        assert!(!ok, "an archive is not written");
        let (ok, _) = m.sh("ls | grep -q tree");
        assert!(!ok, "in no listing");
    });
}
