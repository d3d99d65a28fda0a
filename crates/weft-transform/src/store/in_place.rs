//! In-place stages over another file.
//!
//! Nothing is buffered here: writes go straight to the file below, and are as atomic and durable as
//! they are there.

use weft_vfs::check_interrupt;

use super::{Atomic, Limits, SealedFile, Store, ZEROES_BYTES, known_len};
use crate::exec::Fused;
use crate::{Error, Io, Layer, Result, Shape};

/// The stage name in errors of the network as a whole.
const STAGE: &str = "network";

/// A file accessed through stages that work in place.
pub struct InPlace {
    below: Box<dyn Store>,
    read: Fused,
    write: Fused,
    /// The stages map zeroes to zeroes, so holes may stay holes.
    keeps_zeroes: bool,
}

impl std::fmt::Debug for InPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InPlace").field("read", &self.read).finish_non_exhaustive()
    }
}

impl InPlace {
    /// Opens `below` through `layers`, given from the stored file up.
    ///
    /// # Errors
    /// [`Error::Parameter`] if one of them does not work in place.
    pub fn new(below: Box<dyn Store>, layers: &[Layer]) -> Result<Self> {
        let fused = |io| {
            Fused::new(layers, io).ok_or_else(|| Error::Parameter {
                stage: STAGE.to_owned(),
                message: "a stage does not work in place".to_owned(),
            })
        };
        let keeps_zeroes = layers.iter().all(|layer| layer.stage.name() == "identity");
        Ok(Self { below, read: fused(Io::Read)?, write: fused(Io::Write)?, keeps_zeroes })
    }

    fn zero(&mut self, from: u64, to: u64) -> Result<()> {
        let mut at = from;
        while at < to {
            // What was extended so far reads as zeroes.
            check_interrupt()?;
            let len = super::within(at, ZEROES_BYTES, to);
            let mut zeroes = vec![0; len];
            self.write.apply(at, &mut zeroes)?;
            self.below.write_at(at, &zeroes)?;
            at += len as u64;
        }
        Ok(())
    }
}

impl Store for InPlace {
    fn len_bytes(&mut self) -> Result<Option<u64>> {
        self.below.len_bytes()
    }

    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let got = self.below.read_at(offset, buf)?;
        let data = buf.get_mut(..got).unwrap_or_default();
        self.read.apply(offset, data)?;
        Ok(got)
    }

    fn write_at(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        if !self.keeps_zeroes {
            let len = known_len(&mut *self.below, STAGE)?;
            self.zero(len, offset)?;
        }
        let mut data = data.to_vec();
        self.write.apply(offset, &mut data)?;
        self.below.write_at(offset, &data)
    }

    fn set_len(&mut self, len_bytes: u64) -> Result<()> {
        let len = known_len(&mut *self.below, STAGE)?;
        if len_bytes > len && !self.keeps_zeroes {
            return self.zero(len, len_bytes);
        }
        self.below.set_len(len_bytes)
    }

    fn begin(&mut self) -> Result<()> {
        self.below.begin()
    }

    fn commit(&mut self) -> Result<()> {
        self.below.commit()
    }

    fn atomic(&self) -> Option<Atomic> {
        self.below.atomic()
    }

    fn is_dirty(&self) -> bool {
        self.below.is_dirty()
    }

    fn release_buffers(&mut self) {
        self.below.release_buffers();
    }
}

/// Opens `store` through layers that stay in place; `is_new`: an empty file is new, not truncated.
pub(super) fn open_in_place(
    mut store: Box<dyn Store>,
    mut layers: &[Layer],
    limits: &Limits,
    is_new: bool,
) -> Result<Box<dyn Store>> {
    while let Some((first, rest)) = layers.split_first() {
        if matches!(first.stage.shape(), Shape::Sealed(_)) {
            store = Box::new(SealedFile::open(first.stage.clone(), store, limits, is_new)?);
            layers = rest;
        } else {
            let is_bytes = |layer: &&Layer| matches!(layer.stage.shape(), Shape::Bytes(_));
            let run = layers.iter().take_while(is_bytes).count().max(1);
            store = Box::new(InPlace::new(store, &layers[..run])?);
            layers = &layers[run..];
        }
    }
    Ok(store)
}
