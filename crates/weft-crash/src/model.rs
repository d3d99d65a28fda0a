//! The expected content of a volume: a pure model of the tree after each operation of a workload.
//!
//! Every node has an identity of its own ([`NodeId`]), kept in the owner of the inode, so that
//! nodes found after a crash can be distinguished even if they are empty. Every 16 bytes of a file
//! contain the file, the operation that wrote them and their offset ([`pattern`]), so that stale
//! data of another file is recognised wherever it appears.

use crate::workload::Op;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The identity of a node, across all renames and links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

impl NodeId {
    /// The root directory.
    pub const ROOT: Self = Self(0);
    /// Start of the numbers of nodes that were on the volume before the workload, by inode number.
    pub const FOREIGN: u32 = 1 << 24;
}

/// The owner of the inode of node 0 of a workload; node n has owner `OWNER_BASE + n`. Far from the
/// owners on a real volume.
pub const OWNER_BASE: u32 = 0x5745_0000;

/// A name of a file or directory.
pub type Name = Vec<u8>;

/// The kind and content of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// A regular file and its content.
    File(Arc<Vec<u8>>),
    /// A directory and its names.
    Dir(BTreeMap<Name, NodeId>),
    /// A symbolic link and its target.
    Symlink(Vec<u8>),
    /// A FIFO.
    Fifo,
    /// A node of the volume of which only the existence is known.
    Opaque,
}

/// One node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelNode {
    /// Its kind and content.
    pub body: Body,
    /// Extended attributes.
    pub xattrs: BTreeMap<Name, Vec<u8>>,
    /// Permission bits.
    pub perm: u16,
}

/// The permission bits of the nodes that a workload creates.
pub const PERM: u16 = 0o755;

impl ModelNode {
    pub(crate) fn new(body: Body) -> Self {
        Self { body, xattrs: BTreeMap::new(), perm: PERM }
    }
}

/// The tree at one moment. Cheap to clone: nodes are shared.
#[derive(Debug, Clone)]
pub struct State {
    /// The nodes that have a name.
    pub nodes: BTreeMap<NodeId, Arc<ModelNode>>,
    /// The number of the next node to be created.
    next: u32,
}

/// The result of an operation: an error is the reason why it is impossible.
pub type ModelResult<T> = std::result::Result<T, &'static str>;

/// The target of a path: the directory, the last name, and the node if there is one.
pub(crate) struct Place {
    pub dir: NodeId,
    pub name: Name,
    pub node: Option<NodeId>,
}

/// Returns the data that operation `op` writes into `node` at `offset`: one record for each 16-byte
/// boundary.
#[must_use]
pub fn pattern(node: NodeId, op: usize, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 32);
    let mut at = offset / 16 * 16;
    while at < offset + len as u64 {
        let record = format!("f{:03}v{:03}@{:07x}", node.0 % 1000, op % 1000, at & 0xfff_ffff);
        bytes.extend_from_slice(record.as_bytes());
        at += 16;
    }
    bytes.drain(..(offset % 16) as usize);
    bytes.truncate(len);
    bytes
}

/// Returns the value that operation `op` gives an extended attribute.
#[must_use]
pub fn xattr_value(op: usize, len: usize) -> Vec<u8> {
    format!("value {op}; ").into_bytes().into_iter().cycle().take(len).collect()
}

impl Default for State {
    fn default() -> Self {
        Self::with(ModelNode::new(Body::Dir(BTreeMap::new())))
    }
}

impl State {
    pub(crate) fn with(root: ModelNode) -> Self {
        Self { nodes: BTreeMap::from([(NodeId::ROOT, Arc::new(root))]), next: 1 }
    }

    /// Returns the node, if it has a name.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&ModelNode> {
        self.nodes.get(&id).map(|n| &**n)
    }

    /// Returns the names of a directory; `None` if there is no such directory.
    #[must_use]
    pub fn names(&self, dir: NodeId) -> Option<&BTreeMap<Name, NodeId>> {
        match &self.node(dir)?.body {
            Body::Dir(names) => Some(names),
            _ => None,
        }
    }

    /// Returns the node that a name in a directory refers to.
    #[must_use]
    pub fn binding(&self, dir: NodeId, name: &[u8]) -> Option<NodeId> {
        self.names(dir)?.get(name).copied()
    }

    /// Returns every name of a node, with its directory.
    #[must_use]
    pub fn names_of(&self, id: NodeId) -> Vec<(NodeId, Name)> {
        let dirs = self.nodes.keys().filter_map(|dir| Some((*dir, self.names(*dir)?)));
        dirs.flat_map(|(dir, names)| {
            names.iter().filter(|(_, n)| **n == id).map(move |(name, _)| (dir, name.clone()))
        })
        .collect()
    }

    /// Returns the target of a path. Links are not followed.
    pub(crate) fn place(&self, path: &str) -> ModelResult<Place> {
        let mut names: Vec<&str> = path.split('/').filter(|n| !n.is_empty()).collect();
        let last = names.pop().ok_or("the root cannot be meant")?;
        let mut dir = NodeId::ROOT;
        for name in names {
            dir = self.binding(dir, name.as_bytes()).ok_or("no such directory")?;
        }
        self.names(dir).ok_or("not a directory")?;
        let name = last.as_bytes().to_vec();
        Ok(Place { dir, node: self.binding(dir, &name), name })
    }

    /// Returns the node of a path; the empty path and `/` are the root.
    pub(crate) fn resolve(&self, path: &str) -> ModelResult<NodeId> {
        if path.split('/').all(str::is_empty) {
            return Ok(NodeId::ROOT);
        }
        self.place(path)?.node.ok_or("no such name")
    }

    fn node_mut(&mut self, id: NodeId) -> ModelResult<&mut ModelNode> {
        self.nodes.get_mut(&id).map(Arc::make_mut).ok_or("no such node")
    }

    fn names_mut(&mut self, id: NodeId) -> ModelResult<&mut BTreeMap<Name, NodeId>> {
        match &mut self.node_mut(id)?.body {
            Body::Dir(names) => Ok(names),
            _ => Err("not a directory"),
        }
    }

    fn content_mut(&mut self, path: &str) -> ModelResult<(NodeId, &mut Vec<u8>)> {
        let id = self.resolve(path)?;
        match &mut self.node_mut(id)?.body {
            Body::File(content) => Ok((id, Arc::make_mut(content))),
            _ => Err("not a regular file"),
        }
    }

    fn make(&mut self, path: &str, body: Body) -> ModelResult<()> {
        let place = self.place(path)?;
        if place.node.is_some() {
            return Err("the name exists");
        }
        let id = NodeId(self.next);
        self.next += 1;
        self.nodes.insert(id, Arc::new(ModelNode::new(body)));
        self.names_mut(place.dir)?.insert(place.name, id);
        Ok(())
    }

    fn is_dir(&self, id: NodeId) -> bool {
        self.names(id).is_some()
    }

    /// Removes a name, and with its last name the node.
    fn unbind(&mut self, dir: NodeId, name: &[u8]) -> ModelResult<()> {
        let id = self.names_mut(dir)?.remove(name).ok_or("no such name")?;
        if self.names_of(id).is_empty() {
            self.nodes.remove(&id);
        }
        Ok(())
    }

    fn remove(&mut self, path: &str, want_dir: Option<bool>) -> ModelResult<()> {
        let place = self.place(path)?;
        let id = place.node.ok_or("no such name")?;
        let names = self.names(id);
        if want_dir.is_some_and(|want| want != names.is_some()) {
            return Err("a directory where none may be, or none where one must be");
        }
        if names.is_some_and(|names| !names.is_empty()) {
            return Err("the directory is not empty");
        }
        self.unbind(place.dir, &place.name)
    }

    /// Returns true if `below` is `top` or lies under it.
    fn is_under(&self, below: NodeId, top: NodeId) -> bool {
        let mut at = below;
        loop {
            if at == top {
                return true;
            }
            match self.names_of(at).first() {
                Some((parent, _)) => at = *parent,
                None => return false,
            }
        }
    }

    fn rename(&mut self, old: &str, new: &str) -> ModelResult<()> {
        let (from, to) = (self.place(old)?, self.place(new)?);
        let id = from.node.ok_or("no such name")?;
        if self.is_dir(id) && self.is_under(to.dir, id) {
            return Err("into itself");
        }
        if let Some(target) = to.node {
            if target == id {
                return Err("both names are the same file");
            }
            self.remove(new, Some(self.is_dir(id)))?;
        }
        self.names_mut(from.dir)?.remove(&from.name);
        self.names_mut(to.dir)?.insert(to.name, id);
        Ok(())
    }

    fn exchange(&mut self, one: &str, other: &str) -> ModelResult<()> {
        let (a, b) = (self.place(one)?, self.place(other)?);
        let (x, y) = (a.node.ok_or("no such name")?, b.node.ok_or("no such name")?);
        if x == y || self.is_under(b.dir, x) || self.is_under(a.dir, y) {
            return Err("one lies under the other");
        }
        self.names_mut(a.dir)?.insert(a.name, y);
        self.names_mut(b.dir)?.insert(b.name, x);
        Ok(())
    }

    /// Applies operation number `op_number` of the workload.
    ///
    /// # Errors
    /// The reason why a file system would refuse it. The state must not be used afterwards.
    pub fn apply(&mut self, op: &Op, op_number: usize) -> ModelResult<()> {
        let usize_of = |n: u64| usize::try_from(n).map_err(|_| "too large for a test");
        match op {
            Op::Creat(p) | Op::Tmpfile(p) => self.make(p, Body::File(Arc::default())),
            Op::Mkdir(p) => self.make(p, Body::Dir(BTreeMap::new())),
            Op::Mkfifo(p) => self.make(p, Body::Fifo),
            Op::Symlink(target, p) => self.make(p, Body::Symlink(target.clone().into_bytes())),
            Op::Write(p, at, n) => {
                let (id, content) = self.content_mut(p)?;
                overwrite(content, usize_of(*at)?, &pattern(id, op_number, *at, usize_of(*n)?));
                Ok(())
            }
            Op::Append(p, n) => {
                let (id, content) = self.content_mut(p)?;
                let at = content.len();
                overwrite(content, at, &pattern(id, op_number, at as u64, usize_of(*n)?));
                Ok(())
            }
            Op::Falloc(p, at, n, keep) => {
                let end = usize_of(at + n)?;
                let content = self.content_mut(p)?.1;
                if !keep && content.len() < end {
                    content.resize(end, 0);
                }
                Ok(())
            }
            Op::Punch(p, at, n) => {
                let end = usize_of(at + n)?;
                let content = self.content_mut(p)?.1;
                let end = end.min(content.len());
                if let Some(hole) = content.get_mut(usize_of(*at)?..end) {
                    hole.fill(0);
                }
                Ok(())
            }
            Op::Truncate(p, n) => {
                self.content_mut(p)?.1.resize(usize_of(*n)?, 0);
                Ok(())
            }
            Op::Link(p, new) => {
                let id = self.resolve(p)?;
                let place = self.place(new)?;
                if self.is_dir(id) || place.node.is_some() {
                    return Err("a directory, or the name exists");
                }
                self.names_mut(place.dir)?.insert(place.name, id);
                Ok(())
            }
            Op::Unlink(p) => self.remove(p, Some(false)),
            Op::Rmdir(p) => self.remove(p, Some(true)),
            Op::Remove(p) => self.remove(p, None),
            Op::Rename(p, new) => self.rename(p, new),
            Op::Exchange(p, q) => self.exchange(p, q),
            Op::Setxattr(p, name, n) => {
                let id = self.resolve(p)?;
                let value = xattr_value(op_number, usize_of(*n)?);
                self.node_mut(id)?.xattrs.insert(user_name(name), value);
                Ok(())
            }
            Op::Removexattr(p, name) => {
                let id = self.resolve(p)?;
                let old = self.node_mut(id)?.xattrs.remove(&user_name(name));
                old.map(|_| ()).ok_or("no such attribute")
            }
            Op::Chmod(p, perm) => {
                let id = self.resolve(p)?;
                self.node_mut(id)?.perm = *perm;
                Ok(())
            }
            Op::Hold(p) | Op::Fsync(p) => self.resolve(p).map(|_| ()),
            Op::Fdatasync(p) => {
                let id = self.resolve(p)?;
                if self.is_dir(id) { Err("not a file") } else { Ok(()) }
            }
            Op::Sync | Op::WriteBack | Op::Trim => Ok(()),
        }
    }

    /// Returns the identity that the next created node will get.
    #[must_use]
    pub fn next_id(&self) -> NodeId {
        NodeId(self.next)
    }
}

/// Returns the full name of an attribute of a workload.
#[must_use]
pub fn user_name(name: &str) -> Name {
    format!("user.{name}").into_bytes()
}

fn overwrite(content: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    if content.len() < at + bytes.len() {
        content.resize(at + bytes.len(), 0);
    }
    content[at..at + bytes.len()].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Workload;

    fn run(text: &str) -> ModelResult<State> {
        let mut state = State::default();
        for (i, op) in text.parse::<Workload>().unwrap().ops.iter().enumerate() {
            state.apply(op, i)?;
        }
        Ok(state)
    }

    #[test]
    fn the_pattern_names_file_operation_and_offset_at_any_alignment() {
        assert_eq!(pattern(NodeId(7), 12, 0x20, 16), b"f007v012@0000020");
        assert_eq!(pattern(NodeId(7), 12, 0x1d, 7), b"010f007");
        assert_eq!(pattern(NodeId(1), 1, 5, 0), b"");
    }

    #[test]
    fn names_and_nodes_follow_the_operations() {
        let state = run("mkdir A; mkdir B; creat A/x; write A/x 2 3; link A/x B/y; unlink A/x; \
                         creat A/z; rename A/z B/w; rename B/y B/w; mkdir B/C; rename B/C A/C")
        .unwrap();
        let (a, b) = (state.resolve("A").unwrap(), state.resolve("B").unwrap());
        assert_eq!(state.names_of(NodeId(3)), [(b, b"w".to_vec())]);
        assert_eq!(state.node(NodeId(4)), None, "replaced");
        assert_eq!(state.binding(a, b"C"), Some(NodeId(5)));
        let Body::File(content) = &state.node(NodeId(3)).unwrap().body else { panic!() };
        assert_eq!(
            content[..],
            *b"\x00\x0003v",
            "two bytes of hole, then the pattern from offset 2"
        );
    }

    #[test]
    fn what_a_file_system_refuses_the_model_refuses() {
        for text in [
            "creat A/x",
            "creat A; creat A",
            "mkdir A; creat A/x; rmdir A",
            "mkdir A; unlink A",
            "mkdir A; rename A A/B",
            "mkdir A; creat x; rename x A",
            "mkdir A; mkdir B; exchange A A",
            "creat x; removexattr x n",
        ] {
            assert!(run(text).is_err(), "{text}");
        }
    }
}
