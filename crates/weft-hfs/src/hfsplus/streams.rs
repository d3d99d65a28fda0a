//! HFS Plus as a [`MacVolume`], to read.
//!
//! Dates are returned in UTC, as stored: the local time of their creation is not kept.

use super::fs::HfsPlus;
use super::volume::Fork;
use crate::interchange::Meta;
use crate::macroman;
use crate::streams::{MacVolume, VolumeMeta};
use weft_vfs::{Error, Ino, Result};

impl MacVolume for HfsPlus {
    fn meta(&self, ino: Ino) -> Result<Meta> {
        let item = self.item(ino)?;
        Ok(Meta {
            // Returning it would cost reading a thread; the caller has the name.
            name: Vec::new(),
            finder_info: item.finder_info,
            created: item.created,
            modified: item.modified,
            data_bytes: if item.is_folder { 0 } else { item.data.len_bytes },
            resource_bytes: if item.is_folder { 0 } else { item.resource.len_bytes },
            ..Meta::default()
        })
    }

    fn set_meta(&self, _: Ino, _: &Meta) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn read_resource(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let item = self.item(ino)?;
        if item.is_folder {
            return Err(Error::IsADirectory);
        }
        self.volume().read(&item, Fork::Resource, offset, buf)
    }

    fn write_resource(&self, _: Ino, _: u64, _: &[u8]) -> Result<usize> {
        Err(Error::ReadOnly)
    }

    fn set_resource_len(&self, _: Ino, _: u64) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn cautions(&self) -> Vec<String> {
        let pending = self.volume().has_pending_journal();
        let what = "the volume's journal holds changes that are not at their places, and weft does \
                    not replay it: what is shown may be older, or not fit together";
        if pending { vec![what.to_owned()] } else { Vec::new() }
    }

    fn volume_meta(&self) -> VolumeMeta {
        let header = &self.volume().header;
        VolumeMeta {
            name: macroman::name_from_unix(self.name().as_bytes())
                .unwrap_or_else(|_| b"HFS Plus".to_vec()),
            created: header.created,
            modified: header.modified,
            backed_up: header.backed_up,
            finder_info: Some(header.finder_info),
        }
    }

    fn set_volume_meta(&self, _: &VolumeMeta) -> Result<()> {
        Err(Error::ReadOnly)
    }
}
