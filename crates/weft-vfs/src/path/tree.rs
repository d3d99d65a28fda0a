//! Visiting a whole tree without recursion, and removing one.

use crate::{Caller, DirCursor, Error, Ino, Result};

use super::{Listed, Node};

/// Names taken from a directory at once: bounds the memory and the references of one level.
const BATCH: usize = 256;

/// An item of a [`Tree`].
#[derive(Debug)]
pub struct Found<'a> {
    /// The path from the start of the walk, without a leading slash; empty for the start itself.
    pub path: Vec<u8>,
    /// The inode.
    pub node: Node<'a>,
    /// The depth: the number of directories from the start; 0 for the start.
    pub depth: usize,
}

#[derive(Debug)]
struct Level<'a> {
    dir: Node<'a>,
    path: Vec<u8>,
    cursor: DirCursor,
    /// The current batch, last name first.
    batch: Vec<(Vec<u8>, Result<Node<'a>>)>,
    /// What ended the list of names; it is yielded after the batch.
    failed: Option<Error>,
    done: bool,
}

/// Iterates over a tree, each directory before what is in it, symbolic links not followed. An error
/// is yielded in place of the item that it concerns, or of the names of a directory that cannot be
/// listed; the walk continues.
#[derive(Debug)]
pub struct Tree<'a> {
    start: Option<Node<'a>>,
    levels: Vec<Level<'a>>,
    failed_at: Vec<u8>,
}

impl Level<'_> {
    /// Takes the next batch of names, and looks up each by itself.
    fn list_one_by_one(&mut self) {
        let mut names = Vec::new();
        if let Err(e) = self.dir.list_from(self.cursor, BATCH, &mut names) {
            self.failed = Some(e);
            self.done = true;
        }
        match names.last() {
            Some(last) => self.cursor = last.next,
            None => self.done = true,
        }
        let nodes = names.into_iter().rev().map(|listed| {
            let node = self.dir.lookup(&listed.name);
            (listed.name, node)
        });
        self.batch = nodes.collect();
    }
}

impl<'a> Tree<'a> {
    /// Begins a walk over `start` and all below it.
    #[must_use]
    pub fn new(start: Node<'a>) -> Self {
        Self { start: Some(start), levels: Vec::new(), failed_at: Vec::new() }
    }

    /// The path of the item, or of the directory, whose error was yielded last.
    #[must_use]
    pub fn failed_at(&self) -> &[u8] {
        &self.failed_at
    }

    /// Descends into `dir`, the inode of `yielded`.
    fn descend(&mut self, dir: Node<'a>, path: Vec<u8>) {
        let cursor = DirCursor::START;
        let batch = Vec::new();
        self.levels.push(Level { dir, path, cursor, batch, failed: None, done: false });
    }

    /// Takes a second reference on the node, for the caller.
    fn again(node: &Node<'a>) -> Result<Node<'a>> {
        node.lookup(b".")
    }

    fn visit(&mut self, node: Node<'a>, path: Vec<u8>) -> Result<Found<'a>> {
        let depth = self.levels.len();
        if !node.is_dir() {
            return Ok(Found { path, node, depth });
        }
        if self.levels.iter().any(|level| level.dir.ino() == node.ino()) {
            let Ino(ino) = node.ino();
            return Err(Error::Corrupt(format!("directory {ino} contains itself").into()));
        }
        let mine = Self::again(&node)?;
        self.descend(mine, path.clone());
        Ok(Found { path, node, depth })
    }
}

impl<'a> Iterator for Tree<'a> {
    type Item = Result<Found<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(start) = self.start.take() {
            return Some(self.visit(start, Vec::new()));
        }
        loop {
            let level = self.levels.last_mut()?;
            if let Some((name, node)) = level.batch.pop() {
                let path = join(&level.path, &name);
                let found = node.and_then(|node| self.visit(node, path.clone()));
                if found.is_err() {
                    self.failed_at = path;
                }
                return Some(found);
            }
            if let Some(e) = level.failed.take() {
                self.failed_at.clone_from(&level.path);
                return Some(Err(e));
            }
            if level.done {
                self.levels.pop();
                continue;
            }
            match level.dir.nodes_from(level.cursor, BATCH) {
                Ok((batch, last)) => {
                    level.batch = batch.into_iter().rev().map(|(n, node)| (n, Ok(node))).collect();
                    match last {
                        Some(cursor) => level.cursor = cursor,
                        None => level.done = true,
                    }
                }
                // One item that cannot be read hides nothing else: name by name.
                Err(_) => level.list_one_by_one(),
            }
        }
    }
}

fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() }
}

/// Removes everything in `dir`, not `dir` itself. Directories may be as deep as they like. Calls
/// `removed` with each path (relative to `dir`) after its removal.
pub(super) fn remove_content(
    caller: &Caller,
    dir: &Node<'_>,
    removed: &mut dyn FnMut(&[u8]),
) -> Result<()> {
    struct Level<'a> {
        dir: Node<'a>,
        name: Vec<u8>,
        path: Vec<u8>,
        batch: Vec<Listed>,
    }
    let root = dir.lookup(b".")?;
    let mut levels = vec![Level { dir: root, name: Vec::new(), path: Vec::new(), batch: vec![] }];
    while let Some(level) = levels.last_mut() {
        if level.batch.is_empty() {
            // Always from the start: the names listed before are removed.
            level.dir.list_from(DirCursor::START, BATCH, &mut level.batch)?;
            level.batch.reverse();
        }
        let Some(listed) = level.batch.pop() else {
            let Some(empty) = levels.pop() else { break };
            if let Some(parent) = levels.last() {
                parent.dir.fs().rmdir(caller, parent.dir.ino(), &empty.name)?;
                removed(&empty.path);
            }
            continue;
        };
        let path = join(&level.path, &listed.name);
        match level.dir.fs().unlink(caller, level.dir.ino(), &listed.name) {
            Ok(()) => removed(&path),
            Err(Error::IsADirectory) => {
                let dir = level.dir.lookup(&listed.name)?;
                if levels.iter().any(|above| above.dir.ino() == dir.ino()) {
                    let Ino(ino) = dir.ino();
                    return Err(Error::Corrupt(format!("directory {ino} contains itself").into()));
                }
                levels.push(Level { dir, name: listed.name, path, batch: vec![] });
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
