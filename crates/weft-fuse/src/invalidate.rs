//! Notices that make the kernel drop stale cache entries.
//!
//! Notices are sent by a thread of their own, which holds no lock of the file system: the kernel
//! may make it wait for requests in flight.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

use fuser::{INodeNo, Notifier};
use weft_vfs::{Ino, Invalidate};

use crate::front::Nodes;

/// The most time that a caller waits for notices to be sent. The kernel may be waiting meanwhile
/// for a reply that needs the caller's thread.
const SETTLE_MAX: Duration = Duration::from_secs(1);

#[derive(Debug)]
enum Notice {
    Inode {
        node: u64,
        data: bool,
    },
    Entry {
        parent: u64,
        name: Vec<u8>,
    },
    /// A caller waits until the notices before this one are sent.
    Mark(SyncSender<()>),
}

struct Sink {
    nodes: Nodes,
    notices: Sender<Notice>,
}

impl Invalidate for Sink {
    fn inode(&self, ino: Ino, data: bool) {
        // An error means that the mount has ended.
        let _ = self.notices.send(Notice::Inode { node: self.nodes.node(ino), data });
    }

    fn entry(&self, parent: Ino, name: &[u8]) {
        let parent = self.nodes.node(parent);
        let _ = self.notices.send(Notice::Entry { parent, name: name.to_vec() });
    }

    fn settle(&self) {
        let (mark, reached) = sync_channel(1);
        if self.notices.send(Notice::Mark(mark)).is_ok() {
            let _ = reached.recv_timeout(SETTLE_MAX);
        }
    }
}

/// Makes the sink to which a file system announces changes, and starts the thread that sends them.
/// The thread ends when the file system has dropped the sink.
pub(crate) fn start(nodes: Nodes, notifier: Notifier) -> std::io::Result<Arc<dyn Invalidate>> {
    let (notices, receiver) = channel();
    let thread = std::thread::Builder::new().name("weft-notify".into());
    thread.spawn(move || pass_on(&receiver, &notifier))?;
    Ok(Arc::new(Sink { nodes, notices }))
}

fn pass_on(notices: &Receiver<Notice>, notifier: &Notifier) {
    for notice in notices {
        let sent = match &notice {
            // A negative offset: the attributes only.
            Notice::Inode { node, data } => {
                notifier.inval_inode(INodeNo(*node), if *data { 0 } else { -1 }, 0)
            }
            Notice::Entry { parent, name } => {
                notifier.inval_entry(INodeNo(*parent), OsStr::from_bytes(name))
            }
            Notice::Mark(mark) => {
                // The waiting caller may have given up.
                let _ = mark.try_send(());
                Ok(())
            }
        };
        match sent {
            Ok(()) => {}
            Err(e) if e.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => return,
            Err(e) => tracing::debug!(?notice, "the kernel did not take the notice: {e}"),
        }
    }
}
