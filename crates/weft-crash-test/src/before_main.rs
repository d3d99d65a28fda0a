//! Lets every program that links this crate be a worker of its own crash tests.
//!
//! A worker makes namespaces, which a process with threads cannot, and a test harness starts threads
//! before a test has its turn. So this looks before `main`, in the one way that there is: a function
//! in the table `.init_array`, to put it there takes an `unsafe` attribute. Only the work of a worker
//! is done here, never that of a user, whose libraries may not be ready yet; and nothing at all unless
//! this crate has started the process.

use crate::sandbox::WORKER_VARIABLE;
use crate::worker::worker_main;

/// The only argument of a program that is started to be a worker.
pub(crate) const WORKER_ARGUMENT: &str = "weft-crash-test-worker";

// SAFETY: the C library calls each function of the table once, when all that it needs itself is
// ready; this one takes none of the arguments that it may be given, and does not unwind.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = before_main;

extern "C" fn before_main() {
    if std::env::var_os(WORKER_VARIABLE).is_none() {
        return;
    }
    // The other users of the variable come to it by themselves.
    if std::env::args_os().nth(1).is_some_and(|argument| argument == WORKER_ARGUMENT) {
        worker_main();
    }
}
