//! Small synchronous writes: new files through mounts, each with an fsync, beside the kernel; and
//! several threads that write and fsync files of their own, on a device whose flush takes 1 ms.

use crate::peer::{Peer, Setting};
use crate::report::Section;
use crate::stats::Times;
use crate::volume::{Image, since};
use crate::{Bench, machine};
use anyhow::{Context, Result};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use weft::block::{BlockDevice, Filter, OpenMode, open_source};
use weft::ext2::mkfs::MkfsOptions;
use weft::mount_options::MountOptions;
use weft::patch::{Counters, JournalMode, Policy};
use weft::vfs::{Caller, Node};
use weft::{Options, Order, Stack};

const VOLUME_BYTES: u64 = 256 << 20;
const FLUSH: Duration = Duration::from_millis(1);
const THREADS: [usize; 3] = [1, 4, 16];
const WRITE_BYTES: usize = 4096;
/// Writes of one file before the same blocks are written again.
const FILE_WRITES: u64 = 64;

const ORDERS: [Policy; 5] = [
    Policy::Soft,
    Policy::Journal(JournalMode::Metadata),
    Policy::Journal(JournalMode::Ordered),
    Policy::Journal(JournalMode::Full),
    Policy::Async,
];

/// Measures both.
pub fn fsync(bench: &Bench) -> Result<()> {
    let mut section = Section::new("fsync", "Small synchronous writes");
    threads(bench, &mut section)?;
    mounted_threads(bench, &mut section)?;
    creates(bench, &mut section)?;
    section.signed(&machine::describe(), "weft-bench fsync").save(&bench.report)
}

/// A device whose flush takes a given time and does nothing else.
struct SlowFlush {
    below: Arc<dyn BlockDevice>,
    time: Duration,
}

impl Filter for SlowFlush {
    type Below = dyn BlockDevice;

    fn below(&self) -> &Self::Below {
        &*self.below
    }

    fn filter_flush(&self) -> weft::block::Result<()> {
        std::thread::sleep(self.time);
        Ok(())
    }
}

/// The write that a thread makes before each fsync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    /// Writes blocks that the file has already.
    Overwrite,
    /// Writes behind the end of the file.
    Append,
    /// Makes a file and writes it.
    Create,
}

impl Work {
    const ALL: [Self; 3] = [Self::Overwrite, Self::Append, Self::Create];

    const fn name(self) -> &'static str {
        match self {
            Self::Overwrite => "4 KiB written in place",
            Self::Append => "4 KiB appended",
            Self::Create => "a new file of 4 KiB",
        }
    }
}

/// The fsyncs, the time and the device requests of one run of several threads.
struct Outcome {
    fsyncs: u64,
    seconds: f64,
    counters: Counters,
}

impl Outcome {
    fn rate(&self) -> f64 {
        self.fsyncs as f64 / self.seconds.max(1e-9)
    }

    fn per_fsync(&self, count: u64) -> String {
        format!("{:.2}", count as f64 / self.fsyncs.max(1) as f64)
    }
}

fn threads(bench: &Bench, section: &mut Section) -> Result<()> {
    section.line(&format!(
        "In process, on a device whose flush takes {} ms (simulated): each thread writes a file of \
         its own and calls fsync after every write. Fsyncs a second with {THREADS:?} threads (the \
         median of {} runs, and as a multiple of one thread), and flushes and write requests for \
         each fsync.",
        FLUSH.as_millis(),
        bench.pairs
    ));
    for work in Work::ALL {
        let mut rows = Vec::new();
        for policy in ORDERS {
            let mut cells = vec![Order(policy).to_string()];
            let mut alone = None;
            for count in THREADS {
                let mut rates = Vec::new();
                let mut last = None;
                for _ in 0..bench.pairs {
                    let outcome = run(bench, policy, work, count)?;
                    rates.push(outcome.rate());
                    last = Some(outcome);
                }
                let outcome = last.context("at least one run")?;
                rates.sort_by(f64::total_cmp);
                let rate = rates[rates.len() / 2];
                let ratio = rate / *alone.get_or_insert(rate);
                cells.push(format!("{rate:.0} ({ratio:.1})"));
                cells.push(format!(
                    "{}, {}",
                    outcome.per_fsync(outcome.counters.flushes),
                    outcome.per_fsync(outcome.counters.requests)
                ));
            }
            rows.push(cells);
        }
        section.table(
            &[work.name(), "1 thread", "", "4 threads", "", "16 threads", "flushes, requests"],
            &rows,
        );
    }
    Ok(())
}

fn run(bench: &Bench, policy: Policy, work: Work, threads: usize) -> Result<Outcome> {
    let image = Image::make(&bench.work, "fsync.img", VOLUME_BYTES, &MkfsOptions::ext3())?;
    let stack = open(&image, policy)?;
    let outcome = run_threads(&stack, work, threads, fsyncs(bench))?;
    stack.close()?;
    Ok(outcome)
}

fn open(image: &Image, policy: Policy) -> Result<Stack> {
    let below = open_source(image.name()?, OpenMode::READ_WRITE)?;
    let device = Arc::new(SlowFlush { below, time: FLUSH });
    let options = Options { order: Some(Order(policy)), ..Options::default() };
    Ok(Stack::open_device("fsync.img", device, &options)?)
}

/// Fsyncs of each thread: the work grows with their number, so that each run takes about as long.
const fn fsyncs(bench: &Bench) -> u64 {
    if bench.quick { 200 } else { 1000 }
}

fn run_threads(stack: &Stack, work: Work, threads: usize, fsyncs: u64) -> Result<Outcome> {
    let caller = Caller::ROOT;
    let root = Node::root(stack.fs())?;
    let dirs = (0..threads)
        .map(|i| {
            let dir = root.mkdir(&caller, format!("d{i}").as_bytes(), 0o755)?;
            let file = dir.create(&caller, b"file", 0o644)?;
            if work == Work::Overwrite {
                file.write_at(&caller, 0, &vec![1; WRITE_BYTES * FILE_WRITES as usize])?;
            }
            Ok((dir, file))
        })
        .collect::<Result<Vec<_>>>()?;
    stack.fs().sync()?;
    let before = stack.counters();
    let elapsed = at_once(&dirs, |(dir, file)| one_thread(stack, work, dir, file, fsyncs))?;
    Ok(Outcome {
        fsyncs: fsyncs * threads as u64,
        seconds: elapsed.as_secs_f64(),
        counters: since(&stack.counters(), &before),
    })
}

fn one_thread(
    stack: &Stack,
    work: Work,
    dir: &Node<'_>,
    file: &Node<'_>,
    fsyncs: u64,
) -> Result<()> {
    let caller = Caller::ROOT;
    let data = vec![7; WRITE_BYTES];
    for i in 0..fsyncs {
        let made;
        let (node, at) = match work {
            Work::Overwrite => (file, i % FILE_WRITES),
            Work::Append => (file, i),
            Work::Create => {
                made = dir.create(&caller, format!("new{i}").as_bytes(), 0o644)?;
                (&made, 0)
            }
        };
        node.write_at(&caller, at * WRITE_BYTES as u64, &data)?;
        stack.fs().fsync(&caller, node.ino(), false)?;
    }
    Ok(())
}

/// Measures the same through a mount, where each fsync also holds a thread of the server.
fn mounted_threads(bench: &Bench, section: &mut Section) -> Result<()> {
    if let Some(why) = Peer::Weft(Order(Policy::Soft)).missing(&setting(bench)) {
        section.line(&format!("Skipped: threads through a mount: {why}."));
        return Ok(());
    }
    section.line("The same through a mount, of blocks that the files have already:");
    let mut rows = Vec::new();
    for policy in ORDERS {
        let mut cells = vec![Order(policy).to_string()];
        let mut alone = None;
        for count in THREADS {
            let mut rates = Vec::new();
            for _ in 0..bench.pairs {
                rates.push(run_mounted(bench, policy, count)?);
            }
            rates.sort_by(f64::total_cmp);
            let rate = rates[rates.len() / 2];
            cells.push(format!("{rate:.0} ({:.1})", rate / *alone.get_or_insert(rate)));
        }
        rows.push(cells);
    }
    section.table(&["", "1 thread", "4 threads", "16 threads"], &rows);
    Ok(())
}

/// Returns the fsyncs a second.
fn run_mounted(bench: &Bench, policy: Policy, threads: usize) -> Result<f64> {
    let image = Image::make(&bench.work, "fsync.img", VOLUME_BYTES, &MkfsOptions::ext3())?;
    let dir = bench.work.join("fsync-mnt");
    std::fs::create_dir_all(&dir)?;
    let session = open(&image, policy)?.mount(&dir, &MountOptions::default())?;
    let fsyncs = fsyncs(bench);
    let files = (0..threads)
        .map(|i| {
            let mut file = File::create(dir.join(format!("file{i}")))?;
            file.write_all(&vec![1; WRITE_BYTES * FILE_WRITES as usize])?;
            file.sync_all()?;
            Ok(file)
        })
        .collect::<Result<Vec<_>>>()?;
    let elapsed = at_once(&files, |file| {
        for i in 0..fsyncs {
            file.write_all_at(&[7; WRITE_BYTES], i % FILE_WRITES * WRITE_BYTES as u64)?;
            file.sync_all()?;
        }
        Ok(())
    })?;
    drop(files);
    session.unmount()?;
    Ok((fsyncs * threads as u64) as f64 / elapsed.as_secs_f64().max(1e-9))
}

/// Runs `work` on each of the items, each in a thread of its own, and returns the time of all.
fn at_once<T: Sync>(items: &[T], work: impl Fn(&T) -> Result<()> + Sync) -> Result<Duration> {
    let start = Barrier::new(items.len() + 1);
    std::thread::scope(|scope| {
        let workers: Vec<_> = items
            .iter()
            .map(|item| {
                let (start, work) = (&start, &work);
                scope.spawn(move || {
                    start.wait();
                    work(item)
                })
            })
            .collect();
        start.wait();
        let began = Instant::now();
        for worker in workers {
            worker.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        }
        Ok(began.elapsed())
    })
}

fn setting(bench: &Bench) -> Setting {
    Setting::new(bench, None)
}

fn creates(bench: &Bench, section: &mut Section) -> Result<()> {
    let files = 200;
    let setting = setting(bench);
    section.line(&format!(
        "{files} new files of 4 KiB through a mount, each with an fsync, by one thread. Seconds, \
         {} pairs after a warm-up, and as a multiple of the kernel's ext3.",
        bench.pairs
    ));
    let mut rows: Vec<(Peer, Times)> = Vec::new();
    for peer in ORDERS
        .map(|policy| Peer::Weft(Order(policy)))
        .into_iter()
        .chain([Peer::KernelExt2, Peer::KernelExt3])
    {
        match peer.missing(&setting) {
            Some(why) => section.line(&format!("Skipped: {peer}: {why}.")),
            None => rows.push((peer, Times::default())),
        }
    }
    for round in 0..=bench.pairs {
        for (peer, times) in &mut rows {
            let volume = peer.make(&setting)?;
            let mounted = volume.mount()?;
            // What the first change of a fresh mount costs is not the subject.
            create(mounted.dir(), "warm", 20)?;
            let began = Instant::now();
            create(mounted.dir(), "new", files).with_context(|| format!("on {peer}"))?;
            let seconds = began.elapsed().as_secs_f64();
            mounted.finish()?;
            if round > 0 {
                times.push(seconds);
            }
        }
    }
    let kernel = rows.iter().find(|r| r.0 == Peer::KernelExt3).map(|r| r.1.clone());
    let table: Vec<Vec<String>> = rows
        .iter()
        .map(|(peer, times)| {
            let ratio = kernel.as_ref().and_then(|kernel| times.ratio_to(kernel));
            vec![
                peer.to_string(),
                times.show(),
                ratio.map_or("-".into(), |ratio| format!("{ratio:.2}")),
            ]
        })
        .collect();
    section.table(&["", "seconds", "times the kernel's ext3"], &table);
    Ok(())
}

fn create(dir: &Path, name: &str, files: u32) -> Result<()> {
    let data = [7; WRITE_BYTES];
    for i in 0..files {
        let mut file = File::create(dir.join(format!("{name}{i}")))?;
        file.write_all(&data)?;
        file.sync_all()?;
    }
    Ok(())
}
