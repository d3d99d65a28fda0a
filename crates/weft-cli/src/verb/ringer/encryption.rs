//! `ringer encrypt` and `ringer key`: encrypted directories, through attributes of the mount. A key
//! is read from the local store itself, which only its owner may read; no attribute contains one.

use super::no_cell;
use super::xattr::{get, set};
use crate::cli::ringer::Encrypt;
use crate::failure::{DONE, Failure, Outcome};
use crate::output::Output;
use rustix::io::Errno;
use serde::Serialize;
use std::io::Read;
use std::path::{Path, PathBuf};
use weft::ringer::{ENCRYPTION_XATTR, KeyId};
use weft::ringer_client::{DirectoryKey, ENCRYPT, KEYS_XATTR, SHARED_KEYS_XATTR, parse_keys};

/// The longest text that is read as a key, in bytes.
const TEXT_MAX_BYTES: u64 = 4096;

/// The key of an encrypted directory or file.
pub(super) fn key_of(path: &Path) -> Result<Option<KeyId>, Failure> {
    let text = match get(path, ENCRYPTION_XATTR) {
        Err(Errno::NODATA) => return Ok(None),
        text => text.map_err(|e| no_cell(path, e))?,
    };
    let key = text.strip_prefix("v1 ").and_then(|text| text.split(' ').next()?.parse().ok());
    let unknown =
        || format!("{} is encrypted in an unknown format: a newer weft is needed", path.display());
    key.map(Some).ok_or_else(|| Failure::new(unknown()))
}

/// An encrypted directory, as JSON.
#[derive(Debug, Serialize)]
struct EncryptedReport {
    directory: String,
    key: String,
}

/// `ringer encrypt`.
pub(super) fn encrypt(out: Output, args: &Encrypt) -> Outcome {
    let dir = &args.directory;
    let shown = dir.display();
    set(dir, ENCRYPTION_XATTR, ENCRYPT).map_err(|e| match e {
        Errno::NOTEMPTY => Failure::new(format!(
            "{shown} is not empty: only an empty directory can be encrypted; encrypt a new one \
            and copy the files into it"
        )),
        Errno::NOTDIR => Failure::new(format!("{shown} is not a directory")),
        Errno::EXIST => Failure::new(format!("{shown} is already encrypted with its own key")),
        e => no_cell(dir, e),
    })?;
    let key = key_of(dir)?.ok_or_else(|| {
        Failure::new("protocol error: unexpected reply from the mount (another version of weft?)")
    })?;
    let report = EncryptedReport { directory: shown.to_string(), key: key.to_string() };
    out.confirm(&report, &format!("encrypted {shown} with the key {key}"))?;
    out.note(
        "only this machine has the key, and without it the files are lost: back it up with `key \
        export` or share it with `key share`",
    );
    Ok(DONE)
}

/// A key, as JSON.
#[derive(Debug, Serialize)]
struct KeyReport {
    key: String,
    /// The inode number of the directory that was encrypted with it.
    directory_inode: u64,
    /// The ids of the members that the directory is shared with; absent if that could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    shared_with: Option<Vec<String>>,
}

/// The path of a mount's local store.
fn store(mountpoint: &Path) -> Result<PathBuf, Failure> {
    let text = get(mountpoint, KEYS_XATTR).map_err(|e| no_cell(mountpoint, e))?;
    let path = text.lines().find_map(|line| line.strip_prefix("store\t"));
    path.map(PathBuf::from).ok_or_else(|| {
        Failure::new("protocol error: unexpected reply from the mount (another version of weft?)")
    })
}

pub(super) fn list(out: Output, mountpoint: &Path) -> Outcome {
    let text = get(mountpoint, SHARED_KEYS_XATTR).map_err(|e| no_cell(mountpoint, e))?;
    let reports = text.lines().filter_map(|line| {
        let mut words = line.split('\t').map(str::to_owned);
        let (key, inode) = (words.next()?, words.next()?);
        let shared: Vec<String> = words.collect();
        let shared_with = Some(shared).filter(|shared| !shared.contains(&"?".to_owned()));
        Some(KeyReport { key, directory_inode: inode.parse().unwrap_or(0), shared_with })
    });
    let reports: Vec<KeyReport> = reports.collect();
    out.report(&reports, |to| {
        for key in &reports {
            writeln!(to, "{}  of inode {}", key.key, key.directory_inode)?;
            for member in key.shared_with.iter().flatten() {
                writeln!(to, "  shared with {member}")?;
            }
        }
        Ok(())
    })?;
    Ok(DONE)
}

pub(super) fn export(out: Output, directory: &Path) -> Outcome {
    let shown = directory.display();
    let id = key_of(directory)?;
    let id = id.ok_or_else(|| Failure::new(format!("{shown} is not encrypted")))?;
    let file = store(directory)?.join("keys");
    let text = std::fs::read_to_string(&file);
    let text = text.map_err(|e| Failure::new(format!("{}: {e}", file.display())))?;
    let damaged = |(line, e)| Failure::new(format!("line {line} of {}: {e}", file.display()));
    let all = parse_keys(&text).map_err(damaged)?;
    let key = all.iter().find(|key| key.id() == id);
    let key = key
        .ok_or_else(|| Failure::new(format!("this mount does not have the key {id} of {shown}")))?;
    let text = key.to_text();
    out.report(&serde_json::json!({ "key": id.to_string(), "text": text.as_str() }), |to| {
        writeln!(to, "{}", text.as_str())
    })?;
    Ok(DONE)
}

pub(super) fn import(out: Output, mountpoint: &Path, from: Option<&Path>) -> Outcome {
    let mut text = String::new();
    let read = match from {
        Some(path) => std::fs::File::open(path)
            .and_then(|file| file.take(TEXT_MAX_BYTES).read_to_string(&mut text))
            .map_err(|e| Failure::new(format!("{}: {e}", path.display()))),
        None => std::io::stdin()
            .take(TEXT_MAX_BYTES)
            .read_to_string(&mut text)
            .map_err(|e| Failure::new(format!("the key on standard input: {e}"))),
    };
    read?;
    // Checked here, because this error gives the reason.
    let key: DirectoryKey = text.parse().map_err(|e| Failure::new(format!("{e}")))?;
    set(mountpoint, KEYS_XATTR, key.to_text().as_bytes()).map_err(|e| match e {
        Errno::KEYREJECTED => Failure::new(format!(
            "the key is of cell {:016x}, which is not the one mounted on {}",
            key.cell,
            mountpoint.display()
        )),
        e => no_cell(mountpoint, e),
    })?;
    let report = KeyReport {
        key: key.id().to_string(),
        directory_inode: key.directory.0,
        shared_with: None,
    };
    out.confirm(&report, &format!("stored the key {} on this machine", key.id()))?;
    Ok(DONE)
}
