//! Views of the graph for people: the reason why a block is not written yet, and a drawing of the
//! pending patches.

use crate::graph::{Kind, NONE};
use crate::state::State;
use crate::{BlockNr, Engine, Owner, PatchId};
use std::collections::HashSet;
use std::fmt::{self, Write as _};

/// The kind of a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchKind {
    /// It can be rolled back.
    Soft,
    /// Its block is written with it or not at all.
    Hard,
    /// It joins others, or is a transaction's commit, and changes nothing itself.
    Empty,
    /// File data of one operation: whole blocks that share one patch.
    Run,
}

/// A patch, and the patches that it waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatchView {
    /// Its id.
    pub id: PatchId,
    /// Its kind.
    pub kind: PatchKind,
    /// Its befores that are not durable yet, with the block each changes (if it changes one).
    pub waits_for: Vec<(PatchId, Option<BlockNr>)>,
    /// Number of patches that wait for it.
    pub waited_for_by: usize,
    /// Size of its undo data, in bytes.
    pub undo_bytes: usize,
}

/// The write-back state of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// No change is pending: the cache holds what the device does, or does not hold the block at
    /// all.
    Clean,
    /// A write of it is in progress, or failed and will be repeated.
    InFlight,
    /// All its patches can be written: it waits for a sync, for its age or for memory pressure.
    Ready,
    /// Some of its patches can be written, with the others rolled back.
    Partly,
    /// It cannot be written before others are.
    Blocked,
}

/// A block and its patches, oldest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockView {
    /// The block.
    pub nr: BlockNr,
    /// The file it belongs to, if any.
    pub owner: Owner,
    /// Time since it became dirty, in milliseconds.
    pub dirty_ms: u64,
    /// Its write-back state.
    pub verdict: Verdict,
    /// Its patches, oldest first.
    pub patches: Vec<PatchView>,
}

impl fmt::Display for BlockView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nr = self.nr;
        match self.verdict {
            Verdict::Clean => return writeln!(f, "block {nr}: nothing waits to be written"),
            Verdict::InFlight => writeln!(f, "block {nr}: being written")?,
            Verdict::Ready => writeln!(
                f,
                "block {nr}: could be written now; dirty for {} ms, it waits for a sync, its age \
                 or memory pressure",
                self.dirty_ms
            )?,
            Verdict::Partly => {
                writeln!(f, "block {nr}: could be written now with some patches rolled back")?;
            }
            Verdict::Blocked => writeln!(f, "block {nr}: cannot be written before others are")?,
        }
        for p in &self.patches {
            let kind = match p.kind {
                PatchKind::Soft => "soft",
                PatchKind::Hard => "hard",
                PatchKind::Empty => "empty",
                PatchKind::Run => "run of file data",
            };
            write!(f, "  {:?} ({kind}", p.id)?;
            if p.undo_bytes > 0 {
                write!(f, ", {} bytes of undo data", p.undo_bytes)?;
            }
            f.write_str(")")?;
            if p.waits_for.is_empty() {
                f.write_str(" is ready")?;
            } else {
                f.write_str(" waits for")?;
                for (i, (id, block)) in p.waits_for.iter().enumerate() {
                    let comma = if i > 0 { "," } else { "" };
                    match block {
                        Some(block) => write!(f, "{comma} block {block} ({id:?})")?,
                        None => write!(f, "{comma} {id:?}")?,
                    }
                }
            }
            writeln!(f, "; {} wait for it", p.waited_for_by)?;
        }
        Ok(())
    }
}

impl Engine {
    /// Returns the state of a block, with the patches that keep it from being written.
    #[must_use]
    pub fn explain(&self, nr: BlockNr) -> BlockView {
        self.lock().explain(nr)
    }

    /// Returns the blocks with changes that are not durable, in the order of the device.
    #[must_use]
    pub fn dirty_blocks(&self) -> Vec<BlockNr> {
        let state = self.lock();
        let mut dirty: Vec<BlockNr> = state
            .cache
            .all()
            .filter(|&b| state.cache[b].is_dirty())
            .map(|b| state.cache[b].nr)
            .collect();
        dirty.sort_unstable();
        dirty
    }
}

/// The meaning of a drawing of [`draw`], as a box of it.
const LEGEND: &str = "\"legend\" [shape=note, label=\"a box: a block that waits to be written\\la node: one of \
    its changes (patches)\\lan arrow: a change waits for the one it points to, which must be on the disk \
    first\\lbold: written with its block, or not at all\\lthin: can be rolled back; with the bytes that are kept for \
    that\\ldotted: file data, or a point that joins others\\ldashed line: one change in several blocks\\l\"];";

/// Draws the patches of blocks as Graphviz text: a box for each block, with what `describe` says of it, an
/// arrow from each patch to each one that it waits for, and a legend. A patch that spans blocks has a node
/// in each of them, joined by dashed lines.
pub fn draw(views: &[BlockView], describe: impl Fn(BlockNr) -> String) -> String {
    let mut dot = String::from("digraph patches {\n  rankdir=LR;\n  node [shape=box];\n");
    let mut arrows = String::new();
    let mut drawn = HashSet::new();
    for view in views {
        let nr = view.nr;
        let label = describe(nr).replace('\\', "\\\\").replace('"', "\\\"");
        // Writing to a String cannot fail.
        let _ = writeln!(dot, "  subgraph \"cluster_{nr}\" {{\n    label=\"{label}\";");
        for p in &view.patches {
            let name = (p.id.index, p.id.generation);
            let style = match p.kind {
                PatchKind::Hard => "style=bold",
                PatchKind::Soft => "style=solid",
                PatchKind::Empty | PatchKind::Run => "style=dotted",
            };
            let first = drawn.insert(name);
            // Graphviz allows a node in one box only: in each further block the patch gets
            // another node.
            let part = if first { String::new() } else { format!("_b{nr}") };
            let undo = match p.undo_bytes {
                0 => String::new(),
                bytes => format!("\\nundo {bytes} bytes"),
            };
            let _ = writeln!(
                dot,
                "    p{}_{}{part} [label=\"patch {}{undo}\", {style}];",
                name.0, name.1, p.id.index
            );
            if !first {
                let (index, generation) = name;
                let _ = writeln!(
                    arrows,
                    "  p{index}_{generation} -> p{index}_{generation}{part} [dir=none, \
                     style=dashed];"
                );
                continue;
            }
            for (before, _) in &p.waits_for {
                let _ = writeln!(
                    arrows,
                    "  p{}_{} -> p{}_{};",
                    name.0, name.1, before.index, before.generation
                );
            }
        }
        dot.push_str("  }\n");
    }
    format!("{dot}{arrows}  {LEGEND}\n}}\n")
}

impl State {
    fn explain(&self, nr: BlockNr) -> BlockView {
        let Some(buffer) = self.cache.find(nr) else {
            return BlockView {
                nr,
                owner: Owner::NONE,
                dirty_ms: 0,
                verdict: Verdict::Clean,
                patches: Vec::new(),
            };
        };
        let b = &self.cache[buffer];
        let verdict = if b.in_flight {
            Verdict::InFlight
        } else if !b.is_dirty() {
            Verdict::Clean
        } else if b.is_ready() {
            Verdict::Ready
        } else if b.is_partly_ready() {
            Verdict::Partly
        } else {
            Verdict::Blocked
        };
        let mut patches: Vec<PatchView> =
            (b.run != NONE).then(|| self.view(b.run)).into_iter().collect();
        let mut at = b.oldest;
        while at != NONE {
            patches.push(self.view(at));
            at = self.graph[at].newer;
        }
        let dirty = b.is_dirty();
        let dirty_ms = if dirty { self.now_ms().saturating_sub(b.dirty_since_ms) } else { 0 };
        BlockView { nr, owner: b.owner, dirty_ms, verdict, patches }
    }

    fn view(&self, patch: u32) -> PatchView {
        let kind = match self.graph[patch].kind {
            Kind::Soft => PatchKind::Soft,
            Kind::Hard | Kind::InFlight => PatchKind::Hard,
            Kind::Empty | Kind::Free => PatchKind::Empty,
            Kind::Run => PatchKind::Run,
        };
        PatchView {
            id: self.graph.id(patch),
            kind,
            waits_for: self
                .graph
                .befores(patch)
                .map(|b| (self.graph.id(b), self.buffer_of(b).map(|b| self.cache[b].nr)))
                .collect(),
            waited_for_by: self.graph.afters(patch).count(),
            undo_bytes: match kind {
                PatchKind::Soft => self.graph.pieces(patch).len_bytes(),
                PatchKind::Hard | PatchKind::Empty | PatchKind::Run => 0,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use std::sync::Arc;
    use weft_block::MemoryDevice;

    #[test]
    fn says_what_a_block_waits_for() {
        let device = Arc::new(MemoryDevice::new(1 << 20));
        let options = Options { background: false, ..Options::default() };
        let engine = Engine::new(device, 4096, options).unwrap();
        let mut op = engine.begin(2).unwrap();
        let a = op.write(BlockNr(1), 0, &[1], &[]).unwrap();
        op.write(BlockNr(2), 0, &[1], &[a]).unwrap();
        drop(op);
        assert_eq!(engine.dirty_blocks(), [BlockNr(1), BlockNr(2)]);
        assert_eq!(engine.explain(BlockNr(1)).verdict, Verdict::Ready);
        let two = engine.explain(BlockNr(2));
        assert_eq!(two.verdict, Verdict::Blocked);
        assert_eq!(two.patches[0].waits_for.len(), 1);
        assert_eq!(two.patches[0].waits_for[0].1, Some(BlockNr(1)));
        assert!(two.to_string().contains("waits for block 1"), "{two}");
        let views = [engine.explain(BlockNr(1)), two];
        let dot = draw(&views, |nr| format!("block {nr}: \"x\""));
        assert_eq!(dot.matches("->").count(), 1);
        assert!(dot.contains(r#"label="block 1: \"x\"";"#), "{dot}");
        engine.sync().unwrap();
        assert_eq!(engine.explain(BlockNr(2)).verdict, Verdict::Clean);
    }
}
