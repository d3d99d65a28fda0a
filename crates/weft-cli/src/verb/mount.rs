//! `mount`: in the foreground, or in a process of its own.
//!
//! `--background` runs this same program again with `--detached`, as the leader of a new session.
//! That process opens the volume and mounts it, says so through the pipe that is its standard
//! output, lets go of the terminal and serves. The first process waits for that word, so that the
//! mount is there when it returns, and passes on what the other complains about if it never comes.

use crate::cli;
use crate::failure::{DONE, Failure, Outcome};
use crate::output::Output;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use weft::mount_options::MountOptions;
use weft::{Options, Stack, mounts};

/// What the detached process says when the mount is there.
const MOUNTED: &str = "mounted";

/// `mount`.
pub fn run(out: Output, args: &cli::Mount, verbose: u8) -> Outcome {
    let options = options(args)?;
    if args.background && !args.detached {
        return detach(out, args, verbose);
    }
    let dead = mounts::clear_dead(&args.mountpoint)?;
    if dead {
        let dir = args.mountpoint.display();
        out.note(&format!("the process behind an earlier mount on {dir} had died; unmounted it"));
    }
    let opening = Options {
        read_only: options.read_only,
        order: options.order,
        no_atime: options.kernel.iter().any(|o| o == "noatime"),
        journal: args.opening.journal.clone(),
        mount_point: std::path::absolute(&args.mountpoint)?.to_str().map(str::to_owned),
        ..Options::default()
    };
    let stack = Stack::open(&args.image, &opening)?;
    if stack.is_read_only() && !options.read_only {
        out.note("mounted read-only: weft info says which features of the volume call for that");
    }
    let detached = args.detached;
    let session = stack.mount(&args.mountpoint, &options)?;
    if let (Some(file), false) = (&args.pid_file, detached) {
        write_pid(file, std::process::id())?;
    }
    if detached {
        let_go()?;
    } else {
        let (image, dir) = (&args.image, args.mountpoint.display());
        out.note(&format!("{image} is mounted on {dir}; unmount it, or press Ctrl-C, to end"));
    }
    session.wait()?;
    Ok(DONE)
}

/// Puts the options of the command line and of `-o` together.
fn options(args: &cli::Mount) -> Result<MountOptions, Failure> {
    let mut options = MountOptions::default();
    for list in &args.options {
        options.parse(list).map_err(|e| Failure::usage(e.to_string()))?;
    }
    options.read_only |= args.read_only;
    options.order = args.opening.order.or(options.order);
    options.threads = args.threads.or(options.threads);
    Ok(options)
}

fn write_pid(file: &Path, pid: u32) -> Result<(), Failure> {
    std::fs::write(file, format!("{pid}\n")).map_err(|e| weft::Error::host("write", file, e).into())
}

/// Runs the mount in a process of its own and waits until it stands.
fn detach(out: Output, args: &cli::Mount, verbose: u8) -> Outcome {
    let program = std::env::current_exe()?;
    let mut command = Command::new(program);
    command.arg("mount").arg("--detached").arg("--quiet");
    for _ in 0..verbose {
        command.arg("--verbose");
    }
    if let Some(order) = args.opening.order {
        command.arg(format!("--order={order}"));
    }
    if let Some(journal) = &args.opening.journal {
        command.arg(format!("--journal={}", mounts::absolute_source(journal)?));
    }
    if args.read_only {
        command.arg("--read-only");
    }
    for list in &args.options {
        command.arg(format!("--options={list}"));
    }
    if let Some(threads) = args.threads {
        command.arg(format!("--threads={threads}"));
    }
    // What is named relative to this directory must be found when the other has left it.
    command.arg("--").arg(mounts::absolute_source(&args.image)?);
    command.arg(std::path::absolute(&args.mountpoint)?);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| Failure::new(format!("cannot start the serving process: {e}")))?;

    let mut said = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut said)?;
    }
    if said.trim_end() == MOUNTED {
        if let Some(file) = &args.pid_file {
            write_pid(file, child.id())?;
        }
        let (image, dir) = (&args.image, args.mountpoint.display());
        let text = format!("{image} is mounted on {dir}");
        out.confirm(&serde_json::json!({ "mounted": image, "process": child.id() }), &text)?;
        return Ok(DONE);
    }
    let mut complaint = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_string(&mut complaint)?;
    }
    let status = child.wait()?;
    let message = complaint.trim().trim_start_matches("weft: ");
    Err(if message.is_empty() {
        Failure::new(format!("the serving process ended without a word ({status})"))
    } else {
        // Its paths are absolute; they name the same things.
        Failure { code: crate::failure::FAILED, message: message.to_owned() }
    })
}

/// Leaves the session, the terminal and the working directory of whoever mounted.
fn let_go() -> Result<(), Failure> {
    let io = |e: rustix::io::Errno| Failure::from(std::io::Error::from(e));
    // Fails only for a process that leads a group already: then there is no terminal to leave.
    let _ = rustix::process::setsid();
    std::env::set_current_dir("/")?;
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{MOUNTED}")?;
    stdout.flush()?;
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null).map_err(io)?;
    rustix::stdio::dup2_stdout(&null).map_err(io)?;
    rustix::stdio::dup2_stderr(&null).map_err(io)
}
