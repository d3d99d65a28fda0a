//! `ringer history` and `ringer restore`.

use super::no_cell;
use super::xattr::{get, set};
use crate::cli::ringer::{History, Restore};
use crate::failure::{DONE, Failure, Outcome};
use crate::output::{Output, human, utc};
use rustix::io::Errno;
use serde::Serialize;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use weft::ringer_client::{HISTORY_XATTR, RESTORE_XATTR};
use weft::vfs::Time;

/// An earlier version of a file, as JSON.
#[derive(Debug, Serialize)]
struct VersionReport {
    version: u64,
    /// Its last change, in seconds since 1970.
    seconds: i64,
    bytes: u64,
}

/// A file that was removed, as JSON.
#[derive(Debug, Serialize)]
struct RemovedReport {
    /// Its number, for `restore --removed`.
    removed: u64,
    /// The time of the removal, in seconds since 1970.
    seconds: i64,
    bytes: u64,
    /// The path that it had, relative to the directory of the query.
    path: String,
}

#[derive(Debug, Default, Serialize)]
struct HistoryReport {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    versions: Vec<VersionReport>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    removed: Vec<RemovedReport>,
    /// Whether the list is complete.
    complete: bool,
}

fn listed(path: &Path) -> Result<HistoryReport, Failure> {
    let text = get(path, HISTORY_XATTR).map_err(|e| no_cell(path, e))?;
    let mut report = HistoryReport { complete: true, ..HistoryReport::default() };
    for line in text.lines() {
        let mut parts = line.splitn(5, '\t');
        let kind = parts.next();
        let number = parts.next().and_then(|n| n.parse().ok());
        let seconds = parts.next().and_then(|n| n.parse().ok());
        let bytes = parts.next().and_then(|n| n.parse().ok());
        match (kind, number, seconds, bytes, parts.next()) {
            (Some("version"), Some(version), Some(seconds), Some(bytes), None) => {
                report.versions.push(VersionReport { version, seconds, bytes });
            }
            (Some("removed"), Some(removed), Some(seconds), Some(bytes), Some(path)) => {
                let path = path.trim_start_matches('/').to_owned();
                report.removed.push(RemovedReport { removed, seconds, bytes, path });
            }
            _ => report.complete = false,
        }
    }
    Ok(report)
}

/// `ringer history`.
pub(super) fn history(out: Output, args: &History) -> Outcome {
    let report = listed(&args.path)?;
    out.report(&report, |to| {
        let at = |secs| utc(Time { secs, nanos: 0 });
        for v in &report.versions {
            writeln!(to, "{}  {}  {}", v.version, at(v.seconds), human(v.bytes))?;
        }
        for r in &report.removed {
            writeln!(to, "{}  {}  {}  {}", r.removed, at(r.seconds), human(r.bytes), r.path)?;
        }
        Ok(())
    })?;
    if !report.complete {
        out.note("more versions exist");
    }
    Ok(DONE)
}

fn failed(path: &Path, e: Errno) -> Failure {
    match e {
        Errno::NOENT => Failure::new(format!("no such version of {}", path.display())),
        Errno::IO => Failure::new(format!(
            "{}: no connected client or archive has its blocks (see the log)",
            path.display()
        )),
        e => no_cell(path, e),
    }
}

/// `ringer restore`.
pub(super) fn restore(out: Output, args: &Restore) -> Outcome {
    let path = &args.path;
    let (inode, number, target) = match (args.version, args.removed, &args.copy) {
        (Some(version), None, None) => {
            set(path, RESTORE_XATTR, version.to_string().as_bytes())
                .map_err(|e| failed(path, e))?;
            return confirm(out, path);
        }
        (Some(version), None, Some(copy)) => (path.metadata()?.ino(), version, copy.clone()),
        (None, Some(inode), Some(copy)) => (inode, 0, copy.clone()),
        (None, Some(inode), None) => {
            let listed = listed(path)?;
            let found = listed.removed.iter().find(|r| r.removed == inode);
            let found = found.ok_or_else(|| failed(path, Errno::NOENT))?;
            (inode, 0, path.join(&found.path))
        }
        _ => return Err(Failure::usage("give --version or --removed")),
    };
    let name = target.file_name().ok_or_else(|| Failure::usage("--as needs the name of a file"))?;
    let dir = match target.parent() {
        Some(dir) if dir != Path::new("") => dir,
        _ => Path::new("."),
    };
    let text = [format!("{inode} {number} ").as_bytes(), OsStr::as_bytes(name)].concat();
    set(dir, RESTORE_XATTR, &text).map_err(|e| match e {
        Errno::NOENT if !dir.exists() => {
            Failure::new(format!("{}: no such directory", dir.display()))
        }
        e => failed(&target, e),
    })?;
    confirm(out, &target)
}

fn confirm(out: Output, path: &Path) -> Outcome {
    let report = serde_json::json!({ "restored": path.display().to_string() });
    out.confirm(&report, &format!("restored {}", path.display()))?;
    Ok(DONE)
}
