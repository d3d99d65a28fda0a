//! The tutorials and examples of pages in other languages than the shell's, and what pages list.

use crate::run::Bench;
use std::path::Path;

fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn the_exit_codes_are_documented() {
    let page = document("docs/exit-codes.md");
    for code in ["| 0 |", "| 1 |", "| 2 |", "| 3 |", "| 4 |", "| 8 |"] {
        assert!(page.contains(code), "{code}");
    }
}

/// The session of the page on network disks, as a shell runs it.
#[cfg(feature = "ringer")]
#[test]
fn the_sessions_of_network_disks_run() {
    let page = document("docs/nbd.md");
    let sessions = blocks(&page, "sh");
    assert_eq!(sessions.len(), 2, "without and with TLS");
    let weft = Path::new(env!("CARGO_BIN_EXE_weft")).parent().expect("a directory");
    for session in sessions {
        let bench = Bench::new();
        let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
        let port = free.expect("a port").port().to_string();
        let script = format!("set -e\n{}", session.replace("10810", &port));
        let path = format!("{}:{}", weft.display(), std::env::var("PATH").unwrap_or_default());
        let mut shell = std::process::Command::new("sh");
        shell.arg("-c").arg(&script).env("PATH", path).current_dir(bench.dir());
        let ran = crate::run::ran(&shell.output().expect("sh runs"));
        assert_eq!(ran.code, 0, "{script}\n{ran:#?}");
        assert!(ran.out.contains("lost+found"), "what it lists: {ran:#?}");
    }
}

/// The blocks of a document in a language, in order.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let parts = text.split("\n```").collect::<Vec<_>>();
    let of = |part: &&str| {
        part.strip_prefix(language).and_then(|b| b.strip_prefix('\n')).map(str::to_owned)
    };
    parts.iter().filter_map(of).collect()
}

#[test]
fn the_tutorial_of_crash_tests_finds_and_mends_its_bug() {
    if std::process::Command::new("python3").arg("--version").output().is_err() {
        println!("skipped: python3 is not installed");
        return;
    }
    let bench = Bench::new();
    let text = document("docs/crash.md");
    let python = blocks(&text, "python");
    let lines = blocks(&text, "sh");
    let [program, sync_file, sync_directory, ..] = python.as_slice() else { panic!("{python:#?}") };
    let [old_or_new, promised, live, logged] = lines.as_slice() else { panic!("{lines:#?}") };
    let weft = |line: &str| {
        let ran = bench.shell(line.trim()).output().expect("a shell");
        let out = String::from_utf8_lossy(&ran.stdout).into_owned();
        (ran.status.code(), out, String::from_utf8_lossy(&ran.stderr).into_owned())
    };
    // What the page says that it prints.
    bench.write("settings.py", program.as_bytes());
    let (code, out, err) = weft(old_or_new);
    assert_eq!(code, Some(3), "{out}{err}");
    for said in blocks(&text, "text")[0].lines().filter(|line| line.trim().starts_with("missing:"))
    {
        assert!(out.contains(said.trim()), "{said}: {out}");
    }
    let saved = program.replace(
        "        json.dump(settings, file)\n",
        &format!("        json.dump(settings, file)\n{sync_file}\n"),
    );
    assert_ne!(&saved, program);
    bench.write("settings.py", saved.as_bytes());
    let (code, out, err) = weft(old_or_new);
    assert_eq!(code, Some(0), "{out}{err}");
    let (code, out, err) = weft(promised);
    assert_eq!(code, Some(3), "{out}{err}");
    assert!(out.contains(r#"missing: fsync(".")"#), "{out}");
    let renamed = "    os.rename(\"settings.json.new\", \"settings.json\")\n";
    let durable = saved.replace(renamed, &format!("{renamed}{sync_directory}\n"));
    assert_ne!(durable, saved);
    bench.write("settings.py", durable.as_bytes());
    let (code, out, err) = weft(promised);
    assert_eq!(code, Some(0), "{out}{err}");
    // The power cut of a folder in use.
    let (code, out, err) = weft(live);
    assert_eq!(code, Some(0), "{out}{err}");
    let said = blocks(&text, "text")[2..4].concat();
    for said in said.lines().map(|line| line.split("  by ").next().unwrap_or_default()) {
        assert!(out.contains(said), "{said}: {out}");
    }
    assert!(out.ends_with("\na\n"), "what ls shows: {out}");
    // The log of a block device.
    let (code, out, err) = weft(logged);
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(out.contains("volume: no state fails; "), "{out}");
}

/// The `PATH` with the directory of the command in front.
fn path_to_weft() -> String {
    let directory = Path::new(env!("CARGO_BIN_EXE_weft")).parent().unwrap().display();
    format!("{directory}:{}", std::env::var("PATH").unwrap_or_default())
}

#[test]
fn the_example_for_pytest_passes_and_fails_without_its_fsync() {
    let Some(python) = crate::pytest::python() else {
        println!("skipped: pytest is not installed");
        return;
    };
    let bench = Bench::new();
    let example = blocks(&document("docs/crash.md"), "python").pop().expect("an example");
    let careless = example.replace("        os.fsync(file.fileno())\n", "");
    assert_ne!(careless, example);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/pytest-weft-crash/src");
    for (text, passes) in [(example, true), (careless, false)] {
        bench.write("test_settings.py", text.as_bytes());
        let ran = std::process::Command::new(python)
            .args(["-m", "pytest", "-p", "no:cacheprovider", "-p", "pytest_weft_crash.plugin"])
            .arg("--weft-crash-require")
            .current_dir(bench.dir())
            .env("PATH", path_to_weft())
            .env("PYTHONPATH", &source)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
            .output()
            .expect("python runs");
        let out = String::from_utf8_lossy(&ran.stdout);
        assert_eq!(ran.status.success(), passes, "{out}");
        assert_eq!(out.contains(r#"missing: fsync("settings.new")"#), !passes, "{out}");
    }
}

#[test]
fn the_example_for_go_fails_and_passes_with_an_fsync() {
    if std::process::Command::new("go").arg("version").output().is_err() {
        println!("not here: Go, for the example of a test with go test");
        return;
    }
    let bench = Bench::new();
    let [example] = &blocks(&document("docs/crash.md"), "go")[..] else { panic!("one example") };
    let close = "\tif err := file.Close(); err != nil {\n";
    let sync = close.replace("Close", "Sync") + "\t\treturn err\n\t}\n" + close;
    bench.write("go.mod", b"module example.com/settings\n\ngo 1.19\n");
    for (text, passes) in [(example, false), (&example.replace(close, &sync), true)] {
        bench.write("settings_test.go", text.as_bytes());
        let ran = std::process::Command::new("go")
            .args(["test", "-count=1", "-vet=off", "."])
            .current_dir(bench.dir())
            .env("PATH", path_to_weft())
            .env("GOFLAGS", "-mod=mod")
            .env("GOPROXY", "off")
            .output()
            .expect("go runs");
        let out = String::from_utf8_lossy(&ran.stdout);
        assert_eq!(ran.status.success(), passes, "{out}{}", String::from_utf8_lossy(&ran.stderr));
        assert_eq!(out.contains(r#"missing: fsync("settings.new")"#), !passes, "{out}");
    }
}
