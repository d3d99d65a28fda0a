//! `crash mount`, `report`, `lose` and `sync`: a folder in use, from which a power cut can be taken.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use weft::mount_options::MountOptions;
use weft::{AtFailure, Tree, mounts};
use weft_crash_test::Error;
use weft_crash_test::live::{
    Address, Answer, Client, CutPoint, LiveFolder, LiveOptions, Loss, LossMode, Request, Server,
};

use super::background;
use crate::cli::crash::{CrashLive, CrashLose, CrashMount};
use crate::failure::{DONE, Failure, Outcome};
use crate::output::Output;

/// `crash mount`.
pub fn mount(out: Output, args: &CrashMount) -> Outcome {
    if args.background && !args.detached {
        return detach(out, args);
    }
    let source = source(&args.directory);
    let below = Tree::host_directory(&source)
        .ok_or_else(|| Failure::usage("give a directory to be mounted elsewhere"))??;
    let options = LiveOptions {
        model: args.model,
        size_bytes: args.size,
        unsynced_bytes: args.unsynced_limit,
    };
    let folder = LiveFolder::open(below.share(), &options).map_err(failure)?;
    let mounting = MountOptions { allow_other: args.allow_other, ..MountOptions::default() };
    let session = below.behind(folder.fs()).mount(&args.mountpoint, &mounting)?;
    let mut servers = Vec::new();
    servers.push(Server::start(&folder, &address(&args.mountpoint)?).map_err(failure)?);
    if let Some(path) = &args.control {
        servers.push(Server::start(&folder, &Address::Path(path.clone())).map_err(failure)?);
    }
    if let (Some(file), false) = (&args.pid_file, args.detached) {
        background::write_own_pid(file)?;
    }
    if args.detached {
        background::let_go("mounted")?;
    } else {
        let (directory, mountpoint) = (&args.directory, args.mountpoint.display());
        out.note(&format!(
            "{directory} is mounted on {mountpoint}; unmount it, or press Ctrl-C, to end"
        ));
    }
    let at_failure = if args.detached { AtFailure::KeepTrying } else { AtFailure::GiveUp };
    session.wait_and(at_failure, || {
        drop(servers);
        Ok(())
    })?;
    Ok(DONE)
}

/// The directory as `weft mount` names it.
fn source(directory: &str) -> String {
    match directory.starts_with("hostdir:") {
        true => directory.to_owned(),
        false => format!("hostdir:{directory}"),
    }
}

fn detach(out: Output, args: &CrashMount) -> Outcome {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["crash", "mount", "--detached", "--quiet"]);
    command.arg(format!("--model={}", args.model));
    command.arg(format!("--size={}", args.size));
    command.arg(format!("--unsynced-limit={}", args.unsynced_limit));
    if let Some(control) = &args.control {
        // Relative paths must be resolved before the other process leaves this directory.
        command.arg("--control").arg(std::path::absolute(control)?);
    }
    if args.allow_other {
        command.arg("--allow-other");
    }
    command.arg("--").arg(mounts::absolute_source(&source(&args.directory))?);
    command.arg(std::path::absolute(&args.mountpoint)?);
    let (process, _) = background::start(&mut command, args.pid_file.as_deref())?;
    let text = format!("{} is mounted on {}", args.directory, args.mountpoint.display());
    out.confirm(&serde_json::json!({ "mounted": args.directory, "process": process }), &text)?;
    Ok(DONE)
}

/// Returns the address of the control socket of a mount, or of a socket's path.
fn address(path: &Path) -> Result<Address, Failure> {
    if let Some(mounted) = mounts::mounted_at(path)? {
        return Ok(Address::Abstract(mounted.socket_name("crash")));
    }
    let is_socket = |found: std::fs::Metadata| found.file_type().is_socket();
    if std::fs::metadata(path).is_ok_and(is_socket) {
        return Ok(Address::Path(path.to_owned()));
    }
    Err(Failure::new(format!("nothing is mounted on {}", path.display())))
}

fn connect(path: &Path) -> Result<Client, Failure> {
    Client::connect(&address(path)?)
        .map_err(|_| Failure::new(format!("{} is no mount of weft crash mount", path.display())))
}

/// `crash report`.
pub fn report(out: Output, args: &CrashLive) -> Outcome {
    match connect(&args.mountpoint)?.ask(&Request::Report).map_err(failure)? {
        Answer::Report(report) => out.report(&report, |w| write!(w, "{report}"))?,
        other => return Err(unexpected(&other)),
    }
    Ok(DONE)
}

/// `crash sync`.
pub fn sync(out: Output, args: &CrashLive) -> Outcome {
    match connect(&args.mountpoint)?.ask(&Request::Sync).map_err(failure)? {
        Answer::Done => {
            out.confirm(
                &serde_json::json!({ "synced": args.mountpoint }),
                "everything is durable",
            )?;
        }
        other => return Err(unexpected(&other)),
    }
    Ok(DONE)
}

/// `crash lose`.
pub fn lose(out: Output, args: &CrashLose) -> Outcome {
    let mode = match (args.newest, args.random, args.torn) {
        (Some(calls), ..) => LossMode::Newest(calls),
        (None, true, _) => LossMode::Random(args.seed),
        (None, false, true) => LossMode::Torn(args.seed),
        (None, false, false) => LossMode::All,
    };
    let loss = Loss { mode, path: args.path.clone() };
    loss.check().map_err(failure)?;
    let at = args.at.clone().map(|call| CutPoint { call, nth: args.nth, after: args.after });
    let mut client = connect(&args.mountpoint)?;
    client.send(&Request::Lose { loss, at, kill: args.kill }).map_err(failure)?;
    let lost = loop {
        match client.receive_within(args.timeout).map_err(failure)? {
            Some(Answer::Armed) => {
                if let Some(at) = &args.at {
                    out.note(&format!("waiting for {at}"));
                }
            }
            Some(Answer::Lost(lost)) => break lost,
            Some(other) => return Err(unexpected(&other)),
            None => {
                if let Some(lost) = client.take_back().map_err(failure)? {
                    break lost;
                }
                let seconds = args.timeout.unwrap_or(Duration::ZERO).as_secs_f64();
                return Err(Failure::new(format!("the call did not come within {seconds} s")));
            }
        }
    };
    out.report(&lost, |w| write!(w, "{lost}"))?;
    Ok(DONE)
}

fn failure(e: Error) -> Failure {
    match e {
        Error::Pattern { .. } => Failure::usage(e.to_string()),
        e => Failure::new(e.to_string()),
    }
}

fn unexpected(answer: &Answer) -> Failure {
    Failure::new(format!("an unexpected answer over the control socket: {answer:?}"))
}
