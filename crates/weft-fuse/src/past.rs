//! Files that the kernel reads and writes by itself, past this process: those of which a file of the
//! host has exactly the content (FUSE passthrough, Linux 6.9, for root).
//!
//! The kernel wants all who have an inode open at one time to have it open in the same way, and by
//! the same registered file. So an inode keeps the way in which the first of them opened it until
//! the last has closed it. Giving a file back to the kernel is an `ioctl(2)`, and so `unsafe`.

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

/// How an inode is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Through this process, in the kernel's cache.
    Through,
    /// Past it, by the file that the kernel registered under this number.
    Past(u32),
}

/// All files that are open.
#[derive(Default)]
struct State {
    /// By node: the way, and how many have it open.
    nodes: HashMap<u64, (Way, u64)>,
    /// The node of each handle.
    handles: HashMap<u64, u64>,
}

/// See the module page.
pub(crate) struct Past {
    device: OwnedFd,
    state: Mutex<State>,
    /// Whether the kernel has not refused yet.
    usable: AtomicBool,
    /// Whether it ever agreed: what it has cached of files is old then.
    used: AtomicBool,
}

/// The inode is open in a way that this file cannot be, or the kernel refuses what it took before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mixed;

impl Past {
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

    /// Notes that `node` was opened; the number of the registered file, if the kernel is to use that.
    pub(crate) fn opened(
        &self,
        node: u64,
        opened: &Opened,
        backing: impl FnOnce() -> Option<Arc<OwnedFd>>,
    ) -> Result<Option<u32>, Mixed> {
        let mut state = self.state();
        let way = match state.nodes.get(&node) {
            Some((Way::Past(_), _)) if opened.direct_io => return Err(Mixed),
            // Past the kernel's cache, through this process: that goes with `Through`, and not with
            // `Past`, as it may still be mapped.
            _ if opened.direct_io => Way::Through,
            Some((Way::Past(id), _)) => backing().map(|_| Way::Past(*id)).ok_or(Mixed)?,
            Some((Way::Through, _)) => Way::Through,
            None => self.register(backing)?,
        };
        state.nodes.entry(node).or_insert((way, 0)).1 += 1;
        state.handles.insert(opened.handle.0, node);
        Ok(match way {
            Way::Past(id) => Some(id),
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
                Ok(Way::Past(id))
            }
            Err(e) => match Errno::from_io_error(&e) {
                // Files of that file system never: it is a stack itself, or has no such files.
                Some(Errno::LOOP | Errno::INVAL | Errno::OPNOTSUPP) => Ok(Way::Through),
                _ if self.used.load(Ordering::Relaxed) => {
                    tracing::error!("the kernel does not take a file: {e}");
                    Err(Mixed)
                }
                _ => {
                    tracing::debug!("files are not read past this process: {e}");
                    self.usable.store(false, Ordering::Relaxed);
                    Ok(Way::Through)
                }
            },
        }
    }

    /// Notes that a handle was closed.
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
        if let Way::Past(id) = way {
            // SAFETY: the kernel reads four bytes, and knows whether the number is one of its own.
            let closed = unsafe { ioctl(&self.device, Setter::<CLOSE, u32>::new(id)) };
            if let Err(e) = closed {
                tracing::warn!("the kernel keeps a file that nobody has open: {e}");
            }
        }
    }
}
