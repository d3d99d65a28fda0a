//! Files that are opened and closed.

use weft_vfs::{
    Caller, Entry, Error, FileKind, FileSystem, Handle, Ino, OpenFlags, Opened, Result, SetAttr,
};

use super::base::locked;
use super::file::{Attached, File};
use super::shown::is_shown;
use super::{Open, TransformFs};

impl TransformFs {
    pub(super) fn open_flags(&self, handle: Handle) -> Option<Open> {
        locked(&self.handles).get(&handle).copied()
    }

    pub(super) fn below_handle(&self, handle: Handle) -> Handle {
        let below = self.open_flags(handle).and_then(|open| open.below);
        below.map_or(Handle::NONE, |(_, handle)| handle)
    }

    pub(super) fn open_file(&self, ino: Ino, flags: OpenFlags) -> Result<Opened> {
        if is_shown(ino) {
            return self.shown_open(ino, flags);
        }
        let node = self.node(ino)?;
        self.look_again(&node)?;
        if flags.contains(OpenFlags::TRUNCATE) {
            self.touched(&node);
        }
        if Self::is_plain(&node) {
            let below = self.ground.below.open(node.below(), flags)?;
            locked(&self.ground.nodes).add_use(&node);
            let direct_io = below.direct_io;
            let below_handle = Some((node.below(), below.handle));
            let open = Open { ino, flags, below: below_handle, direct_io };
            return Ok(Opened { handle: self.new_handle(open), ..below });
        }
        // The kernel may know the name of a view a moment longer than there is its base.
        let view = locked(&node.file).view().cloned();
        if let Some(view) = view
            && view.base_attr()?.0.nlink == 0
        {
            return Err(Error::NotFound);
        }
        if flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE) {
            self.with(&node, |file, around| file.check_writable(around))?;
        }
        if flags.contains(OpenFlags::TRUNCATE) {
            self.setattr(ino, &SetAttr { size_bytes: Some(0), ..SetAttr::default() })?;
        }
        let (_, known) = self.attr_and_size(&node)?;
        let keeps = match &locked(&node.file).attached {
            Attached::Network(network) => network.is_deterministic(),
            Attached::View(view) => view.network.is_deterministic(),
            _ => false,
        };
        // What others change below, they do not announce; and what is announced comes later.
        let keeps = keeps
            && known
            && (!(self.options.shared || locked(&node.file).is_view())
                || self.with(&node, File::is_as_last_opened)?);
        locked(&self.ground.nodes).add_use(&node);
        locked(&node.file).count(|meter| {
            meter.opens.add(1);
            meter.opens_cached.add(u64::from(keeps));
        });
        let handle = self.new_handle(Open { ino, flags, below: None, direct_io: !known });
        Ok(Opened { handle, keep_cache: keeps, direct_io: !known })
    }

    pub(super) fn create_file(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        perm: u16,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened)> {
        loop {
            let entry = match self.lookup(parent, name) {
                Ok(entry) if flags.contains(OpenFlags::EXCLUSIVE) => {
                    self.forget(entry.attr.ino, 1);
                    return Err(Error::Exists);
                }
                Ok(entry) => entry,
                Err(Error::NotFound) => {
                    match self.mknod(caller, parent, name, FileKind::Regular, perm, 0) {
                        Ok(entry) => entry,
                        // Somebody else was faster.
                        Err(Error::Exists) if !flags.contains(OpenFlags::EXCLUSIVE) => continue,
                        Err(e) => return Err(e),
                    }
                }
                Err(e) => return Err(e),
            };
            let ino = entry.attr.ino;
            let opened = self.open(ino, flags).and_then(|opened| Ok((self.getattr(ino)?, opened)));
            return match opened {
                Ok((attr, opened)) => Ok((Entry { attr, ..entry }, opened)),
                Err(e) => {
                    self.forget(ino, 1);
                    Err(e)
                }
            };
        }
    }

    /// What was written is kept when the first descriptor is closed, not when the last one is: only
    /// so does `close(2)` tell of an error.
    pub(super) fn flush_file(&self, ino: Ino, handle: Handle) -> Result<()> {
        if is_shown(ino) {
            return self.shown_attr(ino).map(drop);
        }
        let open = self.open_flags(handle).filter(|open| open.ino == ino);
        let open = open.ok_or(Error::Invalid("no such handle"))?;
        if let Some((ino, below)) = open.below {
            self.ground.below.flush(ino, below)?;
        }
        if open.flags.contains(OpenFlags::WRITE) {
            self.commit(&*self.node(ino)?)?;
        }
        Ok(())
    }

    pub(super) fn release_file(&self, ino: Ino, handle: Handle) -> Result<()> {
        if is_shown(ino) {
            return self.shown_release(ino, handle);
        }
        let open = {
            let mut handles = locked(&self.handles);
            match handles.get(&handle) {
                Some(open) if open.ino == ino => handles.remove(&handle),
                _ => None,
            }
        };
        let open = open.ok_or(Error::Invalid("no such handle"))?;
        let node = self.node(ino)?;
        let mut result = Ok(());
        if let Some((ino, below)) = open.below {
            // Not the node's inode any more, if the file was written anew since.
            result = self.ground.below.release(ino, below);
        }
        if open.flags.contains(OpenFlags::WRITE) {
            result = result.and(self.commit(&node));
        }
        result = result.and(self.pop_all(&node, handle));
        drop(node);
        self.give_back(ino, 1);
        result
    }
}
