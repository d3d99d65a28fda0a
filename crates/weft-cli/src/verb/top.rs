//! The common part of every `top`: figures read at intervals, and shown with the previous ones.
//!
//! On a terminal `q` ends it as well as Ctrl-C, and the terminal's settings are restored.

use crate::cli::cache::Top;
use crate::failure::{DONE, Failure, Outcome};
use crate::output::Output;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr,
};
use rustix::time::Timespec;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Reads figures at intervals, and shows each with the one before and the seconds between them.
pub fn watch<F>(
    out: Output,
    args: &Top,
    read: impl Fn(&str) -> Result<F, Failure>,
    show: impl Fn(Output, &str, &F, &F, f64) -> Result<(), Failure>,
) -> Outcome {
    let interval = Duration::from_millis(args.interval_ms.max(100));
    let on_terminal = !out.json && std::io::stdout().is_terminal();
    let mut before = read(&args.cache)?;
    let keys = if on_terminal { Keys::take()? } else { None };
    let mut round = 0;
    while args.count == 0 || round < args.count {
        let began = Instant::now();
        match &keys {
            Some(keys) if keys.quit_within(interval)? => return Ok(DONE),
            Some(_) => {}
            None => std::thread::sleep(interval),
        }
        let now = read(&args.cache)?;
        if on_terminal {
            // Move to the top left, and clear the screen.
            let mut stdout = std::io::stdout().lock();
            stdout.write_all(b"\x1b[H\x1b[2J").and_then(|()| stdout.flush())?;
        }
        show(out, &args.cache, &before, &now, began.elapsed().as_secs_f64())?;
        before = now;
        round += 1;
    }
    Ok(DONE)
}

/// The keyboard in raw mode without echo, until this is dropped.
struct Keys {
    before: Termios,
    /// Set by a signal that would end the process: the terminal's settings must be restored first.
    told_to_end: Arc<AtomicBool>,
}

impl Keys {
    /// Takes over the keyboard; `None` if standard input is no terminal.
    fn take() -> Result<Option<Self>, Failure> {
        let stdin = std::io::stdin();
        if !stdin.is_terminal() {
            return Ok(None);
        }
        let io = |e: rustix::io::Errno| Failure::from(std::io::Error::from(e));
        let told_to_end = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&told_to_end))?;
        }
        let before = tcgetattr(&stdin).map_err(io)?;
        let mut wanted = before.clone();
        wanted.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
        wanted.special_codes[SpecialCodeIndex::VMIN] = 1;
        wanted.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(&stdin, OptionalActions::Now, &wanted).map_err(io)?;
        Ok(Some(Self { before, told_to_end }))
    }

    /// Waits until the interval ends (returns `false`) or the user or a signal quits (`true`).
    fn quit_within(&self, interval: Duration) -> Result<bool, Failure> {
        let deadline = Instant::now() + interval;
        let stdin = std::io::stdin();
        loop {
            if self.told_to_end.load(Ordering::Relaxed) {
                return Ok(true);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            let limit = Timespec::try_from(left).ok();
            let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
            match poll(&mut fds, limit.as_ref()) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(e) => return Err(std::io::Error::from(e).into()),
            }
            // Not through the library's buffer: poll(2) does not see data in it.
            let mut keys = [0; 64];
            match rustix::io::read(&stdin, &mut keys) {
                Ok(0) => return Ok(true),
                Ok(n) if keys[..n].iter().any(|key| matches!(key, b'q' | b'Q')) => return Ok(true),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(std::io::Error::from(e).into()),
            }
        }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        // If the terminal is gone there is nothing to restore.
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.before);
    }
}
