//! Names that are made from others, asked for by another user: what the base denies, its views,
//! trees, links and snapshots deny too.

use crate::run::{Bench, can_mount};
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A user and group that own nothing here.
pub(crate) const STRANGER: u32 = 65_533;

pub(crate) fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A tar with one file that everybody may read, one for root alone, and a tar for root alone.
fn archive(bench: &Bench) {
    let script = "mkdir -p pack && cd pack && echo inner > open && echo hidden > closed &&
        chmod 644 open && chmod 600 closed && tar -cf inner.tar open && chmod 600 inner.tar &&
        tar --owner=0 --group=0 -cf ../data/t.tar open closed inner.tar &&
        gzip -c ../data/t.tar > ../data/t.tgz";
    let done = Command::new("sh").args(["-ec", script]).current_dir(bench.dir()).status().unwrap();
    assert!(done.success());
}

pub(crate) struct Shared {
    pub(crate) bench: Bench,
}

impl Shared {
    /// Mounted for all users; `None` where that takes more than this user has.
    pub(crate) fn new(rules: &str, options: &[&str]) -> Option<Self> {
        Self::of("hostdir:data", rules, options)
    }

    /// The same of a volume.
    fn of_volume(rules: &str) -> Option<Self> {
        let shared = Self::of("v.img", rules, &[])?;
        for name in ["t.tar", "t.tgz"] {
            fs::copy(shared.bench.path("data").join(name), shared.bench.path("m").join(name))
                .unwrap();
        }
        Some(shared)
    }

    fn of(source: &str, rules: &str, options: &[&str]) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can be another user");
            return None;
        }
        let bench = Bench::with_volume("ext2");
        chmod(bench.dir(), 0o755);
        for dir in ["m", "data"] {
            fs::create_dir_all(bench.path(dir)).unwrap();
            chmod(&bench.path(dir), 0o755);
        }
        archive(&bench);
        bench.write("rules", rules.as_bytes());
        bench.write("key", "5a".repeat(32).as_bytes());
        let shared = ["-o", "allow_other", "--background", "--transform", "rules"];
        let mount = [&["mount", source, "m", "--key", "work=key"], &shared[..], options];
        bench.ok(&mount.concat());
        Some(Self { bench })
    }

    /// What a shell of the stranger says of a command in the mount.
    pub(crate) fn stranger(&self, command: &str) -> (bool, String) {
        let out = Command::new("sh")
            .args(["-c", command])
            .current_dir(self.bench.path("m"))
            .env("LC_ALL", "C")
            .uid(STRANGER)
            .gid(STRANGER)
            .output()
            .unwrap();
        let said = [out.stdout, out.stderr].concat();
        (out.status.success(), String::from_utf8_lossy(&said).into_owned())
    }

    pub(crate) fn denied(&self, command: &str) {
        let (ok, said) = self.stranger(command);
        assert!(!ok && said.contains("Permission denied"), "{command}: {ok} {said:?}");
    }

    pub(crate) fn allowed(&self, command: &str, want: &str) {
        let (ok, said) = self.stranger(command);
        assert!(ok && said.contains(want), "{command}: {ok} {said:?}");
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = self.bench.run(&["umount", "--lazy", "m"]);
    }
}

/// Each derived name, and what a reader finds there.
const NAMES: &[(&str, &str, &str)] = &[
    ("t.tar", "cat t.tar@tree/open", "inner"),
    ("t.tar", "ls t.tar@tree", "open"),
    ("t.tgz", "cat t.tgz@tree/open", "inner"),
    ("t.tgz", "cat t.tgz@~gzip+tree/open", "inner"),
    ("words", "cat words@loud", "WORDS"),
    ("words", "cat words@upper", "WORDS"),
    ("words", "cat words@upper@lower", "words"),
    ("words", "cat linked", "WORDS"),
    ("words", "cat linked@lower", "words"),
];

#[test]
fn a_derived_name_needs_what_its_base_needs() {
    let Some(m) = Shared::new("*@loud view: upper\n", &[]) else { return };
    let at = |name: &str| m.bench.path("m").join(name);
    fs::write(at("words"), "words\n").unwrap();
    m.bench.ok(&["transform", "link", "words", "m/linked", "view: upper"]);
    for (base, command, want) in NAMES {
        chmod(&at(base), 0o600);
        m.denied(command);
        chmod(&at(base), 0o644);
        m.allowed(command, want);
        // Also what the kernel has looked up already.
        chmod(&at(base), 0o640);
        m.denied(command);
        std::os::unix::fs::chown(at(base), Some(0), Some(STRANGER)).unwrap();
        m.allowed(command, want);
        std::os::unix::fs::chown(at(base), Some(STRANGER), Some(0)).unwrap();
        chmod(&at(base), 0o044);
        m.denied(command);
        std::os::unix::fs::chown(at(base), Some(0), Some(0)).unwrap();
        chmod(&at(base), 0o644);
    }
    // What the archive itself says holds further in.
    m.denied("cat t.tar@tree/closed");
    m.denied("cat t.tar@tree/inner.tar@tree/open");
    m.denied("ls t.tar@tree/inner.tar@tree");
    assert_eq!(fs::read(at("t.tar@tree/inner.tar@tree/open")).unwrap(), b"inner\n");
}

#[test]
fn a_link_leads_around_no_directory() {
    let Some(m) = Shared::new("*@loud view: upper\n", &[]) else { return };
    let at = |name: &str| m.bench.path("m").join(name);
    fs::create_dir(at("private")).unwrap();
    fs::write(at("private/notes"), "notes\n").unwrap();
    chmod(&at("private/notes"), 0o644);
    m.bench.ok(&["transform", "link", "private/notes", "m/linked", "view: upper"]);
    m.bench.ok(&["transform", "link", "notes", "m/private/near", "view: upper"]);
    chmod(&at("private"), 0o755);
    m.allowed("cat linked", "NOTES");
    m.allowed("cat private/near", "NOTES");
    for mode in [0o700, 0o750, 0o744] {
        chmod(&at("private"), mode);
        m.denied("cat private/notes");
        m.denied("cat linked");
        m.denied("cat linked@lower");
        m.denied("cat private/near");
        // stat(2) of a link whose stages keep lengths tells nothing of the base either.
        fs::write(at("private/notes"), "notes\n").unwrap();
        let before = m.stranger("stat -c %s,%b,%x,%y,%z linked linked@lower");
        fs::write(at("private/notes"), "longer notes\n".repeat(1000)).unwrap();
        assert_eq!(m.stranger("stat -c %s,%b,%x,%y,%z linked linked@lower"), before, "{mode:o}");
    }
    fs::write(at("private/notes"), "notes\n").unwrap();
    assert_eq!(fs::read(at("linked")).unwrap(), b"NOTES\n", "its owner may");
    // A user who may write a file of root's makes it no link, and a link of root's leads that user nowhere
    // that the user may not go.
    let script = "printf 'weft link 1\\nbase: private/notes\\nnetwork: view: upper\\n' > made";
    fs::write(at("made"), "").unwrap();
    chmod(&at("made"), 0o666);
    m.allowed(&format!("{script}; echo done"), "done");
    let attribute = weft::transform::NETWORK_ATTRIBUTE;
    let flags = rustix::fs::XattrFlags::empty();
    let set = || rustix::fs::setxattr(at("made"), attribute, b"link", flags);
    assert_eq!(set(), Err(rustix::io::Errno::ACCESS));
    chmod(&at("made"), 0o644);
    set().unwrap();
    m.denied("cat made");
}

#[test]
fn access_lists_of_the_base_count_for_derived_names() {
    let Some(m) = Shared::new("*@loud view: upper\n", &[]) else { return };
    let at = |name: &str| m.bench.path("m").join(name);
    fs::write(at("words"), "words\n").unwrap();
    chmod(&at("words"), 0o644);
    chmod(&at("t.tar"), 0o644);
    let list = format!("u:{STRANGER}:-");
    for base in ["words", "t.tar"] {
        let set = Command::new("setfacl").args(["-m", &list]).arg(at(base)).status();
        if !set.is_ok_and(|set| set.success()) {
            println!("not here: access lists in the file system of the temporary directory");
            return;
        }
    }
    m.denied("cat words");
    m.denied("cat words@loud");
    m.denied("cat t.tar@tree/open");
}

#[test]
fn access_lists_of_a_volume_count_for_derived_names() {
    let Some(m) = Shared::of_volume("*@loud view: upper\n") else { return };
    let at = |name: &str| m.bench.path("m").join(name);
    fs::write(at("words"), "words\n").unwrap();
    m.bench.ok(&["transform", "link", "words", "m/linked", "view: upper"]);
    for (base, command, want) in NAMES {
        chmod(&at(base), 0o640);
        m.denied(command);
        for (permissions, may) in [("r", true), ("-", false), ("r", true)] {
            let list = format!("u:{STRANGER}:{permissions}");
            let set = Command::new("setfacl").args(["-m", &list]).arg(at(base)).status();
            let Ok(set) = set else {
                println!("skipped: setfacl is not installed");
                return;
            };
            assert!(set.success(), "{base}: {list}");
            if may { m.allowed(command, want) } else { m.denied(command) }
        }
        let taken = Command::new("setfacl").arg("-b").arg(at(base)).status().unwrap();
        assert!(taken.success());
        m.denied(command);
    }
}

#[test]
fn a_snapshot_of_a_view_follows_the_permissions_of_its_base() {
    let options = ["--output-cache", "kept", "--snapshot-views"];
    let Some(m) = Shared::new("*@loud view: upper\n", &options) else { return };
    let at = |name: &str| m.bench.path("m").join(name);
    let text = "words\n".repeat(50_000);
    fs::write(at("words"), &text).unwrap();
    chmod(&at("words"), 0o644);
    std::thread::sleep(Duration::from_millis(3100));
    for _ in 0..20 {
        m.allowed("wc -c < words@loud", "300000");
        std::thread::sleep(Duration::from_millis(50));
    }
    let held = File::open(at("words@loud")).unwrap();
    m.allowed("head -c 5 words@loud", "WORDS");
    chmod(&at("words"), 0o600);
    m.denied("head -c 5 words@loud");
    std::os::unix::fs::chown(at("words"), Some(0), Some(STRANGER)).unwrap();
    m.denied("head -c 5 words@loud");
    drop(held);
    m.denied("head -c 5 words@loud");
    // Also when somebody else changes it, below: the content is the same.
    std::os::unix::fs::chown(at("words"), Some(0), Some(0)).unwrap();
    chmod(&at("words"), 0o644);
    std::thread::sleep(Duration::from_millis(3100));
    for _ in 0..20 {
        m.allowed("wc -c < words@loud", "300000");
        std::thread::sleep(Duration::from_millis(50));
    }
    let held = File::open(at("words@loud")).unwrap();
    chmod(&m.bench.path("data/words"), 0o600);
    // What the kernel knows of the directory's files, it knows for a second.
    std::thread::sleep(Duration::from_millis(1100));
    m.denied("head -c 5 words");
    m.denied("head -c 5 words@loud");
    drop(held);
}

/// Stages that a name can say, as they tell contents apart.
const TELLING: &[&str] = &[
    "identity",
    "xor hex=5d",
    "upper",
    "lines contains=token",
    "charset from=utf-16 to=utf-8",
    "line-ends to=lf strict=yes",
    "json",
    "exec program=cat",
    "base64",
    "~base64",
    "~hex",
    "~gzip",
    "~zstd",
    "~lz4",
    "~xz",
    "~guard",
    "~aead key=work",
];

/// The output of `program`, run as another user, for views of `a` and for views of `b`.
fn said_of(m: &Shared, program: &[&str], views: &[String]) -> [String; 2] {
    ["a", "b"].map(|base| {
        let names = views.iter().map(|view| format!("{base}@{view}"));
        let out = Command::new(program[0])
            .args(&program[1..])
            .args(names)
            .current_dir(m.bench.path("m"))
            .env("LC_ALL", "C")
            .uid(STRANGER)
            .gid(STRANGER)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
        said.replace(&format!("{base}@"), "?@")
    })
}

/// Names choose stages, and anybody may look them up: what comes of that is the same for any content.
#[test]
fn names_tell_a_stranger_nothing_of_what_is_in_a_private_file() {
    let Some(m) = Shared::new("", &["--program", "cat=cat"]) else { return };
    let at = |name: &str| m.bench.path("m").join(name);
    let pairs =
        TELLING.iter().flat_map(|one| TELLING.iter().map(move |two| format!("{one}+{two}")));
    let views: Vec<String> = TELLING.iter().map(|stage| (*stage).to_owned()).chain(pairs).collect();
    let trees = views.iter().map(|view| format!("{view}+tree"));
    let views: Vec<String> = views.iter().cloned().chain(trees).chain(["tree".into()]).collect();
    let packed = fs::read(m.bench.path("data/t.tgz")).unwrap();
    let noise: Vec<u8> = (0..packed.len()).map(|at| (at * 7 + at / 256) as u8).collect();
    let contents: [(&[u8], &[u8]); 3] = [
        (b"user=root\ntoken: Zx81-abcd.q\nuser=x\n", b"user=root\nother: Zx81-abcd.q\nuser=x\n"),
        (b"QUJD", b"QUI="),
        (&packed, &noise),
    ];
    for (one, other) in contents {
        for (name, content) in [("a", one), ("b", other)] {
            fs::write(at(name), content).unwrap();
            chmod(&at(name), 0o600);
        }
        let attributes = "%A %u %g %h %s %o %F";
        for program in [
            &["stat", "-c", attributes][..],
            &["ls", "-ldQ", "--time-style=+", "--"],
            &["cat"],
            &["ls"],
            &["readlink"],
            &["getfattr", "-d", "-m", "-"],
        ] {
            if program[0] == "getfattr"
                && Command::new("getfattr").arg("--version").output().is_err()
            {
                println!("skipped: getfattr is not installed");
                continue;
            }
            let [a, b] = said_of(&m, program, &views);
            assert!(a == b, "{program:?}: {}", differing(&a, &b));
        }
    }
    // Its owner reads all of it, whatever lengths say.
    fs::write(at("a"), &packed).unwrap();
    assert_eq!(fs::read(at("a@~gzip")).unwrap(), fs::read(at("t.tar")).unwrap());
    assert_eq!(fs::read(at("a@tree/open")).unwrap(), b"inner\n");
    assert_eq!(fs::metadata(at("a@upper")).unwrap().len(), packed.len() as u64);
    assert_eq!(fs::metadata(at("a@~gzip")).unwrap().len(), 0);
    let listed = fs::read_dir(at("b@tree")).and_then(|mut names| names.next().transpose());
    assert_eq!(listed.unwrap_err().raw_os_error(), Some(20), "ENOTDIR to its owner");
    // With the permission to read goes what is told.
    chmod(&at("a"), 0o644);
    let plain = fs::metadata(at("t.tar")).unwrap().len();
    m.allowed("stat -c %s a@~gzip", &plain.to_string());
    m.allowed("cat a@tree/open", "inner");
}

fn differing(a: &str, b: &str) -> String {
    let lines = a.lines().zip(b.lines()).find(|(a, b)| a != b);
    lines.map_or_else(|| "another number of lines".to_owned(), |(a, b)| format!("{a:?} {b:?}"))
}

/// A mount without `allow_other` has one user, who is told all lengths.
#[test]
fn a_single_user_is_told_lengths() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    for dir in ["m", "data"] {
        fs::create_dir_all(bench.path(dir)).unwrap();
    }
    bench.write("rules", b"");
    bench.ok(&["mount", "hostdir:data", "m", "--background", "--transform", "rules"]);
    let at = |name: &str| bench.path("m").join(name);
    fs::write(at("a"), "QUI=").unwrap();
    chmod(&at("a"), 0o600);
    assert_eq!(fs::metadata(at("a@~base64")).unwrap().len(), 2);
    assert_eq!(fs::metadata(at("a@tree")).unwrap_err().raw_os_error(), Some(2));
    bench.ok(&["umount", "m"]);
}

/// The owner of a directory can rename any file in it to `.weftattributes`.
#[test]
fn a_private_file_is_quoted_to_nobody() {
    let Some(m) = Shared::new("", &[]) else { return };
    let at = |name: &str| m.bench.path("m").join(name);
    fs::create_dir(at("own")).unwrap();
    fs::write(at("own/conf"), "* none\ndb_password hunter2-XYZ\n").unwrap();
    chmod(&at("own/conf"), 0o600);
    fs::write(at("own/secret"), "QUI=").unwrap();
    chmod(&at("own/secret"), 0o600);
    fs::write(m.bench.path("data/own/db_password"), "").unwrap();
    std::os::unix::fs::chown(at("own"), Some(STRANGER), Some(STRANGER)).unwrap();
    let script = "cd own && mv conf .weftattributes && ls db_password;
        getfattr --only-values -n user.weft.explain db_password; cat db_password; echo; echo done";
    let (_, said) = m.stranger(script);
    assert!(said.contains("done") && !said.contains("hunter2"), "{said}");
    assert!(said.contains("chmod a+r"), "{said}");
    // What cannot be opened is not made.
    m.denied("touch own/db_new");
    assert!(!at("own/db_new").exists() && !m.bench.path("data/own/db_new").exists());
    // Rules that the stranger has written choose no stages for it.
    m.allowed(
        "cd own && mv .weftattributes conf && echo '* view: ~base64' > .weftattributes; echo done",
        "done",
    );
    m.allowed("cd own && mv secret moved; stat -c %s secret moved 2>&1; echo done", "4");
    let read = fs::read(at("own/secret")).or_else(|_| fs::read(at("own/moved")));
    let errno = read.as_ref().map_err(std::io::Error::raw_os_error);
    assert!(
        matches!(errno, Ok(content) if content == b"QUI=") || matches!(errno, Err(Some(13))),
        "{read:?}"
    );
}

/// A network changes what all readers of a file see, and its log tells what they read.
#[test]
fn who_may_only_write_a_file_gives_it_no_network() {
    let Some(m) = Shared::new("", &["--log", "audit=audit.log"]) else { return };
    let at = |name: &str| m.bench.path("m").join(name);
    for name in ["plain", "coded"] {
        fs::write(at(name), "Hello").unwrap();
        chmod(&at(name), 0o666);
    }
    let none = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(at("coded"), "user.weft.network", b"rot13", none).unwrap();
    // The stranger may not search every directory that a checkout lies in.
    let weft = m.bench.path("weft");
    weft_testing::copy_program(env!("CARGO_BIN_EXE_weft").as_ref(), &weft);
    let weft = weft.display();
    for command in [
        "setfattr -n user.weft.network -v 'tee ( log to=audit )' plain".to_owned(),
        "setfattr -n user.weft.network -v '' coded".to_owned(),
        "setfattr -n user.weft.convert -v hex plain".to_owned(),
        "setfattr -n user.weft.stored -v hex plain".to_owned(),
        "setfattr -x user.weft.network coded".to_owned(),
        format!("{weft} transform attach rot13 plain"),
        format!("{weft} transform detach coded"),
        format!("{weft} transform push 'tee ( log to=audit )' plain --during true"),
        format!("{weft} transform push rot13 coded --during true"),
    ] {
        let (done, said) = m.stranger(&command);
        let is_refused = said.contains("not permitted") || said.contains("only the owner");
        assert!(!done && is_refused, "{command}: {said}");
    }
    // By a descriptor that writes, past the command.
    let push = "open(F, '+<', 'plain') or die; $n = pack('a4096', 'rot13'); \
                ioctl(F, 0xD00057E0, $n) or print 'errno ', $! + 0";
    let (_, said) = m.stranger(&format!("perl -e \"{}\"", push.replace('$', "\\$")));
    assert_eq!(said, "errno 1", "EPERM");
    let show =
        |name: &str| rustix::fs::getxattr(at(name), "user.weft.network", &mut [0_u8; 64][..]);
    assert_eq!(show("plain"), Err(rustix::io::Errno::NODATA));
    assert_eq!(show("coded"), Ok(5));
    // What else a writer may set, and reading the attribute, stay as they are.
    m.allowed("setfattr -n user.other -v x plain && getfattr -n user.weft.network coded", "rot13");
    // The owner may.
    std::os::unix::fs::chown(at("plain"), Some(STRANGER), None).unwrap();
    m.allowed("setfattr -n user.weft.network -v rot13 plain && cat plain", "Hello");
    m.allowed("setfattr -n user.weft.stored -v '' plain && cat plain", "Uryyb");
    m.allowed("setfattr -n user.weft.stored -v rot13 plain && cat plain", "Hello");
    m.allowed("setfattr -x user.weft.network plain && cat plain", "Hello");
}
