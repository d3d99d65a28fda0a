//! The map of nodes: allocating and freeing nodes, and growth of the file.

use super::tree::{MapPart, Tree};
use crate::layout::{
    Extent, MAP_NODE_BYTES, NODE_BYTES, NodeDescriptor, NodeKind, RECORDS_OFFSET, put16,
};
use crate::store::Store;
use crate::{Error, Result};

impl<P: Copy + PartialEq + core::fmt::Debug> Tree<P> {
    /// Returns true if the map marks a node as in use.
    pub(crate) fn is_used(&self, node: u32) -> bool {
        self.map.get(node as usize / 8).is_none_or(|byte| byte & (0x80 >> (node % 8)) != 0)
    }

    fn set_used<S: Store<Patch = P>>(&mut self, s: &mut S, node: u32, used: bool) -> Result<()> {
        let index = node as usize / 8;
        let Some(byte) = self.map.get_mut(index) else {
            return Err(self.damaged(node, "not in the map of nodes"));
        };
        let bit = 0x80 >> (node % 8);
        *byte = if used { *byte | bit } else { *byte & !bit };
        let byte = *byte;
        let mut at = index;
        for part in &self.map_parts {
            if at < part.len_bytes {
                s.write(self.block_of(part.node)?, part.offset + at, &[byte], &[])?;
                return Ok(());
            }
            at -= part.len_bytes;
        }
        Ok(())
    }

    /// Rewrites the whole map: bit `n` is set if `used(n)` is true.
    pub(crate) fn write_map<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        used: impl Fn(u32) -> bool,
    ) -> Result<()> {
        self.map.fill(0);
        let mut free = 0;
        for node in 0..self.header.nodes {
            if used(node) {
                if let Some(byte) = self.map.get_mut(node as usize / 8) {
                    *byte |= 0x80 >> (node % 8);
                }
            } else {
                free += 1;
            }
        }
        self.header.free_nodes = free;
        let mut from = 0;
        for part in &self.map_parts {
            let bytes = self.map.get(from..from + part.len_bytes).unwrap_or(&[]);
            let raw = s.read(self.block_of(part.node)?)?;
            if raw.get(part.offset..part.offset + part.len_bytes) != Some(bytes) {
                s.write(self.block_of(part.node)?, part.offset, bytes, &[])?;
            }
            from += part.len_bytes;
        }
        Ok(())
    }

    /// Returns true if the map has set bits for nodes beyond the end of the file, or an unnecessary
    /// part.
    pub(crate) fn map_goes_on(&self) -> bool {
        let nodes = self.header.nodes as usize;
        let within = self.map.get(nodes / 8).is_some_and(|byte| byte & (0xff >> (nodes % 8)) != 0);
        self.map_leads_on || within || self.map.iter().skip(nodes / 8 + 1).any(|byte| *byte != 0)
    }

    /// Returns the nodes that hold the map, node 0 first.
    pub(crate) fn map_nodes(&self) -> impl Iterator<Item = u32> {
        self.map_parts.iter().map(|part| part.node)
    }

    /// Allocates a free node near another one.
    pub(super) fn take_node<S: Store<Patch = P>>(&mut self, s: &mut S, near: u32) -> Result<u32> {
        let nodes = self.header.nodes;
        let from = near + 1;
        let mut at = from;
        while at < nodes {
            // Skips a full byte of the map at a time.
            if at.is_multiple_of(8) && self.map.get(at as usize / 8) == Some(&0xff) {
                at += 8;
                continue;
            }
            if !self.is_used(at) {
                break;
            }
            at += 1;
        }
        if at >= nodes {
            at = (1..from.min(nodes)).find(|&n| !self.is_used(n)).ok_or(Error::NoSpace)?;
        }
        self.set_used(s, at, true)?;
        self.header.free_nodes = self.header.free_nodes.saturating_sub(1);
        Ok(at)
    }

    /// Frees a node to which nothing points once `cleared` is durable.
    pub(super) fn give_node<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        node: u32,
        cleared: P,
    ) -> Result<()> {
        s.init(self.block_of(node)?, &[0; NODE_BYTES], &[cleared])?;
        self.set_used(s, node, false)?;
        self.header.free_nodes += 1;
        self.needs.remove(&node);
        self.reach.remove(&node);
        self.trims.remove(&node);
        self.seams.remove(&node);
        self.loose.remove(&node);
        Ok(())
    }

    /// Extends the tree to a longer file: `mapped` is the change that made the file longer, and its
    /// new part is zero.
    pub(crate) fn grow<S: Store<Patch = P>>(
        &mut self,
        s: &mut S,
        extents: &[Extent],
        file_bytes: u32,
        mapped: P,
    ) -> Result<()> {
        self.extents = extents.to_vec();
        let nodes = file_bytes / NODE_BYTES as u32;
        let added = nodes.saturating_sub(self.header.nodes);
        self.header.nodes = nodes;
        self.header.free_nodes += added;
        self.grown = if s.is_durable(mapped) { S::DURABLE } else { mapped };
        // Clears the bits that the map had for nodes beyond the old end.
        for node in nodes - added..nodes.min(u32::try_from(self.map.len() * 8).unwrap_or(nodes)) {
            if self.is_used(node) {
                self.set_used(s, node, false)?;
            }
        }
        while self.map.len() * 8 < nodes as usize {
            self.add_map_node(s, nodes - added)?;
        }
        self.write_header(s, &[mapped])?;
        Ok(())
    }

    /// Puts the next part of the map into the first free node of the new ones.
    fn add_map_node<S: Store<Patch = P>>(&mut self, s: &mut S, first_new: u32) -> Result<()> {
        let last = self.map_parts.last().map_or(0, |part| part.node);
        let node = self.map_parts.iter().map(|p| p.node + 1).fold(first_new, u32::max);
        let mut raw = [0; NODE_BYTES];
        let head =
            NodeDescriptor { next: 0, prev: last, kind: NodeKind::Map, height: 0, records: 1 };
        head.encode_into(&mut raw);
        // The Mac leaves the back link of map nodes at zero.
        raw.iter_mut().skip(4).take(4).for_each(|b| *b = 0);
        put16(&mut raw, NODE_BYTES - 2, RECORDS_OFFSET as u16);
        put16(&mut raw, NODE_BYTES - 4, (RECORDS_OFFSET + MAP_NODE_BYTES) as u16);
        let grown = self.grown;
        let made = s.init(self.block_of(node)?, &raw, &[grown])?;
        s.write(self.block_of(last)?, 0, &node.to_be_bytes(), &[made])?;
        self.map_parts.push(MapPart { node, offset: RECORDS_OFFSET, len_bytes: MAP_NODE_BYTES });
        self.map.resize(self.map.len() + MAP_NODE_BYTES, 0);
        self.set_used(s, node, true)?;
        self.header.free_nodes = self.header.free_nodes.saturating_sub(1);
        Ok(())
    }
}
