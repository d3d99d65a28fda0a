//! The trees of states of a volume, built from its blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hash;

use weft_block::{Image, PAGE_BYTES};
use weft_vfs::memfs::{Snapshot, hash128};

use super::{Built, Volume, VolumeKind, device_failed};
use crate::Result;
use crate::effects::Change;
use crate::model::{UnitNr, Units};
use crate::states::{Epoch, State, Torn};

/// Builds the trees of states of a volume.
pub(crate) struct VolumeImages<'a> {
    units: &'a Units,
    kind: &'a VolumeKind,
    /// The volume with the blocks of the units before `upto`.
    durable: Image,
    durable_pages: PageHashes,
    upto: usize,
}

/// The pages of a volume that the recording has written so far, each with a hash of its content.
type PageHashes = BTreeMap<u64, u128>;

/// The trees of an epoch's states.
pub(crate) struct VolumeEpoch<'a> {
    units: &'a Units,
    kind: &'a VolumeKind,
    durable: Image,
    durable_pages: PageHashes,
    /// The blocks from the first pending one on, with its place if it is one.
    rest: Vec<(Option<usize>, UnitNr)>,
}

impl<'a> VolumeImages<'a> {
    pub(crate) fn new(volume: &'a Volume, units: &'a Units) -> Self {
        let (durable, durable_pages) = (volume.image.clone(), PageHashes::new());
        Self { units, kind: &volume.kind, durable, durable_pages, upto: 0 }
    }

    /// Prepares the trees of an epoch; epochs must be given in order.
    pub(crate) fn epoch(&mut self, epoch: &Epoch) -> Result<VolumeEpoch<'a>> {
        let units = self.units;
        let done = units.units.partition_point(|unit| unit.call < epoch.end);
        let first = epoch.pending.first().map_or(done, |unit| unit.index());
        let from = self.upto;
        while self.upto < first.min(done) {
            write(&mut self.durable, units, UnitNr(self.upto as u32), None)?;
            self.upto += 1;
        }
        let written = (from..self.upto).map(|unit| UnitNr(unit as u32));
        hash_written(&self.durable, units, written, &mut self.durable_pages);
        let place = |unit: &UnitNr| epoch.pending.binary_search(unit).ok();
        let rest = (first..done).map(|unit| UnitNr(unit as u32));
        let rest = rest.map(|unit| (place(&unit), unit)).collect();
        let (durable, durable_pages) = (self.durable.clone(), self.durable_pages.clone());
        Ok(VolumeEpoch { units, kind: self.kind, durable, durable_pages, rest })
    }
}

impl VolumeEpoch<'_> {
    /// The findings of weft on a volume. The tree shares what is the same with `like`.
    pub(crate) fn built(&self, image: Image, like: &Snapshot) -> Built {
        self.kind.built(image, like)
    }

    /// A hash of the volume in a state, of the pages that the recording has written until then. Two states
    /// with one hash have the same volume, also in different epochs.
    pub(crate) fn hash(&self, image: &Image, state: &State) -> u128 {
        let mut pages = self.durable_pages.clone();
        let is_there = |(place, unit): &(Option<usize>, UnitNr)| {
            place.is_none_or(|place| state.kept.contains(place)).then_some(*unit)
        };
        hash_written(image, self.units, self.rest.iter().filter_map(is_there), &mut pages);
        hash128(|hasher| pages.hash(hasher))
    }

    /// The volume in a state, before anything recovers it.
    pub(crate) fn image(&self, state: &State) -> Result<Image> {
        let mut image = self.durable.clone();
        for (place, unit) in &self.rest {
            let torn = match place {
                Some(place) if !state.kept.contains(*place) => continue,
                Some(place) => state.torn.filter(|torn| torn.place as usize == *place),
                None => None,
            };
            write(&mut image, self.units, *unit, torn)?;
        }
        Ok(image)
    }
}

/// Hashes the pages of an image that units have written.
fn hash_written(
    image: &Image,
    units: &Units,
    written: impl Iterator<Item = UnitNr>,
    hashes: &mut PageHashes,
) {
    const PAGE: u64 = PAGE_BYTES as u64;
    let mut pages = BTreeSet::new();
    for change in written.flat_map(|unit| units.changes(unit)) {
        if let Change::Block { offset, len_bytes, .. } = change {
            pages.extend(offset / PAGE..(offset + len_bytes).div_ceil(PAGE));
        }
    }
    for nr in pages {
        hashes.insert(nr, hash128(|hasher| image.page(nr).hash(hasher)));
    }
}

/// Writes the blocks of a unit, or the sectors that are left of a torn one.
pub(super) fn write(
    image: &mut Image,
    units: &Units,
    unit: UnitNr,
    torn: Option<Torn>,
) -> Result<()> {
    const SECTOR: u64 = weft_block::SECTOR_BYTES as u64;
    for change in units.changes(unit) {
        let Change::Block { offset, len_bytes, source } = change else { continue };
        let Some((data, start)) = source else {
            image.zero(*offset, *len_bytes).map_err(device_failed("building a state"))?;
            continue;
        };
        let bytes = &data[*start..*start + *len_bytes as usize];
        for (nr, sector) in bytes.chunks(SECTOR as usize).enumerate() {
            if torn.is_none_or(|torn| torn.sectors >> (nr % 8) & 1 == 1) {
                let at = offset + nr as u64 * SECTOR;
                image.write(sector, at).map_err(device_failed("building a state"))?;
            }
        }
    }
    Ok(())
}
