//! Programs that read files of which nothing is in memory, through a mount of a volume whose device
//! takes 5 ms for each read; and beside them one that asks about an inode that is in memory.

use crate::io_uring::{self, Allowed, Transport};
use crate::peer::installed;
use crate::report::Section;
use crate::stats::median;
use crate::volume::Image;
use crate::{Bench, machine};
use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{AtFlags, StatxFlags};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use weft::ext2::mkfs::MkfsOptions;
use weft::vfs::{Caller, Node};
use weft::{Options, Stack, mounts};

const THREADS: [usize; 3] = [1, 4, 16];
/// Files that each thread reads: the work grows with the threads, so that each run takes as long.
const FILES: usize = 20 * DIR_FILES;
const QUICK_FILES: usize = 4 * DIR_FILES;
const FILE_BYTES: usize = 4096;
/// Files of a directory, where there are many.
const DIR_FILES: usize = 32;
const VOLUME_BYTES: u64 = 256 << 20;
/// Time that the device takes for a read, in milliseconds.
const READ_MS: u64 = 5;
/// The pause between two requests about the inode that is in memory.
const PAUSE: Duration = Duration::from_millis(1);
/// Longest wait for a server to start or to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Measures it, and prints the figures as JSON if `json` is set.
pub fn cold(bench: &Bench, json: bool) -> Result<()> {
    let mut section = Section::new("cold", "Readers of cold files on a slow device");
    if let Some(why) = missing(bench) {
        section.line(&format!("Skipped: {why}."));
        return section.signed(&machine::describe(), "weft-bench cold").save(&bench.report);
    }
    let _allowed = Allowed::set(&mut section);
    section.line(&format!(
        "Threads read different files of {} KiB each on an ext2 volume of which nothing is in memory, \
         from nbdkit, which takes {READ_MS} ms for each read: all from one directory, or each from a \
         directory of its own and then from the next. Beside them a thread asks for the attributes of \
         an inode that is in memory, with a pause of {} ms after each request. Medians of {} runs, the \
         longest time of all; in parentheses the multiple of one thread. \"Reads\" are the device's, \
         for each file; \"CPU\" is that of the mount's process, in microseconds for each file.",
        FILE_BYTES >> 10,
        PAUSE.as_millis(),
        bench.pairs
    ));
    let mut figures = Vec::new();
    for layout in [Layout::OneDirectory, Layout::Directories] {
        let volume = Volume::make(bench, layout)?;
        for transport in [Transport::Device, Transport::IoUring] {
            if transport == Transport::IoUring
                && let Some(why) = io_uring::missing()
            {
                section.line(&format!("Skipped: {transport}: {why}."));
                continue;
            }
            let mut rows = Vec::new();
            let mut alone = None;
            for threads in THREADS {
                let figure = Figure::measure(&volume, transport, threads)?;
                let ratio = figure.rate / *alone.get_or_insert(figure.rate);
                rows.push(figure.row(threads, ratio));
                figures.push(figure.json(layout, transport, threads, ratio));
            }
            let head = format!("{}, {transport}", layout.name());
            let head =
                [head.as_str(), "files/s", "p50, µs", "p99, µs", "longest, µs", "reads", "CPU, µs"];
            section.table(&head, &rows);
        }
    }
    if json {
        println!("{}", serde_json::json!({ "benchmark": "cold", "figures": figures }));
    }
    section.signed(&machine::describe(), &bench.command("cold")).save(&bench.report)
}

/// The reason why this cannot be measured here, if there is one.
fn missing(bench: &Bench) -> Option<String> {
    if installed("nbdkit").is_none() {
        return Some("nbdkit is not installed (Debian package nbdkit)".into());
    }
    if !Path::new("/dev/fuse").exists() {
        return Some("there is no /dev/fuse".into());
    }
    (!bench.weft.exists()).then(|| format!("{} is not there; build it first", bench.weft.display()))
}

/// The place of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    OneDirectory,
    Directories,
}

impl Layout {
    fn name(self) -> String {
        match self {
            Self::OneDirectory => "one directory".into(),
            Self::Directories => format!("directories of {DIR_FILES} files"),
        }
    }

    fn dir(self, nr: usize) -> String {
        match self {
            Self::OneDirectory => "all".into(),
            Self::Directories => format!("dir{}", nr / DIR_FILES),
        }
    }

    /// Files that a thread takes at a time: all of a directory, where there are many.
    const fn files_at_a_time(self) -> usize {
        match self {
            Self::OneDirectory => 1,
            Self::Directories => DIR_FILES,
        }
    }

    fn path(self, nr: usize) -> PathBuf {
        Path::new(&self.dir(nr)).join(format!("file{nr}"))
    }
}

/// A volume with the files, and what is needed to mount it.
struct Volume<'a> {
    bench: &'a Bench,
    image: Image,
    layout: Layout,
    files_per_thread: usize,
}

impl<'a> Volume<'a> {
    fn make(bench: &'a Bench, layout: Layout) -> Result<Self> {
        let image = Image::make(&bench.work, "cold.img", VOLUME_BYTES, &MkfsOptions::ext2())?;
        let files_per_thread = if bench.quick { QUICK_FILES } else { FILES };
        let stack = Stack::open(image.name()?, &Options::default())?;
        {
            let caller = Caller::ROOT;
            let root = Node::root(stack.fs())?;
            root.create(&caller, b"known", 0o644)?;
            let mut dir = None;
            for nr in 0..files_per_thread * THREADS[THREADS.len() - 1] {
                let name = layout.dir(nr);
                let dir = match &dir {
                    Some((last, dir)) if *last == name => dir,
                    _ => {
                        let made = root.mkdir(&caller, name.as_bytes(), 0o755)?;
                        &dir.insert((name, made)).1
                    }
                };
                let file = dir.create(&caller, format!("file{nr}").as_bytes(), 0o644)?;
                file.write_at(&caller, 0, &[nr as u8; FILE_BYTES])?;
            }
        }
        stack.close()?;
        Ok(Self { bench, image, layout, files_per_thread })
    }

    /// Mounts it from a slow device.
    fn mount(&self, transport: Transport) -> Result<Mounted> {
        let work = &self.bench.work;
        let (socket, ready) = (work.join("cold.sock"), work.join("cold.pid"));
        let (stats, dir) = (work.join("cold.stats"), work.join("cold-mnt"));
        std::fs::create_dir_all(&dir)?;
        for old in [&socket, &ready] {
            let _ = std::fs::remove_file(old);
        }
        let device = Command::new("nbdkit")
            .args(["--foreground", "--exit-with-parent", "--unix"])
            .arg(&socket)
            .arg("--pidfile")
            .arg(&ready)
            // With the last connection the process ends, and writes the counts.
            .args(["--filter=exitlast", "--filter=stats", "--filter=delay", "file"])
            .arg(self.image.name()?)
            .arg(format!("delay-read={READ_MS}ms"))
            .arg(format!("statsfile={}", stats.display()))
            .stdin(Stdio::null())
            .spawn()
            .context("run nbdkit")?;
        let mut mounted = Mounted { dir, stats, device, server: None };
        wait(&mut mounted.device, "nbdkit does not listen", || Ok(ready.exists()))?;
        let server = Command::new(&self.bench.weft)
            .args(["mount", "--quiet", "-o"])
            .arg(format!("io_uring={}", if transport == Transport::IoUring { "on" } else { "off" }))
            .arg(format!("nbd+unix:///?socket={}", socket.display()))
            .arg(&mounted.dir)
            .stdin(Stdio::null())
            .spawn()
            .context("run weft")?;
        let server = mounted.server.insert(server);
        let is_mounted = || Ok(mounts::mounted_at(&mounted.dir)?.is_some());
        wait(server, "weft does not mount", is_mounted)?;
        Ok(mounted)
    }

    /// Mounts it, and reads as many files as that many threads have to.
    fn run(&self, transport: Transport, threads: usize) -> Result<Run> {
        let mounted = self.mount(transport)?;
        let known_file = File::open(mounted.dir.join("known"))?;
        let known = || {
            let began = Instant::now();
            // To the mount, whatever the kernel knows.
            let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
            rustix::fs::statx(&known_file, "", flags, StatxFlags::BASIC_STATS)?;
            Ok::<Duration, anyhow::Error>(began.elapsed())
        };
        known()?;
        let files = threads * self.files_per_thread;
        let (next, start, done) =
            (AtomicUsize::new(0), Barrier::new(threads + 1), AtomicBool::new(false));
        let read_file = |nr: usize| {
            let path = mounted.dir.join(self.layout.path(nr));
            let content = std::fs::read(&path)?;
            ensure!(content == [nr as u8; FILE_BYTES], "{} is wrong", path.display());
            Ok::<(), anyhow::Error>(())
        };
        let read_files = || {
            let at_a_time = self.layout.files_at_a_time();
            start.wait();
            loop {
                let first = next.fetch_add(at_a_time, Ordering::Relaxed);
                if first >= files {
                    return Ok::<(), anyhow::Error>(());
                }
                (first..first + at_a_time).try_for_each(read_file)?;
            }
        };
        let ask = || {
            let mut times = Vec::new();
            while !done.load(Ordering::Relaxed) {
                times.push(known()?);
                std::thread::sleep(PAUSE);
            }
            Ok::<Vec<Duration>, anyhow::Error>(times)
        };
        let cpu = mounted.cpu_seconds();
        let (seconds, times) = std::thread::scope(|scope| {
            let readers: Vec<_> = (0..threads).map(|_| scope.spawn(read_files)).collect();
            let asks = scope.spawn(ask);
            start.wait();
            let began = Instant::now();
            let read = readers.into_iter().map(joined).collect::<Result<Vec<()>>>();
            let seconds = began.elapsed().as_secs_f64();
            done.store(true, Ordering::Relaxed);
            let times = joined(asks)?;
            read.map(|_| (seconds, times))
        })?;
        let cpu_seconds = mounted.cpu_seconds() - cpu;
        drop(known_file);
        let reads = mounted.finish()?;
        Ok(Run { files, seconds, times, reads, cpu_seconds })
    }
}

fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?
}

/// Waits until a server is ready.
fn wait(server: &mut Child, late: &str, is_ready: impl Fn() -> Result<bool>) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    while !is_ready()? {
        if let Some(status) = server.try_wait()? {
            bail!("{late}: it ended with {status}");
        }
        ensure!(Instant::now() < until, "{late}");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// A mounted volume and its device. Dropping it ends both.
struct Mounted {
    dir: PathBuf,
    stats: PathBuf,
    device: Child,
    server: Option<Child>,
}

impl Mounted {
    fn cpu_seconds(&self) -> f64 {
        self.server.as_ref().map_or(0.0, |server| machine::cpu_seconds(&server.id().to_string()))
    }

    /// Unmounts, and returns the number of reads that the device has seen.
    fn finish(mut self) -> Result<u64> {
        mounts::unmount(&self.dir, false)?;
        if let Some(mut server) = self.server.take() {
            let status = server.wait()?;
            ensure!(status.success(), "weft ended with {status}");
        }
        let status = self.device.wait()?;
        ensure!(status.success(), "nbdkit ended with {status}");
        reads_in(&std::fs::read_to_string(&self.stats)?).context("nbdkit counted no reads")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if mounts::mounted_at(&self.dir).is_ok_and(|m| m.is_some()) {
            let _ = mounts::unmount(&self.dir, true);
        }
        for process in self.server.iter_mut().chain([&mut self.device]) {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Returns the number of reads in the counts of nbdkit's filter: `read: 123 ops, 1.23 s, ...`.
fn reads_in(stats: &str) -> Option<u64> {
    let line = stats.lines().find_map(|line| line.strip_prefix("read: "))?;
    line.split_whitespace().next()?.parse().ok()
}

/// One run.
struct Run {
    files: usize,
    seconds: f64,
    times: Vec<Duration>,
    reads: u64,
    cpu_seconds: f64,
}

/// The medians of several runs.
struct Figure {
    rate: f64,
    p50_micros: f64,
    p99_micros: f64,
    /// The longest of all.
    longest_micros: f64,
    reads_per_file: f64,
    cpu_micros_per_file: f64,
}

impl Figure {
    fn measure(volume: &Volume<'_>, transport: Transport, threads: usize) -> Result<Self> {
        let mut runs = Vec::new();
        for _ in 0..volume.bench.pairs {
            let mut run = volume.run(transport, threads)?;
            run.times.sort_unstable();
            runs.push(run);
        }
        let median_of =
            |value: &dyn Fn(&Run) -> f64| median(&runs.iter().map(value).collect::<Vec<_>>());
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let longest = runs.iter().filter_map(|run| run.times.last()).max();
        Ok(Self {
            rate: median_of(&|run| run.files as f64 / run.seconds.max(1e-9)),
            p50_micros: median_of(&|run| micros(quantile(&run.times, 0.50))),
            p99_micros: median_of(&|run| micros(quantile(&run.times, 0.99))),
            longest_micros: longest.copied().map_or(0.0, micros),
            reads_per_file: median_of(&|run| run.reads as f64 / run.files as f64),
            cpu_micros_per_file: median_of(&|run| run.cpu_seconds * 1e6 / run.files as f64),
        })
    }

    fn row(&self, threads: usize, ratio: f64) -> Vec<String> {
        vec![
            format!("{threads} thread{}", if threads == 1 { "" } else { "s" }),
            format!("{:.0} ({ratio:.1})", self.rate),
            format!("{:.0}", self.p50_micros),
            format!("{:.0}", self.p99_micros),
            format!("{:.0}", self.longest_micros),
            format!("{:.2}", self.reads_per_file),
            format!("{:.0}", self.cpu_micros_per_file),
        ]
    }

    fn json(
        &self,
        layout: Layout,
        transport: Transport,
        threads: usize,
        ratio: f64,
    ) -> serde_json::Value {
        serde_json::json!({
            "layout": layout.name(),
            "io_uring": transport == Transport::IoUring,
            "threads": threads,
            "files_per_second": self.rate,
            "times_one_thread": ratio,
            "cached_p50_us": self.p50_micros.round(),
            "cached_p99_us": self.p99_micros.round(),
            "cached_longest_us": self.longest_micros.round(),
            "device_reads_per_file": self.reads_per_file,
            "cpu_us_per_file": self.cpu_micros_per_file,
        })
    }
}

/// Returns the least of the sorted `times` that so large a part of them does not exceed.
fn quantile(times: &[Duration], part: f64) -> Duration {
    let rank = (times.len() as f64 * part).ceil() as usize;
    times.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_found_in_nbdkits_counts() {
        let stats = "total: 12 ops, 1.2 s, 1 MiB\nread: 345 ops, 1.725 s, 2 MiB, 1 MiB/s\n";
        assert_eq!(reads_in(stats), Some(345));
        assert_eq!(reads_in("write: 3 ops"), None);
    }

    #[test]
    fn quantiles_of_few_times() {
        let times: Vec<Duration> = (1..=100).map(Duration::from_micros).collect();
        assert_eq!(quantile(&times, 0.50), Duration::from_micros(50));
        assert_eq!(quantile(&times, 0.99), Duration::from_micros(99));
        assert_eq!(quantile(&times[..1], 0.99), Duration::from_micros(1));
        assert_eq!(quantile(&[], 0.99), Duration::ZERO);
    }
}
