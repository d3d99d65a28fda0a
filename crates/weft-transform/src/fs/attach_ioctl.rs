//! Stages attached at run time: a program pushes them on a file that it has open, by `ioctl(2)`.
//!
//! They apply to the file, not to the descriptor: the kernel caches one content for all
//! descriptors, so all readers see it through these stages. They are removed when the descriptor
//! that pushed them is closed, however its program ends, and are not stored. The answer to a failed
//! command describes the error as text.

use std::sync::{Arc, MutexGuard};

use weft_vfs::{
    Caller, CommandAnswer, Error, FileKind, Handle, Ino, OpenFlags, Result, StaleHandle,
};

use super::commands::{POP_COMMAND, PUSH_COMMAND, SHOW_COMMAND, decode, encode};
use super::inode::{Attached, Inode, RuntimeStages, again};
use super::inodes::is_synthetic;
use super::locks::locked;
use super::transform_fs::{Open, TransformFs};
use crate::text::Text;
use crate::{Need, Write};

impl TransformFs {
    /// Handles an `ioctl(2)` command on an open file.
    pub(super) fn commanded(
        &self,
        caller: &Caller,
        ino: Ino,
        handle: Handle,
        request: u32,
        data: &[u8],
    ) -> Result<CommandAnswer> {
        if is_synthetic(ino) {
            return Err(Error::UnknownCommand);
        }
        let inode = self.inode(ino)?;
        if !matches!(request, PUSH_COMMAND | POP_COMMAND | SHOW_COMMAND) {
            // Other commands may act on the content, so they are passed on only if that is the
            // content below.
            if inode.view_name.is_some() || !inode.is_plain() {
                return Err(Error::UnknownCommand);
            }
            let (below, handle) = (inode.below(), self.below_handle(handle));
            let caller = self.caller_below(caller);
            return self.mount.below.command(&caller, below, handle, request, data);
        }
        if inode.kind != FileKind::Regular {
            return Err(Error::UnknownCommand);
        }
        let open = self.open_flags(handle).filter(|open| open.ino == ino);
        let open = open.ok_or(StaleHandle)?;
        let result = match request {
            PUSH_COMMAND => {
                decode(data).and_then(|text| self.push(caller, &inode, open, handle, text))
            }
            POP_COMMAND => self.pop(&inode, handle),
            _ => Ok(()),
        };
        if result.is_ok() && request != SHOW_COMMAND {
            // The caller must read the new content as soon as it has the answer.
            let sink = locked(&self.sink).clone();
            sink.inspect(|sink| sink.settle());
        }
        let result = result.and_then(|()| match &locked(&inode.file).attached {
            Attached::Plain => Ok(String::new()),
            Attached::Network(network) => Ok(network.to_string()),
            Attached::View(view) => Ok(view.network.to_string()),
            Attached::Unusable(why) => Err(again(why)),
        });
        Ok(match result {
            Ok(text) => CommandAnswer { errno: 0, data: encode(&text) },
            Err(e) => CommandAnswer { errno: e.errno(), data: encode(&e.to_string()) },
        })
    }

    fn push(
        &self,
        caller: &Caller,
        inode: &Inode,
        open: Open,
        handle: Handle,
        text: &str,
    ) -> Result<()> {
        // Pushed stages affect all readers of the file.
        let mounts = rustix::process::geteuid().as_raw();
        if ![0, mounts, self.attr(inode)?.uid].contains(&caller.uid) {
            let message = "only the owner of a file pushes stages on it".to_owned();
            return Err(Error::Io { errno: Error::NotPermitted.errno(), message });
        }
        let text: Text = text.parse().map_err(Error::from)?;
        if !open.passthrough {
            self.wait_no_passthrough(inode.ino);
        }
        let mut stages = locked(&inode.runtime_stages);
        let below = match &stages.below {
            Some(below) => below.clone(),
            None => locked(&inode.file).attached.clone(),
        };
        let texts = stages.stack.iter().map(|(_, text)| text).chain([&text]);
        let attached = self.with_on_top(&below, texts)?;
        self.check_for_handles(inode.ino, &attached)?;
        let mut file = self.mount.file(inode);
        self.check_no_passthrough(inode.ino)?;
        file.attach(attached)?;
        drop(file);
        stages.below = Some(below);
        stages.stack.push((handle, text));
        drop(stages);
        self.reattached(inode);
        Ok(())
    }

    fn pop(&self, inode: &Inode, handle: Handle) -> Result<()> {
        let stages = locked(&inode.runtime_stages);
        let at = stages.stack.iter().rposition(|(by, _)| *by == handle);
        let at = at.ok_or_else(|| Error::Io {
            errno: Error::NoAttribute.errno(),
            message: "this descriptor has pushed nothing".to_owned(),
        })?;
        let mut left = Vec::clone(&stages.stack);
        left.remove(at);
        self.leave(inode, stages, left)
    }

    /// Removes all networks that a closed descriptor pushed.
    pub(super) fn pop_all(&self, inode: &Inode, handle: Handle) -> Result<()> {
        let stages = locked(&inode.runtime_stages);
        let left: Vec<_> = stages.stack.iter().filter(|(by, _)| *by != handle).cloned().collect();
        if left.len() == stages.stack.len() {
            return Ok(());
        }
        self.leave(inode, stages, left)
    }

    /// Reduces the pushed networks to `left`.
    fn leave(
        &self,
        inode: &Inode,
        mut stages: MutexGuard<'_, RuntimeStages>,
        left: Vec<(Handle, Text)>,
    ) -> Result<()> {
        let Some(below) = stages.below.clone() else { return Ok(()) };
        let attached = self.with_on_top(&below, left.iter().map(|(_, text)| text))?;
        self.mount.file(inode).attach(attached)?;
        stages.below = (!left.is_empty()).then_some(below);
        stages.stack = left;
        drop(stages);
        self.reattached(inode);
        Ok(())
    }

    /// Returns `below` with networks stacked on it, each on the one before.
    fn with_on_top<'a>(
        &self,
        below: &Attached,
        texts: impl Iterator<Item = &'a Text>,
    ) -> Result<Attached> {
        let mut texts = texts.peekable();
        if texts.peek().is_none() {
            return Ok(below.clone());
        }
        let base = match below {
            Attached::Plain => None,
            Attached::Network(network) => Some(network.text().clone()),
            Attached::View(_) => {
                return Err(Error::Invalid("a view or link has the network it has"));
            }
            Attached::Unusable(why) => return Err(again(why)),
        };
        let text = base.into_iter().chain(texts.cloned()).reduce(Text::with_on_top);
        let text = text.ok_or(Error::Invalid("no network"))?;
        let network = self.registry.network(&text).map_err(Error::from)?;
        Ok(Attached::Network(Arc::new(network)))
    }

    /// Checks that a network supports the access for which the descriptors of a file were opened.
    fn check_for_handles(&self, ino: Ino, attached: &Attached) -> Result<()> {
        let Attached::Network(network) = attached else { return Ok(()) };
        let handles = locked(&self.handles);
        let open = || handles.values().filter(|open| open.ino == ino);
        let writes = open().any(|open| open.flags.contains(OpenFlags::WRITE));
        let need = Need {
            // The kernel relies on the length for cached content.
            exact_size: open().any(|open| !open.direct_io),
            random_read: writes,
            write: if writes { Write::Rewrite } else { Write::None },
        };
        drop(handles);
        network.check(&need).map_err(|refusal| crate::Error::Refused(refusal).into())
    }
}
