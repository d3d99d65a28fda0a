//! weft-hfs beside libhfs, each called in process, on the operations that the paper on MacFS
//! measured: empty files made and deleted, and one file of 5,000,000 bytes written, overwritten and
//! read.

mod kernel;
mod libhfs;

use crate::plot::Bars;
use crate::report::Section;
use crate::stats::{Times, thousands};
use crate::{Bench, machine};
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use weft::block::{BlockDevice, FileDevice, OpenMode};
use weft::hfs::layout::{Fork, Name, ROOT_ID};
use weft::hfs::mkfs::{MkfsOptions, mkfs};
use weft::hfs::volume::New;
use weft::hfs::{Hfs, Mac, OpenOptions};
use weft::vfs::{FileSystem, OpenFlags};

const VOLUME_BYTES: u64 = 240 << 20;
const FILES: u32 = 5000;
const BYTES: usize = 5_000_000;
const REQUESTS: [usize; 3] = [500, 5000, 50_000];

/// A measured operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Create(u32),
    Delete(u32),
    Write(usize),
    Overwrite(usize),
    Read(usize),
}

impl Operation {
    fn amount(self) -> f64 {
        match self {
            Self::Create(n) | Self::Delete(n) => f64::from(n),
            Self::Write(_) | Self::Overwrite(_) | Self::Read(_) => BYTES as f64 / 1e6,
        }
    }

    /// The name in a row of the report.
    fn name(self) -> String {
        match self {
            Self::Create(n) => format!("create {} empty files", thousands(n.into())),
            Self::Delete(n) => format!("delete {} empty files", thousands(n.into())),
            Self::Write(n) => format!("write, {} B a request", thousands(n as u64)),
            Self::Overwrite(n) => format!("overwrite, {} B a request", thousands(n as u64)),
            Self::Read(n) => format!("read, {} B a request", thousands(n as u64)),
        }
    }

    fn unit(self) -> &'static str {
        if matches!(self, Self::Create(_) | Self::Delete(_)) { "files/s" } else { "MB/s" }
    }
}

/// Seconds of the calls alone, and until the volume was unmounted and the image synced.
#[derive(Debug, Clone, Copy)]
struct Took {
    calls: f64,
    durable: f64,
}

fn name(text: &str) -> Result<Name> {
    Ok(Name::new(text.as_bytes())?)
}

/// Makes an empty volume.
fn make(image: &Path) -> Result<()> {
    let _ = std::fs::remove_file(image);
    let device = FileDevice::create(image, VOLUME_BYTES)?;
    mkfs(&device, &MkfsOptions::new(name("Bench")?, 3_000_000_000))?;
    device.flush()?;
    Ok(())
}

fn ours(image: &Path, operation: Operation) -> Result<Took> {
    let device = Arc::new(FileDevice::open(image, OpenMode::READ_WRITE)?);
    let fs = Hfs::open(device as Arc<dyn BlockDevice>, OpenOptions::default())?;
    let mac = Mac::new(Arc::clone(&fs));
    let names = |n: u32| (0..n).map(|i| name(&format!("file{i:06}"))).collect::<Result<Vec<_>>>();
    let mut data = vec![7; BYTES];
    let kind = |k: [u8; 4]| k;
    let start;
    match operation {
        Operation::Create(n) => {
            let names = names(n)?;
            start = Instant::now();
            for name in &names {
                fs.create_item(ROOT_ID, name, &New::FILE)?;
            }
        }
        Operation::Delete(n) => {
            let names = names(n)?;
            start = Instant::now();
            for name in &names {
                fs.delete_item(ROOT_ID, name)?;
            }
        }
        Operation::Write(request) | Operation::Overwrite(request) => {
            start = Instant::now();
            if matches!(operation, Operation::Write(_)) {
                mac.create_file(b"data", kind(*b"TEXT"), kind(*b"ttxt"))?;
            }
            let mut file = mac.open(b"data", Fork::Data, OpenFlags::READ | OpenFlags::WRITE)?;
            for piece in data.chunks(request) {
                ensure!(file.write(piece)? == piece.len(), "a short write");
            }
            file.close()?;
        }
        Operation::Read(request) => {
            data.fill(0);
            start = Instant::now();
            let mut file = mac.open(b"data", Fork::Data, OpenFlags::READ)?;
            for piece in data.chunks_mut(request) {
                ensure!(file.read(piece)? == piece.len(), "a short read");
            }
        }
    }
    let calls = start.elapsed().as_secs_f64();
    fs.unmount()?;
    std::fs::File::open(image)?.sync_data()?;
    let durable = start.elapsed().as_secs_f64();
    ensure!(data.iter().all(|&byte| byte == 7), "what was read is what was written");
    Ok(Took { calls, durable })
}

/// One pass over all operations, in an order that leaves an empty volume.
fn pass(files: u32, requests: &[usize]) -> Vec<Operation> {
    let mut all = vec![Operation::Create(files), Operation::Delete(files)];
    for &request in requests {
        all.extend([
            Operation::Write(request),
            Operation::Overwrite(request),
            Operation::Read(request),
        ]);
    }
    all
}

/// Runs an operation of one peer on its own image.
fn run(
    side: &mut dyn FnMut(&Path, Operation) -> Result<Took>,
    image: &Path,
    operation: Operation,
) -> Result<Took> {
    if matches!(operation, Operation::Write(_)) || matches!(operation, Operation::Create(_)) {
        make(image)?;
    }
    side(image, operation).with_context(|| operation.name())
}

/// Measures the paper's table, with weft beside libhfs, and the cost of a file as a folder grows.
pub fn hfs(bench: &Bench) -> Result<()> {
    let peer = libhfs::Peer::build(&bench.cache)?;
    let mut kernel = kernel::Kernel::new(bench);
    let files = if bench.quick { FILES / 10 } else { FILES };
    let operations = pass(files, &REQUESTS);
    let (our_image, their_image) = (bench.work.join("ours.hfs"), bench.work.join("libhfs.hfs"));
    let mut times: Vec<[Times; 6]> =
        operations.iter().map(|_| std::array::from_fn(|_| Times::default())).collect();
    for pair in 0..=bench.pairs {
        for (operation, times) in operations.iter().zip(&mut times) {
            let our = run(&mut ours, &our_image, *operation)?;
            let their = run(&mut |image, op| peer.run(image, op), &their_image, *operation)?;
            let mut took = vec![our.calls, their.calls, our.durable, their.durable];
            if let Ok(kernel) = &mut kernel {
                let kernel = kernel.run(*operation).with_context(|| operation.name())?;
                took.extend([kernel.calls, kernel.durable]);
            }
            // The first pair is the warm-up.
            if pair > 0 {
                for (times, value) in times.iter_mut().zip(took) {
                    times.push(value);
                }
            }
        }
    }
    let mut section = Section::new("hfs", "HFS volumes, beside libhfs");
    section.line(&format!(
        "Both libraries called in process on an image of 240 MiB that weft made, in soft updates; \
         {} pairs after a warm-up, medians. \"Calls\" ends when the last call returns, \"durable\" \
         when the volume is unmounted and the image synced. libhfs is that of Debian's {}, built \
         with -O2; it writes in no order that would survive a cut.",
        bench.pairs,
        peer.version()
    ));
    let mut rows = Vec::new();
    let mut figures = Vec::new();
    for (operation, times) in operations.iter().zip(&times) {
        let [our, their, our_durable, their_durable, ..] = times;
        let rate = |t: &Times| operation.amount() / t.median();
        let show = |t: &Times| thousands(rate(t).round() as u64);
        let ratio = |a: &Times, b: &Times| b.ratio_to(a).unwrap_or(0.0);
        rows.push(vec![
            operation.name(),
            operation.unit().to_owned(),
            show(our),
            show(their),
            format!("{:.2}", ratio(our, their)),
            show(our_durable),
            show(their_durable),
            format!("{:.2}", ratio(our_durable, their_durable)),
        ]);
        figures.push(serde_json::json!({
            "operation": operation.name(),
            "unit": operation.unit(),
            "weft_calls": rate(our),
            "libhfs_calls": rate(their),
            "times_libhfs_calls": ratio(our, their),
            "weft_durable": rate(our_durable),
            "libhfs_durable": rate(their_durable),
            "times_libhfs_durable": ratio(our_durable, their_durable),
        }));
    }
    section.table(
        &[
            "",
            "unit",
            "weft: calls",
            "libhfs: calls",
            "times libhfs",
            "weft: durable",
            "libhfs: durable",
            "times libhfs",
        ],
        &rows,
    );
    paper(&mut section, &operations, &times, kernel.as_ref().err());
    growth(bench, &peer, &mut section)?;
    println!("{}", serde_json::json!({ "benchmark": "hfs", "figures": figures }));
    section.signed(&machine::describe(), "weft-bench hfs").save(&bench.report)
}

/// Writes the table of the paper on MacFS, with rows of this run.
fn paper(
    section: &mut Section,
    operations: &[Operation],
    times: &[[Times; 6]],
    no_kernel: Option<&String>,
) {
    let of = |wanted: Operation, side: usize| {
        let at = operations.iter().position(|o| *o == wanted);
        at.and_then(|at| times.get(at)).map_or(0.0, |t| wanted.amount() / t[side].median())
    };
    let row = |name: &str, side: usize| {
        let mut row = vec![name.to_owned()];
        for operation in operations {
            if matches!(operation, Operation::Create(_) | Operation::Delete(_)) {
                row.push(thousands(of(*operation, side).round() as u64));
            }
        }
        for request in REQUESTS {
            let all = [
                Operation::Write(request),
                Operation::Overwrite(request),
                Operation::Read(request),
            ];
            let rates = all.map(|o| thousands((of(o, side) * 1000.0).round() as u64));
            row.push(rates.join(" / "));
        }
        row
    };
    section.line(
        "The same beside the figures of the paper on MacFS, on the machines of its time: files a \
         second; KB a second written, overwritten and read. In the place of Unix FFS is the \
         kernel's ext2 today, on a loop device, through system calls. \"When weft began\" is what \
         its design says of libhfs, on another machine.",
    );
    if let Some(why) = no_kernel {
        section.line(&format!("ext2 was not measured: {why}."));
    }
    let old = |cells: [&str; 6]| cells.map(str::to_owned).to_vec();
    let mut rows = vec![
        old([
            "_Macintosh_",
            "7.5",
            "7.5",
            "26.5 / 27.0 / 28.7",
            "118.2 / 119.2 / 124.2",
            "527.0 / 532.9 / 548.9",
        ]),
        old([
            "_MacFS_",
            "24.6",
            "23.2",
            "83.0 / 71.1 / 173.6",
            "147.8 / 182.4 / 303.8",
            "211.8 / 169.7 / 303.2",
        ]),
        old([
            "_Unix FFS_",
            "111.5",
            "571.7",
            "265.7 / 150.0 / 254.7",
            "373.7 / 139.7 / 406.2",
            "410.1 / 388.8 / 398.7",
        ]),
        old([
            "_libhfs, when weft began_",
            "139,000",
            "109,000",
            "41,000 / 168,000 / 1,849,000",
            "244,000 / 267,000 / 2,658,000",
            "346,000 / 405,000 / 2,960,000",
        ]),
        row("libhfs", 1),
        row("weft", 0),
        row("libhfs, durable", 3),
        row("weft, durable", 2),
    ];
    if no_kernel.is_none() {
        rows.extend([row("kernel ext2", 4), row("kernel ext2, durable", 5)]);
    }
    section.table(&["", "create", "delete", "500 B requests", "5,000 B", "50,000 B"], &rows);
}

/// Measures the cost of a file as the number of files in one folder grows.
fn growth(bench: &Bench, peer: &libhfs::Peer, section: &mut Section) -> Result<()> {
    let (our_image, their_image) = (bench.work.join("ours.hfs"), bench.work.join("libhfs.hfs"));
    let sizes: &[u32] =
        if bench.quick { &[100, 1000] } else { &[100, 300, 1000, 3000, 10_000, 30_000] };
    let mut rows = Vec::new();
    let mut series = vec![Vec::new(); 4];
    for &files in sizes {
        let mut each = [const { Vec::new() }; 4];
        for _ in 0..bench.pairs.min(3) {
            for (at, operation) in
                [Operation::Create(files), Operation::Delete(files)].into_iter().enumerate()
            {
                let our = run(&mut ours, &our_image, operation)?;
                let their = run(&mut |image, op| peer.run(image, op), &their_image, operation)?;
                each[2 * at].push(our.calls);
                each[2 * at + 1].push(their.calls);
            }
        }
        let mut row = vec![thousands(files.into())];
        for (values, series) in each.iter().zip(&mut series) {
            let mut times = Times::default();
            values.iter().for_each(|&v| times.push(v));
            let micros = times.median() * 1e6 / f64::from(files);
            row.push(format!("{micros:.2}"));
            series.push(micros);
        }
        rows.push(row);
    }
    section.line("Microseconds of a call, by the number of files in one folder ([plot](plots/hfs-growth.svg)):");
    section.table(&["files", "create: weft", "libhfs", "delete: weft", "libhfs"], &rows);
    let labels: Vec<String> = sizes.iter().map(|&n| thousands(n.into())).collect();
    let names = ["weft, create", "libhfs, create", "weft, delete", "libhfs, delete"];
    let series: Vec<(String, Vec<f64>)> =
        names.map(str::to_owned).into_iter().zip(series).collect();
    let plot = Bars {
        title: "Cost of a file by the number of files in one folder",
        y_label: "microseconds",
        labels: &labels,
        series: &series,
    };
    bench.plot("hfs-growth.svg", &plot.svg())
}
