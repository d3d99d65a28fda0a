//! `completions` and `man`.

use crate::cli::{self, Cli};
use crate::failure::{DONE, Failure, Outcome};
use crate::output::ignore_closed_pipe;
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::io::Write;
use std::path::Path;
use weft::vfs::host_file;

/// `completions`.
pub fn completions(args: &cli::Completions) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "weft", &mut script);
    ignore_closed_pipe(std::io::stdout().write_all(&script))?;
    Ok(DONE)
}

/// `man`: a page for the command and one for each verb.
pub fn man(args: &cli::Man) -> Outcome {
    let dir = &args.directory;
    let failed = |e| Failure::from(weft::Error::host("write manual pages to", dir, e));
    std::fs::create_dir_all(dir).map_err(failed)?;
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    write_pages(&command, "", dir).map_err(failed)?;
    Ok(DONE)
}

/// The pages of a command, which `verb` names, and of those below it.
fn write_pages(command: &Command, verb: &str, dir: &Path) -> std::io::Result<()> {
    let name = page_name(verb);
    let man = Man::new(command.clone()).title(name.clone());
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.get_arguments().any(|a| !a.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    if command.get_after_help().is_some() || command.get_after_long_help().is_some() {
        man.render_extra_section(&mut page)?;
    }
    let mut more = Roff::default();
    if let Some(lines) = cli::examples::of(verb) {
        more.control("SH", ["EXAMPLES"]);
        for line in lines.lines() {
            match line.strip_prefix("# ") {
                Some(comment) => more.control("PP", []).text([roman(format!("{comment}:"))]),
                None => {
                    more.control("PP", []).control("RS", ["4"]).text([bold(line)]).control("RE", [])
                }
            };
        }
    }
    more.control("SH", ["EXIT STATUS"]).text([roman(exit_status(verb))]);
    more.control("SH", ["SEE ALSO"]).text([roman(see_also(command, verb))]);
    more.to_writer(&mut page)?;
    host_file::replace(&dir.join(format!("{name}.1")), &page, 0o666)?;
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        write_pages(sub, format!("{verb} {}", sub.get_name()).trim(), dir)?;
    }
    Ok(())
}

fn page_name(verb: &str) -> String {
    format!("weft {verb}").trim().replace(' ', "-")
}

/// The codes of docs/exit-codes.md that a verb uses.
fn exit_status(verb: &str) -> &'static str {
    match verb {
        "fsck" | "cache check" | "cache repair" | "ringer doctor" | "ringer scrub" => {
            "0: nothing is wrong. 1: something was wrong and has been repaired. 4: something is wrong and has \
             not been repaired. 8: the check itself failed. 2: wrong usage."
        }
        "crash" | "crash run" => {
            "0: no state fails. 3: a state breaks a promise; it is printed with the command that replays it. \
             1: nothing was tested, and the message says why. 2: wrong usage."
        }
        _ => {
            "0: done. 1: failed; the message on standard error says what, where and what to do. 2: wrong usage."
        }
    }
}

/// The pages beside this one: those below it, the one above it, and what belongs to its subject.
fn see_also(command: &Command, verb: &str) -> String {
    let subject = match verb.split(' ').next().unwrap_or_default() {
        "mount" | "umount" => "weft-fsck(1), mount(8), fuse(4)",
        "fsck" => "weft-mount(1), fsck(8), e2fsck(8)",
        "mkfs" => "weft-mount(1), weft-import(1), mke2fs(8)",
        "import" | "export" => "weft-put(1), weft-get(1), tar(1)",
        "put" | "get" | "cp" => "weft-import(1), weft-export(1)",
        "serve" => "weft-mount(1), weft-cache(1), nbd-client(8), qemu-nbd(8)",
        "crash" => "weft-order(1), fsync(2)",
        "order" => "weft-crash-run(1), fsync(2)",
        _ => "",
    };
    let above = verb.rsplit_once(' ').map(|(above, _)| above);
    let mut pages = vec![];
    if !verb.is_empty() {
        pages.push("weft(1)".to_owned());
    }
    pages.extend(above.map(|above| format!("{}(1)", page_name(above))));
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        pages.push(format!("{}(1)", page_name(format!("{verb} {}", sub.get_name()).trim())));
    }
    if !subject.is_empty() {
        pages.push(subject.to_owned());
    }
    pages.push("the documents in PREFIX/share/doc/weft".to_owned());
    pages.join(", ")
}
