//! The transformation traits, and the capabilities that a transformation declares.
//!
//! A [`Transform`] has a *forward* function, the one it is named after (`zstd` compresses), and
//! mostly an *inverse*. Its other capabilities follow from its [`Shape`]: the way output bytes
//! depend on input bytes decides whether it can run in place, at any offset, in parallel, and on a
//! file that is written in the middle. The executor and the stacked files know shapes, not stages.

use std::fmt;
use std::sync::Arc;

use crate::meter::StageMeter;
use crate::{Error, Result};

/// One of a stage's two functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The function that the stage is named after.
    Forward,
    /// The function that undoes the forward function.
    Inverse,
}

impl Direction {
    /// Returns the opposite direction.
    #[must_use]
    pub fn opposite(self) -> Self {
        match self {
            Self::Forward => Self::Inverse,
            Self::Inverse => Self::Forward,
        }
    }
}

/// The knowledge of the output size that is available in advance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SizeRule {
    /// The size of the input.
    Preserved,
    /// `output` bytes for every `input` bytes begun.
    Ratio {
        /// Bytes of a group of input.
        input: u32,
        /// Bytes of a group of output.
        output: u32,
    },
    /// Exact, from an index or header that the stored form carries.
    Indexed,
    /// Known only after all of the output has been read.
    Unknown,
}

impl SizeRule {
    /// Returns true if the size is known without reading all of the output.
    #[must_use]
    pub fn is_exact(self) -> bool {
        self != Self::Unknown
    }
}

/// The access patterns with which a stage can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// From the beginning only.
    Sequential,
    /// Any block, independently of the others.
    Random,
}

/// The writes that a stage supports, in ascending order of capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Write {
    /// None.
    None,
    /// Any, but the whole stored file is rewritten on commit.
    Rewrite,
    /// Any, in place, at the cost of the blocks written.
    InPlace,
}

/// The policy for data that a stage cannot process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnError {
    /// The read or write fails, at the exact offset.
    Fail,
    /// The data is replaced (as the character set stage does, if configured so).
    Replace,
}

/// The capabilities that a stage declares for one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Declares {
    /// The size of its output.
    pub size: SizeRule,
    /// The access with which its output can be read.
    pub access: Access,
    /// The writes that it supports, if reading runs this direction.
    pub write: Write,
    /// Whether it has an inverse.
    pub invertible: bool,
    /// Whether the same input always gives the same output.
    pub deterministic: bool,
    /// Whether it detects every change of its input since the opposite direction produced it.
    pub guards: bool,
    /// The policy for data that it cannot process.
    pub on_error: OnError,
}

/// A stage at its position in a network.
#[derive(Debug, Clone)]
pub struct Layer {
    /// The stage.
    pub stage: Arc<dyn Transform>,
    /// The function that reading runs; writing runs the opposite one.
    pub on_read: Direction,
}

impl Layer {
    /// Returns the capabilities that the stage declares for reading.
    #[must_use]
    pub fn declares(&self) -> Declares {
        self.stage.declares(self.on_read)
    }

    /// Returns true if repeated reads of unchanged input return the same data. Randomness in
    /// sealing does not matter here: opening removes it.
    pub(crate) fn reads_the_same_again(&self) -> bool {
        self.on_read == Direction::Inverse || self.declares().deterministic
    }

    /// Returns the function of the stage that `io` runs.
    #[must_use]
    pub fn direction(&self, io: Io) -> Direction {
        match io {
            Io::Read => self.on_read,
            Io::Write => self.on_read.opposite(),
        }
    }
}

/// The way data passes through a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Io {
    /// From the stored file to the reader.
    Read,
    /// From the writer to the stored file.
    Write,
}

/// The way branches are merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MergeBy {
    /// Concatenated, one behind the other.
    Concatenation,
    /// Interleaved, `unit_bytes` of each in turn; a branch that has ended is skipped.
    Turns {
        /// Bytes of a turn; at least one.
        unit_bytes: u64,
    },
}

/// Combines what [`Transform::kept_as`] says of the stages of layers.
pub(crate) fn kept_as<'a>(layers: impl IntoIterator<Item = &'a Layer>) -> Option<Vec<u8>> {
    let all = layers.into_iter().map(|layer| layer.stage.kept_as()).collect::<Option<Vec<_>>>();
    all.map(|all| all.concat())
}

/// A merge of paths that diverge from one stored file.
#[derive(Debug)]
pub struct Merge {
    pub(crate) paths: Vec<Vec<Layer>>,
    pub(crate) by: MergeBy,
    /// The number of stages of all paths, nested branches included.
    pub(crate) stages: usize,
    /// The declared capabilities, computed once: each call would otherwise recurse through all
    /// nested branches.
    pub(crate) declares: Declares,
    /// The meter of reads of the whole.
    pub(crate) meter: Option<Arc<StageMeter>>,
}

/// A transformation with its parameters. All calls may come from many threads at once.
pub trait Transform: fmt::Debug + Send + Sync {
    /// The name in the network text.
    fn name(&self) -> &'static str;

    /// Returns the shape, which determines the stage's capabilities.
    fn shape(&self) -> Shape<'_>;

    /// Returns true if the stage has an inverse.
    fn invertible(&self) -> bool {
        true
    }

    /// Returns all that determines the output besides the stage's text, as a part of the key under
    /// which the output is cached on disk; `None` if that cannot be known, or the output must not
    /// be kept on disk.
    fn kept_as(&self) -> Option<Vec<u8>> {
        Some(Vec::new())
    }

    /// Returns true if it does more than give its output: it runs a program, which may take any time,
    /// or writes a log. It is not run to learn the length of its output.
    fn acts_outside(&self) -> bool {
        false
    }

    /// Combines this stage and the one that runs after it into one stage that works in place, to be
    /// run forward, where that saves work. The default returns `None`.
    fn joined(
        &self,
        direction: Direction,
        next: &dyn Transform,
        next_direction: Direction,
    ) -> Option<Arc<dyn Transform>> {
        let _ = (direction, next, next_direction);
        None
    }

    /// Returns a value that a neighbour's [`joined`](Self::joined) may downcast to recognize a
    /// stage of its own type.
    fn as_neighbour(&self) -> Option<&dyn std::any::Any> {
        None
    }

    /// The policy for data that it cannot process.
    fn on_error(&self) -> OnError {
        OnError::Fail
    }

    /// Returns the declared capabilities for a direction, which follow from the shape.
    fn declares(&self, direction: Direction) -> Declares {
        let invertible = self.invertible();
        let on_error = self.on_error();
        let base = Declares {
            size: SizeRule::Unknown,
            access: Access::Sequential,
            write: Write::None,
            invertible,
            deterministic: true,
            guards: false,
            on_error,
        };
        let random = Declares { access: Access::Random, ..base };
        match (self.shape(), direction) {
            (Shape::Bytes(_), _) => {
                let write = if invertible { Write::InPlace } else { Write::None };
                Declares { size: SizeRule::Preserved, write, ..random }
            }
            (Shape::Sealed(seal), Direction::Inverse) => Declares {
                size: SizeRule::Indexed,
                write: Write::InPlace,
                deterministic: seal.is_deterministic(),
                guards: true,
                ..random
            },
            (Shape::Sealed(seal), Direction::Forward) => {
                Declares { deterministic: seal.is_deterministic(), ..base }
            }
            (Shape::Framed(codec), Direction::Inverse) => Declares {
                size: codec.size_rule(),
                write: Write::Rewrite,
                guards: codec.guards(),
                ..random
            },
            (Shape::Framed(_) | Shape::Stream(_) | Shape::Merged(_), _) => base,
        }
    }
}

/// The way output bytes depend on input bytes.
pub enum Shape<'a> {
    /// Byte *n* of the output depends on byte *n* of the input and on *n*: runs in place, at any
    /// offset, in any order.
    Bytes(&'a dyn ByteMap),
    /// Blocks of fixed length, each with a seal that binds it to its position in its file.
    Sealed(&'a dyn Seal),
    /// A sequence of frames, each encoded independently.
    Framed(&'a dyn FrameCodec),
    /// A sequential transformation, from the beginning to the end.
    Stream(&'a dyn StreamCodec),
    /// Several paths from one file, merged.
    Merged(&'a Merge),
}

impl fmt::Debug for Shape<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bytes(_) => "Bytes",
            Self::Sealed(_) => "Sealed",
            Self::Framed(_) => "Framed",
            Self::Stream(_) => "Stream",
            Self::Merged(_) => "Merged",
        })
    }
}

/// An in-place transformation of bytes.
pub trait ByteMap: Send + Sync {
    /// Transforms `block`, whose first byte is byte `offset` of the file.
    ///
    /// # Errors
    /// Data that the stage cannot process. The bytes before it have been transformed.
    fn apply(&self, direction: Direction, offset: u64, block: &mut [u8]) -> Result<()>;
}

/// The seal of the blocks of one file. See [`crate::store`] for the format around it.
pub trait Sealer: Send + Sync {
    /// Appends the sealed form of `plain`, block `index` of the file, to `out`. The sealed form is
    /// [`Seal::overhead_bytes`] longer than `plain`.
    ///
    /// # Errors
    /// No random numbers are available.
    fn seal(&self, index: u64, plain: &[u8], out: &mut Vec<u8>) -> Result<()>;

    /// Opens block `index` into `out`, which has the length of the plain block.
    ///
    /// # Errors
    /// A description of the damage; the content of `out` must then not be used.
    fn open(&self, index: u64, sealed: &[u8], out: &mut [u8]) -> Result<(), &'static str>;

    /// Returns the authentication tag of other data that belongs to the file: its header, its log.
    fn tag(&self, what: &[u8]) -> [u8; 16];
}

/// A family of [`Sealer`]s: one for each file.
pub trait Seal: Send + Sync {
    /// The stage's name, for errors.
    fn stage(&self) -> &'static str;
    /// The number of the algorithm in the header of a file.
    fn algorithm(&self) -> u8;
    /// Bytes of plain data in a block: a power of two from 4 KiB to 1 MiB.
    fn block_bytes(&self) -> u32;
    /// Bytes by which a sealed block is longer than its plain form.
    fn overhead_bytes(&self) -> usize;
    /// Returns true if sealing the same data twice gives the same result.
    fn is_deterministic(&self) -> bool;
    /// The id of the key that new files are sealed with (zeroes without a key).
    fn key_id(&self) -> [u8; 16];
    /// Returns the sealer of the file `file_id`, which is sealed with the key `key_id`.
    ///
    /// # Errors
    /// [`Error::WrongKey`] if there is no such key.
    fn sealer(&self, file_id: [u8; 16], key_id: [u8; 16]) -> Result<Box<dyn Sealer>>;
}

/// A frame of an encoded file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Length in the encoded file, in bytes.
    pub stored_bytes: u64,
    /// Length of the decoded data, in bytes.
    pub plain_bytes: u64,
}

/// A format of frames, each encoded independently.
pub trait FrameCodec: Send + Sync {
    /// The stage's name, for errors.
    fn stage(&self) -> &'static str;

    /// Bytes of plain data in each frame that this codec writes.
    fn frame_bytes(&self) -> usize;

    /// Returns how the decoded size of a file is known.
    fn size_rule(&self) -> SizeRule {
        SizeRule::Indexed
    }

    /// Returns true if decoding detects every change of a frame.
    fn guards(&self) -> bool;

    /// Encodes one frame, appended to `out`.
    ///
    /// # Errors
    /// [`Error::Input`].
    fn encode(&self, plain: &[u8], out: &mut Vec<u8>) -> Result<()>;

    /// Decodes one frame into `out`; its plain length must be `out.len()`.
    ///
    /// # Errors
    /// A description of the damage.
    fn decode(&self, stored: &[u8], out: &mut [u8]) -> Result<(), String>;

    /// Appends the trailer that follows the last frame: an index, an end mark.
    fn finish(&self, frames: &[Frame], out: &mut Vec<u8>);

    /// Returns the first bytes of a padding frame of `stored_bytes` bytes, which decodes to nothing
    /// and whose remaining bytes are arbitrary; `None` if the format has no such frame.
    fn pad(&self, stored_bytes: u64) -> Option<Vec<u8>> {
        let _ = stored_bytes;
        None
    }

    /// Finds the frames of an encoded file, from its index or by walking through it. The frames are
    /// contiguous from byte 0 on. Returns `None` if they can be found only by decoding the whole
    /// file: then the [`decoder`](Self::decoder) reports the frames it passes
    /// ([`Stream::take_frames`]).
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Limit`].
    fn index(&self, file: &mut dyn crate::store::Store) -> Result<Option<Vec<Frame>>>;

    /// Returns a decoder of the whole format from beginning to end, for streams.
    ///
    /// # Errors
    /// Out of memory.
    fn decoder(&self) -> Result<Box<dyn Stream>>;
}

/// A transformation that must start at the beginning.
pub trait StreamCodec: Send + Sync {
    /// Starts one pass.
    ///
    /// # Errors
    /// [`Error::Parameter`] if there is no inverse.
    fn start(&self, direction: Direction) -> Result<Box<dyn Stream>>;
}

/// The approximate maximum of bytes that a [`Stream`] appends in one call.
pub const STEP_BYTES: usize = 256 << 10;

/// One pass through a sequential transformation.
pub trait Stream: Send {
    /// Consumes some of `input`, appends the result to `out` (which the caller passes in empty),
    /// and returns the number of bytes consumed. It consumes less than all of `input` (even none)
    /// only if it appended about [`STEP_BYTES`]; the caller then calls it again with the rest.
    ///
    /// # Errors
    /// Data that the stage cannot process, after the output of the data before it was appended. The
    /// offset is in the stage's output.
    fn push(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize>;

    /// Ends the input. Appends about [`STEP_BYTES`] at most, and returns `true` once all output is
    /// appended.
    ///
    /// # Errors
    /// As [`push`](Self::push); also a truncated input.
    fn finish(&mut self, out: &mut Vec<u8>) -> Result<bool>;

    /// Requests restart points: from now on [`push`](Self::push) also returns, with input left, at
    /// the first point that is at least `every` bytes of output, or of input, after the previous
    /// one. The default offers none.
    fn offer_points(&mut self, every: u64) {
        let _ = every;
    }

    /// Returns the restart point at the current position, if `push` has just returned for it.
    fn point(&self) -> Option<Box<dyn Point>> {
        None
    }

    /// Returns the frames that have ended since the last call, once restart points were requested.
    /// The default returns none.
    fn take_frames(&mut self) -> Vec<Frame> {
        Vec::new()
    }
}

/// A restart point: a position in a pass from which another pass can begin, given the input from
/// there on.
pub trait Point: Send {
    /// The memory that it takes, in bytes.
    fn held_bytes(&self) -> usize;

    /// Returns a pass that continues from this point as if it had run from the beginning.
    ///
    /// # Errors
    /// Out of memory.
    fn resume(&self) -> Result<Box<dyn Stream>>;
}

/// Returns the error of a stage that has no inverse.
pub(crate) fn no_inverse(stage: &str) -> Error {
    Error::Parameter { stage: stage.to_owned(), message: "has no inverse".to_owned() }
}
