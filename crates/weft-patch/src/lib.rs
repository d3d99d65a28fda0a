//! The engine: changes to blocks as patches with dependencies.
//!
//! A file system changes its blocks through an [`Engine`] and names for each change the changes
//! that must be durable before it (its *befores*). The engine may then write any block at any time,
//! under one rule: **no change reaches the disk before its befores**. A block that holds changes
//! which may not be written yet is written without them, from a copy in which they are rolled back.
//!
//! A change must follow not only the changes that it points to, but also those that *decided* it.
//! An operation that reads a length in order to find the position of a record relies on that
//! length, and the record must not reach the disk without it. So bytes that decide are read with
//! [`Op::read_range`], or named in [`Op::write_relying`]; a debug build panics on a change that
//! omits them.
//!
//! The commit [`Policy`] gives the dependencies their meaning: soft updates keep them, a journal
//! replaces those inside one operation by the commit record of its transaction, async drops them.
//!
//! The idea is that of Featherstitch (Frost et al., "Generalized File System Dependencies", SOSP
//! 2007), and so are its optimisations: patches without undo data where a rollback can never be
//! needed ("hard"), merging, ready lists, cancelling changes of blocks that were freed before they
//! were written. New here:
//!
//! - The device has a volatile write cache and is flushed once for each round of writes; a completed
//!   write counts for nothing before.
//! - A sync writes only what it must, and ends however busy the volume is. Failed writes are kept
//!   and repeated.
//! - Cycles are searched for: a change needs no undo data if nothing it waits for leads back to its
//!   block. Featherstitch allows that only while no patch outside the block waits for it; here a
//!   short walk of the graph, nearly always one step, decides the other cases.
//! - A patch with undo data may have several ranges: changes that wait for the same patches share
//!   one, wherever they lie in the block.
//! - A journal is a policy of the same graph.
//!
//! | module | contents |
//! |---|---|
//! | `engine` | the interface: operations, syncs, memory pressure |
//! | `duties`, `clock` | the write-back thread: what it owes to age and to memory, and when it looks; the time |
//! | `state` | all that the engine's one lock protects |
//! | `graph`, `undo` | patches and their edges in arenas, bounded walks; the undo data of each patch |
//! | `buffer`, `block_map` | blocks in memory, the patches of each, and the file it belongs to |
//! | `change` | whether a change becomes a patch, joins one, or needs undo data |
//! | `follow`, `newest` | the pending patches of its block that a change must follow; an index of them |
//! | `group` | callers that sync at the same time share rounds, commits and flushes |
//! | `sync`, `writeback` | the patches that a sync waits for; rounds, copies with rollbacks, failed writes |
//! | `batch` | blocks on their way to the device |
//! | `journal`, `transactions`, [`jbd2`] | the journal policy; its transactions; the format of the log alone |
//! | `atomic` | patchgroups of which a crash leaves all or nothing |
//! | [`patchgroup`] | changes of applications that are ordered as groups |
//! | `pending` | freed numbers that may not be reused yet |
//! | `fetch` | blocks that an operation needs, read without the lock before it |
//! | `reads` | the bytes that an operation has read in blocks that it changes: checked in debug builds |
//! | `spare` | memory that a burst has left, given back while there is nothing to write |
//! | `explain`, `counters` | why a block is not written yet, the graph as Graphviz; counters |
//!
//! ```
//! use std::sync::Arc;
//! use weft_block::MemoryDevice;
//! use weft_patch::{BlockNr, Engine, Options};
//!
//! let device = Arc::new(MemoryDevice::new(1 << 20));
//! let engine = Engine::new(device, 4096, Options::default())?;
//! let mut op = engine.begin(2)?;
//! // A pointer in block 1 must never reach the disk before what it points to, in block 2.
//! let pointee = op.init(BlockNr(2), &[7; 4096], &[])?;
//! let pointer = op.write(BlockNr(1), 0, &2_u32.to_le_bytes(), &[pointee])?;
//! assert!(!op.is_durable(pointer));
//! drop(op);
//! engine.sync()?;
//! assert!(engine.begin(0)?.is_durable(pointer));
//! # Ok::<(), weft_patch::Error>(())
//! ```
#![warn(missing_docs)]

mod atomic;
mod batch;
mod block_map;
mod buffer;
mod change;
mod clock;
mod counters;
mod duties;
mod engine;
mod error;
mod explain;
mod fetch;
mod follow;
mod graph;
mod group;
mod ids;
pub mod jbd2;
mod journal;
mod newest;
mod nowait;
mod options;
pub mod patchgroup;
mod pending;
mod process;
mod reads;
mod spare;
mod state;
mod sync;
mod transactions;
mod undo;
mod watch;
mod writeback;

pub use atomic::{AtomicLimits, HOLD_BLOCKS_MIN};
pub use clock::Clock;
pub use counters::Counters;
pub use duties::Pace;
pub use engine::{Engine, Op};
pub use error::{Error, Result};
pub use explain::{BlockView, PatchKind, PatchView, Verdict, draw};
pub use ids::{BlockNr, Owner, PatchId};
pub use nowait::{about_to_wait, without_waiting};
pub use options::{JournalMode, Options, Policy};
pub use patchgroup::{
    Engagement, Entered, EnteredAlone, PatchGroup, PatchGroupError, PatchGroups, in_patchgroup,
};
pub use pending::{Pending, ROOM_ATTEMPTS, Shortage};
pub use transactions::recover;
pub use weft_block::OwnerProcess;
