//! Real programs on mounts whose files carry networks, over a directory of the host and over ext2.

use crate::run::{Bench, can_mount};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The rules of the issue that this was built for.
const RULES: &str = "*.log zstd\nsecret/ zstd | aead key=work\nvault/ aead key=work\n*.gz gzip\n\
                     *.csv@loud view: upper\n";

struct Mounted {
    bench: Bench,
    source: &'static str,
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

    fn at(&self, name: &str) -> PathBuf {
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
    fn sh(&self, script: &str) -> (bool, String) {
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

    fn sh_ok(&self, script: &str) -> String {
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
fn over_both(test: impl Fn(&mut Mounted)) {
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

fn has(tool: &str) -> bool {
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
        let end = Instant::now() + Duration::from_secs(20);
        while fs::read_to_string(&followed).unwrap() != want && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        tail.kill().expect("it runs");
        tail.wait().expect("it ends");
        assert_eq!(fs::read_to_string(&followed).unwrap(), want);
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
        let end = Instant::now() + Duration::from_secs(5);
        while m.at("t.csv@loud").exists() {
            assert!(Instant::now() < end, "the name of a view stays behind");
            std::thread::sleep(Duration::from_millis(5));
        }
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
    bench.ok(&["mount", "hostdir:data", "m", "--background", "--transform", "-"]);
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
    let end = Instant::now() + Duration::from_secs(10);
    while fs::read_to_string(m.at("plain")).unwrap() != "from behind, and longer" {
        assert!(Instant::now() < end, "never seen");
        std::thread::sleep(Duration::from_millis(50));
    }
}

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
    let read = |name: &str| fs::read(bench.path("m").join(name));
    assert!(read("words@loud").unwrap() == "QUIET WORDS\n".repeat(50_000).into_bytes());
    let began = Instant::now();
    assert_eq!(read("words@hangs").expect_err("hangs").raw_os_error(), Some(5));
    assert!(began.elapsed() < Duration::from_secs(30));
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
    let began = Instant::now();
    assert_eq!(fs::read(at("hangs")).expect_err("hangs").raw_os_error(), Some(5));
    assert!(began.elapsed() < Duration::from_secs(20));
    assert!(fs::read_to_string(at("file")).unwrap() == want);
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
    assert!(stored.iter().zip(&text).all(|(s, t)| *t == s.wrapping_add(1)));
    let began = Instant::now();
    assert_eq!(fs::read(at("file.w@loop")).expect_err("loops").raw_os_error(), Some(5));
    assert!(began.elapsed() < Duration::from_secs(20));
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
    use std::io::Read;
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
