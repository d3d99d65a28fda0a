//! The signals that the callers of requests have got.
//!
//! A caller that waits for a reply handles no signal, so that what it got is still pending, and in its
//! `/proc/PID/status`: the only place that tells one that ends a program from one that merely comes by.

/// The requests that a signal ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndedBy {
    /// Any: the call may return `EINTR` by its definition.
    AnySignal,
    /// A signal by which users stop a program, whether it handles it or not.
    StopSignal,
    /// A signal that ends the caller.
    Death,
}

/// What `/proc/PID/status` says of signals, as sets of bits.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Signals {
    pending: u64,
    blocked: u64,
    ignored: u64,
    caught: u64,
}

fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

impl Signals {
    fn parse(status: &str) -> Self {
        let mut this = Self::default();
        for line in status.lines() {
            let Some((name, set)) = line.split_once(':') else { continue };
            let Ok(set) = u64::from_str_radix(set.trim(), 16) else { continue };
            match name {
                "SigPnd" | "ShdPnd" => this.pending |= set,
                "SigBlk" => this.blocked = set,
                "SigIgn" => this.ignored = set,
                "SigCgt" => this.caught = set,
                _ => {}
            }
        }
        this
    }

    /// Returns true if the caller is about to end. The kernel has turned most such signals into SIGKILL;
    /// not one for which it first writes a core file.
    fn kill(self) -> bool {
        let with_core = bit(libc::SIGQUIT) | bit(libc::SIGABRT) | bit(libc::SIGXCPU);
        let by_default = self.pending & !(self.blocked | self.ignored | self.caught);
        self.pending & bit(libc::SIGKILL) != 0 || by_default & with_core != 0
    }

    fn stop(self) -> bool {
        let stops = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGALRM];
        let stops = stops.into_iter().map(bit).fold(0, |all, one| all | one);
        self.pending & !(self.blocked | self.ignored) & stops != 0
    }
}

impl EndedBy {
    /// Returns true if the signals of a thread end its request. Of a thread that cannot be seen from
    /// here, as it is in another PID namespace, nothing is known: what may return `EINTR` then does.
    pub(super) fn is_met(self, thread: u32) -> bool {
        if self == Self::AnySignal {
            return true;
        }
        match std::fs::read_to_string(format!("/proc/{thread}/status")) {
            Ok(status) => {
                let signals = Signals::parse(&status);
                signals.kill() || self == Self::StopSignal && signals.stop()
            }
            Err(_) => self == Self::StopSignal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_end_are_told_from_those_that_come_by() {
        let status = |own: u64, shared: u64, blocked: u64, ignored: u64, caught: u64| {
            Signals::parse(&format!(
                "Name:\tcat\nThreads:\t1\nSigQ:\t0/15203\nSigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\n\
                 SigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\nSigCgt:\t{caught:016x}\n"
            ))
        };
        let (int, quit, kill) = (bit(libc::SIGINT), bit(libc::SIGQUIT), bit(libc::SIGKILL));
        let says = |signals: Signals| (signals.kill(), signals.stop());
        assert_eq!(says(status(kill, 0, 0, 0, 0)), (true, false));
        assert_eq!(says(status(0, int, 0, 0, int)), (false, true), "Ctrl-C, handled");
        assert_eq!(says(status(int, 0, int, 0, int)), (false, false), "blocked");
        assert_eq!(says(status(quit, 0, 0, 0, 0)), (true, true), "with a core file");
        assert_eq!(says(status(0, quit, 0, 0, quit)), (false, true));
        for harmless in [libc::SIGCHLD, libc::SIGURG, libc::SIGPROF, libc::SIGTSTP, libc::SIGUSR1] {
            let caught = bit(harmless);
            assert_eq!(says(status(caught, caught, 0, 0, caught)), (false, false), "{harmless}");
        }
        assert_eq!(Signals::parse("no such thing"), Signals::default());
    }

    #[test]
    fn a_thread_without_signals_is_left_alone() {
        let thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        assert!(EndedBy::AnySignal.is_met(thread));
        assert!(!EndedBy::StopSignal.is_met(thread) && !EndedBy::Death.is_met(thread));
        // The number of no thread.
        assert!(EndedBy::StopSignal.is_met(0) && !EndedBy::Death.is_met(0));
    }
}
