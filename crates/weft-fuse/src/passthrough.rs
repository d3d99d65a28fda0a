//! Passthrough: files that the kernel reads and writes itself, without this process, as their
//! content is exactly that of a file of the host (FUSE passthrough, Linux 6.9, for root).
//!
//! The kernel requires all open handles of an inode at one time to use the same mode, and the same
//! registered file. So an inode keeps the mode of the first open until the last handle is closed.
//! Unregistering a file is an `ioctl(2)`, and so `unsafe`.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuser::BackingId;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};
use weft_vfs::Opened;

/// `FUSE_DEV_IOC_BACKING_CLOSE`
const CLOSE: Opcode = opcode::write::<u32>(229, 2);

/// The mode in which an inode is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Through this process, in the kernel's page cache.
    Through,
    /// Passthrough, with the file that the kernel registered under this number.
    Passthrough(u32),
}

/// All open files.
#[derive(Default)]
struct State {
    /// For each node the mode, and the number of open handles.
    nodes: HashMap<u64, (Way, u64)>,
    /// The node of each handle.
    handles: HashMap<u64, u64>,
}

/// The passthrough state of a mount, see the module page.
pub(crate) struct Passthrough {
    device: OwnedFd,
    state: Mutex<State>,
    /// The kernel has not refused passthrough yet.
    usable: AtomicBool,
    /// The kernel has accepted passthrough before: its cached file data is stale then.
    used: AtomicBool,
}

/// The inode is open in a mode that is not possible for this file, or the kernel refuses a file
/// after it accepted others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mixed;

impl Passthrough {
    pub(crate) fn new(device: OwnedFd) -> Self {
        Self {
            device,
            state: Mutex::default(),
            usable: AtomicBool::new(true),
            used: AtomicBool::new(false),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that `node` was opened; returns the number of the registered file for passthrough.
    pub(crate) fn opened(
        &self,
        node: u64,
        opened: &Opened,
        backing: impl FnOnce() -> Option<Arc<OwnedFd>>,
    ) -> Result<Option<u32>, Mixed> {
        let mut state = self.state();
        let way = match state.nodes.get(&node) {
            // Also with `direct_io`, if the content is that of the file below: the kernel passes
            // `O_DIRECT` on to it.
            Some((Way::Passthrough(id), _)) => {
                backing().map(|_| Way::Passthrough(*id)).ok_or(Mixed)?
            }
            // Bypassing the page cache, through this process: compatible with `Through`, and not
            // with `Passthrough`, as the file may still be mapped.
            _ if opened.direct_io => Way::Through,
            Some((Way::Through, _)) => Way::Through,
            None => self.register(backing)?,
        };
        state.nodes.entry(node).or_insert((way, 0)).1 += 1;
        state.handles.insert(opened.handle.0, node);
        Ok(match way {
            Way::Passthrough(id) => Some(id),
            Way::Through => None,
        })
    }

    fn register(&self, backing: impl FnOnce() -> Option<Arc<OwnedFd>>) -> Result<Way, Mixed> {
        if !self.usable.load(Ordering::Relaxed) {
            return Ok(Way::Through);
        }
        let Some(backing) = backing() else { return Ok(Way::Through) };
        match BackingId::create_raw(&self.device, &*backing) {
            Ok(id) => {
                self.used.store(true, Ordering::Relaxed);
                Ok(Way::Passthrough(id))
            }
            Err(e) => match Errno::from_io_error(&e) {
                // Passthrough is impossible for all files of that file system: it is a stacked one
                // itself, or does not support it.
                Some(Errno::LOOP | Errno::INVAL | Errno::OPNOTSUPP) => Ok(Way::Through),
                _ if self.used.load(Ordering::Relaxed) => {
                    tracing::error!("the kernel rejects a file for passthrough: {e}");
                    Err(Mixed)
                }
                _ => {
                    tracing::debug!("passthrough is off: {e}");
                    self.usable.store(false, Ordering::Relaxed);
                    Ok(Way::Through)
                }
            },
        }
    }

    /// Records that a handle was closed.
    pub(crate) fn released(&self, handle: u64) {
        let mut state = self.state();
        let Some(node) = state.handles.remove(&handle) else { return };
        let Some((way, open)) = state.nodes.get_mut(&node) else { return };
        *open -= 1;
        if *open > 0 {
            return;
        }
        let way = *way;
        state.nodes.remove(&node);
        if let Way::Passthrough(id) = way {
            // SAFETY: the kernel reads four bytes, and checks whether the number is one of its own.
            let closed = unsafe { ioctl(&self.device, Setter::<CLOSE, u32>::new(id)) };
            if let Err(e) = closed {
                tracing::warn!("cannot close a passthrough file in the kernel: {e}");
            }
        }
    }
}
