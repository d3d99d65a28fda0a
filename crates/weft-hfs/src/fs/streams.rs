//! HFS as a [`MacVolume`].

use super::hfs::Hfs;
use super::node::{Known, plain};
use super::xattr::finder_info;
use crate::interchange::Meta;
use crate::layout::{DInfo, DXInfo, FInfo, FXInfo, FileFlags, Fork, Name, get};
use crate::streams::{MacVolume, VolumeMeta};
use weft_vfs::{Ino, Result};

impl MacVolume for Hfs {
    fn meta(&self, ino: Ino) -> Result<Meta> {
        let id = plain(ino)?;
        let (known, name) = self.look(|st, s| {
            let known = st.known(s, id)?;
            let name = match st.nodes.get(&id).and_then(|node| node.file.as_ref()) {
                Some(file) => file.name,
                // A removed folder has no thread.
                None => st.vol.folder(s, id).map_or(Name::EMPTY, |(key, _)| key.name),
            };
            Ok((known, name))
        })?;
        let mut meta = Meta {
            name: name.as_bytes().to_vec(),
            finder_info: finder_info(&known),
            ..Meta::default()
        };
        (meta.created, meta.modified, meta.backed_up) = match &known {
            Known::Folder(dir) => (dir.created, dir.modified, dir.backed_up),
            Known::File(file) => (file.created, file.modified, file.backed_up),
        };
        if let Known::File(file) = known {
            meta.locked = file.flags.contains(FileFlags::LOCKED);
            meta.data_bytes = u64::from(file.fork(Fork::Data).len_bytes);
            meta.resource_bytes = u64::from(file.fork(Fork::Resource).len_bytes);
        }
        Ok(meta)
    }

    fn set_meta(&self, ino: Ino, meta: &Meta) -> Result<()> {
        let id = plain(ino)?;
        let (first, second) = (get(&meta.finder_info, 0), get(&meta.finder_info, 16));
        Ok(self.change(|st, s| {
            let patch = match st.known(s, id)? {
                Known::Folder(_) => st.vol.change_folder(s, id, |dir| {
                    dir.info = DInfo::parse(&first);
                    dir.xinfo = DXInfo::parse(&second);
                    (dir.created, dir.modified) = (meta.created, meta.modified);
                    dir.backed_up = meta.backed_up;
                })?,
                Known::File(_) => st.with_file(s, id, |vol, s, file| {
                    vol.change_file(s, file, |record| {
                        record.info = FInfo::parse(&first);
                        record.xinfo = FXInfo::parse(&second);
                        (record.created, record.modified) = (meta.created, meta.modified);
                        record.backed_up = meta.backed_up;
                        record.flags.set(FileFlags::LOCKED, meta.locked);
                    })
                })?,
            };
            st.changes.note(s, id, patch)
        })?)
    }

    fn read_resource(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(self.do_read(plain(ino)?, Fork::Resource, offset, buf)?)
    }

    fn write_resource(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
        Ok(self.do_write(plain(ino)?, Fork::Resource, Some(offset), data)?)
    }

    fn set_resource_len(&self, ino: Ino, len_bytes: u64) -> Result<()> {
        Ok(self.do_set_len(plain(ino)?, Fork::Resource, len_bytes)?)
    }

    fn passed_over(&self) -> Vec<String> {
        self.damage()
    }

    fn volume_meta(&self) -> VolumeMeta {
        let st = self.lock();
        let mdb = st.vol.mdb();
        VolumeMeta {
            name: mdb.name.as_bytes().to_vec(),
            created: mdb.created,
            modified: mdb.modified,
            backed_up: mdb.backed_up,
            finder_info: Some(mdb.finder_info),
        }
    }

    fn set_volume_meta(&self, meta: &VolumeMeta) -> Result<()> {
        let old = self.volume_meta();
        if meta.name != old.name {
            self.set_label(&Name::new(&meta.name)?)?;
        }
        Ok(self.change(|st, _| {
            if let Some(words) = meta.finder_info {
                st.vol.set_finder_info(words);
            }
            st.vol.set_dates(meta.created, meta.backed_up);
            Ok(())
        })?)
    }
}
