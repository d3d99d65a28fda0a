//! The rules of the house that a machine can check: CONTRIBUTING.md lists them.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What each crate may depend on: the table in ARCHITECTURE.md, which is checked against this one.
const ROOMS: &[(&str, &[&str])] = &[
    ("weft-block", &[]),
    ("weft-testing", &["block"]),
    ("weft-net", &[]),
    ("weft-nbd", &["block", "net"]),
    ("weft-cache", &["block"]),
    ("weft-patch", &["block"]),
    ("weft-vfs", &[]),
    ("weft-unix", &["block", "patch", "vfs"]),
    ("weft-ext2", &["block", "patch", "unix", "vfs"]),
    ("weft-hfs", &["block", "patch", "vfs"]),
    ("weft-transform", &["vfs"]),
    ("weft-ringer", &["vfs"]),
    ("weft-ringer-net", &["net", "vfs", "ringer"]),
    ("weft-ringer-server", &["net", "vfs", "ringer", "ringer-net"]),
    ("weft-ringer-client", &["net", "vfs", "ringer", "ringer-net"]),
    ("weft-fuse", &["vfs"]),
    ("weft-order", &["patch", "vfs"]),
    (
        "weft",
        &[
            "block",
            "net",
            "nbd",
            "cache",
            "patch",
            "vfs",
            "ext2",
            "hfs",
            "transform",
            "ringer",
            "ringer-client",
            "ringer-net",
            "ringer-server",
            "fuse",
            "order",
        ],
    ),
    ("weft-crash", &["block", "patch", "vfs", "unix", "ext2", "hfs", "weft"]),
    ("weft-crash-test", &["block", "patch", "vfs", "ext2", "hfs", "fuse", "order"]),
    ("weft-c", &["weft"]),
    ("weft-python", &["weft"]),
    ("weft-cli", &["weft", "crash", "crash-test"]),
    ("weft-bench", &["weft"]),
];

/// The longest source file, in lines without its unit tests.
const FILE_MAX_LINES: usize = 700;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// `cargo metadata` of the workspace, for this machine's platform only: dependencies of other
/// platforms need not have been downloaded.
fn metadata() -> Value {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let rustc = Command::new("rustc").arg("-vV").output().expect("rustc runs");
    let rustc = String::from_utf8(rustc.stdout).expect("UTF-8");
    let host = rustc.lines().find_map(|l| l.strip_prefix("host: ")).expect("a host line");
    let out = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", host])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).expect("JSON")
}

fn rust_files() -> Vec<PathBuf> {
    fn walk(dir: &Path, into: &mut Vec<PathBuf>) {
        let entries = std::fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        for entry in entries {
            let path = entry.expect("a directory entry").path();
            if path.is_dir() {
                walk(&path, into);
            } else if path.extension().is_some_and(|e| e == "rs") {
                into.push(path);
            }
        }
    }
    let mut files = Vec::new();
    walk(&root().join("crates"), &mut files);
    files.sort();
    assert!(files.len() > 10, "the sources are where this test looks");
    files
}

fn report(rule: &str, broken: &[String]) {
    assert!(broken.is_empty(), "{rule}:\n  {}", broken.join("\n  "));
}

#[test]
fn crates_depend_downwards_only() {
    let metadata = metadata();
    let mut broken = Vec::new();
    let mut seen = BTreeSet::new();
    for package in metadata["packages"].as_array().expect("packages") {
        let name = package["name"].as_str().expect("a name");
        if !package["source"].is_null() {
            continue;
        }
        let Some((_, may)) = ROOMS.iter().find(|(room, _)| *room == name) else {
            broken.push(format!("{name} is in no row of the table of rooms"));
            continue;
        };
        seen.insert(name.to_owned());
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let on = dependency["name"].as_str().expect("a name");
            let ours = dependency["path"].is_string();
            let is_dev = dependency["kind"] == "dev";
            let short = on.strip_prefix("weft-").unwrap_or(on);
            if ours && !is_dev && !may.contains(&short) {
                broken.push(format!("{name} uses {on}"));
            }
        }
    }
    for (room, _) in ROOMS {
        if !seen.contains(*room) {
            broken.push(format!("{room} is in the table and not in the workspace"));
        }
    }
    report("arrows go down only", &broken);
}

#[test]
fn architecture_has_the_same_rooms() {
    let page = read(&root().join("ARCHITECTURE.md"));
    let mut rows = BTreeMap::new();
    for line in page.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if let [_, name, _, may, _] = cells[..]
            && let Some(name) = name.strip_prefix('`').and_then(|n| n.strip_suffix('`'))
            && name.starts_with("weft")
            && !name.contains("::")
        {
            rows.insert(name.to_owned(), may.to_owned());
        }
    }
    for (room, may) in ROOMS {
        let expected = if may.is_empty() { "nothing of ours".to_owned() } else { may.join(", ") };
        assert_eq!(rows.get(*room), Some(&expected), "the row of {room} in ARCHITECTURE.md");
    }
}

/// Only what is exchanged with the kernel of this machine is in its byte order.
#[test]
fn what_is_stored_has_a_byte_order_of_its_own() {
    let mut broken = Vec::new();
    for path in rust_files() {
        // Below the workspace: what the checkout itself lies under is nobody's business.
        let shown = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
        // Requests of the kernel, and arguments of ioctl(2), are in the order of the machine.
        let is_of_machine = ["/weft-fuse/", "/weft-order/"].iter().any(|room| shown.contains(room));
        if !shown.contains("/src/") || is_of_machine {
            continue;
        }
        for (number, line) in read(&path).lines().enumerate() {
            if line.contains("_ne_bytes") || line.contains("transmute") {
                broken.push(format!("{shown}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    report("no bytes of this machine's order are stored", &broken);
}

#[test]
fn licences_are_allowed() {
    let deny = read(&root().join("deny.toml"));
    let list = deny.split("allow = [").nth(1).and_then(|l| l.split(']').next()).expect("a list");
    let allowed: BTreeSet<&str> =
        list.lines().filter_map(|l| l.trim().strip_prefix('"')?.split('"').next()).collect();
    assert!(allowed.contains("MIT"), "deny.toml is read");

    let mut broken = Vec::new();
    for package in metadata()["packages"].as_array().expect("packages") {
        let name = package["name"].as_str().expect("a name");
        let licence = package["license"].as_str().unwrap_or("none given").replace('/', " OR ");
        if !licence_allowed(&licence, &allowed) {
            broken.push(format!("{name}: {licence}"));
        }
    }
    report("licences that deny.toml does not allow", &broken);
}

/// Whether an SPDX expression can be met with the allowed licences. Covers what crates use: `OR`
/// of `AND`s, with parentheses around either.
fn licence_allowed(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    let expression = expression.trim();
    split_outside_parentheses(expression, " OR ").into_iter().any(|choice| {
        split_outside_parentheses(choice, " AND ").into_iter().all(|part| {
            let part = part.trim();
            match part.strip_prefix('(').and_then(|p| p.strip_suffix(')')) {
                Some(inside) => licence_allowed(inside, allowed),
                None => allowed.contains(part),
            }
        })
    })
}

fn split_outside_parentheses<'a>(text: &'a str, separator: &str) -> Vec<&'a str> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0_usize);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ if depth == 0 && at >= start && text[at..].starts_with(separator) => {
                parts.push(&text[start..at]);
                start = at + separator.len();
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

#[test]
fn licence_expressions_are_understood() {
    let allowed = BTreeSet::from(["MIT", "Unicode-3.0"]);
    assert!(licence_allowed("MIT", &allowed));
    assert!(licence_allowed("GPL-2.0 OR MIT", &allowed));
    assert!(licence_allowed("(MIT OR Apache-2.0) AND Unicode-3.0", &allowed));
    assert!(!licence_allowed("MIT AND GPL-2.0", &allowed));
    assert!(!licence_allowed("(MIT OR Apache-2.0) AND GPL-2.0", &allowed));
}

#[test]
fn source_files_are_short_and_say_what_they_are() {
    let mut broken = Vec::new();
    for path in rust_files() {
        let text = read(&path);
        let short = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
        // Unit tests at the end do not make a file harder to read.
        let lines = text.lines().take_while(|l| !l.starts_with("#[cfg(test)]")).count();
        if lines > FILE_MAX_LINES {
            broken.push(format!("{short} has {lines} lines, {FILE_MAX_LINES} are allowed"));
        }
        if !text.starts_with("//!") {
            broken.push(format!("{short} does not begin with a //! header"));
        }
    }
    report("source files", &broken);
}

#[test]
fn nothing_is_left_to_do() {
    // Spelt in halves so that this file does not find itself.
    let words = [["todo", "!("], ["unimplemented", "!("], ["dbg", "!("]].map(|w| w.concat());
    let mut broken = Vec::new();
    for path in rust_files() {
        let text = read(&path);
        let short = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
        for (number, line) in text.lines().enumerate() {
            let is_comment = line.trim_start().starts_with("//");
            if !is_comment && words.iter().any(|w| line.contains(w.as_str())) {
                broken.push(format!("{short}:{}: {}", number + 1, line.trim()));
            }
        }
        let header: String = text.lines().take_while(|l| l.starts_with("//!")).collect();
        let has_unsafe = text.lines().any(|l| {
            let l = l.trim_start();
            !l.starts_with("//") && (l.contains("unsafe {") || l.contains("unsafe fn"))
        });
        if has_unsafe && path.file_name() != Some("house.rs".as_ref()) && !header.contains("unsafe")
        {
            broken.push(format!("{short} has unsafe code and its header does not say why"));
        }
    }
    report("left undone", &broken);
}
