//! `ringer snapshot`: snapshots of directories, through an attribute of the mount.

use super::no_cell;
use super::xattr::{get, set};
use crate::cli::ringer::{Snapshot, SnapshotOf};
use crate::failure::{DONE, Failure, Outcome};
use crate::output::{Output, utc};
use rustix::io::Errno;
use serde::Serialize;
use std::os::unix::ffi::OsStrExt;
use weft::ringer_client::SNAPSHOTS_XATTR;
use weft::vfs::Time;

/// A snapshot, as JSON.
#[derive(Debug, Serialize)]
struct SnapshotReport {
    name: String,
    /// The time of the snapshot, in seconds since 1970.
    seconds: i64,
    /// The number of names in it.
    names: u64,
}

fn parse(line: &str) -> Option<SnapshotReport> {
    let mut parts = line.splitn(3, '\t');
    let seconds = parts.next()?.parse().ok()?;
    let names = parts.next()?.parse().ok()?;
    Some(SnapshotReport { name: parts.next()?.to_owned(), seconds, names })
}

/// `ringer snapshot`.
pub(super) fn snapshot(out: Output, args: &Snapshot) -> Outcome {
    let (SnapshotOf { directory, name }, verb, done) = match args {
        Snapshot::Create(of) => (of, "create", "made"),
        Snapshot::Remove(of) => (of, "remove", "removed"),
        Snapshot::List { directory } => {
            let text = get(directory, SNAPSHOTS_XATTR).map_err(|e| no_cell(directory, e))?;
            let reports: Vec<_> = text.lines().filter_map(parse).collect();
            out.report(&reports, |to| {
                reports.iter().try_for_each(|SnapshotReport { name, seconds, names }| {
                    let time = utc(Time { secs: *seconds, nanos: 0 });
                    writeln!(to, "{time}  {names:>8} names  {name}")
                })
            })?;
            if text.lines().last() == Some("more") {
                out.note("more snapshots exist than are listed");
            }
            return Ok(DONE);
        }
    };
    let text = [verb.as_bytes(), b" ", name.as_bytes()].concat();
    let shown = name.display();
    set(directory, SNAPSHOTS_XATTR, &text).map_err(|e| match e {
        Errno::EXIST => Failure::new(format!("snapshot '{shown}' already exists")),
        Errno::NOENT if verb == "remove" => Failure::new(format!("no such snapshot: '{shown}'")),
        Errno::NOTDIR => Failure::new(format!("{} is not a directory", directory.display())),
        Errno::FBIG => Failure::new(format!(
            "{} has more files than one snapshot holds: make snapshots of its subdirectories",
            directory.display()
        )),
        Errno::ROFS => Failure::new("cannot make a snapshot of a directory in a snapshot"),
        e => no_cell(directory, e),
    })?;
    let report = serde_json::json!({
        "directory": directory.display().to_string(),
        "name": name.to_string_lossy(),
    });
    out.confirm(&report, &format!("{}/.snapshots/{shown} {done}", directory.display()))?;
    Ok(DONE)
}
