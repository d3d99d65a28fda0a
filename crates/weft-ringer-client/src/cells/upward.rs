//! Invalidations from the clients of cells inside to the front end: an inode of a cell has a number
//! in each location where the cell is seen.

use std::sync::{Arc, Mutex, Weak};

use weft_ringer::CellId;
use weft_vfs::{Ino, Invalidate};

use super::nodes::Nodes;
use super::place::Place;
use crate::lost_leases::Sink;
use crate::mutex::locked;

/// The front end's sink for changes, and the inode numbers of cells inside.
#[derive(Debug)]
pub(super) struct Upward {
    pub(super) sink: Sink,
    pub(super) nodes: Mutex<Nodes<Arc<Place>>>,
    places: Mutex<Vec<Weak<Place>>>,
}

impl Upward {
    pub(super) fn new() -> Self {
        let (sink, nodes, places) = (Sink::default(), Mutex::new(Nodes::new()), Mutex::default());
        Self { sink, nodes, places }
    }

    /// Adds a location.
    pub(super) fn add(&self, place: &Arc<Place>) {
        let mut places = locked(&self.places);
        places.retain(|place| place.strong_count() > 0);
        places.push(Arc::downgrade(place));
    }

    /// The numbers of an inode of a cell, one for each location.
    fn numbers(&self, cell: CellId, ino: Ino) -> Vec<Ino> {
        let places: Vec<Arc<Place>> =
            locked(&self.places).iter().filter_map(Weak::upgrade).collect();
        let of_cell = places.iter().filter(|p| p.fs().is_some_and(|fs| fs.cell() == cell));
        let keys: Vec<u64> = of_cell.map(|place| place.key).collect();
        let nodes = locked(&self.nodes);
        keys.into_iter().map(|key| Ino(nodes.number(key, ino.0))).collect()
    }
}

/// The invalidation sink for the client of one cell inside.
pub(super) struct OfCell {
    pub(super) cell: CellId,
    pub(super) upward: Weak<Upward>,
}

impl Invalidate for OfCell {
    fn inode(&self, ino: Ino, data: bool) {
        let Some(upward) = self.upward.upgrade() else { return };
        let Some(sink) = upward.sink.get() else { return };
        let numbers = upward.numbers(self.cell, ino);
        numbers.into_iter().for_each(|number| sink.inode(number, data));
    }

    fn entry(&self, parent: Ino, name: &[u8]) {
        let Some(upward) = self.upward.upgrade() else { return };
        let Some(sink) = upward.sink.get() else { return };
        let numbers = upward.numbers(self.cell, parent);
        numbers.into_iter().for_each(|number| sink.entry(number, name));
    }
}
