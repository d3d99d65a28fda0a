//! What all transfers of files share: progress within files, and the end at a signal.
//!
//! The first SIGINT, SIGTERM or SIGHUP ends a transfer between two pieces of a file: the incomplete
//! file is removed again, what is complete becomes durable, and the exit code is 128 and the signal's
//! number. A second one ends the process at once.

use crate::failure::Failure;
use crate::output::{Output, complain};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};
use weft::shown;
use weft::transfer::{Counted, Moment, Sink, Tally};

/// The signal that ends the transfer; 0 if there was none.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

/// Begins to wait for signals, once in a process. Without the thread a signal ends the process.
fn wait_for_signals() {
    static WAITING: OnceLock<()> = OnceLock::new();
    WAITING.get_or_init(|| {
        let Ok(mut signals) = Signals::new([SIGINT, SIGTERM, SIGHUP]) else { return };
        let wait = move || {
            for signal in signals.forever() {
                if SIGNAL.swap(signal, Ordering::SeqCst) == 0 {
                    complain(
                        "weft: stopping: the incomplete file is removed, the rest becomes durable; \
                         a second signal stops at once, and weft fsck --repair tidies up",
                    );
                    continue;
                }
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
        };
        let _ = std::thread::Builder::new().name("signals".into()).spawn(wait);
    });
}

/// Returns the failure of a transfer; of one that a signal ended, with its exit code.
pub fn failure(e: weft::Error) -> Failure {
    let stopped = matches!(e, weft::Error::Stopped(_));
    let mut failure = Failure::from(e);
    if stopped {
        let signal = SIGNAL.load(Ordering::SeqCst);
        failure.code = 128 + u8::try_from(signal).unwrap_or(0);
    }
    failure
}

/// Sends items to `sink` with progress, and adds the counts to `total`. `total_bytes` are the bytes
/// that are to be moved, where they are known.
pub fn counted(
    out: Output,
    (what, total_bytes): (&str, Option<u64>),
    total: &mut Tally,
    sink: &mut dyn Sink,
    send: impl FnOnce(&mut dyn Sink) -> weft::Result<()>,
) -> Result<(), Failure> {
    wait_for_signals();
    let progress = out.progress(what);
    let before = *total;
    let mut each = |_: &Tally| {};
    let mut watch = |moment: &Moment<'_>| {
        progress.show(&before, moment, total_bytes);
        if SIGNAL.load(Ordering::SeqCst) == 0 {
            return Ok(());
        }
        let path = if moment.path.is_empty() { "a file".to_owned() } else { shown(moment.path) };
        Err(weft::Error::Stopped(path))
    };
    let mut counted = Counted::new(sink, &mut each).watched(&mut watch);
    let sent = send(&mut counted);
    total.add(&counted.tally());
    sent.map_err(failure)
}
