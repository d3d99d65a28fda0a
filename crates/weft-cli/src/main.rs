//! The `weft` command.
//!
//! One file for each verb (or small family) in `verb`; what they share is the command line
//! (`cli`), the way they report (`output`) and the way they fail (`failure`).

mod cli;
mod failure;
mod helper;
mod output;
mod verb;
mod zone;

use clap::Parser;
use std::process::ExitCode;
use std::time::Duration;

/// How long what was said over QUIC may take to arrive, when there is nothing more to do.
const SETTLE_LIMIT: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().collect();
    if let Some(mount) = helper::as_mount_helper(&args) {
        // The local time cannot be misspelt.
        let _ = zone::set("local");
        return helper::run(mount);
    }
    let cli = cli::Cli::parse_from(args);
    start_log(&cli);
    if let Err(failure) = zone::set(&cli.timezone) {
        eprintln!("weft: {failure}");
        return ExitCode::from(failure.code);
    }
    let is_fsck = matches!(cli.verb, cli::Verb::Fsck(_));
    let outcome = verb::run(cli);
    weft::net::settle(SETTLE_LIMIT);
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            eprintln!("weft: {failure}");
            // fsck(8) has its own code for "the check itself failed".
            let code = if is_fsck && failure.code == failure::FAILED { 8 } else { failure.code };
            ExitCode::from(code)
        }
    }
}

/// Logs to standard error what `WEFT_LOG` or --verbose asks for; warnings unless told otherwise.
///
/// `weft crash` opens thousands of damaged images and judges what comes of it itself.
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
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
}
