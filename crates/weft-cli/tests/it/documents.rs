//! README.md is held to its word: the commands it shows exist, and its session runs.

use crate::run::Bench;
use std::path::Path;

fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The lines of the shell blocks of a document, comments cut off.
fn shell_lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if line.starts_with("```") {
            inside = !inside && line == "```sh";
        } else if inside {
            let line = line.split('#').next().unwrap_or("").trim();
            if !line.is_empty() {
                lines.push(line.to_owned());
            }
        }
    }
    lines
}

#[test]
fn the_commands_of_the_readme_exist() {
    let bench = Bench::new();
    let lines = shell_lines(&document("README.md"));
    let mut checked = 0;
    for line in &lines {
        for part in line.split('|') {
            if let Some(rest) = part.trim().strip_prefix("weft ") {
                let verb = rest.split_whitespace().next().expect("a verb");
                bench.ok(&[verb, "--help"]);
                checked += 1;
            }
        }
    }
    assert!(checked >= 8, "{lines:?}");
}

#[test]
fn the_session_of_the_readme_runs_but_for_its_mount() {
    let bench = Bench::new();
    bench.write("include/stdio.h", b"line 1\nline 2\n");
    bench.write("include/sys/types.h", b"types");
    let lines = shell_lines(&document("README.md"));
    let mut ran = 0;
    for line in lines.iter().filter(|l| l.starts_with("weft ")) {
        let line = line.split('|').next().expect("a command").trim();
        let args: Vec<&str> = line.split_whitespace().skip(1).collect();
        match args[0] {
            "mkfs" | "put" | "tree" | "cat" | "export" | "fsck" => {}
            _ => continue,
        }
        let args: Vec<String> = args
            .iter()
            .map(|a| a.replace("/usr/include", "include").replace("1G", "64M"))
            .collect();
        bench.ok(&args.iter().map(String::as_str).collect::<Vec<_>>());
        ran += 1;
    }
    assert!(ran >= 6, "{ran} of {lines:?}");
}

#[test]
fn the_exit_codes_are_documented() {
    let page = document("docs/exit-codes.md");
    for code in ["| 0 |", "| 1 |", "| 2 |", "| 3 |", "| 4 |", "| 8 |"] {
        assert!(page.contains(code), "{code}");
    }
}
