//! Volumes, files and patchgroups as handles: each owns what it refers to, may be used in any thread,
//! and is closed by a call that reports the result. Other languages reach weft by them, and programs
//! that would rather call `volume.open_file(path)` than walk inodes.
//!
//! ```
//! use weft::vfs::OpenFlags;
//! use weft::{Group, Options, Volume};
//!
//! # let dir = tempfile::tempdir()?;
//! # let image = dir.path().join("v.img");
//! # let image = image.to_str().ok_or("UTF-8")?;
//! weft::mkfs::make_named(image, "ext2", Some(16 << 20), "", false)?;
//! let volume = Volume::open(image, &Options::default())?;
//!
//! // `copy` is never durable later than the removal of `original`, and no call waits for the disk.
//! let copied = volume.group()?;
//! copied.enter_for(|| volume.write_file(b"/copy", b"text", 0o644))??;
//! let removed = volume.group()?;
//! removed.depend(&copied)?;
//! removed.enter_for(|| volume.write_file(b"/original", b"", 0o644))??;
//! removed.sync()?;
//! assert!(copied.is_durable()?);
//!
//! let file = volume.open_file(b"/copy", OpenFlags::READ, None)?;
//! let mut text = [0; 16];
//! assert_eq!(file.read_at(0, &mut text)?, 4);
//! volume.close()?;
//! assert!(file.read_at(0, &mut text).is_err()); // its volume is closed
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod file;
mod group;
mod volume;

pub use file::File;
pub use group::Group;
pub use volume::Volume;
