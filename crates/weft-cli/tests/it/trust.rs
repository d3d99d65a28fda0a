//! A tree that means harm, mounted with rules of the mount: what lies in it changes nothing that
//! these promise.

use crate::run::{Bench, can_mount};
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::Command;

const SECRET: &[u8] = b"the plain text of a secret that is long enough to be looked for";
const NETWORK: &str = "user.weft.network";

struct Hostile {
    bench: Bench,
}

fn set_attribute(path: &PathBuf, value: &[u8]) {
    rustix::fs::setxattr(path, NETWORK, value, rustix::fs::XattrFlags::empty()).unwrap();
}

impl Hostile {
    fn new(rules: &str) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let bench = Bench::new();
        for dir in ["m", "data/secret/deep", "data/open"] {
            fs::create_dir_all(bench.path(dir)).unwrap();
        }
        bench.write("rules", rules.as_bytes());
        bench.write("key", "5a".repeat(32).as_bytes());
        Some(Self { bench })
    }

    fn mount(&self, options: &[&str]) {
        let mount = ["mount", "hostdir:data", "m", "--background", "--transform", "rules"];
        self.bench.ok(&[&mount[..], &["--key", "work=key"], options].concat());
    }

    fn unmount(&self) {
        self.bench.ok(&["umount", "m"]);
    }

    fn at(&self, name: &str) -> PathBuf {
        self.bench.path("m").join(name)
    }

    fn stored(&self, name: &str) -> PathBuf {
        self.bench.path("data").join(name)
    }

    /// Nothing of the plain text is in what is stored.
    fn is_sealed(&self, name: &str) {
        let stored = fs::read(self.stored(name)).unwrap();
        assert!(!stored.is_empty(), "{name} is stored empty");
        let plain = stored.windows(20).any(|w| w == &SECRET[..20]);
        assert!(!plain, "{name} is stored as plain text");
        assert!(stored.starts_with(b"WEFTSEAL"), "{name}");
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        let _ = self.bench.run(&["umount", "--lazy", "m"]);
    }
}

#[test]
fn encryption_is_not_switched_off_from_inside() {
    let Some(t) = Hostile::new("secret/ aead key=work\n") else { return };
    // Rules files, at every height.
    for dir in ["", "secret/", "secret/deep/"] {
        fs::write(t.stored(&format!("{dir}.weftattributes")), "* none\n").unwrap();
    }
    // Attributes on files that are there already: none, another, a link, nonsense.
    for (name, value) in [
        ("none", &b""[..]),
        ("other", b"rot13"),
        ("link", b"link"),
        ("unknown", b"no-such-stage"),
        ("nonsense", b"\xff\xfe"),
    ] {
        let path = t.stored(&format!("secret/{name}"));
        fs::write(&path, "").unwrap();
        set_attribute(&path, value);
    }
    t.mount(&[]);
    for name in ["none", "other", "link", "unknown", "nonsense", "new", "deep/new"] {
        let name = format!("secret/{name}");
        fs::write(t.at(&name), SECRET).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(fs::read(t.at(&name)).unwrap(), SECRET, "{name}");
        t.is_sealed(&name);
    }
    // A file that is named as a rules file is under the rule as any other.
    fs::remove_file(t.at("secret/deep/.weftattributes")).unwrap();
    fs::write(t.at("secret/deep/.weftattributes"), SECRET).unwrap();
    t.is_sealed("secret/deep/.weftattributes");
    // From within the mount neither.
    for value in [&b""[..], b"rot13", b"link"] {
        let flags = rustix::fs::XattrFlags::empty();
        for attribute in [NETWORK, "user.weft.convert"] {
            let refused = rustix::fs::setxattr(t.at("secret/new"), attribute, value, flags);
            assert!(refused.is_err(), "{attribute} = {value:?}");
        }
    }
    let err = t.bench.fails(1, &["transform", "detach", "m/secret/new"]);
    assert!(err.contains("of the mount"), "{err}");
    t.is_sealed("secret/new");
    let _ = rustix::fs::removexattr(t.at("secret/new"), NETWORK);
    fs::write(t.at("secret/new"), SECRET).unwrap();
    t.is_sealed("secret/new");
    // Outside of what the mount has rules about, the tree's own count.
    fs::write(t.stored("open/.weftattributes"), "*.hex hex\n").unwrap();
    fs::write(t.at("open/x.hex"), "AB").unwrap();
    assert_eq!(fs::read(t.stored("open/x.hex")).unwrap(), b"4142");
    t.unmount();
    // Unless who mounts says so.
    fs::write(t.stored("secret/deep/.weftattributes"), "* none\n").unwrap();
    t.mount(&["--transform-trust", "tree"]);
    fs::write(t.at("secret/deep/plain"), SECRET).unwrap();
    assert_eq!(fs::read(t.stored("secret/deep/plain")).unwrap(), SECRET);
    t.unmount();
}

#[test]
fn what_rules_say_is_sealed_is_never_read_as_plain() {
    let Some(t) = Hostile::new("secret/ aead key=work\n") else { return };
    for (name, value) in [("plain", None), ("none", Some(&b""[..])), ("other", Some(b"rot13"))] {
        let path = t.stored(&format!("secret/{name}"));
        fs::write(&path, "put there by somebody else").unwrap();
        if let Some(value) = value {
            set_attribute(&path, value);
        }
    }
    t.mount(&[]);
    for name in ["plain", "none", "other"] {
        let read = fs::read(t.at(&format!("secret/{name}")));
        assert_eq!(read.unwrap_err().raw_os_error(), Some(5), "{name}");
    }
    t.unmount();
}

#[test]
fn a_sealed_file_cut_to_nothing_is_not_empty() {
    for rules in ["secret/ aead key=work\n", "secret/ zstd | aead key=work\n", "secret/ guard\n"] {
        let Some(t) = Hostile::new(rules) else { return };
        t.mount(&[]);
        fs::write(t.at("secret/full"), SECRET).unwrap();
        fs::write(t.at("secret/empty"), "").unwrap();
        t.unmount();
        let whole = fs::read(t.stored("secret/full")).unwrap();
        for len in [0, 1, 511, 512, 513, whole.len() - 1] {
            fs::write(t.stored("secret/full"), &whole[..len.min(whole.len())]).unwrap();
            t.mount(&[]);
            let read = fs::read(t.at("secret/full"));
            assert_eq!(read.err().and_then(|e| e.raw_os_error()), Some(5), "{rules}: cut to {len}");
            let view = fs::read(t.at("secret/full@upper"));
            assert_eq!(view.err().and_then(|e| e.raw_os_error()), Some(5), "{rules}: a view");
            assert_eq!(fs::read(t.at("secret/empty")).unwrap(), b"", "{rules}");
            t.unmount();
        }
        fs::write(t.stored("secret/full"), "").unwrap();
        t.mount(&[]);
        // Not even by who asks to write it, but who says that all of it goes begins it anew.
        let opened = OpenOptions::new().read(true).write(true).open(t.at("secret/full"));
        let read = opened.and_then(|mut file| file.read(&mut [0; 8]));
        assert_eq!(read.err().and_then(|e| e.raw_os_error()), Some(5), "{rules}");
        fs::write(t.at("secret/full"), "again").unwrap();
        assert_eq!(fs::read(t.at("secret/full")).unwrap(), b"again");
        t.unmount();
    }
}

#[test]
fn a_rules_file_breaks_its_own_files_only() {
    let Some(t) = Hostile::new("secret/ aead key=work\n") else { return };
    let rules = b"*.bad no-such-stage\n*.cut zstd |\n*.odd \xff\xfe\na{ hex\n*.hex hex\n";
    for dir in ["secret", "open"] {
        fs::write(t.stored(&format!("{dir}/.weftattributes")), rules).unwrap();
    }
    fs::create_dir(t.stored("beside")).unwrap();
    for name in ["open/plain.txt", "beside/plain.txt"] {
        fs::write(t.stored(name), "plain").unwrap();
    }
    for name in ["open/x.bad", "open/x.cut", "open/x.odd"] {
        fs::write(t.stored(name), "broken").unwrap();
    }
    t.mount(&[]);
    for name in ["open/plain.txt", "beside/plain.txt"] {
        assert_eq!(fs::read(t.at(name)).unwrap(), b"plain", "{name}");
    }
    for name in ["open/x.bad", "open/x.cut", "open/x.odd"] {
        assert!(fs::read(t.at(name)).is_err(), "{name}");
    }
    fs::write(t.at("open/x.hex"), "AB").unwrap();
    assert_eq!(fs::read(t.stored("open/x.hex")).unwrap(), b"4142");
    let mut file = fs::File::create(t.at("secret/x.bad")).unwrap();
    file.write_all(SECRET).unwrap();
    drop(file);
    t.is_sealed("secret/x.bad");
    t.unmount();
}

#[test]
fn what_is_moved_under_a_rule_is_sealed() {
    let Some(t) = Hostile::new("secret/ aead key=work\nsecret/*.md none\n") else { return };
    fs::create_dir_all(t.stored("many/deep")).unwrap();
    fs::write(t.stored("many/deep/x"), SECRET).unwrap();
    fs::write(t.stored("carries"), SECRET).unwrap();
    set_attribute(&t.stored("carries"), b"");
    t.mount(&[]);
    assert_eq!(fs::read(t.at("many/deep/x")).unwrap(), SECRET);
    // A file is written anew, whatever it carried; a directory is copied by who moves it.
    fs::rename(t.at("carries"), t.at("secret/carries")).unwrap();
    assert_eq!(fs::read(t.at("secret/carries")).unwrap(), SECRET);
    t.is_sealed("secret/carries");
    let moved = fs::rename(t.at("many"), t.at("secret/many"));
    assert_eq!(moved.unwrap_err().raw_os_error(), Some(18), "EXDEV");
    let mv = Command::new("mv").arg(t.at("many")).arg(t.at("secret")).status();
    assert!(mv.unwrap().success());
    assert_eq!(fs::read(t.at("secret/many/deep/x")).unwrap(), SECRET);
    t.is_sealed("secret/many/deep/x");
    // Where the rules say the same of all of it, it moves as it is.
    fs::rename(t.at("secret/many"), t.at("secret/more")).unwrap();
    assert_eq!(fs::read(t.at("secret/more/deep/x")).unwrap(), SECRET);
    t.unmount();
}

/// Writes where a path leads, and looks at what is stored where it leads to.
#[test]
fn names_and_links_in_the_tree_open_nothing() {
    let Some(t) = Hostile::new("secret/ aead key=work\n") else { return };
    // What stages and views would be named, controls, what is no text, the longest there is.
    let long = "n".repeat(255);
    let names: &[&[u8]] = &[
        b"x@upper",
        b"x@~aead",
        b"x@tree",
        b"@",
        b"@none",
        b"~",
        b"%2e%2e",
        b"..secret",
        b"a\nb",
        b"\x1b[31m",
        b"\xff\xfe",
        b" none",
        b"#",
        b"*",
        b"!x",
        long.as_bytes(),
    ];
    let at = |root: &str, name: &[u8]| {
        t.bench.path(root).join("secret").join(std::ffi::OsStr::from_bytes(name))
    };
    for name in names {
        fs::write(at("data", name), "planted").unwrap();
    }
    fs::write(t.stored("open/target"), "as it was").unwrap();
    fs::hard_link(t.stored("open/target"), t.stored("secret/hard")).unwrap();
    fs::write(t.stored("open/planted"), "as it was").unwrap();
    fs::hard_link(t.stored("open/planted"), t.stored("secret/hard-2")).unwrap();
    for (to, name) in [
        ("../secret", "open/in"),
        ("deep", "secret/within"),
        ("round", "secret/round"),
        ("../nothing", "secret/dangling"),
    ] {
        std::os::unix::fs::symlink(to, t.stored(name)).unwrap();
    }
    t.mount(&[]);
    for name in names {
        let said = String::from_utf8_lossy(name);
        let read = fs::read(at("m", name));
        assert_eq!(read.err().and_then(|e| e.raw_os_error()), Some(5), "{said:?}: planted");
        fs::remove_file(at("m", name)).unwrap_or_else(|e| panic!("{said:?}: {e}"));
        fs::write(at("m", name), SECRET).unwrap_or_else(|e| panic!("{said:?}: {e}"));
        assert_eq!(fs::read(at("m", name)).unwrap(), SECRET, "{said:?}");
        assert!(fs::read(at("data", name)).unwrap().starts_with(b"WEFTSEAL"), "{said:?}");
    }
    // The way by which a file is reached is nothing to its rule.
    for (written, stored) in [
        ("open/in/by-link", "secret/by-link"),
        ("secret/within/by-link", "secret/deep/by-link"),
        ("open/../secret/by-dots", "secret/by-dots"),
    ] {
        fs::write(t.at(written), SECRET).unwrap();
        t.is_sealed(stored);
    }
    assert!(fs::read(t.at("secret/round")).is_err());
    // One file cannot be both: what is plain under its other name is an error under this one, whichever
    // is looked up first.
    assert_eq!(fs::read(t.at("open/planted")).unwrap(), b"as it was");
    let append = OpenOptions::new().append(true).open(t.at("secret/hard-2"));
    assert_eq!(append.unwrap_err().raw_os_error(), Some(5));
    assert_eq!(fs::read(t.at("secret/hard")).unwrap_err().raw_os_error(), Some(5));
    assert!(fs::write(t.at("secret/hard"), SECRET).is_err());
    // A listing has such files and those beside them.
    let listed = |directory: &str| {
        let names = fs::read_dir(t.at(directory)).unwrap().map(|entry| entry.unwrap().file_name());
        names.map(|name| name.into_string().unwrap_or_default()).collect::<Vec<_>>()
    };
    for (directory, name) in [("open", "planted"), ("open", "target"), ("secret", "hard")] {
        assert!(
            listed(directory).iter().any(|n| n == name),
            "{directory}: {:?}",
            listed(directory)
        );
    }
    assert_eq!(fs::read(t.stored("open/target")).unwrap(), b"as it was");
    // Nor is a second name given across a rule, from either side.
    let across = |from: &str, to: &str| {
        fs::write(t.at(from), SECRET).unwrap();
        let linked = fs::hard_link(t.at(from), t.at(to));
        assert_eq!(linked.unwrap_err().raw_os_error(), Some(18), "{from} as {to}");
    };
    across("secret/mine", "open/mine");
    across("open/plain", "secret/plain");
    t.is_sealed("secret/mine");
    t.unmount();
}

/// What stands in an archive is read, and is no file, rule or attribute of the mount.
#[test]
fn an_archive_leads_nowhere() {
    let Some(t) = Hostile::new("secret/ aead key=work\n") else { return };
    fs::write(t.stored("open/out"), "outside").unwrap();
    let script = r#"mkdir p && cd p && echo '* none' > .weftattributes && echo x > x && mkfifo pipe
        ln -s ../../secret/mine up && ln -s /etc/passwd root && ln x hard && chmod 6755 x
        tar -P --xattrs --transform 's,^\./x$,../../open/out,' -cf ../data/open/t.tar . &&
        tar -P --transform 's,^x$,/etc/x,;s,^hard$,a/../../out,' -rf ../data/open/t.tar x hard"#;
    let done = Command::new("sh").args(["-ec", script]).current_dir(t.bench.dir()).status();
    assert!(done.unwrap().success());
    t.mount(&[]);
    fs::write(t.at("secret/mine"), SECRET).unwrap();
    // Everything in it has a place below it.
    let tree = t.at("open/t.tar@tree");
    let found = Command::new("find").arg(&tree).arg("-print0").output().unwrap();
    let found = String::from_utf8_lossy(&found.stdout).into_owned();
    assert!(found.contains(".weftattributes"), "{found:?}");
    for name in found.split('\0').filter(|name| !name.is_empty()) {
        let below = name.strip_prefix(tree.to_str().unwrap()).expect("below the tree");
        assert!(!below.split('/').any(|part| part == ".."), "{name}");
    }
    assert_eq!(fs::read(t.at("open/out")).unwrap(), b"outside");
    assert!(!PathBuf::from("/etc/x").exists());
    // What is unpacked from it into a place with a rule is under the rule, its rules file too.
    let unpack = Command::new("cp").arg(tree.join(".weftattributes")).arg(t.at("secret")).output();
    let unpack = unpack.unwrap();
    assert!(unpack.status.success(), "{unpack:?}");
    assert!(fs::read(t.stored("secret/.weftattributes")).unwrap().starts_with(b"WEFTSEAL"));
    fs::write(t.at("secret/after"), SECRET).unwrap();
    t.is_sealed("secret/after");
    // Neither is a sealed archive's tree a way around its seal.
    fs::copy(t.stored("open/t.tar"), t.stored("secret/planted.tar")).unwrap();
    let listed = fs::read_dir(t.at("secret/planted.tar@tree"));
    assert!(listed.is_err(), "a planted archive was read");
    t.unmount();
}
