//! `trace`: explains why a block is not written yet.
//!
//! The operations run on a copy of the volume in memory, with nothing written back, so that the
//! whole patch graph can be seen. What the blocks hold is said by that copy, after everything was written to
//! it at the end.

use crate::cli;
use crate::failure::{DONE, Failure, Outcome};
use crate::output::Output;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use weft::block::{BlockDevice, Image, MemoryDevice, OpenMode, Recorder};
use weft::patch::{BlockNr, BlockView, Counters, PatchKind, Verdict, draw};
use weft::source::open_source;
use weft::vfs::host_file::NewFile;
use weft::{Options, Stack};
use weft_crash::{Workload, record};
use weft_crash_test::{BlockText, WatchedVolume};

/// The most blocks that are drawn: Graphviz does not finish with more.
const MAX_DRAWN: usize = 500;

#[derive(Serialize)]
struct Block {
    block: u64,
    /// What it holds, in words, and the operation of the workload that changed it last.
    holds: Option<String>,
    structure: Option<&'static str>,
    path: Option<String>,
    changed_by: Option<String>,
    owner: u64,
    verdict: &'static str,
    patches: Vec<Patch>,
}

#[derive(Serialize)]
struct Patch {
    kind: &'static str,
    undo_bytes: usize,
    waits_for_blocks: Vec<u64>,
    waited_for_by: usize,
}

/// `trace`.
pub fn run(out: Output, args: &cli::Trace) -> Outcome {
    let workload: Workload =
        args.workload.parse().map_err(|e: weft_crash::Error| Failure::usage(e.to_string()))?;
    let image = Image::copy_of(&*open_source(&args.image, OpenMode::READ_ONLY)?)?;
    let memory = Arc::new(MemoryDevice::from_image(image.clone()));
    let mut log = None;
    let device: Arc<dyn BlockDevice> = if let Some(path) = &args.record {
        let failed = |e| weft::Error::host("create", path, e);
        let file = NewFile::create(path, 0o666).map_err(failed)?;
        let handle = file.file().try_clone().map_err(failed)?;
        let recorder = Arc::new(Recorder::to_log(Arc::clone(&memory), handle)?);
        log = Some((Arc::clone(&recorder), file));
        recorder
    } else {
        Arc::clone(&memory) as _
    };
    // The whole volume is read before the operations, to record its state. That is not part of
    // them: it must not leave times of access to be written.
    let mut options = Options { order: args.order, no_atime: true, ..Options::default() };
    options.engine.background = false;
    let stack = Stack::open_device(&args.image, device, &options)?;
    let order = stack.order();
    let run = |fs| record::run(fs, &workload).map_err(|e| Failure::new(e.to_string()));
    // Of a volume that is within a container or a partition nothing is known but its blocks.
    let watched = WatchedVolume::new(stack.share(), image, order.name()).ok();
    match &watched {
        Some(watched) => run(watched.fs())?,
        None => run(stack.fs())?,
    }
    let engine = stack.engine().ok_or_else(|| {
        Failure::usage(format!("{} is only read: there is no write to trace", args.image))
    })?;
    let blocks = match args.block {
        Some(nr) => vec![BlockNr(nr)],
        None => engine.dirty_blocks(),
    };
    let views: Vec<BlockView> = blocks.into_iter().map(|nr| engine.explain(nr)).collect();
    let (counters, block_bytes) = (stack.counters(), engine.block_bytes());
    stack.close()?;
    if let Some((log, file)) = log {
        log.finish()?;
        file.replace()?;
    }
    let places: Vec<(u64, u32)> =
        views.iter().map(|view| (view.nr.0 * u64::from(block_bytes), block_bytes)).collect();
    let texts = watched.map_or_else(BTreeMap::new, |it| it.explain(&memory.snapshot(), &places));
    let texts = texts.into_iter().map(|(at, text)| (BlockNr(at / u64::from(block_bytes)), text));
    show(out, args, &views, &texts.collect(), &counters)?;
    Ok(DONE)
}

/// What blocks hold.
type Texts = BTreeMap<BlockNr, BlockText>;

/// The words below the blocks: what the lines mean.
const LEGEND: &str = "\
A block is written when all of its patches (changes) may be on the disk, or with the others rolled back.
hard: written with its block, or not at all; soft: can be rolled back, with the bytes that are kept for
that; empty: joins others, or commits a transaction; run of file data: the new blocks of one write.
";

fn show(
    out: Output,
    args: &cli::Trace,
    views: &[BlockView],
    texts: &Texts,
    c: &Counters,
) -> Result<(), Failure> {
    if args.dot {
        let drawn = &views[..views.len().min(MAX_DRAWN)];
        let dot = draw(drawn, |nr| match texts.get(&nr) {
            Some(text) => format!("block {nr}: {}", held(text)),
            None => format!("block {nr}"),
        });
        return out.report(&dot, |to| to.write_all(dot.as_bytes()));
    }
    let mut text = String::new();
    for view in views {
        let view_text = view.to_string();
        let (first, rest) = view_text.split_once('\n').unwrap_or((&view_text, ""));
        text += &format!("{first}\n");
        if let Some(found) = texts.get(&view.nr).filter(|_| !view.patches.is_empty()) {
            text += &format!("  it holds {}\n", held(found));
        }
        text += rest;
    }
    if args.block.is_none() {
        let (made, merged, now) = (c.patches, c.merged, c.patches_now);
        text += &format!(
            "{} blocks to write; {now} patches now, of {made} made; {merged} changes merged; {} \
             bytes of undo data\n{LEGEND}",
            views.len(),
            c.undo_bytes_now
        );
    }
    let report: Vec<Block> = views.iter().map(|view| block(view, texts.get(&view.nr))).collect();
    out.report(&report, |to| to.write_all(text.as_bytes()))
}

/// What a block holds, and the operation that changed it last.
fn held(text: &BlockText) -> String {
    match &text.cause {
        Some(cause) => format!("{}, from {}", text.text, cause.text),
        None => text.text.clone(),
    }
}

fn block(view: &BlockView, text: Option<&BlockText>) -> Block {
    let verdict = match view.verdict {
        Verdict::Clean => "clean",
        Verdict::InFlight => "in flight",
        Verdict::Ready => "ready",
        Verdict::Partly => "partly ready",
        Verdict::Blocked => "blocked",
    };
    let patches = view
        .patches
        .iter()
        .map(|p| Patch {
            kind: match p.kind {
                PatchKind::Soft => "soft",
                PatchKind::Hard => "hard",
                PatchKind::Empty => "empty",
                PatchKind::Run => "run",
            },
            undo_bytes: p.undo_bytes,
            waits_for_blocks: p.waits_for.iter().filter_map(|w| w.1).map(|nr| nr.0).collect(),
            waited_for_by: p.waited_for_by,
        })
        .collect();
    Block {
        block: view.nr.0,
        holds: text.map(|text| text.text.clone()),
        structure: text.map(|text| text.structure),
        path: text.and_then(|text| text.path.clone()),
        changed_by: text.and_then(|text| Some(text.cause.as_ref()?.text.clone())),
        owner: view.owner.0,
        verdict,
        patches,
    }
}
