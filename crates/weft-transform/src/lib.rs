//! Transformations of files as they are read and written: compression, encryption and conversion
//! to other formats, chained without copies in between.
//!
//! - A [`Transform`] is a stage with its parameters; its [`Shape`] determines its capabilities.
//! - A [`Network`] is a chain of stages, parsed from a [`text`] by a [`Registry`], and checked
//!   against the required access ([`Need`]) before it is used.
//! - [`exec`] runs networks over memory and streams.
//! - [`store`] opens stored files through networks, for reads and writes at any offset.
//! - [`TransformFs`] is a file system stacked on another, with networks attached to its files.
//!
//! A file with a network is opened as a stack of [`store`]s, each a file that can be read, and mostly
//! written, anywhere:
//!
//! ```text
//! reader and writer: byte ranges of the plain file
//!     |  InPlace      in-place stages, fused: all of them on one 128 KiB block, then the next
//!     |  FramedFile   frames: decoded one at a time; a commit replaces the file by renaming, or is in
//!     |               place over sealed blocks
//!     |  SealedFile   sealed blocks: each opened and written by itself; a commit goes through a log
//!     |  StreamFile   a sequential stage: read on from the beginning, or from an access point
//!     |  MergedFile   several stacks over one file, merged where branches of a graph meet
//! the inode below
//! ```
//!
//! Views by name and links are nodes without an inode below: they hold one use of their base and
//! read it as any reader would, and what is written to the base is announced for them. Where all
//! stages work in place on a plain file, reads take no lock: they count if nothing changed meanwhile.
//!
//! ```
//! use weft_transform::{Context, Registry, exec::Fused, Io};
//! let registry = Registry::new(Context::default());
//! let network = registry.parse("view: increment | rot13")?;
//! let mut bytes = *b"a file";
//! Fused::new(network.layers(), Io::Read).expect("both work in place").apply(0, &mut bytes)?;
//! assert_eq!(&bytes, b"o!twzs");
//! # Ok::<(), weft_transform::Error>(())
//! ```
#![warn(missing_docs)]

mod archive;
mod error;
pub mod exec;
mod fs;
mod graph;
mod keys;
mod meter;
mod metered;
mod model;
mod network;
mod outputs;
mod parameters;
pub mod registry;
pub mod stages;
pub mod store;
pub mod text;
#[cfg(feature = "wasm")]
pub mod wasm;

pub use error::{Error, Result};
pub use fs::{
    COMMAND_BYTES, CONVERT_ATTRIBUTE, EXPLAIN_ATTRIBUTE, Explanation, LINK, LINK_MAGIC,
    NETWORK_ATTRIBUTE, POP_COMMAND, PUSH_COMMAND, RULES_NAME, Rules, Ruling, SHOW_COMMAND,
    STORED_ATTRIBUTE, Source, StageExplanation, TransformFs, TransformOptions, Trust, link_content,
};
pub use keys::{KEY_BYTES, Key, KeyRing};
pub use meter::Meters;
pub use model::{
    Access, ByteMap, Declares, Direction, Frame, FrameCodec, Io, Layer, MergeBy, OnError, Point,
    STEP_BYTES, Seal, Sealer, Shape, SizeRule, Stream, StreamCodec, Transform, Write,
};
pub use network::{Need, Network, Reason, Refusal};
pub use outputs::OutputCache;
pub use registry::{Context, Registry};
