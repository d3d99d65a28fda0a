//! Other people's tools as oracles. Where one is missing a test is skipped, and says so.

use std::path::Path;
use std::process::{Command, Output};

/// Whether all of `tools` are installed; says so if not.
pub fn have(tools: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    for tool in tools {
        if !std::env::split_paths(&path).any(|dir| dir.join(tool).is_file()) {
            println!("skipped: {tool} is not installed");
            return false;
        }
    }
    true
}

/// A tool that runs in `dir` and keeps its state there (hfsutils keeps it in `$HOME`).
pub fn tool(dir: &Path, name: &str) -> Command {
    let mut command = Command::new(name);
    command.current_dir(dir).env("HOME", dir);
    command
}

/// Runs it, and panics with its output if it fails.
pub fn run(command: &mut Command) -> Output {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{command:?}: {}\n{said}", out.status);
    out
}
