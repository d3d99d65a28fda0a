//! Crash tests as ordinary users run them: without the rights of root, which see no wrong owner.

use std::path::Path;
use std::process::Command;

use weft_testing::{ORDINARY_USERS, Said, User, as_user};

const WEFT: &str = env!("CARGO_BIN_EXE_weft");
const OLD: &str = "echo old >f";
const CHECK: &str = "grep -qx -e old -e new f";

/// Each of several users that can mount here, with directories for temporary files: its own, and the one of all.
fn for_each_user(test: impl Fn(&User, &str)) {
    for uid in ORDINARY_USERS {
        let Some(user) = as_user(uid).filter(User::can_mount) else { continue };
        for tmp in [user.path("tmp").to_str().expect("UTF-8"), "/tmp"] {
            test(&user, tmp);
        }
    }
}

fn weft(user: &User, tmp: &str, args: &[&str]) -> Said {
    let ran = user.command(WEFT).args(args).env("TMPDIR", tmp).output();
    ran.expect("weft runs").into()
}

fn args<'a>(run: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut all = vec!["crash", "run", "--setup", OLD, "--run", run, "--check", CHECK];
    all.extend_from_slice(more);
    all
}

#[test]
fn crash_run_tests_the_programs_of_ordinary_users() {
    for_each_user(|user, tmp| {
        let ran = weft(user, tmp, &args("echo new >t; mv t f", &[]));
        assert_eq!(ran.code, Some(3), "{ran:?}");
        assert!(
            ran.out.contains(r#"missing: fsync("t"), after call 2 and before call 4"#),
            "{ran:?}"
        );
        let ran = weft(user, tmp, &args("echo new >t; sync t; mv t f", &[]));
        assert_eq!(ran.code, Some(0), "{ran:?}");
        // The folder is the user's, before, while and after.
        let uid = user.uid();
        let own = format!("test $(id -u) = {uid} && test $(stat -c %u .) = {uid} && test -w .");
        let line = format!("{own} && echo x >$(id -u) && mkdir d && mkdir d/e");
        let check = format!("{own} && test ! -e {uid} || test $(stat -c %u {uid}) = {uid}");
        let all = ["crash", "run", "--setup", &own, "--run", &line, "--check", &check];
        let ran = weft(user, tmp, &all);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    });
}

#[test]
fn programs_of_ordinary_users_run_on_volumes() {
    for_each_user(|user, tmp| {
        for order in ["soft", "journal", "journal=ordered", "journal=full"] {
            let options = ["--order", order, "--stdout-is-promise", "done"];
            let run = "echo new >t; sync t; mv t f; sync . f; echo done";
            let ran = weft(user, tmp, &args(run, &options));
            assert_eq!(ran.code, Some(0), "{order}: {ran:?}");
        }
        let ran = weft(user, tmp, &args("echo new >t; sync t; mv t f", &["--hfs"]));
        assert_eq!(ran.code, Some(0), "{ran:?}");
        // A volume that the user has made; another's is not written to.
        let _ = std::fs::remove_file(user.path("v.img"));
        let ran = weft(user, tmp, &["mkfs", "ext3", "v.img", "--size", "16M", "--quiet"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let ran = weft(user, tmp, &args("echo new >t; sync t; mv t f", &["--volume", "v.img"]));
        assert_eq!(ran.code, Some(0), "{ran:?}");
    });
}

#[test]
fn checks_that_serve_and_searches_again_work_for_ordinary_users() {
    for_each_user(|user, tmp| {
        let server = format!("echo ready; while read -r ask; do ({CHECK}) >&2; echo $?; done");
        let log = user.path("log");
        let log = log.to_str().expect("UTF-8");
        let run = "echo new >t; mv t f";
        let all = ["crash", "run", "--setup", OLD, "--run", run, "--check", &server];
        let serves = ["--check-server", "--jobs", "2", "--model", "xfs-like", "--record", log];
        let ran = weft(user, tmp, &[&all[..], &serves].concat());
        assert_eq!(ran.code, Some(3), "{ran:?}");
        let again = ["crash", "run", "--replay", log, "--check", CHECK, "--model", "xfs-like"];
        let ran = weft(user, tmp, &again);
        assert_eq!(ran.code, Some(3), "{ran:?}");
        let ran = weft(user, tmp, &args("echo new >t; sync t; mv t f", &["--each-sync"]));
        assert_eq!(ran.code, Some(0), "{ran:?}");
    });
}

#[test]
fn an_ordinary_user_takes_power_cuts_from_a_mount() {
    for_each_user(|user, tmp| {
        // By fusermount3; what is mounted is seen by commands of the user.
        let script = "set -e; rm -rf data m; mkdir data m
            \"$0\" crash mount --background --quiet data m
            trap '\"$0\" umount m' EXIT
            echo durable >m/a; sync m/a
            echo volatile >m/b; mv m/a m/c
            test $(stat -c %u m m/b m/c | sort -u) = $(id -u)
            \"$0\" crash report m | grep -q 'rename(\"a\", \"c\")'
            \"$0\" crash lose m >/dev/null
            ls m; cat m/a; stat -c %u m/a";
        let ran = user
            .command("/bin/sh")
            .args(["-c", script])
            .arg(reachable(user))
            .env("TMPDIR", tmp)
            .output();
        let ran = Said::from(ran.expect("a shell"));
        assert_eq!(ran.text(), format!("a\ndurable\n{}\n", user.uid()), "{ran:?}");
        assert_eq!(user.shell("cat data/a; ls data").text(), "durable\na\n");
    });
}

/// The path of weft for a script of the user.
fn reachable(user: &User) -> String {
    let may = user.command("test").args(["-x", WEFT]).status().expect("test");
    let path = if may.success() { WEFT.into() } else { user.copy(Path::new(WEFT)) };
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn the_plugin_for_pytest_works_for_ordinary_users() {
    let plugin = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/pytest-weft-crash");
    for uid in ORDINARY_USERS {
        let Some(user) = as_user(uid).filter(User::can_mount) else { continue };
        let pytest = "import pytest, sys; sys.exit(pytest.main(sys.argv[1:]))";
        let has = user.command("python3").args(["-c", "import pytest"]).output().expect("python");
        if !has.status.success() {
            println!("skipped: user {uid} has no pytest: {}", Said::from(has).err.trim());
            return;
        }
        let source = user.copy(&plugin.join("src"));
        user.write(
            "test_it.py",
            br#"
import os
import pytest

def save(folder, text, sync):
    with open(folder / "settings.new", "w") as file:
        file.write(text)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    os.rename(folder / "settings.new", folder / "settings")

def prepare(folder):
    save(folder, "old", True)

def careful(folder):
    save(folder, "new", True)

def careless(folder):
    save(folder, "new", False)

def check(folder):
    assert (folder / "settings").read_text() in ("old", "new")

def test_careful(weft_crash):
    weft_crash.run(setup=prepare, run=careful, check=check)

def test_careless(weft_crash):
    with pytest.raises(AssertionError):
        weft_crash.run(setup=prepare, run=careless, check=check)
"#,
        );
        let mut command: Command = user.command("python3");
        command.args([
            "-c",
            pytest,
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "pytest_weft_crash.plugin",
        ]);
        command.args(["--weft-crash-require", "test_it.py"]);
        command.env("PYTHONPATH", &source).env("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1");
        command.env("PYTHONDONTWRITEBYTECODE", "1").env("WEFT", reachable(&user));
        let ran = Said::from(command.output().expect("python"));
        assert!(ran.text().contains("2 passed"), "{ran:?}");
    }
}

/// As git makes its objects: of mode 0444, and written by the descriptor that made them.
#[test]
fn a_file_is_written_by_who_made_it_whatever_its_mode() {
    const MAKE: &str = r#"
import os, sys
for mode in (0o444, 0o400, 0o200, 0o000):
    name = "f%o" % mode
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
    assert os.write(fd, b"x" * 100000) == 100000
    os.ftruncate(fd, 5)
    assert os.pread(fd, 9, 0) == b"xxxxx"
    os.fsync(fd)
    os.close(fd)
    assert os.stat(name).st_mode & 0o7777 == mode, name
    for flags in (os.O_WRONLY, os.O_RDONLY):
        allowed = mode & (0o200 if flags else 0o400)
        try: os.close(os.open(name, flags))
        except PermissionError: assert not allowed, name
        else: assert allowed, name
    os.chmod(name, 0o600)
    assert open(name).read() == "xxxxx"
"#;
    let Some(user) = as_user(ORDINARY_USERS[0]).filter(User::can_mount) else { return };
    user.write("make.py", MAKE.as_bytes());
    user.write("key", &[b'k'; 32]);
    user.write("rules", b"/aead/ aead key=k\n/zstd/ zstd\n/rot13/ rot13\n");
    let said = user.shell(&format!(
        "chmod 600 key; mkdir -p data m
         {WEFT} mount hostdir:data m --transform rules --key k=$PWD/key --background || exit 9
         for d in plain aead zstd rot13; do
             mkdir m/$d && (cd m/$d && python3 ../../make.py) || echo fails in $d
         done
         {WEFT} umount m"
    ));
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(!said.out.contains("fails in"), "{said:?}");
}
