//! WebAssembly modules as stages: somebody's own code on every byte, in a sandbox.
//!
//! A guest gets no imports at all but perhaps a memory (module `joint`): no files, no clock, no
//! randomness. Its memory, its time for a call and its stack are bounded, and a call that goes
//! beyond, traps or answers nonsense is an error for the one reader whose call it was; its instance
//! is thrown away. What a guest computes depends on its arguments and on what it kept from earlier
//! calls only: there are no threads, and floating point numbers come out the same everywhere.
//!
//! The interface is drawn in docs/transform.md. Guests are compiled when they are loaded, and what
//! came of it is kept between runs if the caller names a directory for that.

mod artifacts;
mod instance;
mod joint;

use std::fmt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use wasmtime::{Config, Engine, InstancePre, Linker, Module, StoreLimits};

use crate::{Direction, Error, Result};
pub(crate) use instance::Instance;
pub(crate) use joint::{Joint, Member};

/// The longest block that is handed to a guest, in bytes: its buffers have this length.
pub const GUEST_BUFFER_BYTES: u32 = 256 << 10;

/// The longest module, in bytes: compiling takes time by its length.
const MODULE_MAX_BYTES: usize = 16 << 20;

/// How exactly deadlines are kept.
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// Instances that are kept for the next call: as many as threads call at a time, mostly.
const IDLE_MAX: usize = 16;

/// How a guest works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuestKind {
    /// On bytes in their place: it exports `weft_bytes`.
    Bytes,
    /// From the beginning to the end: it exports `weft_stream`.
    Stream,
}

/// What a guest may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuestLimits {
    /// The most memory of an instance, in bytes.
    pub memory_bytes: usize,
    /// The most time for a call.
    pub deadline: Duration,
}

/// A module that was compiled and fits the interface.
pub struct Guest {
    engine: Engine,
    module: Module,
    /// Ready to be made, of one that has its own memory.
    prepared: Option<InstancePre<StoreLimits>>,
    /// Pages that it wants, of one that imports its memory.
    pages: Option<u64>,
    kind: GuestKind,
    invertible: bool,
    /// Of the module.
    hash: blake3::Hash,
}

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guest")
            .field("kind", &self.kind)
            .field("invertible", &self.invertible)
            .finish_non_exhaustive()
    }
}

fn refused(message: impl Into<String>) -> Error {
    Error::Parameter { stage: "wasm".to_owned(), message: message.into() }
}

/// The engine of all guests: those in one memory must have the same. It counts time for deadlines as
/// long as the process lives.
fn engine() -> Result<Engine> {
    static ENGINE: Mutex<Option<Engine>> = Mutex::new(None);
    let mut slot = ENGINE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(engine) = &*slot {
        return Ok(engine.clone());
    }
    let mut config = Config::new();
    config
        .epoch_interruption(true)
        .max_wasm_stack(256 << 10)
        .wasm_memory64(false)
        .wasm_multi_memory(false)
        .relaxed_simd_deterministic(true)
        .cranelift_nan_canonicalization(true);
    let engine = Engine::new(&config)
        .map_err(|e| refused(format!("no WebAssembly on this machine: {e:#}")))?;
    let clock = engine.clone();
    let tick = move || {
        loop {
            std::thread::sleep(TICK);
            clock.increment_epoch();
        }
    };
    std::thread::Builder::new().name("weft-wasm-clock".into()).spawn(tick)?;
    Ok(slot.insert(engine).clone())
}

impl Guest {
    /// Compiles a module, in binary form. `cache` is a directory of the user's own where compiled
    /// modules are kept; it is made if it is not there, and not used if others could write it.
    ///
    /// # Errors
    /// [`Error::Parameter`] says what of the module does not fit.
    pub fn load(binary: &[u8], cache: Option<&Path>) -> Result<Self> {
        if binary.len() > MODULE_MAX_BYTES {
            return Err(refused(format!("a module of more than {MODULE_MAX_BYTES} bytes")));
        }
        let engine = engine()?;
        let hash = blake3::hash(binary);
        let compile = || {
            Module::from_binary(&engine, binary)
                .map_err(|e| refused(format!("no module that can be used: {e:#}")))
        };
        let module = match cache {
            Some(directory) => artifacts::through(&engine, directory, binary, compile)?,
            None => compile()?,
        };
        let pages = joint::pages_of(&module, binary)?;
        let has = |name: &str| module.get_export(name).is_some();
        let (kind, invertible) = match (has("weft_bytes"), has("weft_stream")) {
            (true, false) => (GuestKind::Bytes, has("weft_bytes_inverse")),
            (false, true) => (GuestKind::Stream, has("weft_stream_inverse")),
            _ => return Err(refused("the module exports not one of weft_bytes and weft_stream")),
        };
        if pages.is_some() && kind == GuestKind::Stream {
            return Err(refused("a module that streams has a memory of its own"));
        }
        let prepared = match pages {
            Some(_) => None,
            None => Some(
                Linker::new(&engine)
                    .instantiate_pre(&module)
                    .map_err(|e| refused(format!("the module does not link: {e:#}")))?,
            ),
        };
        Ok(Self { engine, module, prepared, pages, kind, invertible, hash })
    }

    /// How it works.
    #[must_use]
    pub fn kind(&self) -> GuestKind {
        self.kind
    }

    /// Whether it has an inverse.
    #[must_use]
    pub fn is_invertible(&self) -> bool {
        self.invertible
    }

    /// Whether it imports its memory, and so can share it with its neighbours.
    #[must_use]
    pub fn shares_memory(&self) -> bool {
        self.pages.is_some()
    }

    /// A hash of the module.
    pub(crate) fn hash(&self) -> blake3::Hash {
        self.hash
    }

    pub(crate) fn function(&self, direction: Direction) -> &'static str {
        match (self.kind, direction) {
            (GuestKind::Bytes, Direction::Forward) => "weft_bytes",
            (GuestKind::Bytes, Direction::Inverse) => "weft_bytes_inverse",
            (GuestKind::Stream, Direction::Forward) => "weft_stream",
            (GuestKind::Stream, Direction::Inverse) => "weft_stream_inverse",
        }
    }
}

/// Instances between two calls.
pub(crate) struct Idle<I>(Mutex<Vec<I>>);

impl<I> Default for Idle<I> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<I> Idle<I> {
    pub(crate) fn take(&self) -> Option<I> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// Only one whose last call succeeded.
    pub(crate) fn put(&self, instance: I) {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(instance);
        }
    }
}
