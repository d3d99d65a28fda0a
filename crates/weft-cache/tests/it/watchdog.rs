//! Turns a hang into a failure: the stacks of all threads are printed, and the run ends.
//!
//! The stacks are gdb's where it is installed, and the kernel's otherwise. The limits are far above
//! what a busy machine needs: they decide nothing but how long a hang is watched.

use std::io::Write;
use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Runs `body`, and ends the process with the stacks of its threads if it does not return.
pub fn within<R>(limit: Duration, what: &str, body: impl FnOnce() -> R) -> R {
    let (running, ended) = channel::<()>();
    let said = what.to_owned();
    let watch = std::thread::spawn(move || {
        if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            let text = format!("\n{said}: no end after {limit:?}. Its threads:\n{}\n", stacks());
            // Not by a macro: the test harness keeps what these print until the test has ended.
            let _ = std::io::stderr().write_all(text.as_bytes());
            std::process::abort();
        }
    });
    let result = body();
    drop(running);
    watch.join().expect("the watch ends");
    result
}

fn stacks() -> String {
    let pid = std::process::id().to_string();
    let gdb = Command::new("timeout")
        .args(["60", "gdb", "--batch", "--quiet", "-p", &pid])
        .args(["-ex", "set print frame-arguments none", "-ex", "thread apply all backtrace 24"])
        .output();
    if let Ok(out) = gdb
        && out.status.success()
    {
        let text = String::from_utf8_lossy(&out.stdout);
        // Threads that only sleep or serve the test harness say nothing.
        return text
            .lines()
            .filter(|line| line.starts_with(['T', '#']))
            .collect::<Vec<_>>()
            .join("\n");
    }
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return String::new() };
    let mut text = String::new();
    for task in tasks.flatten() {
        let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        text += &format!("thread {}{}{}\n", read("comm"), read("wchan"), read("stack"));
    }
    text
}
