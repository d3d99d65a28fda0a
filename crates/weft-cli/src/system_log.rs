//! The system's log (syslog(3), the journal), in which a background process reports errors, as it
//! has detached from the terminal.
//!
//! A message is one datagram to `/dev/log`, `<PRIORITY>weft[PID]: TEXT`, the priority being that of
//! RFC 3164: facility (3, a daemon) times 8, plus severity. `WEFT_LOG_SOCKET` names another socket.

use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};
pub use tracing::Level;
use tracing::Metadata;
use tracing_subscriber::fmt::MakeWriter;

const SOCKET: &str = "/dev/log";
const DAEMON: u8 = 3;

/// Whether this process is in the background, where standard error leads nowhere.
static IN_BACKGROUND: AtomicBool = AtomicBool::new(false);

/// Directs messages to the system's log from now on.
pub fn begin() {
    IN_BACKGROUND.store(true, Ordering::Release);
}

/// Sends a message to the log, if this process is in the background. Without a log the message is
/// dropped.
pub fn say(level: Level, text: &str) {
    if !IN_BACKGROUND.load(Ordering::Acquire) {
        return;
    }
    let severity = match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    };
    let socket = std::env::var_os("WEFT_LOG_SOCKET").unwrap_or_else(|| SOCKET.into());
    let line = format!("<{}>weft[{}]: {}", DAEMON * 8 + severity, std::process::id(), plain(text));
    if let Ok(to) = UnixDatagram::unbound() {
        let _ = to.send_to(line.as_bytes(), socket);
    }
}

/// Removes a terminal's colours and joins the lines.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.trim_end().chars();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' => {
                chars.by_ref().find(char::is_ascii_alphabetic);
            }
            c if c.is_control() => plain.push(' '),
            c => plain.push(c),
        }
    }
    plain
}

/// The writers of the program's log: standard error, and in the background the system's log.
pub struct Writers;

/// One line of the log.
pub struct Line {
    level: Level,
}

impl<'a> MakeWriter<'a> for Writers {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line { level: Level::INFO }
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Line {
        Line { level: *meta.level() }
    }
}

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if IN_BACKGROUND.load(Ordering::Acquire) {
            say(self.level, &String::from_utf8_lossy(line));
            return Ok(line.len());
        }
        io::stderr().write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_plain() {
        assert_eq!(plain("\u{1b}[31mERROR\u{1b}[0m weft:\n two\n"), "ERROR weft:  two");
    }
}
