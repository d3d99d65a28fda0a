//! A description of the machine of a measurement: processor, memory, kernel, versions, date.

use rustix::process::{Resource, Rlimit, setrlimit};
use std::path::Path;
use std::process::Command;

/// Describes this machine and the date in one line.
pub fn describe() -> String {
    let cpu = line_value("/proc/cpuinfo", "model name").unwrap_or_else(|| "an unknown CPU".into());
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let memory_kib: u64 = line_value("/proc/meminfo", "MemTotal")
        .and_then(|v| v.split_whitespace().next()?.parse().ok())
        .unwrap_or(0);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let virtual_machine = line_value("/proc/cpuinfo", "flags")
        .is_some_and(|flags| flags.split_whitespace().any(|f| f == "hypervisor"));
    format!(
        "{}: {cpus} CPUs of {cpu}{}, {} GiB, Linux {}, weft {}{}",
        date(),
        if virtual_machine { " (a virtual machine)" } else { "" },
        memory_kib.div_ceil(1 << 20),
        kernel.trim(),
        env!("CARGO_PKG_VERSION"),
        e2fsprogs().map(|v| format!(", e2fsprogs {v}")).unwrap_or_default()
    )
}

fn line_value(file: &str, key: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim().to_owned())
    })
}

/// The version that mke2fs reports.
fn e2fsprogs() -> Option<String> {
    let out = Command::new("mke2fs").arg("-V").output().ok()?;
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    text.split_whitespace().nth(1).map(str::to_owned)
}

/// Today in UTC, `2026-11-21`.
fn date() -> String {
    time::OffsetDateTime::now_utc().date().to_string()
}

/// Lets the programs that are measured open as many files as root may: libfuse's pass-through keeps a
/// descriptor for each file that the kernel knows.
pub fn allow_many_files() {
    const MANY: u64 = 1 << 20;
    let many = Rlimit { current: Some(MANY), maximum: Some(MANY) };
    // Without root's rights what is allowed must do.
    let _ = setrlimit(Resource::Nofile, many);
}

/// Returns true if the files in a directory are kept in memory only.
pub fn in_memory(dir: &Path) -> bool {
    // linux/magic.h: TMPFS_MAGIC.
    rustix::fs::statfs(dir).is_ok_and(|fs| fs.f_type == 0x0102_1994)
}

/// Allocates, touches and frees `len_bytes` of memory. A virtual machine that returns free memory
/// to its host pays for each page that it takes again: seconds for a gibibyte, all of which the
/// first measurement after a pause would bear.
pub fn warm_memory(len_bytes: usize) {
    drop(std::hint::black_box(vec![1_u8; len_bytes]));
}

/// CPU seconds that a process has used, in user and kernel mode together, over all its threads
/// (proc(5): `utime` and `stime` of `/proc/PID/stat`, in ticks of 10 ms).
pub fn cpu_seconds(pid: &str) -> f64 {
    ticks(pid, 2)
}

/// The same for this process and those of its children that it has waited for.
pub fn family_cpu_seconds() -> f64 {
    ticks("self", 4)
}

/// The sum, in seconds, of the first `fields` of `utime`, `stime`, `cutime` and `cstime`.
fn ticks(pid: &str, fields: usize) -> f64 {
    const TICKS_PER_SECOND: f64 = 100.0;
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return 0.0 };
    // The name in parentheses may contain blanks.
    let Some((_, rest)) = stat.rsplit_once(')') else { return 0.0 };
    let fields = rest.split_whitespace().skip(11).take(fields);
    let ticks: u64 = fields.filter_map(|f| f.parse::<u64>().ok()).sum();
    ticks as f64 / TICKS_PER_SECOND
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_grows_with_work() {
        let before = cpu_seconds("self");
        let start = std::time::Instant::now();
        let mut x = 1_u64;
        while start.elapsed().as_millis() < 100 {
            x = std::hint::black_box(x.wrapping_mul(31));
        }
        assert!(cpu_seconds("self") > before);
    }

    #[test]
    fn the_machine_is_described_in_one_line() {
        let line = describe();
        assert!(line.contains("Linux") && !line.contains('\n'), "{line}");
        assert_eq!(date().len(), 10);
    }
}
