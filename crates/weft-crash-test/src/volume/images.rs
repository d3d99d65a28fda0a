//! The trees of states of a volume, built from its blocks.

use weft_block::Image;

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
    upto: usize,
}

/// The trees of an epoch's states.
pub(crate) struct VolumeEpoch<'a> {
    units: &'a Units,
    kind: &'a VolumeKind,
    durable: Image,
    /// The blocks from the first pending one on, with its place if it is one.
    rest: Vec<(Option<usize>, UnitNr)>,
}

impl<'a> VolumeImages<'a> {
    pub(crate) fn new(volume: &'a Volume, units: &'a Units) -> Self {
        Self { units, kind: &volume.kind, durable: volume.image.clone(), upto: 0 }
    }

    /// Prepares the trees of an epoch; epochs must be given in order.
    pub(crate) fn epoch(&mut self, epoch: &Epoch) -> Result<VolumeEpoch<'a>> {
        let units = self.units;
        let done = units.units.partition_point(|unit| unit.call < epoch.end);
        let first = epoch.pending.first().map_or(done, |unit| unit.index());
        while self.upto < first.min(done) {
            write(&mut self.durable, units, UnitNr(self.upto as u32), None)?;
            self.upto += 1;
        }
        let place = |unit: &UnitNr| epoch.pending.binary_search(unit).ok();
        let rest = (first..done).map(|unit| UnitNr(unit as u32));
        let rest = rest.map(|unit| (place(&unit), unit)).collect();
        Ok(VolumeEpoch { units, kind: self.kind, durable: self.durable.clone(), rest })
    }
}

impl VolumeEpoch<'_> {
    /// The findings of weft on the volume in a state.
    pub(crate) fn built(&self, state: &State) -> Result<Built> {
        Ok(self.kind.built(self.image(state)?))
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
