//! libfuse's examples that pass requests through to a directory, `passthrough_hp` and
//! `passthrough_ll`: the cost of FUSE with next to no file system behind it.

use crate::io_uring::Transport;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// In the order of preference: `passthrough_ll` searches a list of all inodes for each lookup.
const PROGRAMS: [&str; 2] = ["passthrough_hp", "passthrough_ll"];

/// Looks for one of the programs on `PATH`.
pub fn find() -> Option<PathBuf> {
    PROGRAMS.into_iter().find_map(super::installed)
}

/// The reason why `program` cannot be measured here, if there is one.
pub fn missing(program: Option<&Path>, transport: Transport) -> Option<String> {
    let Some(program) = program else {
        return Some(
            "neither passthrough_hp nor passthrough_ll (examples of libfuse) is on PATH; name one \
             with --passthrough"
                .into(),
        );
    };
    match options(program) {
        Err(e) => Some(format!("{e:#}")),
        Ok(options) if transport == Transport::IoUring && !options.contains("-o io_uring ") => {
            Some(format!("{} has no option io_uring (libfuse 3.18)", program.display()))
        }
        Ok(_) => None,
    }
}

/// The options that the program describes.
fn options(program: &Path) -> Result<String> {
    let out = Command::new(program).arg("--help").output();
    let out = out.with_context(|| format!("run {}", program.display()))?;
    Ok(String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned())
}

/// Adds the arguments with which `command`, which runs `program`, serves `dir` in the foreground;
/// the mount point is to follow. Both programs keep names and attributes in the kernel for a day,
/// and neither uses the write-back cache (`passthrough_hp` does where the kernel cannot read and
/// write the files of the directory itself, before Linux 6.9).
pub fn serving(
    mut command: Command,
    program: &Path,
    dir: &Path,
    transport: Transport,
) -> Result<Command> {
    let io_uring = transport == Transport::IoUring;
    if program.file_name().is_some_and(|name| name == "passthrough_ll") {
        command.args(["-f", "-o"]).arg(format!("source={},cache=always", dir.display()));
        if io_uring {
            command.args(["-o", "io_uring"]);
        }
        return Ok(command);
    }
    // Older versions never leave the foreground, and do not know the option.
    if options(program)?.contains("--foreground") {
        command.arg("--foreground");
    }
    if io_uring {
        command.args(["-o", "io_uring"]);
    }
    command.arg(dir);
    Ok(command)
}
