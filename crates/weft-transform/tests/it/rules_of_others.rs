//! Rules files that their readers may not read, or whose files are not their owner's.

use std::sync::Arc;

use weft_transform::{
    EXPLAIN_ATTRIBUTE, NETWORK_ATTRIBUTE, RULES_NAME, TransformFs, TransformOptions,
};
use weft_vfs::{Caller, FileSystem, Ino, MemFs, RenameFlags, SetAttr, Walker, XattrSet};

use crate::common::registry;

fn over(below: Arc<dyn FileSystem>) -> TransformFs {
    TransformFs::new(below, registry(), TransformOptions::default()).expect("a root")
}

const OWNER: u32 = 1000;

fn owned(below: &MemFs, path: &str, content: &[u8], perm: u16, uid: u32) -> Ino {
    let node = Walker::new(below).write_file(path.as_bytes(), content, perm).expect("written");
    let set = SetAttr { uid: Some(uid), perm: Some(perm), ..SetAttr::default() };
    below.setattr(&Caller::ROOT, node.ino(), &set).expect("owned");
    node.ino()
}

fn explained(fs: &TransformFs, path: &str) -> String {
    let node = Walker::new(fs).resolve(path.as_bytes()).expect("there");
    let json = fs.getxattr(node.ino(), EXPLAIN_ATTRIBUTE).expect("explained");
    String::from_utf8(json).expect("JSON")
}

/// Whoever owns a directory may name any file in it as its rules.
#[test]
fn a_private_file_is_no_rules_file() {
    let below = Arc::new(MemFs::new());
    let rules = std::str::from_utf8(RULES_NAME).expect("text");
    let conf = b"db_password hunter2-XYZ\nlog none\n*.hex hex\n";
    owned(&below, &format!("/{rules}"), conf, 0o600, 0);
    for name in ["db_password", "other", "log", "x.hex"] {
        owned(&below, &format!("/{name}"), b"4142", 0o644, OWNER);
    }
    let fs = over(below.clone());
    let walker = Walker::new(&fs);
    let said = explained(&fs, "/db_password");
    assert!(!said.contains("hunter2"), "{said}");
    assert!(said.contains(rules) && said.contains("chmod a+r"), "{said}");
    // All files that it could be about are alike, those that no line names too.
    for name in ["db_password", "other", "log", "x.hex"] {
        let read = walker.read_file(format!("/{name}").as_bytes());
        assert_eq!(read.expect_err("no plain file").errno(), 13, "{name}");
        assert_eq!(
            explained(&fs, &format!("/{name}")).replace(name, "?"),
            said.replace("db_password", "?")
        );
    }
    // Its owner makes it one, and it counts at once.
    let node = walker.resolve(&[b"/", RULES_NAME].concat()).expect("there");
    let set = |perm| SetAttr { perm: Some(perm), ..SetAttr::default() };
    fs.setattr(&Caller::ROOT, node.ino(), &set(0o644)).expect("its owner's");
    assert_eq!(walker.read_file(b"/other").expect("under no rule"), b"4142");
    let said = explained(&fs, "/db_password");
    assert!(!said.contains("hunter2"), "an error quotes nothing: {said}");
    assert!(said.contains("line 1 of ") && said.contains(rules), "{said}");
    // A single user's rules are read by that user.
    let fs = over(below.clone());
    fs.serve_one_user();
    below.setattr(&Caller::ROOT, node.ino(), &set(0o600)).expect("below");
    assert_eq!(Walker::new(&fs).read_file(b"/other").expect("under no rule"), b"4142");
}

/// A directory's owner chooses no stages for files of others that not all may read.
#[test]
fn rules_of_another_owner_are_no_oracle() {
    let below = Arc::new(MemFs::new());
    let root = Walker::new(&*below);
    root.mkdir(b"/own", 0o755).expect("made");
    let rules = [b"/own/", RULES_NAME].concat();
    let rules = String::from_utf8(rules).expect("text");
    let hidden = ["/own/a", "/own/b"];
    let contents: [&[u8]; 2] = [b"QUJD", b"QUI="];
    for (path, content) in hidden.iter().zip(contents) {
        owned(&below, path, content, 0o600, 0);
    }
    owned(&below, "/own/open", b"QUJD", 0o644, 0);
    owned(&below, "/own/mine", b"QUJD", 0o600, OWNER);
    for text in ["* base64", "* view: ~base64", "* link", "* none"] {
        owned(&below, &rules, text.as_bytes(), 0o644, OWNER);
        let fs = over(below.clone());
        let walker = Walker::new(&fs);
        let told = hidden.map(|path| {
            let attr = walker.resolve(path.as_bytes()).expect("there").attr().size_bytes;
            (attr, walker.read_file(path.as_bytes()).map_err(|e| e.errno()).err())
        });
        assert_eq!(told[0], told[1], "{text}");
        let refused = if text == "* none" { None } else { Some(13) };
        assert_eq!(told[0], (4, refused), "{text}");
        // Moving one under it neither.
        owned(&below, "/c", b"QUJD", 0o600, 0);
        let moved = fs.rename(
            &Caller::ROOT,
            fs.root(),
            b"c",
            walker.resolve(b"/own").expect("own").ino(),
            b"c",
            RenameFlags::empty(),
        );
        assert_eq!(moved.map_err(|e| e.errno()).err(), refused, "{text}");
        let _ = Walker::new(&*below).remove(b"/own/c");
        // What all may read, and what is the owner's of the rules, is under them.
        if text.ends_with("base64") {
            for path in ["/own/open", "/own/mine"] {
                assert_eq!(walker.read_file(path.as_bytes()).expect(path), b"ABC", "{text}");
            }
        }
        // So is everything under rules of root's.
        let node = Walker::new(&*below).resolve(rules.as_bytes()).expect("there");
        let set = SetAttr { uid: Some(0), ..SetAttr::default() };
        below.setattr(&Caller::ROOT, node.ino(), &set).expect("root's");
        if text.ends_with("base64") {
            let fs = over(below.clone());
            assert_eq!(Walker::new(&fs).read_file(b"/own/a").expect("root's"), b"ABC");
        }
    }
    // And what carries a network by its own attribute.
    owned(&below, &rules, b"* hex", 0o644, OWNER);
    let node = root.resolve(b"/own/a").expect("there");
    below
        .setxattr(&Caller::ROOT, node.ino(), NETWORK_ATTRIBUTE, b"base64", XattrSet::Any)
        .expect("attached");
    assert_eq!(Walker::new(&over(below.clone())).read_file(b"/own/a").expect("its own"), b"ABC");
}
