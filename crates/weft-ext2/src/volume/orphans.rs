//! The superblock's list of orphaned inodes: inodes that live without a name, each of which links
//! to the next through its deletion time, so that a recovery finds them. Kept under a journal only;
//! soft updates just leak such an inode in a crash, as its deletion time tells.

use super::node::{Node, number, split};
use super::state::Volume;
use weft_patch::{Op, Policy};
use weft_unix::{Format as _, Inodes as _, Nodes, Orphans, Result};
use weft_vfs::{Error as FsError, FileKind, Ino, Time};

pub(crate) fn now_secs() -> u32 {
    u32::try_from(Time::now().secs.clamp(1, i64::from(u32::MAX))).unwrap_or(1)
}

impl Orphans for Volume {
    /// Puts the inode at the head of the chain.
    fn add_orphan(
        &mut self,
        op: &mut Op<'_>,
        nodes: &mut Nodes<Self>,
        ino: Ino,
        policy: Policy,
    ) -> Result<()> {
        let node = nodes.get_mut(ino).ok_or(FsError::Stale(ino.0))?;
        if matches!(policy, Policy::Journal(_)) {
            node.own.dtime = std::mem::replace(&mut self.sb.last_orphan, number(ino));
            self.write_last_orphan(op)?;
            self.orphans.push(ino);
        } else {
            node.own.dtime = now_secs();
        }
        Ok(())
    }

    fn remove_orphan(&mut self, op: &mut Op<'_>, nodes: &mut Nodes<Self>, ino: Ino) -> Result<()> {
        if let Some(node) = nodes.get_mut(ino)
            && node.inode.links > 0
        {
            node.own.dtime = 0;
        }
        let Some(at) = self.orphans.iter().position(|&o| o == ino) else { return Ok(()) };
        self.orphans.remove(at);
        let next = if at == 0 { 0 } else { number(self.orphans[at - 1]) };
        // The list is in the order in which inodes were added: the one that links to this is behind
        // it.
        match self.orphans.get(at).copied() {
            None => {
                self.sb.last_orphan = next;
                self.write_last_orphan(op)?;
            }
            Some(previous) => {
                if let Some(node) = nodes.get_mut(previous) {
                    node.own.dtime = next;
                    node.patch = self.write_inode(op, node, &[])?;
                }
            }
        }
        Ok(())
    }
}

impl Volume {
    /// Reads the chain of a volume that was not unmounted. An inode that cannot be an orphan is
    /// damage, and ends the chain.
    pub(crate) fn read_orphans(&mut self, op: &mut Op<'_>) -> Vec<Node> {
        let mut next = self.sb.last_orphan;
        let mut found = Vec::new();
        let mut seen = hashbrown::HashSet::new();
        while next != 0 {
            let ino = next;
            if !seen.insert(ino) {
                self.note_damage("the list of orphaned inodes is a loop".into());
                break;
            }
            let inode = self.read_raw_inode(op, ino).ok();
            let inode = inode.filter(|_| ino >= self.geometry.first_inode);
            let Some((inode, kind)) = inode.and_then(|i| i.kind().map(|kind| (i, kind))) else {
                self.note_damage(format!(
                    "inode {ino} in the list of orphaned inodes is not in use"
                ));
                break;
            };
            next = inode.dtime;
            let (fields, own) = split(&inode);
            found.push(Node::new(Ino(u64::from(ino)), kind, fields, own));
            self.orphans.insert(0, Ino(u64::from(ino)));
        }
        found
    }

    /// Reports whether an orphan has names, and is listed because a truncation was not finished.
    pub(crate) fn is_half_cut(node: &Node) -> bool {
        node.inode.links > 0 && node.kind == FileKind::Regular
    }
}
