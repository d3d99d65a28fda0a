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
    batch: Vec<(Vec<u8>, Node<'a>)>,
    done: bool,
}

/// Iterates over a tree, each directory before what is in it, symbolic links not followed. An error
/// ends the visit of one directory and is yielded in its place; the walk continues.
#[derive(Debug)]
pub struct Tree<'a> {
    start: Option<Node<'a>>,
    levels: Vec<Level<'a>>,
}

impl<'a> Tree<'a> {
    /// Begins a walk over `start` and all below it.
    #[must_use]
    pub fn new(start: Node<'a>) -> Self {
        Self { start: Some(start), levels: Vec::new() }
    }

    /// Descends into `dir`, the inode of `yielded`.
    fn descend(&mut self, dir: Node<'a>, path: Vec<u8>) {
        let cursor = DirCursor::START;
        self.levels.push(Level { dir, path, cursor, batch: Vec::new(), done: false });
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
                return Some(self.visit(node, path));
            }
            if level.done {
                self.levels.pop();
                continue;
            }
            match level.dir.nodes_from(level.cursor, BATCH) {
                Ok((mut batch, last)) => {
                    batch.reverse();
                    level.batch = batch;
                    match last {
                        Some(cursor) => level.cursor = cursor,
                        None => level.done = true,
                    }
                }
                Err(e) => {
                    level.done = true;
                    return Some(Err(e));
                }
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
