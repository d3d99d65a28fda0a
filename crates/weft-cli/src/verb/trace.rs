//! `trace`: explains why a block is not written yet.
//!
//! The operations run on a copy of the volume in memory, with nothing written back, so that the
//! whole patch graph can be seen.

use crate::cli;
use crate::failure::{DONE, Failure, Outcome};
use crate::output::Output;
use serde::Serialize;
use std::fs::File;
use std::sync::Arc;
use weft::block::{BlockDevice, Image, MemoryDevice, OpenMode, Recorder};
use weft::patch::{BlockNr, BlockView, Counters, Engine, PatchKind, Verdict};
use weft::source::open_source;
use weft::{Options, Stack};
use weft_crash::{Workload, record};

/// The most blocks that are drawn: Graphviz does not finish with more.
const MAX_DRAWN: usize = 500;

#[derive(Serialize)]
struct Block {
    block: u64,
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
    let memory = MemoryDevice::from_image(image);
    let mut log = None;
    let device: Arc<dyn BlockDevice> = if let Some(path) = &args.record {
        let file = File::create(path).map_err(|e| weft::Error::host("create", path, e))?;
        let recorder = Arc::new(Recorder::to_log(memory, file)?);
        log = Some(Arc::clone(&recorder));
        recorder
    } else {
        Arc::new(memory)
    };
    // The whole volume is read before the operations, to record its state. That is not part of
    // them: it must not leave times of access to be written.
    let mut options = Options { order: args.order, no_atime: true, ..Options::default() };
    options.engine.background = false;
    let stack = Stack::open_device(&args.image, device, &options)?;
    record::run(stack.fs(), &workload).map_err(|e| Failure::new(e.to_string()))?;
    let engine = stack.engine().ok_or_else(|| {
        Failure::usage(format!("{} is only read: there is no write to trace", args.image))
    })?;
    show(out, args, engine, &stack.counters())?;
    if let Some(log) = log {
        stack.close()?;
        log.finish()?;
    }
    Ok(DONE)
}

fn show(out: Output, args: &cli::Trace, engine: &Engine, c: &Counters) -> Result<(), Failure> {
    if args.dot {
        let dot = engine.to_dot(MAX_DRAWN);
        return out.report(&dot, |to| to.write_all(dot.as_bytes()));
    }
    let blocks = match args.block {
        Some(nr) => vec![BlockNr(nr)],
        None => engine.dirty_blocks(),
    };
    let views: Vec<BlockView> = blocks.into_iter().map(|nr| engine.explain(nr)).collect();
    let mut text: String = views.iter().map(ToString::to_string).collect();
    if args.block.is_none() {
        let (made, merged, now) = (c.patches, c.merged, c.patches_now);
        text += &format!(
            "{} blocks to write; {now} patches now, of {made} made; {merged} changes merged; {} \
             bytes of undo data\n",
            views.len(),
            c.undo_bytes_now
        );
    }
    let report: Vec<Block> = views.iter().map(block).collect();
    out.report(&report, |to| to.write_all(text.as_bytes()))
}

fn block(view: &BlockView) -> Block {
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
    Block { block: view.nr.0, owner: view.owner.0, verdict, patches }
}
