//! The stages that users of a mount choose, by names and by attributes and rules files in the tree,
//! reach no log and no key that the administrator did not give to the mount for them.

use crate::derived::{STRANGER, Shared, chmod};
use crate::run::{Bench, can_mount};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};

/// A log holds what was read of files that its readers may not read, and counts as evidence.
#[test]
fn only_rules_of_the_mount_write_logs_of_views() {
    let rules = "*.logged log to=audit\n*@seen view: log to=audit\n";
    let Some(m) = Shared::new(rules, &["--log", "audit=audit.log"]) else { return };
    let at = |name: &str| m.bench.path("m").join(name);
    let log = m.bench.path("audit.log");
    let mode = fs::metadata(&log).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "a log is its owner's");
    fs::write(at("secret"), "root-private-hunter2").unwrap();
    chmod(&at("secret"), 0o600);
    fs::create_dir(at("own")).unwrap();
    chown(at("own"), Some(STRANGER), Some(STRANGER)).unwrap();
    m.allowed(
        "cd own && echo forged-by-nobody > f && echo '*@v view: log to=audit' > .weftattributes &&
            tar -cf f.tar f && chmod 644 f f.tar .weftattributes && echo done",
        "done",
    );
    for name in [
        "secret@log to=audit",
        "secret@log to=audit+tree",
        "own/f@log to=audit",
        "own/f@upper+log to=audit",
        "own/f@tee (log to=audit)",
        "own/f@tee (upper+log to=audit)",
        "own/f@log to=audit@lower",
        "own/f.tar@log to=audit+tree",
        "own/f.tar@tree/f@log to=audit",
        "own/f@v",
    ] {
        let (_, said) = m.stranger(&format!("stat '{name}'; ls '{name}'; cat '{name}'"));
        assert!(!said.contains("forged"), "{name}: {said}");
    }
    let logged = String::from_utf8_lossy(&fs::read(&log).unwrap()).into_owned();
    assert_eq!(logged, "");
    // Rules of the mount say so for names and files.
    m.allowed("cat own/f@seen", "forged-by-nobody");
    fs::write(at("x.logged"), "an entry").unwrap();
    let logged = String::from_utf8_lossy(&fs::read(&log).unwrap()).into_owned();
    assert!(logged.contains("forged-by-nobody") && logged.contains("an entry"), "{logged:?}");
}

/// A user has many keys, and mounts a tree with some of them.
#[test]
fn a_tree_uses_no_key_that_its_mount_does_not_name() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    for dir in ["m", "data/sealed", "data/own"] {
        fs::create_dir_all(bench.path(dir)).unwrap();
    }
    let names = ["work", "bank", "shown"];
    for (nr, name) in names.iter().enumerate() {
        bench.write(&format!("keys/{name}"), format!("5{nr}").repeat(32).as_bytes());
    }
    let weft = |args: &[&str]| {
        let mut command = bench.command(args);
        let ran = command.env("WEFT_KEYS", bench.path("keys")).output().expect("weft runs");
        let ran = crate::run::ran(&ran);
        assert_eq!(ran.code, 0, "weft {}: {ran:#?}", args.join(" "));
    };
    // What is sealed elsewhere with each key.
    for name in names {
        bench.write(name, name.repeat(40).as_bytes());
        weft(&["transform", "attach", &format!("aead key={name}"), name]);
        fs::copy(bench.path(name), bench.path(&format!("data/own/{name}"))).unwrap();
        fs::copy(bench.path(name), bench.path(&format!("data/own/{name}.ruled"))).unwrap();
        bench.write(&format!("data/own/{name}.pinned"), &fs::read(bench.path(name)).unwrap());
        let (pinned, network) = (format!("data/own/{name}.pinned"), format!("aead key={name}"));
        let (attribute, how) = ("user.weft.network", rustix::fs::XattrFlags::empty());
        rustix::fs::setxattr(bench.path(&pinned), attribute, network.as_bytes(), how).unwrap();
        let link = format!("weft link 1\nbase: {name}\nnetwork: view: ~aead key={name}\n");
        bench.write(&format!("data/own/{name}.linked"), link.as_bytes());
    }
    let rules: Vec<String> =
        names.iter().map(|name| format!("{name}.ruled aead key={name}\n")).collect();
    let rules = format!("{}*.linked link\n", rules.concat());
    bench.write("data/own/.weftattributes", rules.as_bytes());
    bench.write("rules", b"sealed/ aead key=work\n*@shown view: ~aead key=shown\n");
    let mount = ["mount", "hostdir:data", "m", "--background", "--transform", "rules"];
    let readable = |name: &str| {
        let views = [".ruled".to_owned(), ".pinned".into(), ".linked".into()];
        let views = views.into_iter().chain([format!("@~aead key={name}")]);
        let read = views.map(|view| fs::read(bench.path(&format!("m/own/{name}{view}"))));
        let read: Vec<bool> = read
            .map(|read| read.is_ok_and(|content| content == name.repeat(40).as_bytes()))
            .collect();
        assert!(read.iter().all(|one| *one == read[0]), "{name}: {read:?}");
        read[0]
    };
    weft(&mount);
    assert_eq!(names.map(readable), [true, false, true]);
    fs::write(bench.path("m/sealed/x"), "sealed with a key of the rules").unwrap();
    assert_eq!(fs::read(bench.path("m/sealed/x")).unwrap(), b"sealed with a key of the rules");
    bench.ok(&["umount", "m"]);
    // The mount is given it.
    weft(&[&mount[..], &["--key", "bank=keys/bank"]].concat());
    assert_eq!(names.map(readable), [true, true, true]);
    bench.ok(&["umount", "m"]);
}
