//! The `weft` command.
//!
//! One file in `verb` for each verb (or small family); they share the command line (`cli`), the
//! output (`output`) and the failures (`failure`).

mod cli;
mod failure;
mod helper;
mod inherited;
mod output;
mod system_log;
mod verb;
mod zone;

use clap::{CommandFactory, FromArgMatches};
use failure::Failure;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

/// The time limit for data sent over QUIC to arrive before the process exits.
const SETTLE_LIMIT: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().collect();
    if let Some(mount) = helper::as_mount_helper(&args) {
        // `local` is always a valid zone.
        let _ = zone::set("local");
        return helper::run(mount);
    }
    if let Some(umount) = helper::as_umount_helper(&args) {
        return helper::run_umount(umount);
    }
    // The process behind --background reports to its parent in plain text, and the parent formats
    // it.
    let as_json = args.iter().any(|a| a == "--json") && !args.iter().any(|a| a == "--detached");
    let command = cli::examples::add(cli::Cli::command());
    let cli = match command.try_get_matches_from(args).and_then(|m| cli::Cli::from_arg_matches(&m))
    {
        Err(e) if as_json && e.use_stderr() => {
            return fail(&Failure::usage(e.render().to_string().trim_end()), true);
        }
        Err(e) => e.exit(),
        Ok(cli) => cli,
    };
    inherited::keep_to_this_process(&cli.verb);
    start_log(&cli);
    if let Err(failure) = zone::set(&cli.timezone) {
        return fail(&failure, as_json);
    }
    let is_fsck = matches!(cli.verb, cli::Verb::Fsck(_));
    let outcome = verb::run(cli);
    verb::background::remove_pid_file();
    weft::net::settle(SETTLE_LIMIT);
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(mut failure) => {
            system_log::say(system_log::Level::ERROR, &failure.to_string());
            // fsck(8) has its own code for "the check itself failed".
            if is_fsck && failure.code == failure::FAILED {
                failure.code = 8;
            }
            fail(&failure, as_json)
        }
    }
}

/// Prints a failure on standard error, as text or as JSON, and returns the exit code.
fn fail(failure: &Failure, as_json: bool) -> ExitCode {
    let text = if as_json {
        let message = failure.message.trim_start_matches("error: ");
        let mut told = serde_json::json!({ "error": message, "code": failure.code });
        if let Some(kind) = failure.kind {
            told["kind"] = kind.into();
        }
        told.to_string()
    } else {
        format!("weft: {failure}")
    };
    output::complain(&text);
    ExitCode::from(failure.code)
}

/// Starts logging to standard error at the level of `WEFT_LOG` or --verbose; by default warnings.
///
/// `weft crash` opens thousands of damaged images and judges the outcome itself.
fn start_log(cli: &cli::Cli) {
    use tracing_subscriber::EnvFilter;
    let level = match cli.verbose {
        0 if matches!(cli.verb, cli::Verb::Crash(_)) => "off",
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter = std::env::var("WEFT_LOG")
        .ok()
        .and_then(|filter| EnvFilter::try_new(filter).ok())
        .unwrap_or_else(|| EnvFilter::new(level));
    // Colours are for a terminal only; errors of the log itself are dropped, as they have no other
    // output.
    let ansi = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(system_log::Writers)
        .with_ansi(ansi)
        .log_internal_errors(false)
        .init();
}
