//! ext2 and ext3 volumes in a stack.

use crate::image::Image;
use crate::info::superblock;
use crate::open::{Opened, Options, Volume};
use crate::source::open_source;
use crate::{Error, Order, Result};
use std::sync::Arc;
use weft_block::OpenMode;
use weft_ext2::layout::Compat;
use weft_ext2::{Atime, Ext2, OpenOptions};
use weft_patch::{Engine, JournalMode, Policy};

impl Volume for Ext2 {
    fn engine(&self) -> Option<&Engine> {
        Some(self.engine())
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only()
    }

    fn is_being_checked(&self) -> bool {
        self.is_being_checked()
    }
}

/// Opens an ext2 or ext3 volume.
pub(crate) fn open(source: &str, image: &Image, options: &Options) -> Result<Opened> {
    let sb = superblock(source, &*image.device)?;
    let reachable = sb.journal_inode != 0 || options.journal.is_some();
    let has_journal = sb.features.compat.contains(Compat::HAS_JOURNAL) && reachable;
    let journal_mode = if options.read_only { OpenMode::READ_ONLY } else { OpenMode::READ_WRITE };
    let journal = options.journal.as_ref().map(|j| open_source(j, journal_mode)).transpose()?;
    let order = match options.order {
        Some(order) => order,
        None if has_journal => Order(Policy::Journal(JournalMode::Ordered)),
        None => Order(Policy::Soft),
    };
    if matches!(order.0, Policy::Journal(_)) && !has_journal {
        return Err(Error::Invalid(format!(
            "{source} has no journal to order writes by ({order}): take the order soft, name the \
             file or device of its journal, or make an ext3 volume (tune2fs -j adds a \
             journal to an ext2 one)"
        )));
    }
    let mut engine = options.engine.clone();
    engine.policy = order.0;
    let open = OpenOptions {
        read_only: options.read_only,
        engine,
        atime: if options.no_atime { Atime::Never } else { Atime::Relative },
        mount_point: options.mount_point.clone(),
        journal,
        ..OpenOptions::default()
    };
    let volume = Ext2::open(Arc::clone(&image.device), open).map_err(|e| {
        let mut message = e.to_string();
        if matches!(e, weft_ext2::Error::Corrupt { .. }) {
            message.push_str("; weft fsck checks the volume, and weft fsck --repair repairs it");
        }
        Error::Volume { image: source.to_owned(), message }
    })?;
    Ok((order, volume))
}
