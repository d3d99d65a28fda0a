//! The output of verbs: text for people, JSON for machines, progress on a terminal.

use crate::cli::Cli;
use crate::failure::Failure;
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::value::RawValue;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
pub use weft::shown;
use weft::transfer::{Moment, Tally};
use weft::vfs::{Attr, FileKind, Time};

/// The output options of a verb.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    pub json: bool,
    pub quiet: bool,
}

impl Output {
    pub fn new(cli: &Cli) -> Self {
        Self { json: cli.json, quiet: cli.quiet }
    }

    /// Prints `report` as JSON, or the text that `text` writes.
    pub fn report<T: Serialize>(
        self,
        report: &T,
        text: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
    ) -> Result<(), Failure> {
        let mut out = std::io::BufWriter::new(std::io::stdout().lock());
        let written = if self.json {
            serde_json::to_writer_pretty(&mut out, report)
                .map_err(std::io::Error::from)
                .and_then(|()| out.write_all(b"\n"))
        } else {
            // Names in a report, also that of an image, cannot control the terminal.
            let mut plain = Vec::new();
            text(&mut plain).and_then(|()| {
                out.write_all(weft::shown_lines(&String::from_utf8_lossy(&plain)).as_bytes())
            })
        };
        ignore_closed_pipe(written.and_then(|()| out.flush()))
    }

    /// As [`report`](Self::report), for a mere confirmation: --quiet suppresses the text.
    pub fn confirm<T: Serialize>(self, report: &T, text: &str) -> Result<(), Failure> {
        if self.quiet && !self.json {
            return Ok(());
        }
        self.report(report, |out| writeln!(out, "{text}"))
    }

    /// Prints a note beside the result, on standard error.
    pub fn note(self, text: &str) {
        if !self.quiet {
            complain(&format!("weft: {text}"));
        }
    }

    /// Prints an error that does not end the verb on standard error; if that is closed, it is
    /// dropped.
    pub fn error(self, text: &str) {
        let _ = writeln!(std::io::stderr(), "weft: {text}");
    }

    /// Progress of a transfer of `names` files (0 if that is not known).
    pub fn progress(self, what: &str) -> Progress {
        if self.quiet || !std::io::stderr().is_terminal() {
            return Progress { bar: None, began: Instant::now(), shown_millis: AtomicU64::new(0) };
        }
        let bar = ProgressBar::new_spinner();
        let style = ProgressStyle::with_template("{spinner} {prefix} {msg} ({elapsed})");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.set_prefix(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(120));
        Progress { bar: Some(bar), began: Instant::now(), shown_millis: AtomicU64::new(0) }
    }
}

/// Writes a line to standard error. If that is closed or full the line is dropped and the exit code
/// remains. (`eprintln!` would panic.) Names and messages from elsewhere cannot control the
/// terminal.
pub fn complain(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{}", weft::shown_lines(text));
}

/// Ignores an error from a pipe that its reader, such as `head`, has closed.
pub fn ignore_closed_pipe(result: std::io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|e| Failure::new(format!("cannot write the output: {e}"))),
    }
}

/// A progress line on a terminal; nothing if standard error is no terminal.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    began: Instant,
    /// When the line was last made, since the begin: to format it costs more than to copy a small
    /// file.
    shown_millis: AtomicU64,
}

/// The shortest time between two lines of progress.
const PROGRESS_MIN_MILLIS: u64 = 100;
/// The length in bytes from which on a file has progress of its own.
const BIG_FILE_BYTES: u64 = 16 << 20;

/// The line of progress of a transfer that has moved `before`, and is at a moment `elapsed` after its
/// begin.
fn progress_text(
    before: &Tally,
    moment: &Moment<'_>,
    total_bytes: Option<u64>,
    elapsed: Duration,
) -> String {
    let mut tally = *before;
    tally.add(&moment.done);
    let moved = moment.done.bytes.saturating_add(moment.at_bytes);
    let bytes = before.bytes.saturating_add(moved);
    let mut text = format!("{}, {}", count(tally.names(), "name"), HumanBytes(bytes));
    if let Some(total) = total_bytes {
        text.push_str(&format!(" of {}", HumanBytes(total)));
    }
    let rate = moved as f64 / elapsed.as_secs_f64().max(0.001);
    text.push_str(&format!(", {}/s", HumanBytes(rate as u64)));
    match total_bytes {
        Some(total) if total > bytes && rate >= 1.0 => {
            let left = Duration::from_secs_f64(((total - bytes) as f64 / rate).min(1e9));
            text.push_str(&format!(", {} left", indicatif::HumanDuration(left)));
        }
        None if moment.len_bytes >= BIG_FILE_BYTES => {
            let percent = moment.at_bytes.min(moment.len_bytes) * 100 / moment.len_bytes;
            let name = moment.path.rsplit(|b| *b == b'/').next().unwrap_or(moment.path);
            text.push_str(&format!("; {} {percent}%", shown(name)));
        }
        _ => {}
    }
    text
}

impl Progress {
    /// Shows where a transfer is; `before` has been moved earlier, with the same total.
    pub fn show(&self, before: &Tally, moment: &Moment<'_>, total_bytes: Option<u64>) {
        let Some(bar) = &self.bar else { return };
        let elapsed = self.began.elapsed();
        let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        if millis < self.shown_millis.load(Ordering::Relaxed) + PROGRESS_MIN_MILLIS {
            return;
        }
        self.shown_millis.store(millis, Ordering::Relaxed);
        bar.set_message(progress_text(before, moment, total_bytes, elapsed));
    }

    pub fn say(&self, text: impl Into<String>) {
        if let Some(bar) = &self.bar {
            bar.set_message(text.into());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Formats a size for people: `1.5G`.
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["", "K", "M", "G", "T", "P"];
    let mut unit = 0;
    let mut scaled = bytes;
    let mut rest = 0;
    while scaled >= 1024 && unit + 1 < UNITS.len() {
        rest = scaled % 1024;
        scaled /= 1024;
        unit += 1;
    }
    let tenths = rest * 10 / 1024;
    if unit > 0 && scaled < 10 {
        format!("{scaled}.{tenths}{}", UNITS[unit])
    } else {
        format!("{scaled}{}", UNITS[unit])
    }
}

/// Formats a count with its noun: `1 file`, `2 files`.
pub fn count(n: u64, one: &str) -> String {
    let plural = match one.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None => format!("{one}s"),
    };
    if n == 1 { format!("1 {one}") } else { format!("{n} {plural}") }
}

/// A tally as JSON.
#[derive(Debug, Serialize)]
pub struct TallyReport {
    pub files: u64,
    pub directories: u64,
    pub symlinks: u64,
    pub hard_links: u64,
    pub specials: u64,
    pub bytes: u64,
    pub seconds: f64,
}

impl TallyReport {
    pub fn new(tally: &Tally, took: Duration) -> Self {
        Self {
            files: tally.files,
            directories: tally.directories,
            symlinks: tally.symlinks,
            hard_links: tally.hard_links,
            specials: tally.specials,
            bytes: tally.bytes,
            seconds: took.as_secs_f64(),
        }
    }

    /// Formats a sentence: `12 files (3.4M) and 2 directories in 0.01 s`
    pub fn sentence(&self) -> String {
        let links = self.symlinks + self.hard_links + self.specials;
        let others =
            if links > 0 { format!(", {}", count(links, "link or node")) } else { String::new() };
        format!(
            "{} ({}), {}{others} in {:.2} s",
            count(self.files, "file"),
            human(self.bytes),
            count(self.directories, "directory"),
            self.seconds
        )
    }
}

/// Formats a mode as ls does: `drwxr-xr-x`.
pub fn mode_string(kind: FileKind, perm: u16) -> String {
    let mut s = String::with_capacity(10);
    s.push(kind_letter(kind));
    for (shift, special, set, clear) in
        [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')]
    {
        let bits = perm >> shift;
        s.push(if bits & 4 != 0 { 'r' } else { '-' });
        s.push(if bits & 2 != 0 { 'w' } else { '-' });
        s.push(match (perm & special != 0, bits & 1 != 0) {
            (true, true) => set,
            (true, false) => clear,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    s
}

fn kind_letter(kind: FileKind) -> char {
    match kind {
        FileKind::Regular => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::BlockDevice => 'b',
        FileKind::CharDevice => 'c',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
    }
}

/// The name of a file type.
pub fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::BlockDevice => "block device",
        FileKind::CharDevice => "character device",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
    }
}

/// Formats a time in UTC: `2026-11-21 07:19:26`; for a year without four digits `@` and the seconds
/// since 1970, as `date` takes them.
pub fn utc(time: Time) -> String {
    let Ok(date) = time::OffsetDateTime::from_unix_timestamp(time.secs) else {
        return format!("@{}", time.secs);
    };
    let (day, clock) = (date.date(), date.time());
    format!("{day} {:02}:{:02}:{:02}", clock.hour(), clock.minute(), clock.second())
}

/// A name or path as JSON: text if it is UTF-8, else its bytes.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum NameReport {
    Text(String),
    Bytes(Vec<u8>),
}

impl From<&[u8]> for NameReport {
    fn from(name: &[u8]) -> Self {
        match std::str::from_utf8(name) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Bytes(name.to_vec()),
        }
    }
}

/// A time as a JSON number, the seconds since 1970 with all nine digits of the nanoseconds: a double has
/// no room for them.
#[derive(Debug)]
pub struct TimeReport(Time);

impl Serialize for TimeReport {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const PER_SECOND: u128 = 1_000_000_000;
        let nanos = i128::from(self.0.secs) * PER_SECOND as i128 + i128::from(self.0.nanos);
        let (sign, nanos) = (if nanos < 0 { "-" } else { "" }, nanos.unsigned_abs());
        let number = format!("{sign}{}.{:09}", nanos / PER_SECOND, nanos % PER_SECOND);
        RawValue::from_string(number).map_err(serde::ser::Error::custom)?.serialize(serializer)
    }
}

/// Attributes as JSON.
#[derive(Debug, Serialize)]
pub struct AttrReport {
    pub inode: u64,
    pub kind: &'static str,
    pub mode: String,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub size_bytes: u64,
    pub allocated_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<(u32, u32)>,
    pub accessed: TimeReport,
    pub modified: TimeReport,
    pub changed: TimeReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub born: Option<TimeReport>,
}

impl From<&Attr> for AttrReport {
    fn from(attr: &Attr) -> Self {
        let is_device = matches!(attr.kind, FileKind::BlockDevice | FileKind::CharDevice);
        Self {
            inode: attr.ino.0,
            kind: kind_name(attr.kind),
            mode: format!("{:04o}", attr.perm),
            links: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            size_bytes: attr.size_bytes,
            allocated_bytes: attr.blocks_512.saturating_mul(512),
            device: is_device.then(|| device_numbers(attr.rdev)),
            accessed: TimeReport(attr.atime),
            modified: TimeReport(attr.mtime),
            changed: TimeReport(attr.ctime),
            born: attr.btime.map(TimeReport),
        }
    }
}

/// Major and minor number of a packed device number.
pub fn device_numbers(rdev: u32) -> (u32, u32) {
    ((rdev >> 8) & 0xfff, (rdev & 0xff) | ((rdev >> 12) & 0xf_ff00))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_utc() {
        let at = |secs| utc(Time { secs, nanos: 0 });
        assert_eq!(at(0), "1970-01-01 00:00:00");
        assert_eq!(at(951_782_399), "2000-02-28 23:59:59");
        assert_eq!(at(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(at(-1), "1969-12-31 23:59:59");
        assert_eq!(at(4_102_444_800), "2100-01-01 00:00:00");
        assert_eq!(at(253_402_300_799), "9999-12-31 23:59:59");
        assert_eq!(at(253_402_300_800), "@253402300800");
    }

    #[test]
    fn times_in_json_are_exact() {
        let json = |secs, nanos| serde_json::to_string(&TimeReport(Time { secs, nanos })).unwrap();
        assert_eq!(json(1_767_323_045, 123_456_789), "1767323045.123456789");
        assert_eq!(json(0, 1), "0.000000001");
        assert_eq!(json(-1, 999_999_999), "-0.000000001");
        assert_eq!(json(-2, 500_000_000), "-1.500000000");
    }

    #[test]
    fn progress_has_bytes_within_a_file_and_what_is_left() {
        let done = Tally { files: 3, bytes: 1 << 30, ..Tally::default() };
        let moment = Moment { done, path: b"d/big.iso", at_bytes: 512 << 20, len_bytes: 2 << 30 };
        let text =
            |total| progress_text(&Tally::default(), &moment, total, Duration::from_secs(10));
        let left = "3 names, 1.50 GiB of 3.00 GiB, 153.60 MiB/s, 10 seconds left";
        assert_eq!(text(Some(3 << 30)), left);
        assert_eq!(text(None), "3 names, 1.50 GiB, 153.60 MiB/s; big.iso 25%");
        // What came before counts for the total, not for the rate.
        let before = Tally { files: 1, bytes: 1 << 30, ..Tally::default() };
        let text = progress_text(&before, &moment, Some(2 << 30), Duration::from_secs(10));
        assert_eq!(text, "4 names, 2.50 GiB of 2.00 GiB, 153.60 MiB/s");
    }

    #[test]
    fn sizes_counts_and_modes() {
        assert_eq!(human(999), "999");
        assert_eq!(human(1536), "1.5K");
        assert_eq!(human(2 << 30), "2.0G");
        assert_eq!(human(10 << 20), "10M");
        assert_eq!(count(1, "directory"), "1 directory");
        assert_eq!(count(2, "directory"), "2 directories");
        assert_eq!(mode_string(FileKind::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(mode_string(FileKind::Regular, 0o4644), "-rwSr--r--");
    }
}
