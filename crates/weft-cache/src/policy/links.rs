//! Doubly linked lists over slot numbers: eight bytes a slot, whatever the number of lists.
//!
//! A slot is in at most one list at a time. The list's tag is kept in the two upper bits of the
//! slot's forward link, so that the list is known from the slot alone, and a hit needs no search.

use super::{SLOTS_MAX, SlotNr};

/// No slot: the end of a list.
const NIL: u32 = SLOTS_MAX;
const TAG_SHIFT: u32 = 30;
/// The tag of slots that are in no list.
const FREE: u8 = 0;

/// The links of all slots.
#[derive(Debug)]
pub(super) struct Links {
    /// Links towards the hot end, and (with the tag of the list) towards the cold end.
    nodes: Vec<[u32; 2]>,
    /// Next slot of a walk through a list. If that slot is unlinked, the cursor moves on.
    cursor: u32,
}

/// One list: hot end, cold end and length.
#[derive(Debug)]
pub(super) struct List {
    tag: u8,
    hot: u32,
    cold: u32,
    len: u32,
}

impl List {
    /// Creates an empty list. `tag` is 1, 2 or 3, and each list over the same links has its own.
    pub(super) fn new(tag: u8) -> List {
        debug_assert!((1..=3).contains(&tag));
        List { tag, hot: NIL, cold: NIL, len: 0 }
    }

    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn coldest(&self) -> Option<SlotNr> {
        (self.cold != NIL).then_some(SlotNr(self.cold))
    }
}

impl Links {
    pub(super) fn new(slots: u32) -> Links {
        Links { nodes: vec![[NIL, NIL]; slots.min(SLOTS_MAX) as usize], cursor: NIL }
    }

    pub(super) fn slots(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// Returns the tag of the slot's list, or `None` if it is in none (or beyond the end).
    pub(super) fn list_of(&self, slot: SlotNr) -> Option<u8> {
        let tag = (self.nodes.get(slot.index())?[1] >> TAG_SHIFT) as u8;
        (tag != FREE).then_some(tag)
    }

    /// Puts a slot that is in no list at the hot end.
    pub(super) fn push_hot(&mut self, list: &mut List, slot: SlotNr) {
        debug_assert_eq!(self.list_of(slot), None);
        self.set(slot.0, list.tag, NIL, list.hot);
        match list.hot {
            NIL => list.cold = slot.0,
            hot => self.nodes[hot as usize][0] = slot.0,
        }
        list.hot = slot.0;
        list.len += 1;
    }

    /// Puts a slot that is in no list at the cold end.
    pub(super) fn push_cold(&mut self, list: &mut List, slot: SlotNr) {
        debug_assert_eq!(self.list_of(slot), None);
        self.set(slot.0, list.tag, list.cold, NIL);
        match list.cold {
            NIL => list.hot = slot.0,
            cold => self.set_colder(cold, slot.0),
        }
        list.cold = slot.0;
        list.len += 1;
    }

    /// Removes a slot from its list.
    pub(super) fn unlink(&mut self, list: &mut List, slot: SlotNr) {
        debug_assert_eq!(self.list_of(slot), Some(list.tag));
        let hotter = self.nodes[slot.index()][0];
        let colder = self.colder(slot.0);
        if self.cursor == slot.0 {
            self.cursor = colder;
        }
        match hotter {
            NIL => list.hot = colder,
            hotter => self.set_colder(hotter, colder),
        }
        match colder {
            NIL => list.cold = hotter,
            colder => self.nodes[colder as usize][0] = hotter,
        }
        self.nodes[slot.index()] = [NIL, NIL];
        list.len -= 1;
    }

    /// Moves a slot to the hot end of its list.
    pub(super) fn heat(&mut self, list: &mut List, slot: SlotNr) {
        if list.hot != slot.0 {
            self.unlink(list, slot);
            self.push_hot(list, slot);
        }
    }

    /// Begins a walk through a list, the hottest first.
    pub(super) fn walk(&mut self, list: &List) {
        self.cursor = list.hot;
    }

    /// Returns the next slot of the walk. The lists may be changed in between.
    pub(super) fn step(&mut self) -> Option<SlotNr> {
        let slot = (self.cursor != NIL).then_some(SlotNr(self.cursor))?;
        self.cursor = self.colder(slot.0);
        Some(slot)
    }

    /// Changes the number of slots; those beyond the new end must be in no list.
    pub(super) fn resize(&mut self, slots: u32) {
        self.cursor = NIL;
        self.nodes.resize(slots.min(SLOTS_MAX) as usize, [NIL, NIL]);
        self.nodes.shrink_to_fit();
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<[u32; 2]>()
    }

    fn colder(&self, slot: u32) -> u32 {
        self.nodes[slot as usize][1] & SLOTS_MAX
    }

    fn set_colder(&mut self, slot: u32, colder: u32) {
        let link = &mut self.nodes[slot as usize][1];
        *link = *link & !SLOTS_MAX | colder;
    }

    fn set(&mut self, slot: u32, tag: u8, hotter: u32, colder: u32) {
        self.nodes[slot as usize] = [hotter, u32::from(tag) << TAG_SHIFT | colder];
    }
}
