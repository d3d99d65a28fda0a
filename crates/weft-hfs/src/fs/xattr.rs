//! Resource forks and Finder info as extended attributes.

use super::hfs::Hfs;
use super::node::{Known, plain};
use crate::Error;
use crate::layout::{DInfo, DXInfo, FInfo, FXInfo, Fork, get};
use weft_vfs::{Error as FsError, Ino, Result as FsResult, XattrSet};

/// The longest value that Linux accepts.
const VALUE_MAX_BYTES: usize = 64 << 10;

/// The supported attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    ResourceFork,
    FinderInfo,
    Type,
    Creator,
}

const NAMES: [(&[u8], Which); 4] = [
    (b"user.com.apple.ResourceFork", Which::ResourceFork),
    (b"user.com.apple.FinderInfo", Which::FinderInfo),
    (b"user.hfs.type", Which::Type),
    (b"user.hfs.creator", Which::Creator),
];

fn which(name: &[u8]) -> Option<Which> {
    NAMES.iter().find(|(n, _)| *n == name).map(|(_, which)| *which)
}

/// Returns the 32 bytes of an item's Finder info.
pub(super) fn finder_info(known: &Known) -> [u8; 32] {
    let mut raw = [0; 32];
    let (first, second) = match known {
        Known::File(file) => (file.info.encode(), file.xinfo.encode()),
        Known::Folder(dir) => (dir.info.encode(), dir.xinfo.encode()),
    };
    crate::layout::put(&mut raw, 0, &first);
    crate::layout::put(&mut raw, 16, &second);
    raw
}

impl Hfs {
    pub(super) fn do_getxattr(&self, ino: Ino, name: &[u8]) -> FsResult<Vec<u8>> {
        let id = plain(ino)?;
        let Some(which) = which(name) else { return Err(FsError::NoAttribute) };
        let known = self.look(|st, s| st.known(s, id))?;
        let value = match (which, &known) {
            (Which::ResourceFork, Known::File(file)) => {
                let len = file.fork(Fork::Resource).len_bytes as usize;
                if len > VALUE_MAX_BYTES {
                    return Err(FsError::Range);
                }
                let mut value = vec![0; len];
                let got = self.do_read(id, Fork::Resource, 0, &mut value)?;
                value.truncate(got);
                value
            }
            (Which::FinderInfo, known) => {
                let raw = finder_info(known);
                if raw == [0; 32] { Vec::new() } else { raw.to_vec() }
            }
            (Which::Type, Known::File(file)) => short(file.info.file_type),
            (Which::Creator, Known::File(file)) => short(file.info.creator),
            (_, Known::Folder(_)) => Vec::new(),
        };
        if value.is_empty() { Err(FsError::NoAttribute) } else { Ok(value) }
    }

    pub(super) fn do_listxattr(&self, ino: Ino) -> FsResult<Vec<Vec<u8>>> {
        let id = plain(ino)?;
        let known = self.look(|st, s| st.known(s, id))?;
        let there = |which| match (which, &known) {
            (Which::ResourceFork, Known::File(file)) => file.fork(Fork::Resource).len_bytes > 0,
            (Which::FinderInfo, known) => finder_info(known) != [0; 32],
            (Which::Type, Known::File(file)) => file.info.file_type != [0; 4],
            (Which::Creator, Known::File(file)) => file.info.creator != [0; 4],
            (_, Known::Folder(_)) => false,
        };
        Ok(NAMES.iter().filter(|(_, which)| there(*which)).map(|(n, _)| n.to_vec()).collect())
    }

    /// Sets an attribute, or removes it.
    pub(super) fn do_setxattr(
        &self,
        ino: Ino,
        name: &[u8],
        value: Option<&[u8]>,
        how: XattrSet,
    ) -> FsResult<()> {
        let id = plain(ino)?;
        let Some(which) = which(name) else {
            return Err(if value.is_none() {
                FsError::NoAttribute
            } else {
                FsError::Unsupported("HFS keeps resource fork, Finder info, type and creator only")
            });
        };
        let there = match self.do_getxattr(ino, name) {
            Ok(_) | Err(FsError::Range) => true,
            Err(FsError::NoAttribute) => false,
            Err(e) => return Err(e),
        };
        match (how, there, value) {
            (XattrSet::Create, true, _) => return Err(FsError::Exists),
            (XattrSet::Replace, false, _) | (_, false, None) => return Err(FsError::NoAttribute),
            _ => {}
        }
        let value = value.unwrap_or(&[]);
        if value.len() > VALUE_MAX_BYTES {
            return Err(FsError::TooLarge);
        }
        match which {
            Which::ResourceFork => {
                let known = self.look(|st, s| st.known(s, id))?;
                if matches!(known, Known::Folder(_)) {
                    return Err(FsError::Unsupported("a folder has no resource fork"));
                }
                // Allocates the space first: the attribute is either written whole or left as it
                // was.
                self.change(|st, s| {
                    st.with_file(s, id, |vol, s, file| {
                        vol.grow(s, file, Fork::Resource, value.len() as u64)
                    })
                })?;
                self.do_set_len(id, Fork::Resource, value.len() as u64)?;
                self.do_write(id, Fork::Resource, Some(0), value)?;
                Ok(())
            }
            Which::FinderInfo => {
                let raw: [u8; 32] = match value.len() {
                    0 => [0; 32],
                    32 => get(value, 0),
                    _ => return Err(FsError::Invalid("Finder info has 32 bytes")),
                };
                self.set_finder_info(id, move |info| *info = raw)
            }
            Which::Type | Which::Creator => {
                if value.len() > 4 {
                    return Err(FsError::Invalid("type and creator have 4 bytes"));
                }
                let mut code = if value.is_empty() { [0; 4] } else { [b' '; 4] };
                crate::layout::put(&mut code, 0, value);
                let at = if which == Which::Type { 0 } else { 4 };
                if matches!(self.look(|st, s| st.known(s, id))?, Known::Folder(_)) {
                    return Err(FsError::Unsupported("a folder has no type"));
                }
                self.set_finder_info(id, move |info| crate::layout::put(info, at, &code))
            }
        }
    }

    /// Changes the 32 bytes of Finder info of an item.
    pub(super) fn set_finder_info(&self, id: u32, change: impl Fn(&mut [u8; 32])) -> FsResult<()> {
        Ok(self.change(|st, s| {
            let known = st.known(s, id)?;
            if st.nodes.get(&id).is_some_and(|n| n.gone.is_some() && n.file.is_none()) {
                return Err(Error::NotFound);
            }
            let mut raw = finder_info(&known);
            change(&mut raw);
            let (first, second) = (get(&raw, 0), get(&raw, 16));
            let patch = match known {
                Known::Folder(_) => st.vol.change_folder(s, id, |dir| {
                    dir.info = DInfo::parse(&first);
                    dir.xinfo = DXInfo::parse(&second);
                })?,
                Known::File(_) => st.with_file(s, id, |vol, s, file| {
                    vol.change_file(s, file, |record| {
                        record.info = FInfo::parse(&first);
                        record.xinfo = FXInfo::parse(&second);
                    })
                })?,
            };
            st.changes.note(s, id, patch)
        })?)
    }
}

/// Returns a type or creator; a code of zeroes counts as none.
fn short(code: [u8; 4]) -> Vec<u8> {
    if code == [0; 4] { Vec::new() } else { code.to_vec() }
}
