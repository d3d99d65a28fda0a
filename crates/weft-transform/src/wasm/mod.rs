//! WebAssembly modules as stages: user-supplied code, run on every byte in a sandbox.
//!
//! A guest gets no imports except optionally a memory (module `joint`): no files, no clock, no
//! random numbers. Its memory, its time for a call and its stack are bounded, and a call that
//! exceeds a limit, traps or returns an invalid result is an error for the reader that made the
//! call only; the instance is discarded. A guest's output depends only on its arguments and on the
//! state that it kept from earlier calls: there are no threads, and floating point results are the
//! same on all machines.
//!
//! The interface is documented in docs/transform.md. Guests are compiled when they are loaded, and
//! the compiled code is kept between runs if the caller names a directory for it.

mod artifacts;
mod instance;
mod joint;
mod pool;

use std::fmt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use wasmtime::{Config, Engine, InstancePre, Linker, Module, StoreLimits};

use crate::{Direction, Error, Result};
pub(crate) use instance::{Instance, wrong};
pub(crate) use joint::{Joint, Member};
pub(crate) use pool::{Key, Pool};

/// Maximum length of a block that is passed to a guest, in bytes: its buffers have this length.
pub const GUEST_BUFFER_BYTES: u32 = 256 << 10;

/// Maximum length of a module, in bytes: compile time grows with it.
const MODULE_MAX_BYTES: usize = 16 << 20;

/// The resolution of deadlines.
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// The interface that a guest implements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuestKind {
    /// In-place transformation of bytes: the guest exports `weft_bytes`.
    Bytes,
    /// Sequential transformation: the guest exports `weft_stream`.
    Stream,
}

/// The resource limits of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuestLimits {
    /// Maximum memory of an instance, in bytes.
    pub memory_bytes: usize,
    /// Maximum duration of a call.
    pub deadline: Duration,
}

/// What is kept of a module for the next call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// The number of idle instances.
    pub instances: usize,
    /// Their memory, in bytes.
    pub bytes: usize,
}

/// A compiled module that implements the interface.
pub struct Guest {
    engine: Engine,
    module: Module,
    /// The pre-linked instance, if the module defines its own memory.
    prepared: Option<InstancePre<StoreLimits>>,
    /// The number of pages requested, if the module imports its memory.
    pages: Option<u64>,
    kind: GuestKind,
    invertible: bool,
    /// The hash of the module.
    hash: blake3::Hash,
    /// The idle instances with a memory of their own.
    pub(crate) idle: Pool<Instance>,
    /// The idle instances of a shared memory in which this guest is the first.
    pub(crate) idle_joints: Pool<Joint>,
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

/// Returns the engine of all guests: guests that share a memory must have the same. Its clock
/// thread for deadlines runs as long as the process.
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
    /// Compiles a module, in binary form. `cache` is a directory owned by the user in which
    /// compiled modules are kept; it is created if it does not exist, and not used if others can
    /// write it.
    ///
    /// # Errors
    /// [`Error::Parameter`] if the module does not implement the interface, with the reason.
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
        let (idle, idle_joints) = (Pool::default(), Pool::default());
        Ok(Self { engine, module, prepared, pages, kind, invertible, hash, idle, idle_joints })
    }

    /// The interface that the guest implements.
    #[must_use]
    pub fn kind(&self) -> GuestKind {
        self.kind
    }

    /// Returns true if the guest has an inverse.
    #[must_use]
    pub fn is_invertible(&self) -> bool {
        self.invertible
    }

    /// Returns true if the guest imports its memory, and so can share it with its neighbours.
    #[must_use]
    pub fn shares_memory(&self) -> bool {
        self.pages.is_some()
    }

    /// Returns the number and the memory of the idle instances.
    #[must_use]
    pub fn kept(&self) -> Kept {
        let (own, joint) = (self.idle.kept(), self.idle_joints.kept());
        Kept { instances: own.instances + joint.instances, bytes: own.bytes + joint.bytes }
    }

    /// The hash of the module.
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
