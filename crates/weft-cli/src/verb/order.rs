//! `order`: programs whose changes reach the disk in the order that the command line says.

use crate::cli;
use crate::failure::{DONE, Failure, Outcome};
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use weft::patchgroups::{Error, Kind, MountedGroup, Scope};

/// The word between commands.
const THEN: &str = "then";
/// The exit code of a shell for a command that a signal has ended is this and the signal's number.
const SIGNALLED: i32 = 128;

/// `order`.
pub fn run(args: &cli::Ordered) -> Outcome {
    let commands: Vec<&[OsString]> = args.commands.split(|word| word == THEN).collect();
    if commands.iter().any(|words| words.is_empty()) {
        return Err(Failure::usage("a command is missing before or after 'then'"));
    }
    let kind = match (args.atomic, args.linear) {
        (true, _) => Kind::Abortable,
        (_, true) => Kind::Linear,
        _ => Kind::Ordinary,
    };
    if args.atomic && commands.len() > 1 {
        return Err(Failure::usage("with --atomic there is one command, and no 'then'"));
    }
    let shown = args.on.display();
    let failed = |e: Error| match e {
        Error::NoGroups => {
            Failure::new(format!("{shown} is not on a volume that weft has mounted for writing"))
        }
        e => Failure::new(format!("{shown}: {e}")),
    };
    // A process whose parent has ended must still descend from this one.
    if let Err(e) = rustix::process::set_child_subreaper(Some(rustix::process::getpid())) {
        return Err(Failure::new(format!("cannot become a subreaper: {e}")));
    }
    let mut group = match MountedGroup::of_kind(&args.on, kind) {
        // On this volume nothing can be undone: HFS, or an ext3 volume with a small journal.
        Err(Error::NotAtomic) if args.atomic => MountedGroup::of_kind(&args.on, Kind::Atomic),
        made => made,
    }
    .map_err(failed)?;
    let mut code = DONE;
    for (number, words) in commands.iter().enumerate() {
        if number > 0 {
            let next = MountedGroup::of_kind(&args.on, kind).map_err(failed)?;
            next.depend(&group).map_err(failed)?;
            group = next;
        }
        group.engage(Scope::Process, args.fsync).map_err(failed)?;
        let status = command(words).status();
        group.disengage(Scope::Process).map_err(failed)?;
        let status =
            status.map_err(|e| Failure::new(format!("cannot run {}: {e}", words[0].display())))?;
        code = exit_code(status);
        if code != DONE {
            break;
        }
    }
    if args.atomic && code != DONE {
        match group.abort() {
            Ok(()) => return Ok(code),
            Err(e) => eprintln!("weft: the command failed, and its changes are kept: {e}"),
        }
    }
    group.commit().map_err(failed)?;
    if args.sync {
        group.sync().map_err(failed)?;
    }
    Ok(code)
}

/// Returns the command of some words, of which a single one is a line for the shell.
fn command(words: &[OsString]) -> Command {
    if let [line] = words {
        let mut shell = Command::new("/bin/sh");
        shell.arg("-c").arg(line);
        return shell;
    }
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command
}

fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| SIGNALLED + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}
