//! `completions` and `man`.

use crate::cli::{self, Cli};
use crate::failure::{DONE, Failure, Outcome};
use crate::output::ignore_closed_pipe;
use clap::CommandFactory;
use std::io::Write;

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
    clap_mangen::generate_to(Cli::command().disable_help_subcommand(true), dir).map_err(failed)?;
    Ok(DONE)
}
