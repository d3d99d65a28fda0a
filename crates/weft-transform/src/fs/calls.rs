//! The calls of the file plug.

use std::sync::Arc;

use weft_vfs::{
    Attr, Caller, DirCursor, DirEntry, Entry, Error, FallocateMode, FileKind, FileSystem, Handle,
    Ino, Invalidate, OpenFlags, Opened, RenameFlags, Result, SeekFrom, SetAttr, StatFs, XattrSet,
};

use super::base::locked;
use super::decide::is_rules_file;
use super::file::{Attached, File};
use super::nodes::{Node, Nodes};
use super::shown::is_shown;
use super::trees::Trees;
use super::{NETWORK_ATTRIBUTE, Open, RULES_NAME, TransformFs, join};
use crate::Write;

/// Announcements from below, with the numbers seen from above.
struct Upward {
    nodes: Arc<std::sync::Mutex<Nodes>>,
    sink: Arc<dyn Invalidate>,
}

impl Invalidate for Upward {
    fn inode(&self, ino: Ino, data: bool) {
        let ino = locked(&self.nodes).number(ino);
        self.sink.inode(ino, data);
    }

    fn entry(&self, parent: Ino, name: &[u8]) {
        let parent = locked(&self.nodes).number(parent);
        self.sink.entry(parent, name);
    }
}

impl TransformFs {
    /// The node of a name below that is about to move or go, with a use; `None` if nobody refers
    /// to it.
    fn known(&self, parent: &Node, name: &[u8]) -> Option<Arc<Node>> {
        let entry = self.ground.below.lookup(parent.below(), name).ok()?;
        let node = locked(&self.ground.nodes).acquire(entry.attr.ino);
        self.ground.below.forget(entry.attr.ino, 1);
        node
    }

    /// Gives back the uses of [`known`](Self::known): not under the lock of names, as a commit may
    /// follow.
    fn done_with(&self, nodes: impl IntoIterator<Item = Option<Arc<Node>>>) {
        for node in nodes.into_iter().flatten() {
            let ino = node.ino;
            drop(node);
            self.give_back(ino, 1);
        }
    }

    /// Notes that an inode may have lost its last name.
    fn lost_name(&self, node: Option<&Arc<Node>>) {
        if let Some(node) = node
            && self.ground.below.getattr(node.below()).is_ok_and(|attr| attr.nlink == 0)
        {
            locked(&node.place).unlinked = true;
        }
    }

    /// Notes where a node is now.
    fn moved(&self, node: Option<&Arc<Node>>, parent: &Node, name: &[u8]) {
        let Some(node) = node else { return };
        let path = join(&locked(&parent.path), name);
        let old = std::mem::replace(&mut *locked(&node.path), path.clone());
        {
            let mut place = locked(&node.place);
            place.parent = parent.below();
            name.clone_into(&mut place.name);
        }
        if node.kind == FileKind::Directory {
            let inside = [&old[..], b"/"].concat();
            for other in locked(&self.ground.nodes).all() {
                let mut at = locked(&other.path);
                if let Some(rest) = at.strip_prefix(&inside[..]) {
                    *at = join(&path, rest);
                }
            }
            self.forget_rules();
        }
    }

    /// A file without network that comes under a rule by its new name is written anew through the
    /// network of that rule, before it moves.
    fn convert_for(&self, parent: &Node, name: &[u8], to: &Node, new_name: &[u8]) -> Result<()> {
        let path = join(&locked(&to.path), new_name);
        let (attached, text) = self.of_rules(&path);
        if matches!(attached, Attached::Plain)
            || is_rules_file(&path)
            || name == new_name && parent.ino == to.ino
        {
            return Ok(());
        }
        let entry = match self.lookup(parent.ino, name) {
            Ok(entry) => entry,
            // The rename itself says what is wrong.
            Err(_) => return Ok(()),
        };
        let result = self.node(entry.attr.ino).and_then(|node| {
            let has_attribute = self.ground.below.getxattr(node.below(), NETWORK_ATTRIBUTE).is_ok();
            if node.kind != FileKind::Regular || !Self::is_plain(&node) || has_attribute {
                return Ok(());
            }
            self.with(&node, |file, around| file.convert(around, attached))?;
            if let Some(text) = text.filter(|_| self.options.pin) {
                self.pin(node.below(), &text);
            }
            Ok(())
        });
        self.forget(entry.attr.ino, 1);
        result
    }

    /// What rules and views say counts from the next look on.
    fn touched(&self, node: &Node) {
        self.changed(node);
        if is_rules_file(&locked(&node.path)) {
            self.forget_rules();
        }
    }

    fn named(&self, name: &[u8]) {
        if name == RULES_NAME {
            self.forget_rules();
        }
    }

    fn open_flags(&self, handle: Handle) -> Option<Open> {
        locked(&self.handles).get(&handle).copied()
    }

    fn below_handle(&self, handle: Handle) -> Handle {
        let below = self.open_flags(handle).and_then(|open| open.below);
        below.map_or(Handle::NONE, |(_, handle)| handle)
    }

    /// What a durable handle promises of each write.
    fn after_write(&self, node: &Node, open: Option<Open>) -> Result<()> {
        let durable = OpenFlags::SYNC | OpenFlags::DSYNC;
        match open {
            Some(open) if open.flags.intersects(durable) => self.fsync(node.ino, false),
            _ => Ok(()),
        }
    }
}

/// How often a name is looked up that another inode takes again and again.
const LOOKUPS: usize = 100;

impl FileSystem for TransformFs {
    fn root(&self) -> Ino {
        self.ground.below.root()
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        if is_shown(parent) {
            return self.shown_lookup(parent, name);
        }
        let parent = self.node(parent)?;
        if Self::check_visible(name).is_err() {
            return Err(Error::NotFound);
        }
        for _ in 0..LOOKUPS {
            let below = match self.ground.below.lookup(parent.below(), name) {
                Err(Error::NotFound) => {
                    let own = self.own_lookup(parent.ino, name);
                    return own.or_else(|_| self.view(&parent, name));
                }
                below => below?,
            };
            let entry = self.found(&parent, name, below, false)?;
            // Without a name: the file was written anew, or removed, since it was found.
            if entry.attr.nlink > 0 || matches!(name, b"." | b"..") {
                return Ok(entry);
            }
            self.forget(entry.attr.ino, 1);
        }
        Err(Error::Busy)
    }

    fn forget(&self, ino: Ino, count: u64) {
        if is_shown(ino) {
            self.shown_forget(ino, count);
        } else if ino != self.root() {
            self.give_back(ino, count);
        }
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        if is_shown(ino) {
            return self.shown_attr(ino);
        }
        self.attr(&*self.node(ino)?)
    }

    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        if is_shown(ino) {
            return self.shown_attr(ino).and(Err(Error::ReadOnly));
        }
        let node = self.node(ino)?;
        if locked(&node.file).is_view() {
            return Err(Error::ReadOnly);
        }
        self.touched(&node);
        let mut attr = if Self::is_plain(&node) {
            self.ground.below.setattr(node.below(), set)?
        } else {
            self.with(&node, |file, around| file.setattr(around, set))?.0
        };
        attr.ino = node.ino;
        Ok(attr)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        if is_shown(ino) {
            return self.tree_link(ino);
        }
        self.ground.below.readlink(self.node(ino)?.below())
    }

    fn mknod(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        kind: FileKind,
        perm: u16,
        rdev: u32,
    ) -> Result<Entry> {
        let parent = self.node(parent)?;
        Self::check_visible(name)?;
        let made = {
            let _names = locked(&self.ground.names);
            self.ground.below.mknod(caller, parent.below(), name, kind, perm, rdev)?
        };
        self.named(name);
        self.found(&parent, name, made, true)
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], perm: u16) -> Result<Entry> {
        let parent = self.node(parent)?;
        Self::check_visible(name)?;
        let made = self.ground.below.mkdir(caller, parent.below(), name, perm)?;
        self.found(&parent, name, made, true)
    }

    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        let parent = self.node(parent)?;
        Self::check_visible(name)?;
        let made = self.ground.below.symlink(caller, parent.below(), name, target)?;
        self.found(&parent, name, made, true)
    }

    fn link(&self, ino: Ino, new_parent: Ino, new_name: &[u8]) -> Result<Entry> {
        let (node, parent) = (self.node(ino)?, self.node(new_parent)?);
        Self::check_visible(new_name)?;
        if node.view.is_some() {
            return Err(Error::ReadOnly);
        }
        if !Self::is_plain(&node) {
            let rewrites = match &locked(&node.file).attached {
                Attached::Network(network) => network.can().write == Write::Rewrite,
                _ => false,
            };
            // The file changes its inode at every commit; other names would keep the old one.
            if rewrites {
                return Err(Error::TooManyLinks);
            }
        }
        let entry = {
            let _names = locked(&self.ground.names);
            self.ground.below.link(node.below(), parent.below(), new_name)?
        };
        self.named(new_name);
        self.ground.below.forget(entry.attr.ino, 1);
        locked(&self.ground.nodes).add_use(&node);
        Ok(Entry { attr: self.attr(&node)?, ..entry })
    }

    fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        let parent = self.node(parent)?;
        Self::check_visible(name).map_err(|_| Error::NotFound)?;
        let names = locked(&self.ground.names);
        let node = self.known(&parent, name);
        let result = self.ground.below.unlink(parent.below(), name);
        self.lost_name(node.as_ref());
        drop(names);
        self.views_lose_names(node.as_ref(), &parent);
        self.named(name);
        self.done_with([node]);
        result
    }

    fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        let parent = self.node(parent)?;
        let node = self.known(&parent, name);
        let mut result = self.ground.below.rmdir(parent.below(), name);
        if matches!(result, Err(Error::NotEmpty)) && name != b".." {
            // Perhaps all that is left is what a commit cut short left behind.
            if let Ok(entry) = self.lookup(parent.ino, name) {
                let mut names = 0;
                self.list(entry.attr.ino, DirCursor::START, &mut |_| {
                    names += 1;
                    true
                })?;
                self.forget(entry.attr.ino, 1);
                if names <= 2 {
                    result = self.ground.below.rmdir(parent.below(), name);
                }
            }
        }
        self.forget_rules();
        self.lost_name(node.as_ref());
        self.done_with([node]);
        result
    }

    fn rename(
        &self,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        let (parent, new_parent) = (self.node(parent)?, self.node(new_parent)?);
        Self::check_visible(name).map_err(|_| Error::NotFound)?;
        Self::check_visible(new_name)?;
        self.convert_for(&parent, name, &new_parent, new_name)?;
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if exchange {
            self.convert_for(&new_parent, new_name, &parent, name)?;
        }
        let names = locked(&self.ground.names);
        let moving = self.known(&parent, name);
        let there = self.known(&new_parent, new_name);
        let result =
            self.ground.below.rename(parent.below(), name, new_parent.below(), new_name, flags);
        let same = moving.as_ref().zip(there.as_ref()).is_some_and(|(a, b)| Arc::ptr_eq(a, b));
        if result.is_ok() && !same {
            self.moved(moving.as_ref(), &new_parent, new_name);
            if exchange {
                self.moved(there.as_ref(), &parent, name);
            } else {
                self.lost_name(there.as_ref());
            }
        }
        drop(names);
        self.views_lose_names(moving.as_ref(), &parent);
        self.views_lose_names(there.as_ref(), &new_parent);
        self.done_with([moving, there]);
        for name in [name, new_name] {
            self.named(name);
        }
        result
    }

    fn open(&self, ino: Ino, flags: OpenFlags) -> Result<Opened> {
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
            let open = Open { ino, flags, below: Some((node.below(), below.handle)) };
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
        let handle = self.new_handle(Open { ino, flags, below: None });
        Ok(Opened { handle, keep_cache: keeps, direct_io: !known })
    }

    fn create(
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

    fn is_stateful(&self) -> bool {
        true
    }

    fn is_settled(&self, ino: Ino) -> bool {
        if is_shown(ino) {
            return false;
        }
        let Ok(node) = self.node(ino) else { return false };
        if Self::is_plain(&node) {
            return true;
        }
        let mut file = locked(&node.file);
        // A view changes with its base.
        !file.is_view() && file.is_settled()
    }

    /// What was written is kept when the first descriptor is closed, not when the last one is: only
    /// so does `close(2)` tell of an error.
    fn flush(&self, ino: Ino, handle: Handle) -> Result<()> {
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

    fn release(&self, ino: Ino, handle: Handle) -> Result<()> {
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
        drop(node);
        self.give_back(ino, 1);
        result
    }

    fn read(&self, ino: Ino, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if is_shown(ino) {
            return self.shown_read(ino, handle, offset, buf);
        }
        let node = self.node(ino)?;
        if Self::is_plain(&node) {
            return self.ground.below.read(node.below(), self.below_handle(handle), offset, buf);
        }
        let read = match self.ground.read_in_place(&node, offset, buf) {
            Some(read) => read,
            None => self.with(&node, |file, around| file.read(around, offset, buf)),
        };
        read.inspect_err(|e| tracing::error!(ino = ino.0, offset, "{e}"))
    }

    fn write(&self, ino: Ino, handle: Handle, offset: u64, data: &[u8]) -> Result<usize> {
        let node = self.node(ino)?;
        self.touched(&node);
        let open = self.open_flags(handle);
        if Self::is_plain(&node) {
            return self.ground.below.write(node.below(), self.below_handle(handle), offset, data);
        }
        if data.is_empty() {
            return Ok(0);
        }
        let append = open.is_some_and(|open| open.flags.contains(OpenFlags::APPEND));
        let offset = (!append).then_some(offset);
        let taken = self.with(&node, |file, around| file.write(around, offset, data))?;
        self.after_write(&node, open)?;
        Ok(taken)
    }

    fn fsync(&self, ino: Ino, data_only: bool) -> Result<()> {
        if is_shown(ino) {
            return self.shown_attr(ino).map(drop);
        }
        let node = self.node(ino)?;
        if node.view.is_some() {
            return Ok(());
        }
        self.commit(&node)?;
        self.ground.below.fsync(node.below(), data_only)
    }

    fn fsync_dir(&self, ino: Ino) -> Result<()> {
        self.ground.below.fsync_dir(self.node(ino)?.below())
    }

    fn sync(&self) -> Result<()> {
        self.commit_all().and(self.ground.below.sync())
    }

    fn readdir(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.list(ino, cursor, each)
    }

    fn readdir_plus(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>, Entry) -> bool,
    ) -> Result<()> {
        self.list_plus(ino, cursor, each)
    }

    fn statfs(&self) -> Result<StatFs> {
        self.ground.below.statfs()
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        if is_shown(ino) {
            return self.shown_attr(ino).and(Err(Error::NoAttribute));
        }
        self.attribute(&*self.node(ino)?, name)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        if is_shown(ino) {
            return self.shown_attr(ino).map(|_| Vec::new());
        }
        self.attributes(&*self.node(ino)?)
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], how: XattrSet) -> Result<()> {
        self.set_attribute(&*self.node(ino)?, name, value, how)
    }

    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.remove_attribute(&*self.node(ino)?, name)
    }

    fn fallocate(&self, ino: Ino, mode: FallocateMode, offset: u64, len_bytes: u64) -> Result<()> {
        let node = self.node(ino)?;
        if Self::is_plain(&node) {
            return self.ground.below.fallocate(node.below(), mode, offset, len_bytes);
        }
        let end = offset.checked_add(len_bytes).ok_or(Error::TooLarge)?;
        if len_bytes == 0 {
            return Err(Error::Invalid("an empty range"));
        }
        let keep_size = match mode {
            // Space is taken when what is stored is known, not before.
            FallocateMode::Allocate { .. } => return Err(Error::Unsupported("fallocate")),
            FallocateMode::PunchHole => true,
            FallocateMode::ZeroRange { keep_size } => keep_size,
        };
        let size = self.attr(&node)?.size_bytes;
        let end = if keep_size { end.min(size) } else { end };
        self.with(&node, |file, around| file.zero(around, offset, end))
    }

    fn copy_range(
        &self,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        len_bytes: u64,
    ) -> Result<u64> {
        let (source, target) = (self.node(from)?, self.node(to)?);
        self.touched(&target);
        if Self::is_plain(&source) && Self::is_plain(&target) {
            let (from, to) = (source.below(), target.below());
            return self.ground.below.copy_range(from, from_offset, to, to_offset, len_bytes);
        }
        let mut buf = vec![0; 256 << 10];
        let mut done = 0;
        while done < len_bytes {
            let want = usize::try_from(len_bytes - done).unwrap_or(usize::MAX).min(buf.len());
            let got = self.read(from, Handle::NONE, from_offset + done, &mut buf[..want])?;
            let put = self.write(to, Handle::NONE, to_offset + done, &buf[..got])?;
            done += put as u64;
            if put < want {
                break;
            }
        }
        Ok(done)
    }

    fn set_invalidate(&self, sink: Arc<dyn Invalidate>) {
        *locked(&self.sink) = Some(sink.clone());
        self.ground
            .below
            .set_invalidate(Arc::new(Upward { nodes: self.ground.nodes.clone(), sink }));
    }

    fn time_unit_nanos(&self) -> u32 {
        self.ground.below.time_unit_nanos()
    }

    fn seek(&self, ino: Ino, from: SeekFrom) -> Result<u64> {
        let node = self.node(ino)?;
        if Self::is_plain(&node) {
            return self.ground.below.seek(node.below(), from);
        }
        let size = self.attr(&node)?.size_bytes;
        match from {
            SeekFrom::Data(at) | SeekFrom::Hole(at) if at >= size => Err(Error::NoAddress),
            SeekFrom::Data(at) => Ok(at),
            SeekFrom::Hole(_) => Ok(size),
        }
    }

    fn unmount(&self) -> Result<()> {
        let result = self.commit_all();
        locked(&self.handles).clear();
        *locked(&self.trees) = Trees::default();
        let nodes = locked(&self.ground.nodes).clear();
        for node in nodes {
            locked(&node.file).close();
        }
        if let Ok(root) = self.ground.below.getattr(self.ground.below.root()) {
            self.add_root(&root);
        }
        result.and(self.ground.below.unmount())
    }
}
