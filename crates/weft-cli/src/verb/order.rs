//! `order`: programs whose changes reach the disk in the order that the command line says.

use crate::cli;
use crate::failure::{DONE, Failure, Outcome};
use crate::output::Output;
use serde::Serialize;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use weft::patchgroups::{Error, Kind, LABEL_BYTES_MAX, ListedGroup, MountedGroup, Scope};

/// The word between commands.
const THEN: &str = "then";
/// The exit code of a shell for a command that a signal has ended is this and the signal's number.
const SIGNALLED: i32 = 128;

/// A listed group.
#[derive(Serialize)]
struct Row {
    group: u32,
    label: String,
    kind: &'static str,
    process: u32,
    state: &'static str,
    released: bool,
    engaged: bool,
    depended_on: bool,
    durable: bool,
    depends_on: Vec<u32>,
    depends_on_count: u32,
}

#[derive(Serialize)]
struct Listing {
    groups: Vec<Row>,
    more: bool,
}

impl From<ListedGroup> for Row {
    fn from(group: ListedGroup) -> Self {
        Self {
            group: group.number,
            label: group.label,
            kind: match group.kind {
                Kind::Ordinary => "ordinary",
                Kind::Linear => "linear",
                Kind::Atomic => "atomic",
                Kind::Abortable => "abortable",
            },
            process: group.pid,
            state: match (group.is_engaged, group.is_depended_on, group.is_released) {
                (true, ..) => "engaged",
                (_, true, _) => "closed",
                (.., true) => "released",
                _ => "open",
            },
            released: group.is_released,
            engaged: group.is_engaged,
            depended_on: group.is_depended_on,
            durable: group.is_durable,
            depends_on: group.befores,
            depends_on_count: group.befores_count,
        }
    }
}

impl Row {
    fn depends_on(&self) -> String {
        let numbers: Vec<String> = self.depends_on.iter().map(ToString::to_string).collect();
        let listed = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
        match self.depends_on_count.saturating_sub(listed) {
            0 if numbers.is_empty() => "-".into(),
            0 => numbers.join(","),
            more => format!("{},+{more}", numbers.join(",")),
        }
    }
}

/// `order --list`.
fn list(out: Output, args: &cli::Ordered) -> Outcome {
    let listed = weft::patchgroups::list(&args.on, args.limit);
    let (groups, more) = listed.map_err(|e| failure(args, e))?;
    let listing = Listing { groups: groups.into_iter().map(Row::from).collect(), more };
    out.report(&listing, |w| {
        if listing.groups.is_empty() {
            return writeln!(w, "no groups");
        }
        writeln!(w, "   group  kind      process  state     durable  depends on        label")?;
        for row in &listing.groups {
            let (durable, before) = (if row.durable { "yes" } else { "no" }, row.depends_on());
            let Row { group, kind, process, state, label, .. } = row;
            writeln!(
                w,
                "{group:>8}  {kind:<8} {process:>8}  {state:<8}  {durable:<7}  {before:<16}  {label}"
            )?;
        }
        if listing.more { writeln!(w, "and more: --limit") } else { Ok(()) }
    })?;
    Ok(DONE)
}

fn failure(args: &cli::Ordered, e: Error) -> Failure {
    let shown = args.on.display();
    match e {
        Error::NoGroups => {
            Failure::new(format!("{shown} is not on a volume that weft has mounted for writing"))
        }
        e => Failure::new(format!("{shown}: {e}")),
    }
}

/// Returns a label for the group of a command: as much of it as there is room for.
fn label(words: &[OsString]) -> String {
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    let mut label = words.join(" ").replace(char::is_control, " ");
    let whole = (0..=LABEL_BYTES_MAX.min(label.len())).rev().find(|at| label.is_char_boundary(*at));
    label.truncate(whole.unwrap_or(0));
    label
}

/// The reason why changes of a command that failed are kept.
const CANNOT_UNDO: &str = "the volume cannot undo them, as its journal is small, or it is of HFS";

/// `order`.
pub fn run(out: Output, args: &cli::Ordered) -> Outcome {
    if args.list {
        return list(out, args);
    }
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
    let failed = |e| failure(args, e);
    // A process whose parent has ended must still descend from this one.
    if let Err(e) = rustix::process::set_child_subreaper(Some(rustix::process::getpid())) {
        return Err(Failure::new(format!("cannot become a subreaper: {e}")));
    }
    let mut can_undo = args.atomic;
    let mut group = match MountedGroup::of_kind(&args.on, kind) {
        Err(Error::NotAtomic) if args.atomic => {
            can_undo = false;
            MountedGroup::of_kind(&args.on, Kind::Atomic)
        }
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
        group.set_label(&label(words)).map_err(failed)?;
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
        let undone = if can_undo {
            group.abort().map_err(|e| e.to_string())
        } else {
            Err(CANNOT_UNDO.into())
        };
        match undone {
            Ok(()) => return Ok(code),
            Err(why) => eprintln!("weft: the command failed, and its changes are kept: {why}"),
        }
    }
    if can_undo && group.blocks_left().map_err(failed)? == 0 {
        // It was cut. An exit code that is not 0 means that nothing has changed.
        group.abort().map_err(failed)?;
        return Err(Failure::new(format!("{}: it is undone", failed(Error::Cut))));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_its_own_label() {
        let label =
            |words: &[&str]| super::label(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(label(&["cp", "a b", "c"]), "cp a b c");
        assert_eq!(label(&["one\ntwo\u{1b}"]), "one two ");
        assert_eq!(label(&[&"\u{e4}".repeat(40)]), "\u{e4}".repeat(31));
        assert_eq!(label(&[&"x".repeat(63)]), "x".repeat(63));
    }
}
