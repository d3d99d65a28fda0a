//! What every `top` does: figures read at intervals, and shown with those before them.

use crate::cli::cache::Top;
use crate::failure::{DONE, Failure, Outcome};
use crate::output::Output;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Reads figures at intervals, and shows each with the one before and the seconds between them.
pub fn watch<F>(
    out: Output,
    args: &Top,
    read: impl Fn(&str) -> Result<F, Failure>,
    show: impl Fn(Output, &str, &F, &F, f64) -> Result<(), Failure>,
) -> Outcome {
    let interval = Duration::from_millis(args.interval_ms.max(100));
    let mut before = read(&args.cache)?;
    let mut round = 0;
    while args.count == 0 || round < args.count {
        let began = Instant::now();
        std::thread::sleep(interval);
        let now = read(&args.cache)?;
        if !out.json && std::io::stdout().is_terminal() {
            // To the top left, and clear the screen.
            print!("\x1b[H\x1b[2J");
            std::io::stdout().flush()?;
        }
        show(out, &args.cache, &before, &now, began.elapsed().as_secs_f64())?;
        before = now;
        round += 1;
    }
    Ok(DONE)
}
