//! The command blocks of README.md and of every page in docs: they run as they are written, in order,
//! by whoever runs the tests, and every command and option that any block shows exists.
//!
//! A block of the language `sh` runs, with the other blocks of its page, in an empty directory.
//! What is written behind the language says what a block needs that a test cannot make, and the block
//! is not run: `sh (two machines)`. Blocks of commands have no other language, so that none is forgotten.

use crate::run::{Bench, can_mount};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A fenced block of a page.
struct Block {
    /// Of its first fence, from 1.
    line: usize,
    language: String,
    /// What it needs that a test cannot make.
    needs: Option<String>,
    text: String,
}

/// All pages that a user reads: README.md and docs.
fn pages() -> BTreeMap<String, String> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut paths = vec![top.join("README.md")];
    for entry in fs::read_dir(top.join("docs")).expect("docs") {
        let path: PathBuf = entry.expect("a page").path();
        if path.extension().is_some_and(|e| e == "md") {
            paths.push(path);
        }
    }
    let read = |path: PathBuf| {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).expect("a page");
        (name, text)
    };
    paths.into_iter().map(read).collect()
}

fn blocks(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut is_inside = false;
    for (i, line) in text.lines().enumerate() {
        if let Some(info) = line.strip_prefix("```") {
            is_inside = !is_inside;
            if is_inside {
                let (language, needs) = info.split_once(' ').unwrap_or((info, ""));
                let needs = needs.trim().trim_matches(['(', ')']);
                blocks.push(Block {
                    line: i + 1,
                    language: language.to_owned(),
                    needs: (!needs.is_empty()).then(|| needs.to_owned()),
                    text: String::new(),
                });
            }
        } else if is_inside {
            let block = blocks.last_mut().expect("a block");
            block.text.push_str(line);
            block.text.push('\n');
        }
    }
    assert!(!is_inside, "a block that does not end");
    blocks
}

/// Ends what a page started and did not end: mounts below a directory, and processes whose pid files
/// are in it.
struct Ended<'a>(&'a Bench);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        for mount_point in mounts.lines().filter_map(|line| line.split(' ').nth(1)) {
            if Path::new(mount_point).starts_with(self.0.dir()) {
                self.0.run(&["umount", "--lazy", mount_point]);
            }
        }
        for entry in fs::read_dir(self.0.path("work")).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|e| e == "pid")
                && let Ok(pid) = fs::read_to_string(&path)
            {
                let _ = Command::new("kill").arg(pid.trim()).stderr(Stdio::null()).status();
            }
        }
    }
}

/// Runs the blocks of a page in one shell, and returns how many these were.
fn run_page(name: &str, text: &str) -> usize {
    let mut script = String::from("set -e\n");
    let mut ran = 0;
    for block in blocks(text).iter().filter(|b| b.language == "sh") {
        if let Some(needs) = &block.needs {
            println!("{name}:{}: not run: needs {needs}", block.line);
            continue;
        }
        script += &format!("echo '== {name}:{}' >&2\n{}", block.line, block.text);
        ran += 1;
    }
    if ran == 0 {
        return 0;
    }
    let bench = Bench::new();
    let _ended = Ended(&bench);
    for name in ["home", "work"] {
        fs::create_dir(bench.path(name)).expect("a directory");
    }
    let output = bench
        .shell(&script)
        .current_dir(bench.path("work"))
        .env("HOME", bench.path("home"))
        .env_remove("XDG_CONFIG_HOME")
        .env_remove("XDG_CACHE_HOME")
        .output()
        .expect("a shell");
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name}: {}\n{out}\n{err}", output.status);
    ran
}

#[test]
fn the_commands_of_every_page_run_as_they_are_written() {
    if !can_mount() {
        return;
    }
    let mut ran = 0;
    for (name, text) in pages() {
        // Its commands are to fail first: the tests of its tutorial (`documents`) run them.
        if name != "crash.md" {
            ran += run_page(&name, &text);
        }
    }
    assert!(ran >= 8, "only {ran} blocks");
}

/// The commands of a block: its lines, those that are continued joined, cut at pipes and semicolons.
fn commands(text: &str) -> Vec<Vec<String>> {
    let text = text.replace("\\\n", " ");
    let mut commands = Vec::new();
    for line in text.lines() {
        // `ada$ weft ...` says on which machine.
        let line = match line.split_once("$ ") {
            Some((machine, rest)) if machine.chars().all(char::is_alphanumeric) => rest,
            _ => line,
        };
        let mut words = vec![String::new()];
        let (mut quote, mut is_comment) = (None, false);
        let mut end_of_command = |words: &mut Vec<String>| {
            words.retain(|word| !word.is_empty());
            commands.push(std::mem::replace(words, vec![String::new()]));
        };
        for c in line.chars() {
            match (quote, c) {
                _ if is_comment => {}
                (Some(q), c) if c == q => quote = None,
                (None, '\'' | '"') => quote = Some(c),
                (None, '#') if words.last().is_some_and(String::is_empty) => is_comment = true,
                (None, '|' | ';' | '&' | '(' | ')') => end_of_command(&mut words),
                (None, ' ') => words.push(String::new()),
                _ => words.last_mut().expect("a word").push(c),
            }
        }
        end_of_command(&mut words);
    }
    commands.retain(|words| words.first().is_some_and(|word| word == "weft"));
    commands
}

/// The help of the command that these words name, and of how many words its name is.
fn help_of(
    bench: &Bench,
    words: &[String],
    helps: &mut BTreeMap<String, String>,
) -> (String, usize) {
    let mut name: Vec<&str> = Vec::new();
    loop {
        let key = name.join(" ");
        let help = helps.entry(key).or_insert_with(|| {
            let args: Vec<&str> = name.iter().copied().chain(["--help"]).collect();
            bench.ok(&args)
        });
        let next = words.get(name.len()).map(String::as_str);
        let list = help.split("Commands:\n").nth(1).unwrap_or_default();
        let mut verbs = list.lines().take_while(|line| !line.is_empty());
        let is_verb = next.is_some_and(|next| {
            verbs
                .any(|line| line.strip_prefix("  ").and_then(|l| l.split(' ').next()) == Some(next))
        });
        match next {
            Some(next) if is_verb => name.push(next),
            _ => return (help.clone(), name.len()),
        }
    }
}

#[test]
fn every_command_and_option_that_a_page_shows_exists() {
    let bench = Bench::new();
    let mut helps = BTreeMap::new();
    let mut seen = 0;
    for (page, text) in pages() {
        for block in blocks(&text) {
            if ["python", "c", "rust", "go", "make", "bats", "toml"]
                .contains(&block.language.as_str())
            {
                continue;
            }
            let shown = commands(&block.text);
            let place = format!("{page}:{}", block.line);
            // What a command prints stands with it in one block of `text`, or of no language.
            assert!(
                shown.is_empty() || block.language == "sh" || block.language == "text",
                "{place}: commands stand in a block of `sh`, which runs, of `sh (what it needs)`, or of \
                 `text`, with what they print"
            );
            for words in shown {
                let (help, depth) = help_of(&bench, &words[1..], &mut helps);
                assert!(
                    depth > 0 || words.len() == 1 || words[1].starts_with('-'),
                    "{place}: {words:?}"
                );
                for option in words.iter().filter(|word| word.starts_with("--") && word.len() > 2) {
                    let option = option.split('=').next().expect("a name");
                    assert!(
                        help.split(|c: char| !c.is_alphanumeric() && c != '-').any(|w| w == option),
                        "{place}: {option} is no option of {words:?}"
                    );
                    seen += 1;
                }
            }
        }
    }
    assert!(seen >= 100, "only {seen} options");
}
