//! Measures with the engine's counters, in process: the optimisation table, the blocks of small
//! changes, the sizes of requests, and the growth of the cost with the work. Counts need no peer;
//! the figures of Featherstitch (Frost et al., SOSP 2007, and the theses behind it) stand beside
//! them.

use crate::plot::Bars;
use crate::report::Section;
use crate::stats::{megabytes, thousands};
use crate::tree::{self, Tree};
use crate::volume::{Cost, Image, measure, remove, untar};
use crate::{Bench, machine};
use anyhow::Result;
use weft::Order;
use weft::ext2::mkfs::MkfsOptions;
use weft::patch::{Counters, JournalMode, Options, Policy};
use weft::vfs::{Caller, Node, Walker};

const VOLUME_BYTES: u64 = 2 << 30;
const SMALL_VOLUME_BYTES: u64 = 256 << 20;

fn order(policy: Policy) -> Order {
    Order(policy)
}

/// Measures the effect of each optimisation.
pub fn optimisations(bench: &Bench) -> Result<()> {
    let tree = bench.tree()?;
    let mut section = Section::new("optimisations", "What the engine's optimisations save");
    section.line(&format!(
        "Soft updates, in process: `untar` unpacks {} into a fresh volume and syncs, `rm` removes \
         them all and syncs. \"None\" has neither hard patches (without undo data) nor merging of \
         overlapping patches; CPU is user and system time of the whole process, reading the tar \
         file included.",
        tree.describe()
    ));
    let mut rows = Vec::new();
    let mut none: Option<(Cost, Cost)> = None;
    for (name, hard, merge) in [
        ("none", false, false),
        ("hard patches", true, false),
        ("overlap merging", false, true),
        ("both", true, true),
    ] {
        let engine = Options { hard_patches: hard, merge, ..Options::default() };
        let (unpack, rm) = untar_and_remove(bench, &tree, engine)?;
        rows.push(vec![
            name.to_owned(),
            thousands(unpack.counters.patches),
            megabytes(unpack.counters.undo_bytes),
            format!("{:.2} s", unpack.cpu_seconds),
            thousands(rm.counters.patches),
            megabytes(rm.counters.undo_bytes),
            format!("{:.2} s", rm.cpu_seconds),
        ]);
        if let Some((first, first_rm)) = &none {
            let less = |now: u64, then: u64| {
                format!("{:+.2}%", (now as f64 / then.max(1) as f64 - 1.0) * 100.0)
            };
            if hard && merge {
                rows.push(vec![
                    "both, against none".into(),
                    less(unpack.counters.patches, first.counters.patches),
                    less(unpack.counters.undo_bytes, first.counters.undo_bytes),
                    format!("{:+.0}%", (unpack.cpu_seconds / first.cpu_seconds - 1.0) * 100.0),
                    less(rm.counters.patches, first_rm.counters.patches),
                    less(rm.counters.undo_bytes, first_rm.counters.undo_bytes),
                    format!("{:+.0}%", (rm.cpu_seconds / first_rm.cpu_seconds - 1.0) * 100.0),
                ]);
            }
        } else {
            none = Some((unpack, rm));
        }
    }
    for figures in [
        ["_Featherstitch, none_", "619,740", "459.41 MB", "", "299,089", "", ""],
        ["_Featherstitch, both_", "68,887", "0.39 MB", "", "1,800", "", ""],
    ] {
        rows.push(figures.map(str::to_owned).to_vec());
    }
    section.table(
        &["", "untar: patches", "undo data", "CPU", "rm: patches", "undo data", "CPU"],
        &rows,
    );
    section.signed(&machine::describe(), "weft-bench optimisations").save(&bench.report)
}

fn untar_and_remove(bench: &Bench, tree: &Tree, engine: Options) -> Result<(Cost, Cost)> {
    let image = Image::make(&bench.work, "engine.img", VOLUME_BYTES, &MkfsOptions::ext2())?;
    let stack = image.open(order(Policy::Soft), engine)?;
    let unpack = measure(&stack, |stack| untar(stack, &tree.tar))?;
    let rm = measure(&stack, |stack| remove(stack, tree::NAME.as_bytes()))?;
    stack.close()?;
    Ok((unpack, rm))
}

/// Measures the blocks that small changes write.
pub fn blocks(bench: &Bench) -> Result<()> {
    let mut section = Section::new("blocks", "Blocks written by small changes");
    section.line(
        "On a fresh volume of 4 KiB blocks and 128-byte inodes: create 100 files of 2 KiB in one \
         directory and sync; mount again, remove one, add one, and sync. Blocks in place and blocks \
         of the journal are counted together: up to the end of the sync, when all is durable, and \
         to the end of the mount, when all is in place (less what an idle mount writes).",
    );
    let mut rows = Vec::new();
    for policy in [
        Policy::Soft,
        Policy::Async,
        Policy::Journal(JournalMode::Metadata),
        Policy::Journal(JournalMode::Ordered),
        Policy::Journal(JournalMode::Full),
    ] {
        let mut options = MkfsOptions::ext3();
        options.inode_bytes = Some(128);
        options.block_bytes = Some(4096);
        let image = Image::make(&bench.work, "blocks.img", SMALL_VOLUME_BYTES, &options)?;
        let session = |work: fn(&Walker<'_>) -> weft::vfs::Result<()>| -> Result<(Cost, u64)> {
            // Without the background thread only the sync decides which writes happen when.
            let engine = Options { background: false, ..Options::default() };
            let stack = image.open(order(policy), engine)?;
            let walker = Walker::owned_by(stack.fs(), Caller::ROOT);
            let cost = measure(&stack, |_| Ok(work(&walker)?))?;
            stack.fs().unmount()?;
            Ok((cost, blocks_of(&stack.counters())))
        };
        session(|walker| walker.mkdir(b"/dir", 0o755).map(drop))?;
        let (_, idle) = session(|_| Ok(()))?;
        let (create, create_whole) = session(|walker| {
            (0..100).try_for_each(|i| {
                let path = format!("/dir/file-{i:03}");
                walker.write_file(path.as_bytes(), &[0x5a; 2048], 0o644).map(drop)
            })
        })?;
        let (replace, replace_whole) = session(|walker| {
            walker.remove(b"/dir/file-050")?;
            walker.write_file(b"/dir/another", &[0xa5; 2048], 0o644).map(drop)
        })?;
        rows.push(vec![
            order(policy).to_string(),
            thousands(blocks_of(&create.counters)),
            thousands(create_whole - idle),
            thousands(create.counters.requests),
            thousands(create.counters.flushes),
            thousands(blocks_of(&replace.counters)),
            thousands(replace_whole - idle),
            thousands(replace.counters.requests),
            thousands(replace.counters.flushes),
        ]);
    }
    for figures in [
        ["_Kudos, soft updates_", "", "122", "", "", "", "15", "", ""],
        ["_Kudos, full-data journal_", "", "245", "", "", "", "31", "", ""],
        ["_FreeBSD, soft updates_", "", "135", "", "", "", "83", "", ""],
    ] {
        rows.push(figures.map(str::to_owned).to_vec());
    }
    section.table(
        &[
            "order",
            "100 creates: blocks",
            "all in place",
            "requests",
            "flushes",
            "remove and add: blocks",
            "all in place",
            "requests",
            "flushes",
        ],
        &rows,
    );
    section.signed(&machine::describe(), "weft-bench blocks").save(&bench.report)
}

fn blocks_of(counters: &Counters) -> u64 {
    counters.blocks_written + counters.log_blocks_written
}

/// Measures the sizes of write requests.
pub fn requests(bench: &Bench) -> Result<()> {
    let tree = bench.tree()?;
    let mut section = Section::new("requests", "Write requests and their sizes");
    section.line(&format!(
        "Unpacking {} in process, sync included. The mark to beat is 4,382 requests for 20,000 \
         files, that is 219 for 1,000 files; the target is half of it.",
        tree.describe()
    ));
    let mut rows = Vec::new();
    let mut series = Vec::new();
    for policy in [Policy::Soft, Policy::Journal(JournalMode::Ordered), Policy::Async] {
        let image = Image::make(&bench.work, "requests.img", VOLUME_BYTES, &MkfsOptions::ext3())?;
        let stack = image.open(order(policy), Options::default())?;
        let cost = measure(&stack, |stack| untar(stack, &tree.tar))?;
        stack.close()?;
        let c = &cost.counters;
        rows.push(vec![
            order(policy).to_string(),
            thousands(c.requests),
            format!("{:.0}", c.requests as f64 * 1000.0 / tree.files.max(1) as f64),
            thousands(c.blocks_written + c.log_blocks_written),
            thousands(c.flushes),
            thousands(c.rollbacks),
        ]);
        let counts = c.requests_by_size.iter().map(|n| *n as f64).collect();
        series.push((order(policy).to_string(), counts));
    }
    section.table(
        &["order", "requests", "for 1,000 files", "blocks", "flushes", "blocks rolled back"],
        &rows,
    );
    // Up to the largest size that occurs.
    let used = (0..16).rfind(|i| series.iter().any(|(_, v): &(_, Vec<f64>)| v[*i] > 0.0));
    let labels: Vec<String> = (0..=used.unwrap_or(0)).map(|i| weft_size(4096_u64 << i)).collect();
    let chart = Bars {
        title: "Write requests by size (from this size up to the next)",
        y_label: "requests",
        labels: &labels,
        series: &series,
    };
    bench.plot("requests.svg", &chart.svg())?;
    section.line("![Write requests by size](plots/requests.svg)");
    section.signed(&machine::describe(), "weft-bench requests").save(&bench.report)
}

fn weft_size(bytes: u64) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
}

/// Measures the cost of a file as the number of files grows.
pub fn growth(bench: &Bench) -> Result<()> {
    let mut section = Section::new("growth", "Cost as the work grows");
    section.line(
        "Soft updates, in process: that many empty files made in one directory and synced, then \
         removed and synced. A cost per file that grows with their number would show a search.",
    );
    let mut rows = Vec::new();
    for files in [1000_u32, 2000, 4000, 8000, 16_000, 32_000] {
        let mut options = MkfsOptions::ext2();
        options.inodes = Some(files + 1000);
        let image = Image::make(&bench.work, "growth.img", SMALL_VOLUME_BYTES, &options)?;
        let stack = image.open(order(Policy::Soft), Options::default())?;
        let create = measure(&stack, |stack| {
            let root = Node::root(stack.fs())?;
            for i in 0..files {
                drop(root.create(&Caller::ROOT, format!("file-{i}").as_bytes(), 0o644)?);
            }
            Ok(())
        })?;
        let rm = measure(&stack, |stack| {
            let root = Node::root(stack.fs())?;
            for i in 0..files {
                root.remove(&Caller::ROOT, format!("file-{i}").as_bytes())?;
            }
            Ok(())
        })?;
        stack.close()?;
        let each = |c: &Cost| format!("{:.1}", c.seconds * 1e6 / f64::from(files));
        let patches = |c: &Cost| format!("{:.2}", c.counters.patches as f64 / f64::from(files));
        rows.push(vec![
            thousands(files.into()),
            each(&create),
            patches(&create),
            thousands(create.counters.flushes),
            each(&rm),
            patches(&rm),
            thousands(rm.counters.flushes),
        ]);
    }
    section.table(
        &[
            "files",
            "create: µs each",
            "patches each",
            "flushes",
            "remove: µs each",
            "patches each",
            "flushes",
        ],
        &rows,
    );
    section.signed(&machine::describe(), "weft-bench growth").save(&bench.report)
}
