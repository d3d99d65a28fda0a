//! The blocks of a journal: copies of other blocks, told as these are, and what makes them valid.

use std::rc::Rc;

use weft_block::Image;
use weft_patch::jbd2::{BlockType, Header, MAGIC, Superblock, descriptor};

use super::{Explainer, Meaning, Owners, Written, some};
use crate::Result;
use crate::calls::CallNr;
use crate::volume::{VolumeFormat, device_failed};

/// The copies of a transaction that are told.
const COPIES_MAX: usize = 8;

/// The places of the log's blocks on the device, in bytes.
pub(super) type LogPlaces = Rc<Vec<u64>>;

/// A log at the moment at which a block of it was written.
struct Log {
    image: Image,
    places: LogPlaces,
    block_bytes: usize,
    superblock: Superblock,
}

/// A copy in a log: the block of the volume, and its content.
struct Copied {
    block: u64,
    bytes: Vec<u8>,
}

impl Explainer<'_> {
    /// The places of the journal's blocks, which never change. Empty without a journal.
    fn log_places(&mut self) -> Result<LogPlaces> {
        if let Some(places) = &self.log {
            return Ok(Rc::clone(places));
        }
        let kind = &self.volume.kind;
        let block_bytes = u64::from(kind.block_bytes);
        let places: Vec<u64> = match kind.format {
            VolumeFormat::Hfs => {
                let first = self.volume.image.len_bytes() - kind.journal_bytes;
                (0..kind.journal_bytes / block_bytes).map(|nr| first + nr * block_bytes).collect()
            }
            VolumeFormat::Ext => match &self.moment(CallNr(0))?.owners {
                Some(Owners::Ext(owners)) if owners.superblock().journal_inode != 0 => {
                    let blocks = owners.blocks_of(owners.superblock().journal_inode);
                    blocks.into_values().map(|block| block * block_bytes).collect()
                }
                _ => Vec::new(),
            },
        };
        let places = Rc::new(places);
        self.log = Some(Rc::clone(&places));
        Ok(places)
    }

    /// Returns the content of a block of the journal, or `None` for a block outside it.
    pub(super) fn in_journal(&mut self, written: &Written<'_>) -> Result<Option<Meaning>> {
        let places = self.log_places()?;
        let Some(index) = places.iter().position(|place| *place == written.offset) else {
            return Ok(None);
        };
        if index == 0 {
            return Ok(Some(Meaning::new("journal", "superblock of the journal")));
        }
        let image = self.image(CallNr(written.call.0 + 1))?;
        let Some(log) = Log::new(image, places, self.volume.kind.block_bytes as usize)? else {
            return Ok(Some(Meaning::new("journal", "block of the journal")));
        };
        let Some(header) = Header::parse(written.bytes) else {
            let mut meaning = match log.copy(index, written.bytes)? {
                Some(copied) => self.copied(&copied, written.call)?,
                None => None,
            };
            if let Some(meaning) = &mut meaning {
                meaning.text = format!("journal: {}", meaning.text);
            }
            return Ok(meaning.or_else(|| Some(Meaning::new("journal", "block of the journal"))));
        };
        let sequence = header.sequence;
        let what = match header.block_type {
            BlockType::Commit => format!("commit of transaction {sequence} in the journal"),
            BlockType::Descriptor => format!("descriptor of transaction {sequence} in the journal"),
            BlockType::Revoke => {
                let text = format!("journal: blocks that transaction {sequence} revokes");
                return Ok(Some(Meaning::new("journal", text)));
            }
            BlockType::SuperblockV1 | BlockType::SuperblockV2 => {
                return Ok(Some(Meaning::new("journal", "superblock of the journal")));
            }
        };
        let mut meaning = Meaning::new("journal", "");
        let mut words = Vec::new();
        for copied in log.transaction(index, header)? {
            if let Some(copy) = self.copied(&copied, written.call)? {
                words.push(copy.text);
                meaning.touched.extend(copy.touched);
            }
        }
        meaning.text = if words.is_empty() { what } else { format!("{what}: {}", some(words)) };
        Ok(Some(meaning))
    }

    /// Returns the content of a block's copy in the journal.
    fn copied(&mut self, copied: &Copied, call: CallNr) -> Result<Option<Meaning>> {
        let offset = copied.block.saturating_mul(u64::from(self.volume.kind.block_bytes));
        let volume_bytes = self.volume.image.len_bytes() - self.volume.kind.journal_bytes;
        if offset.saturating_add(copied.bytes.len() as u64) > volume_bytes {
            return Ok(None);
        }
        let home = self.at_home(&Written { offset, bytes: &copied.bytes, call })?;
        let mut meanings = home.into_iter().map(|(_, _, meaning)| meaning);
        let Some(mut first) = meanings.next() else { return Ok(None) };
        for more in meanings {
            first.text = format!("{}; {}", first.text, more.text);
            first.touched.extend(more.touched);
        }
        Ok(Some(first))
    }
}

impl Log {
    fn new(image: Image, places: LogPlaces, block_bytes: usize) -> Result<Option<Self>> {
        let mut raw = vec![0; block_bytes];
        let Some(place) = places.first() else { return Ok(None) };
        image.read(&mut raw, *place).map_err(device_failed("reading the journal"))?;
        let Ok(superblock) = Superblock::parse(&raw) else { return Ok(None) };
        let usable = superblock.first > 0 && superblock.len_blocks as usize <= places.len();
        Ok(usable.then_some(Self { image, places, block_bytes, superblock }))
    }

    fn read(&self, index: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.block_bytes];
        let place = self.places.get(index).copied().unwrap_or(u64::MAX);
        self.image.read(&mut bytes, place).map_err(device_failed("reading the journal"))?;
        Ok(bytes)
    }

    /// The block of the ring before one.
    fn before(&self, index: usize) -> usize {
        let (first, len) = (self.superblock.first as usize, self.superblock.len_blocks as usize);
        if index <= first { len - 1 } else { index - 1 }
    }

    fn after(&self, index: usize) -> usize {
        let (first, len) = (self.superblock.first as usize, self.superblock.len_blocks as usize);
        if index + 1 >= len { first } else { index + 1 }
    }

    fn tags(&self, descriptor: &[u8]) -> Vec<descriptor::Tag> {
        descriptor::tags(descriptor, self.superblock.features).collect()
    }

    /// The copy in a block of the log: its descriptor is the next one before it.
    fn copy(&self, index: usize, bytes: &[u8]) -> Result<Option<Copied>> {
        let mut at = index;
        for passed in 0..self.superblock.ring_blocks() as usize {
            at = self.before(at);
            let block = self.read(at)?;
            match Header::parse(&block).map(|header| header.block_type) {
                Some(BlockType::Descriptor) => {
                    let tag = self.tags(&block).get(passed).copied();
                    return Ok(tag.map(|tag| Copied::new(&tag, bytes.to_vec())));
                }
                Some(_) => return Ok(None),
                None => {}
            }
        }
        Ok(None)
    }

    /// The first copies of the transaction of a descriptor or commit.
    fn transaction(&self, index: usize, header: Header) -> Result<Vec<Copied>> {
        let mut start = index;
        if header.block_type == BlockType::Commit {
            // Its first descriptor: no block of an earlier transaction is passed.
            let mut at = index;
            for _ in 0..self.superblock.ring_blocks() {
                at = self.before(at);
                match Header::parse(&self.read(at)?) {
                    Some(found) if found.sequence != header.sequence => break,
                    Some(Header { block_type: BlockType::Descriptor, .. }) => start = at,
                    _ => {}
                }
            }
            if start == index {
                return Ok(Vec::new());
            }
        }
        let mut copies = Vec::new();
        let mut at = start;
        for tag in self.tags(&self.read(start)?).into_iter().take(COPIES_MAX) {
            at = self.after(at);
            copies.push(Copied::new(&tag, self.read(at)?));
        }
        Ok(copies)
    }
}

impl Copied {
    fn new(tag: &descriptor::Tag, mut bytes: Vec<u8>) -> Self {
        if tag.flags & descriptor::ESCAPE != 0
            && let Some(start) = bytes.get_mut(..4)
        {
            start.copy_from_slice(&MAGIC.to_be_bytes());
        }
        Self { block: tag.block, bytes }
    }
}
