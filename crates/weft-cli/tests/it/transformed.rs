//! Real programs on mounts whose files carry networks, over a directory of the host and over ext2.

use crate::run::{Bench, can_mount};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use weft_testing::{wait_for, wait_until};

/// The rules of the issue that this was built for.
const RULES: &str = "*.log zstd\nsecret/ zstd | aead key=work\nvault/ aead key=work\n*.gz gzip\n\
                     *.csv@loud view: upper\n";

pub struct Mounted {
    pub bench: Bench,
    pub source: &'static str,
    mounted: bool,
}

impl Mounted {
    fn new(source: &'static str, size: &str) -> Self {
        let bench = Bench::new();
        fs::create_dir_all(bench.path("m")).unwrap();
        fs::create_dir_all(bench.path("data")).unwrap();
        if source == "v.img" {
            bench.ok(&["mkfs", "ext2", "v.img", "--size", size, "--quiet"]);
        }
        bench.write("rules", RULES.as_bytes());
        bench.write("key", "5a".repeat(32).as_bytes());
        let mut mount = Self { bench, source, mounted: false };
        mount.mount();
        mount
    }

    fn mount(&mut self) {
        self.bench.ok(&[
            "mount",
            self.source,
            "m",
            "--background",
            "--transform",
            "rules",
            "--key",
            "work=key",
        ]);
        self.mounted = true;
    }

    fn unmount(&mut self) {
        self.bench.ok(&["umount", "m"]);
        self.mounted = false;
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.bench.path("m").join(name)
    }

    /// What is stored of a file, which is closed.
    fn stored(&mut self, name: &str) -> Vec<u8> {
        if self.source != "v.img" {
            return fs::read(self.bench.path("data").join(name)).unwrap();
        }
        self.unmount();
        let taken = self.bench.path("taken");
        self.bench.ok(&["get", &format!("v.img:/{name}"), taken.to_str().unwrap(), "--no-xattrs"]);
        let content = fs::read(&taken).unwrap();
        fs::remove_file(taken).unwrap();
        self.mount();
        content
    }

    /// Runs a shell script in the mount.
    pub fn sh(&self, script: &str) -> (bool, String) {
        let out = Command::new("sh")
            .args(["-ec", script])
            .current_dir(self.bench.path("m"))
            .stdin(Stdio::null())
            .env("LC_ALL", "C")
            .env("HOME", self.bench.dir())
            .env("OUT", self.bench.dir())
            .output()
            .expect("sh runs");
        let text = String::from_utf8_lossy(&out.stdout).into_owned()
            + &String::from_utf8_lossy(&out.stderr);
        (out.status.success(), text)
    }

    pub fn sh_ok(&self, script: &str) -> String {
        let (ok, text) = self.sh(script);
        assert!(ok, "{}: {script}: {text}", self.source);
        text
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.mounted {
            let _ = self.bench.run(&["umount", "--lazy", "m"]);
        }
    }
}

/// Over both kinds of trees; `None` where nothing can be mounted.
pub fn over_both(test: impl Fn(&mut Mounted)) {
    if !can_mount() {
        return;
    }
    for source in ["v.img", "hostdir:data"] {
        let mut mount = Mounted::new(source, "128M");
        test(&mut mount);
        mount.unmount();
        if source == "v.img" {
            mount.bench.e2fsck_clean("v.img");
        }
    }
}

pub fn has(tool: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {tool}")]).output();
    let found = found.expect("sh runs").status.success();
    if !found {
        println!("skipped: {tool} is not installed");
    }
    found
}

fn text(lines: usize) -> String {
    (0..lines).map(|n| format!("line {n} of a log, with a word or two that repeat\n")).collect()
}

#[test]
fn what_is_stored_opens_with_the_usual_tools() {
    over_both(|m| {
        let text = text(20_000);
        fs::create_dir(m.at("secret")).unwrap();
        for name in ["x.log", "x.gz", "secret/notes", "plain"] {
            fs::write(m.at(name), &text).unwrap();
            assert!(fs::read_to_string(m.at(name)).unwrap() == text, "{name}");
        }
        for (name, tool) in [("x.log", "zstd"), ("x.gz", "gzip")] {
            let stored = m.stored(name);
            assert!(stored.len() < text.len() / 3, "{name}");
            if has(tool) {
                let path = m.bench.path("stored");
                fs::write(&path, &stored).unwrap();
                let mut run = Command::new(tool);
                run.arg("-dc").stdin(File::open(path).unwrap());
                assert!(run_out(&mut run) == text.as_bytes(), "{name}");
            }
        }
        let sealed = m.stored("secret/notes");
        assert!(!sealed.windows(6).any(|w| w == b"repeat") && sealed.len() < text.len() / 3);
        assert!(m.stored("plain") == text.as_bytes());
        for name in ["x.log", "x.gz", "secret/notes", "plain"] {
            assert_eq!(fs::metadata(m.at(name)).unwrap().len(), text.len() as u64);
            assert!(fs::read_to_string(m.at(name)).unwrap() == text, "{name}, mounted again");
        }
    });
}

fn run_out(command: &mut Command) -> Vec<u8> {
    let out = command.output().expect("it runs");
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
    out.stdout
}

#[test]
fn closing_keeps_what_was_written() {
    over_both(|m| {
        fs::create_dir(m.at("vault")).unwrap();
        // Not even a second descriptor that stays open holds it up.
        for name in ["a.log", "vault/a"] {
            let mut file = File::create(m.at(name)).unwrap();
            let held = file.try_clone().unwrap();
            file.write_all(b"written and closed").unwrap();
            drop(file);
            if m.source != "v.img" {
                assert!(!m.stored(name).is_empty(), "{name}");
            }
            drop(held);
        }
        m.unmount();
        m.mount();
        assert_eq!(fs::read(m.at("a.log")).unwrap(), b"written and closed");
        assert_eq!(fs::read(m.at("vault/a")).unwrap(), b"written and closed");
    });
}

#[test]
fn close_tells_what_went_wrong() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new("v.img", "4M");
    // More than fits, but what is held in memory until the file is closed.
    let (ok, said) = m.sh("head -c 9000000 /dev/urandom > $OUT/noise; cp $OUT/noise big.log");
    assert!(!ok && said.contains("No space left"), "{said}");
    // The volume goes on.
    m.sh_ok("rm -f big.log; echo fine > small.log; sync small.log; grep fine small.log");
}

#[test]
fn editors_save_by_renaming() {
    over_both(|m| {
        fs::create_dir(m.at("secret")).unwrap();
        fs::write(m.at("secret/notes.md"), text(100)).unwrap();
        for round in 0..5 {
            // As vim and most others do: beside it, synced, renamed over it.
            let fresh = m.at("secret/.notes.md.swp");
            let mut file = File::create(&fresh).unwrap();
            write!(file, "version {round}\n{}", text(200)).unwrap();
            file.sync_all().unwrap();
            drop(file);
            fs::rename(&fresh, m.at("secret/notes.md")).unwrap();
            let read = fs::read_to_string(m.at("secret/notes.md")).unwrap();
            assert!(read.starts_with(&format!("version {round}\n")));
            // From outside the directory: what the rule says holds all the same.
            fs::write(m.at("draft"), format!("draft {round}")).unwrap();
            fs::rename(m.at("draft"), m.at("secret/moved")).unwrap();
            assert_eq!(fs::read_to_string(m.at("secret/moved")).unwrap(), format!("draft {round}"));
        }
        for name in ["secret/notes.md", "secret/moved"] {
            let stored = m.stored(name);
            assert!(!stored.windows(5).any(|w| w == b"draft" || w == b"versi"), "{name}");
        }
        assert_eq!(fs::read_dir(m.at("secret")).unwrap().count(), 2);
    });
}

/// A tree with files of all rules, on the mount.
const MAKE_TREE: &str = "mkdir -p tree/secret tree/vault tree/logs
    i=0; while [ $i -lt 40 ]; do
      seq 1 $((i * 50)) > tree/logs/$i.log; seq $i 500 > tree/secret/$i; echo $i > tree/vault/$i
      i=$((i + 1)); done
    ln -s logs/1.log tree/link; head -c 300000 /dev/urandom > tree/vault/noise";

#[test]
fn tar_and_rsync_and_grep() {
    over_both(|m| {
        m.sh_ok(MAKE_TREE);
        m.sh_ok("tar -cf $OUT/tree.tar tree && mkdir back && tar -xf $OUT/tree.tar -C back");
        m.sh_ok("diff -r tree back/tree");
        assert_eq!(
            m.sh_ok("grep -rlx 777 tree | sort | head -2"),
            "tree/logs/16.log\ntree/logs/17.log\n"
        );
        if has("rsync") {
            m.sh_ok("rsync -a tree/ $OUT/copy/ && rsync -a $OUT/copy/ again/");
            // The second time there is nothing to do, either way.
            assert_eq!(m.sh_ok("rsync -ai tree/ $OUT/copy/"), "");
            assert_eq!(m.sh_ok("rsync -ai $OUT/copy/ again/"), "");
            assert_eq!(m.sh_ok("rsync -aci $OUT/copy/ again/"), "", "by content");
        }
        m.unmount();
        m.mount();
        m.sh_ok("diff -r tree back/tree");
    });
}

#[test]
fn git_clones_and_checks() {
    if !has("git") {
        return;
    }
    over_both(|m| {
        m.sh_ok(
            "mkdir $OUT/origin && cd $OUT/origin && git init -q . &&
             git config user.email t@example.org && git config user.name t &&
             for i in 1 2 3 4 5; do seq 1 $((i * 999)) > f$i; git add .; git commit -qm $i; done",
        );
        m.sh_ok(
            "mkdir -p secret && git clone -q $OUT/origin secret/clone && cd secret/clone &&
                 git fsck --strict && git config user.email t@example.org &&
                 git config user.name t && seq 5 > more && git add more && git commit -qm more &&
                 git gc -q && git fsck --strict && test -z \"$(git status --porcelain)\"",
        );
        m.unmount();
        m.mount();
        m.sh_ok("cd secret/clone && git fsck --strict && git log --oneline | wc -l | grep -qx 6");
        let head = m.stored("secret/clone/more");
        assert!(!head.starts_with(b"1\n2\n"));
    });
}

#[test]
fn databases_work_in_place() {
    if !has("sqlite3") {
        return;
    }
    over_both(|m| {
        fs::create_dir(m.at("vault")).unwrap();
        for mode in ["delete", "wal"] {
            let script = format!(
                "sqlite3 vault/{mode}.db \"pragma journal_mode={mode}; create table t(k integer primary key, v text);
                 with recursive n(i) as (select 1 union all select i+1 from n where i<3000)
                 insert into t select i, hex(randomblob(50)) from n;
                 update t set v = hex(randomblob(70)) where k % 7 = 0;
                 delete from t where k % 11 = 0; create index v on t(v); vacuum;
                 pragma integrity_check; select count(*) from t;\""
            );
            let said = m.sh_ok(&script);
            assert!(said.ends_with("ok\n2728\n"), "{said}");
        }
        m.unmount();
        m.mount();
        for mode in ["delete", "wal"] {
            let said = m.sh_ok(&format!(
                "sqlite3 vault/{mode}.db 'pragma integrity_check; select count(*) from t;'"
            ));
            assert_eq!(said, "ok\n2728\n", "{mode}");
            assert!(!m.stored(&format!("vault/{mode}.db")).starts_with(b"SQLite format 3"));
        }
    });
}

#[test]
fn a_log_is_followed_as_it_grows() {
    over_both(|m| {
        let mut log = OpenOptions::new().append(true).create(true).open(m.at("x.log")).unwrap();
        writeln!(log, "begin").unwrap();
        let followed = m.bench.path("followed");
        let mut tail = Command::new("tail")
            .args(["-n", "+1", "-f"])
            .arg(m.at("x.log"))
            .stdout(File::create(&followed).unwrap())
            .spawn()
            .expect("tail runs");
        for line in 0..20 {
            writeln!(log, "line {line}").unwrap();
            if line % 5 == 0 {
                log.sync_data().unwrap();
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        let want: String = ["begin\n".to_owned()]
            .into_iter()
            .chain((0..20).map(|n| format!("line {n}\n")))
            .collect();
        wait_for("tail has shown all lines", || {
            let shown = fs::read_to_string(&followed).unwrap();
            if shown == want { Ok(()) } else { Err(shown) }
        });
        tail.kill().expect("it runs");
        tail.wait().expect("it ends");
        drop(log);
        assert_eq!(fs::read_to_string(m.at("x.log")).unwrap(), want);
    });
}

#[test]
fn files_are_mapped() {
    if !has("python3") {
        return;
    }
    over_both(|m| {
        fs::create_dir(m.at("vault")).unwrap();
        let script = "
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
shared = mmap.mmap(fd, 0)
reader = mmap.mmap(os.open(sys.argv[1], os.O_RDONLY), 0, prot=mmap.PROT_READ)
assert reader[:6] == b'line 0' and reader.find(b'line 999') > 0
shared[0:4] = b'LINE'
shared.flush()
assert reader[:6] == b'LINE 0'
shared.close()
os.close(fd)
";
        for name in ["x.log", "vault/x"] {
            fs::write(m.at(name), text(2000)).unwrap();
            let status = Command::new("python3").args(["-c", script]).arg(m.at(name)).status();
            assert!(status.expect("python3 runs").success(), "{}: {name}", m.source);
        }
        m.unmount();
        m.mount();
        for name in ["x.log", "vault/x"] {
            assert!(fs::read_to_string(m.at(name)).unwrap().starts_with("LINE 0"), "{name}");
        }
    });
}

#[test]
fn networks_change_while_a_file_is_open() {
    over_both(|m| {
        fs::write(m.at("words"), "Hello").unwrap();
        let weft = |args: &[&str]| m.bench.ok(args);
        // One without a network may be open past weft.
        weft(&["transform", "attach", "identity", "m/words"]);
        let read = || fs::read_to_string(m.at("words")).unwrap();
        let open = File::open(m.at("words")).unwrap();
        weft(&["transform", "push", "rot13", "m/words"]);
        assert_eq!(read(), "Uryyb");
        let mut buf = [0; 5];
        std::os::unix::fs::FileExt::read_exact_at(&open, &mut buf, 0).unwrap();
        assert_eq!(&buf, b"Uryyb", "through a descriptor that was open before, too");
        drop(open);
        weft(&["transform", "pop", "m/words"]);
        assert_eq!(read(), "Hello");
        weft(&["transform", "attach", "zstd", "m/words"]);
        assert_eq!(read(), "Hello");
        assert!(weft(&["transform", "explain", "m/words"]).contains("user.weft.network says so"));
        fs::write(m.at("y.log"), "x").unwrap();
        let explained = m.bench.json(&["transform", "explain", "m/y.log"]);
        assert_eq!(explained[0]["network"], "zstd");
        assert!(m.stored("words").starts_with(&[0x28, 0xb5, 0x2f, 0xfd]));
    });
}

#[test]
fn views_and_links_on_a_mount() {
    over_both(|m| {
        assert!(File::open(m.at("t.csv@loud")).is_err(), "and the kernel must not remember that");
        fs::write(m.at("t.csv"), "name,size\nfour,4\n").unwrap();
        let path = m.at("t.csv@loud");
        let loud = || fs::read_to_string(&path);
        assert_eq!(loud().unwrap(), "NAME,SIZE\nFOUR,4\n");
        fs::write(m.at("t.csv"), "other,size\n").unwrap();
        assert_eq!(loud().unwrap(), "OTHER,SIZE\n");
        // Its length is not known before it was read.
        assert_eq!(fs::read_to_string(m.at("t.csv@hex")).unwrap(), "6f746865722c73697a650a");
        assert_eq!(m.sh_ok("cat t.csv@hex | wc -c"), "22\n");
        assert_eq!(m.sh_ok("ls | grep -v lost+found"), "t.csv\n");
        assert!(OpenOptions::new().write(true).open(m.at("t.csv@loud")).is_err());
        let view = fs::metadata(m.at("t.csv@loud")).unwrap();
        assert_eq!(view.mode() & 0o222, 0);

        fs::create_dir(m.at("links")).unwrap();
        m.bench.ok(&["transform", "link", "../t.csv", "m/links/loud", "view: upper"]);
        assert_eq!(fs::read_to_string(m.at("links/loud")).unwrap(), "OTHER,SIZE\n");
        assert!(m.stored("links/loud").starts_with(b"weft link 1\nbase: ../t.csv\n"));
        assert_eq!(fs::read_to_string(m.at("links/loud")).unwrap(), "OTHER,SIZE\n");
        fs::remove_file(m.at("t.csv")).unwrap();
        assert!(loud().is_err());
        wait_until("the name of the view is gone", || !m.at("t.csv@loud").exists());
    });
}

#[test]
fn rules_in_the_tree_count() {
    over_both(|m| {
        fs::create_dir(m.at("d")).unwrap();
        fs::write(m.at("d/.weftattributes"), "*.txt rot13\n").unwrap();
        fs::write(m.at("d/x.txt"), "Hello").unwrap();
        assert_eq!(fs::read_to_string(m.at("d/x.txt")).unwrap(), "Hello");
        assert_eq!(m.stored("d/x.txt"), b"Uryyb");
    });
}

#[test]
fn what_is_damaged_is_an_error_at_its_place() {
    if !can_mount() {
        return;
    }
    let mut m = Mounted::new("hostdir:data", "");
    fs::create_dir(m.at("vault")).unwrap();
    fs::write(m.at("vault/x"), text(2000)).unwrap();
    let whole = text(2000);
    m.unmount();
    let path = m.bench.path("data/vault/x");
    let mut stored = fs::read(&path).unwrap();
    let middle = stored.len() / 2;
    stored[middle] ^= 1;
    fs::write(&path, &stored).unwrap();
    m.mount();
    let file = File::open(m.at("vault/x")).unwrap();
    assert_eq!(file.metadata().unwrap().len(), whole.len() as u64);
    let mut errors = 0;
    for (at, block) in whole.as_bytes().chunks(4096).enumerate() {
        let mut buf = vec![0; block.len()];
        match std::os::unix::fs::FileExt::read_exact_at(&file, &mut buf, at as u64 * 4096) {
            Ok(()) => assert!(buf == block, "wrong bytes in block {at}"),
            Err(e) => {
                assert_eq!(e.raw_os_error(), Some(5));
                errors += 1;
            }
        }
    }
    assert!(errors >= 1, "the damage was not noticed");
    drop(file);
    // Without the key nothing is read, and nothing is shown as it is stored.
    m.unmount();
    let bench = &m.bench;
    bench.ok(&["mount", "hostdir:data", "m", "--transform", "--background"]);
    let refused = fs::read(bench.path("m/vault/x")).expect_err("no key");
    assert_eq!(refused.raw_os_error(), Some(126), "ENOKEY");
    bench.ok(&["umount", "m"]);
}

#[test]
fn a_mount_that_cannot_be_is_refused_with_the_reason() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    fs::create_dir_all(bench.path("m")).unwrap();
    fs::create_dir_all(bench.path("data")).unwrap();
    let mount = ["mount", "hostdir:data", "m", "--background", "--transform", "rules"];
    for (rules, says) in [
        ("*.log zsdt", "line 1: unknown stage \"zsdt\" (did you mean \"zstd\"?)"),
        ("* none\n*.x aead key=nobody", "line 2: stage aead: no key named \"nobody\""),
        ("*.x zstd | gzip", "would do"),
        ("*.x", "a rule has a network behind its pattern"),
    ] {
        bench.write("rules", rules.as_bytes());
        let err = bench.fails(1, &mount);
        assert!(err.contains(says), "{rules}: {err}");
    }
    bench.write("rules", b"*.log zstd");
    let missing = ["mount", "hostdir:nowhere", "m", "--background", "--transform", "rules"];
    assert!(bench.fails(1, &missing).contains("nowhere"));
    // Two processes would write each other's files anew.
    bench.ok(&mount);
    fs::create_dir_all(bench.path("m2")).unwrap();
    let second = ["mount", "hostdir:data", "m2", "--background", "--transform", "rules"];
    let err = bench.fails(1, &second);
    bench.ok(&["umount", "m"]);
    assert!(err.contains("in use by another process"), "{err}");
}

#[test]
fn unguarded_files_are_what_they_are() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new("hostdir:data", "");
    let data: &Path = &m.bench.path("data");
    fs::write(data.join("before"), "there before").unwrap();
    assert_eq!(fs::read_to_string(m.at("before")).unwrap(), "there before");
    fs::write(m.at("plain"), "through").unwrap();
    assert_eq!(fs::read_to_string(data.join("plain")).unwrap(), "through");
    // Changed behind the mount's back: seen when it is opened again.
    fs::write(data.join("plain"), "from behind, and longer").unwrap();
    wait_until("a change behind the mount is seen", || {
        fs::read_to_string(m.at("plain")).unwrap() == "from behind, and longer"
    });
}
