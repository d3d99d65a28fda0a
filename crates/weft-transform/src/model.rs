//! What a transformation is, and what it declares of itself.
//!
//! A [`Transform`] has a *forward* function, the one its name says (`zstd` compresses), and mostly
//! an *inverse*. What else it can do follows from its [`Shape`]: how output bytes depend on input
//! bytes decides whether it can run in place, at any offset, in parallel, and on a file that is
//! written in the middle. The executor and the stacked files know shapes, not stages.

use std::fmt;
use std::sync::Arc;

use crate::{Error, Result};

/// Which of a stage's two functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The one that the stage is named after.
    Forward,
    /// The one that undoes it.
    Inverse,
}

impl Direction {
    /// The other one.
    #[must_use]
    pub fn opposite(self) -> Self {
        match self {
            Self::Forward => Self::Inverse,
            Self::Inverse => Self::Forward,
        }
    }
}

/// What is known of the size of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SizeRule {
    /// That of the input.
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
    /// Known only when everything was read.
    Unknown,
}

impl SizeRule {
    /// Whether the size is known without reading everything.
    #[must_use]
    pub fn is_exact(self) -> bool {
        self != Self::Unknown
    }
}

/// How a stage can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// From the beginning on.
    Sequential,
    /// Any block by itself.
    Random,
}

/// What writes a stage can serve, the least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Write {
    /// None.
    None,
    /// Any, but the stored file is written anew when it is committed.
    Rewrite,
    /// Any, in place, at the cost of the blocks written.
    InPlace,
}

/// What happens to data that a stage cannot process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnError {
    /// The read or write fails, at the exact offset.
    Fail,
    /// A replacement is put in its place (as a character set does, when asked to).
    Replace,
}

/// What a stage says of itself in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Declares {
    /// The size of its output.
    pub size: SizeRule,
    /// How its output can be read.
    pub access: Access,
    /// What writes it can serve, if reading runs this direction.
    pub write: Write,
    /// Whether it can be undone.
    pub invertible: bool,
    /// Whether the same input always gives the same output.
    pub deterministic: bool,
    /// Whether it notices every change of its input since the opposite direction made it.
    pub guards: bool,
    /// What happens to data that it cannot process.
    pub on_error: OnError,
}

/// A transformation with its parameters. All calls may come from many threads at once.
pub trait Transform: fmt::Debug + Send + Sync {
    /// The name in the network text.
    fn name(&self) -> &'static str;

    /// What it can do.
    fn shape(&self) -> Shape<'_>;

    /// Whether `Inverse` exists.
    fn invertible(&self) -> bool {
        true
    }

    /// What beside its text decides what it makes, so that its output can be kept on disk; `None` if
    /// that is not to be known, or its output is not for a disk.
    fn kept_as(&self) -> Option<Vec<u8>> {
        Some(Vec::new())
    }

    /// This and the stage that runs behind it as one stage that works in place, to be run forward,
    /// where that spares something. By default not.
    fn joined(
        &self,
        direction: Direction,
        next: &dyn Transform,
        next_direction: Direction,
    ) -> Option<Arc<dyn Transform>> {
        let _ = (direction, next, next_direction);
        None
    }

    /// What a neighbour's [`joined`](Self::joined) may look for, to know a stage of its own kind.
    fn as_neighbour(&self) -> Option<&dyn std::any::Any> {
        None
    }

    /// What happens to data that it cannot process.
    fn on_error(&self) -> OnError {
        OnError::Fail
    }

    /// What it declares in a direction: follows from the shape.
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
                deterministic: true,
                guards: true,
                ..random
            }
            .with_deterministic(seal.is_deterministic()),
            (Shape::Sealed(seal), Direction::Forward) => {
                base.with_deterministic(seal.is_deterministic())
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

impl Declares {
    fn with_deterministic(self, deterministic: bool) -> Self {
        Self { deterministic, ..self }
    }
}

/// How output bytes depend on input bytes.
pub enum Shape<'a> {
    /// Byte *n* of the output depends on byte *n* of the input and on *n*: runs in place, at any
    /// offset, in any order.
    Bytes(&'a dyn ByteMap),
    /// Blocks of fixed length, each with a seal that binds it to its place in its file.
    Sealed(&'a dyn Seal),
    /// Frames that are encoded each by itself, one behind the other.
    Framed(&'a dyn FrameCodec),
    /// From the beginning to the end.
    Stream(&'a dyn StreamCodec),
    /// Several paths from one file, put together.
    Merged(&'a crate::stages::Merge),
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

/// A transformation of bytes in their place.
pub trait ByteMap: Send + Sync {
    /// Transforms `block`, whose first byte is byte `offset` of the file.
    ///
    /// # Errors
    /// What the stage cannot process. Bytes before it have been transformed.
    fn apply(&self, direction: Direction, offset: u64, block: &mut [u8]) -> Result<()>;
}

/// The seal of the blocks of one file. See [`crate::store`] for the format around it.
pub trait Sealer: Send + Sync {
    /// Appends the sealed form of `plain`, block `index` of the file, to `out`: always
    /// [`Seal::overhead_bytes`] longer.
    ///
    /// # Errors
    /// No randomness to be had.
    fn seal(&self, index: u64, plain: &[u8], out: &mut Vec<u8>) -> Result<()>;

    /// Opens block `index` into `out`, which has the length of the plain block.
    ///
    /// # Errors
    /// A sentence that says what is wrong; `out` is then not to be used.
    fn open(&self, index: u64, sealed: &[u8], out: &mut [u8]) -> Result<(), &'static str>;

    /// The tag of something else that belongs to the file: its header, its log.
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
    /// How much longer a sealed block is.
    fn overhead_bytes(&self) -> usize;
    /// Whether sealing the same twice gives the same.
    fn is_deterministic(&self) -> bool;
    /// The id of the key that new files are sealed with (zeroes without a key).
    fn key_id(&self) -> [u8; 16];
    /// The sealer of the file `file_id`, sealed with the key `key_id`.
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
    /// Length of what it decodes to, in bytes.
    pub plain_bytes: u64,
}

/// A format of frames, each encoded by itself.
pub trait FrameCodec: Send + Sync {
    /// The stage's name, for errors.
    fn stage(&self) -> &'static str;

    /// Bytes of plain data that a frame is made of when this codec writes.
    fn frame_bytes(&self) -> usize;

    /// What is known of the size of what a file decodes to.
    fn size_rule(&self) -> SizeRule {
        SizeRule::Indexed
    }

    /// Whether a changed frame is always noticed.
    fn guards(&self) -> bool;

    /// Encodes one frame, appended to `out`.
    ///
    /// # Errors
    /// [`Error::Input`].
    fn encode(&self, plain: &[u8], out: &mut Vec<u8>) -> Result<()>;

    /// Decodes one frame of which `out.len()` bytes must come.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    fn decode(&self, stored: &[u8], out: &mut [u8]) -> Result<(), String>;

    /// Appends what stands behind the last frame: an index, an end mark.
    fn finish(&self, frames: &[Frame], out: &mut Vec<u8>);

    /// The first bytes of a frame of so many stored bytes that decodes to nothing, and of which the
    /// rest may be anything; `None` if the format has no such frame.
    fn pad(&self, stored_bytes: u64) -> Option<Vec<u8>> {
        let _ = stored_bytes;
        None
    }

    /// Finds the frames of an encoded file, from its index or by walking through it. The frames
    /// stand one behind the other from byte 0 on. `None` if only decoding all of the file tells: then
    /// [`decoder`](Self::decoder) says which frames it comes past ([`Stream::take_frames`]).
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Limit`].
    fn index(&self, file: &mut dyn crate::store::Store) -> Result<Option<Vec<Frame>>>;

    /// A decoder of the whole format from beginning to end, for streams.
    ///
    /// # Errors
    /// No memory for it.
    fn decoder(&self) -> Result<Box<dyn Stream>>;
}

/// A transformation that starts at the beginning.
pub trait StreamCodec: Send + Sync {
    /// Starts one pass.
    ///
    /// # Errors
    /// [`Error::Parameter`] if there is no inverse.
    fn start(&self, direction: Direction) -> Result<Box<dyn Stream>>;
}

/// How many bytes a [`Stream`] appends in one call, at most about.
pub const STEP_BYTES: usize = 256 << 10;

/// One pass through a sequential transformation.
pub trait Stream: Send {
    /// Takes some of `input`, appends what comes of it to `out` (which is handed in empty), and
    /// returns how many bytes it took. It takes fewer than all (even none) only if it appended about [`STEP_BYTES`]; the
    /// caller comes again with the rest.
    ///
    /// # Errors
    /// What the stage cannot process, after it appended what comes before. The offset is in its
    /// output.
    fn push(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize>;

    /// The input is at its end. Appends about [`STEP_BYTES`] at most; `true` when all is out.
    ///
    /// # Errors
    /// As [`push`](Self::push); also an input that ends too early.
    fn finish(&mut self, out: &mut Vec<u8>) -> Result<bool>;

    /// Asks for places where a pass can begin again: from now on [`push`](Self::push) also returns,
    /// with input left, at the first such place that is at least `every` bytes of output, or of input,
    /// behind the one before. By default there are none.
    fn offer_points(&mut self, every: u64) {
        let _ = every;
    }

    /// The place where the pass stands, if `push` has just returned for it.
    fn point(&self) -> Option<Box<dyn Point>> {
        None
    }

    /// The frames that have ended since the last call, once places were asked for. By default none.
    fn take_frames(&mut self) -> Vec<Frame> {
        Vec::new()
    }
}

/// A place in a pass where another can begin, given the input from there on.
pub trait Point: Send {
    /// How much memory it takes, in bytes.
    fn held_bytes(&self) -> usize;

    /// A pass from there on, as if it had come there from the beginning.
    ///
    /// # Errors
    /// No memory for it.
    fn resume(&self) -> Result<Box<dyn Stream>>;
}

/// The error of a stage that has no inverse.
pub(crate) fn no_inverse(stage: &str) -> Error {
    Error::Parameter { stage: stage.to_owned(), message: "has no inverse".to_owned() }
}
