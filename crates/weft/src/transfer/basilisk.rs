//! Forks as Basilisk II and SheepShaver keep them in the folder that they share with their host:
//! beside `NAME`, the data fork, the resource fork in `.rsrc/NAME` and the 32 bytes of Finder
//! information in `.finf/NAME` (16 of a file or folder, then 16 more, as in HFS). There are no
//! dates and no lock.

use super::made::Made;
use crate::{Error, Result};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};
use weft_hfs::interchange::Meta;
use weft_hfs::streams::{MacVolume, ResourceReader, ResourceWriter};
use weft_vfs::Ino;

/// The directories of companions. They are not part of the Macintosh's tree.
pub(super) const DIRS: [&[u8]; 2] = [b".rsrc", b".finf"];

/// The path of a file's companion in the directory `dir` beside it.
fn companion(host: &Path, dir: &str) -> Option<PathBuf> {
    Some(host.parent()?.join(dir).join(host.file_name()?))
}

/// Returns true if the directories in `dir` are those of companions: each file in them belongs to
/// one beside them, and Finder information has its length.
pub(super) fn is_layout(dir: &Path) -> bool {
    let all = |name: &str, fits: &dyn Fn(u64) -> bool| -> Option<usize> {
        let mut count = 0;
        for entry in std::fs::read_dir(dir.join(name)).ok()? {
            let entry = entry.ok()?;
            let meta = entry.metadata().ok()?;
            let beside = std::fs::symlink_metadata(dir.join(entry.file_name()));
            if !meta.is_file() || !fits(meta.len()) || beside.is_err() {
                return None;
            }
            count += 1;
        }
        Some(count)
    };
    let has = |name: &str| dir.join(name).is_dir();
    let info = all(".finf", &|len| len == 16 || len == 32);
    let forks = if has(".rsrc") { all(".rsrc", &|_| true) } else { Some(0) };
    info.is_some_and(|count| count > 0) && forks.is_some()
}

/// Returns messages for the companions in a directory of them whose files are not among `names`.
pub(super) fn without_files(dir: &Path, names: &[OsString]) -> Result<Vec<String>> {
    let failed = |e| Error::host("list", dir, e);
    let mut left = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if !names.contains(&entry.file_name()) {
            let path = entry.path();
            left.push(format!("{} is left out: its file is not there", path.display()));
        }
    }
    Ok(left)
}

fn told(action: &'static str, path: &Path) -> impl Fn(std::io::Error) -> Error {
    move |e| Error::host(action, path, e)
}

/// Copies the companions of `host` into a file or folder; returns the bytes of the resource fork.
pub(super) fn read(
    volume: &dyn MacVolume,
    ino: Ino,
    host: &Path,
    is_dir: bool,
    meta: &mut Meta,
) -> Result<u64> {
    if let Some(path) = companion(host, ".finf").filter(|path| path.is_file()) {
        let raw = std::fs::read(&path).map_err(told("read", &path))?;
        // Old files have only the first half.
        if let Some(first) = raw.get(..16) {
            let more = raw.get(16..32).unwrap_or(&[0; 16]);
            meta.finder_info[..16].copy_from_slice(first);
            meta.finder_info[16..].copy_from_slice(more);
        }
    }
    let Some(path) = companion(host, ".rsrc").filter(|path| !is_dir && path.is_file()) else {
        return Ok(0);
    };
    let mut from =
        BufReader::with_capacity(256 << 10, File::open(&path).map_err(told("read", &path))?);
    let mut to = ResourceWriter::new(volume, ino);
    let copied = std::io::copy(&mut from, &mut to);
    to.finish().map_err(|e| Error::file("write", path.as_os_str().as_encoded_bytes(), e))?;
    copied.map_err(told("copy", &path))
}

/// Writes the companions of a file or folder beside its data fork, which is at `host`.
pub(super) fn write(
    volume: &dyn MacVolume,
    ino: Ino,
    host: &Path,
    meta: &Meta,
    made: &mut Made,
) -> Result<()> {
    let place = |dir: &str, made: &Made| -> Result<Option<PathBuf>> {
        let Some(path) = companion(host, dir) else { return Ok(None) };
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).map_err(told("make", dir))?;
        }
        if !made.clear(&path)? {
            let e = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
            return Err(Error::host("make", path, e));
        }
        Ok(Some(path))
    };
    if meta.finder_info != [0; 32]
        && let Some(path) = place(".finf", made)?
    {
        std::fs::write(&path, meta.finder_info).map_err(told("write", &path))?;
        made.add(&path)?;
    }
    if meta.resource_bytes > 0
        && let Some(path) = place(".rsrc", made)?
    {
        let file = File::create_new(&path).map_err(told("make", &path))?;
        let mut to = BufWriter::with_capacity(256 << 10, file);
        let mut from = ResourceReader::new(volume, ino);
        std::io::copy(&mut from, &mut to).map_err(told("copy", &path))?;
        to.into_inner().map_err(|e| Error::host("write", &path, e.into_error()))?;
        made.add(&path)?;
    }
    Ok(())
}
