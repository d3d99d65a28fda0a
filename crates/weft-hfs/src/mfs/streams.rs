//! MFS as a [`MacVolume`].

use super::fs::{Mfs, RESOURCE, ROOT};
use super::layout::VOLUME_NAME_MAX_BYTES;
use crate::interchange::Meta;
use crate::streams::{MacVolume, VolumeMeta};
use weft_vfs::{Error, Ino, Result};

impl MacVolume for Mfs {
    fn passed_over(&self) -> Vec<String> {
        self.damage.clone()
    }

    fn meta(&self, ino: Ino) -> Result<Meta> {
        let state = self.lock();
        if ino.0 == ROOT {
            let mdb = &state.mdb;
            return Ok(Meta {
                name: mdb.name.clone(),
                finder_info: [0; 32],
                created: mdb.created,
                modified: mdb.created,
                backed_up: mdb.backed_up,
                ..Meta::default()
            });
        }
        let entry = &state.file(ino.0)?.entry;
        let mut meta = Meta {
            name: entry.name.clone(),
            finder_info: [0; 32],
            created: entry.created,
            modified: entry.modified,
            locked: entry.locked,
            data_bytes: entry.data.len_bytes.into(),
            resource_bytes: entry.resource.len_bytes.into(),
            ..Meta::default()
        };
        meta.finder_info[..16].copy_from_slice(&entry.finder_info);
        Ok(meta)
    }

    fn set_meta(&self, ino: Ino, meta: &Meta) -> Result<()> {
        if ino.0 == ROOT {
            return Err(Error::Unsupported("MFS keeps nothing of its directory"));
        }
        self.change(|state, op| {
            let entry = &mut state.file_mut(ino.0)?.entry;
            entry.finder_info.copy_from_slice(&meta.finder_info[..16]);
            (entry.created, entry.modified) = (meta.created, meta.modified);
            entry.locked = meta.locked;
            state.write_entry(op, ino.0, &[]).map(|_| ())
        })
    }

    fn read_resource(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_fork(Self::of_file(ino)?, RESOURCE, offset, buf)
    }

    fn write_resource(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
        self.write_fork(Self::of_file(ino)?, RESOURCE, Some(offset), data)
    }

    fn set_resource_len(&self, ino: Ino, len_bytes: u64) -> Result<()> {
        self.set_len(Self::of_file(ino)?, RESOURCE, len_bytes)
    }

    fn volume_meta(&self) -> VolumeMeta {
        let state = self.lock();
        VolumeMeta {
            name: state.mdb.name.clone(),
            created: state.mdb.created,
            modified: 0,
            backed_up: state.mdb.backed_up,
            finder_info: None,
        }
    }

    fn set_volume_meta(&self, meta: &VolumeMeta) -> Result<()> {
        if meta.finder_info.is_some() {
            return Err(Error::Unsupported("MFS has no blessed folder"));
        }
        if meta.name.is_empty() || meta.name.contains(&b':') {
            return Err(Error::Invalid("a volume's name has no colon, and one letter at least"));
        }
        if meta.name.len() > VOLUME_NAME_MAX_BYTES {
            return Err(Error::NameTooLong);
        }
        self.change(|state, op| {
            state.mdb.name.clone_from(&meta.name);
            (state.mdb.created, state.mdb.backed_up) = (meta.created, meta.backed_up);
            state.write_counts(op).map(|_| ())
        })
    }
}
