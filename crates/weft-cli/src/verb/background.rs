//! Runs the part of a command that continues after the command has returned.
//!
//! `--background` runs this same program again with `--detached`, as the leader of a new session.
//! That process sets up the mount or server, reports so in one line through the pipe that is its
//! standard output, detaches from the terminal and serves. The first process waits for that line,
//! so that the mount or server is ready when it returns, and passes on the errors of the other if
//! the line never comes.

use crate::failure::{FAILED, Failure};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use weft::vfs::host_file;

/// Names the file with its process id to the process behind `--background`, which removes it at its end.
const PID_FILE: &str = "WEFT_PID_FILE";

/// The file with the id of this process.
static OWN_PID_FILE: OnceLock<PathBuf> = OnceLock::new();

/// Writes a process id to a file, which another process may read at any time.
fn write_pid(file: &Path, pid: u32) -> Result<(), Failure> {
    let text = format!("{pid}\n");
    let written = match host_file::replace(file, text.as_bytes(), 0o666) {
        // The file is this user's, and the directory is not.
        Err(e) if e.kind() == ErrorKind::PermissionDenied => std::fs::write(file, text),
        written => written,
    };
    written.map_err(|e| weft::Error::host("write", file, e).into())
}

/// Writes the id of this process to a file, which is removed when it ends.
pub fn write_own_pid(file: &Path) -> Result<(), Failure> {
    write_pid(file, std::process::id())?;
    // A process has one.
    let _ = OWN_PID_FILE.set(std::path::absolute(file)?);
    Ok(())
}

/// Removes the file with the id of this process, if there is one: the number may soon be another
/// process'.
pub fn remove_pid_file() {
    let behind = std::env::var_os(PID_FILE).map(PathBuf::from);
    let Some(file) = OWN_PID_FILE.get().cloned().or(behind) else { return };
    let own = std::process::id().to_string();
    if std::fs::read_to_string(&file).is_ok_and(|text| text.trim() == own) {
        let _ = std::fs::remove_file(&file);
    }
}

/// Runs this program with `--detached` and waits until it reports that it is ready. Returns its
/// process id, which is written to `pid_file`, and its line.
pub fn start(command: &mut Command, pid_file: Option<&Path>) -> Result<(u32, String), Failure> {
    command.env_remove(PID_FILE);
    if let Some(file) = pid_file {
        command.env(PID_FILE, std::path::absolute(file)?);
    }
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| Failure::new(format!("cannot start the background process: {e}")))?;
    let mut said = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut said)?;
    }
    if said.ends_with('\n') {
        if let Some(file) = pid_file {
            write_pid(file, child.id())?;
            // It may have ended before there was a file to remove.
            if child.try_wait()?.is_some() {
                std::fs::remove_file(file)?;
            }
        }
        return Ok((child.id(), said.trim_end().to_owned()));
    }
    let mut complaint = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_string(&mut complaint)?;
    }
    let status = child.wait()?;
    let message = complaint.trim().trim_start_matches("weft: ");
    Err(if message.is_empty() {
        Failure::new(format!("the background process exited without an error message ({status})"))
    } else {
        let code = status.code().and_then(|code| u8::try_from(code).ok()).filter(|code| *code > 0);
        // The paths in the message are absolute, so they are valid in this process too.
        Failure { code: code.unwrap_or(FAILED), ..Failure::new(message) }
    })
}

/// Writes the line `word`, then leaves the session, the terminal and the working directory of the
/// process that started this one.
pub fn let_go(word: &str) -> Result<(), Failure> {
    let io = |e: rustix::io::Errno| Failure::from(std::io::Error::from(e));
    // Fails only for a process that leads a group already: then there is no terminal to leave.
    let _ = rustix::process::setsid();
    std::env::set_current_dir("/")?;
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{word}")?;
    stdout.flush()?;
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null).map_err(io)?;
    rustix::stdio::dup2_stdout(&null).map_err(io)?;
    rustix::stdio::dup2_stderr(&null).map_err(io)?;
    crate::system_log::begin();
    Ok(())
}
