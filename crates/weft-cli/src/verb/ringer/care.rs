//! `ringer backup`, `restore-cell` and `scrub`.

use super::xattr::{get, set};
use super::{addresses, failed, no_cell};
use crate::cli::ringer::{Backup, RestoreCell, Scrub};
use crate::failure::{DONE, Failure, Outcome};
use crate::output::{Output, count, human};
use rustix::io::Errno;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;
use weft::net::ClientTls;
use weft::ringer_client::SCRUB_XATTR;
use weft::ringer_net::{self as net, Observer};
use weft::ringer_server::backup::{self, Copied};

/// The exit code for errors in a copy, or for damaged blocks without another copy, as of fsck(8).
const SOMETHING_WRONG: u8 = 4;
/// The exit code for damage that was repaired, as of fsck(8).
const HEALED: u8 = 1;
/// The exit code for a check that failed, as of fsck(8).
const NOT_LOOKED_AT: u8 = 8;
/// The interval at which the progress of a scrub is read.
const LOOK: Duration = Duration::from_millis(100);

/// The result of a copy of a cell, as JSON.
#[derive(Debug, Serialize)]
struct CopyReport {
    file: String,
    records: u64,
    revision: u64,
    inodes: u64,
    problems: Vec<String>,
}

fn report(out: Output, file: &std::path::Path, copied: &Copied, done: &str) -> Outcome {
    let problems = copied.checked.problems.iter().map(|p| format!("{}: {}", p.code, p.text));
    let report = CopyReport {
        file: file.display().to_string(),
        records: copied.records,
        revision: copied.revision,
        inodes: copied.checked.rnodes,
        problems: problems.collect(),
    };
    let wrong = copied.checked.problem_count;
    out.report(&report, |to| {
        for problem in &report.problems {
            writeln!(to, "{problem}")?;
        }
        let inodes = count(report.inodes, "inode");
        writeln!(to, "{} {done}: {inodes}, revision {}", report.file, report.revision)
    })?;
    if wrong > 0 {
        out.note(&format!("the backup has {}, as the cell has", count(wrong, "problem")));
        return Ok(SOMETHING_WRONG);
    }
    Ok(DONE)
}

/// `ringer backup`.
pub(super) fn backup(out: Output, args: &Backup) -> Outcome {
    let tls = args.reaching.tls_certificates.as_deref().map(ClientTls::mutual).transpose();
    let tls = tls.map_err(failed)?;
    let mut whys = Vec::new();
    for server in addresses(&args.reaching.server)? {
        let copied = Observer::connect(&server, tls.as_ref())
            .and_then(|mut observer| backup::backup(&mut observer, &args.file));
        match copied {
            Ok(copied) => return report(out, &args.file, &copied, "is a copy of the cell"),
            // Another of several servers may own the cell.
            Err(e @ (net::Error::Standby { .. } | net::Error::Net(_))) => {
                whys.push(format!("{server}: {e}"));
            }
            Err(e) => return Err(failed(e)),
        }
    }
    Err(Failure::new(format!("cannot reach the server that owns the cell: {}", whys.join("; "))))
}

/// `ringer restore-cell`.
pub(super) fn restore(out: Output, args: &RestoreCell) -> Outcome {
    let copied = backup::restore(&args.backup, &args.cell).map_err(failed)?;
    let code = report(out, &args.cell, &copied, "is ready to be served")?;
    out.note(
        "clients that have seen a later state of the cell refuse to mount this copy without \
        --accept-older-cell",
    );
    Ok(code)
}

/// A damaged block, as JSON.
#[derive(Debug, Serialize)]
struct DamagedBlock {
    kind: String,
    inode: u64,
    block: String,
    healed: bool,
    /// The reason why it was not healed.
    #[serde(skip_serializing_if = "String::is_empty")]
    why: String,
}

/// The result of a scrub, as JSON.
#[derive(Debug, Serialize)]
struct ScrubReport {
    blocks: u64,
    bytes: u64,
    healed: u64,
    lost: u64,
    damaged: Vec<DamagedBlock>,
}

/// `ringer scrub`.
pub(super) fn scrub(out: Output, args: &Scrub) -> Outcome {
    let mount = &args.mountpoint;
    let not_looked = |e: Failure| Failure { code: NOT_LOOKED_AT, ..e };
    match set(mount, SCRUB_XATTR, b"start") {
        // A scrub that is already running serves as well.
        Ok(()) | Err(Errno::BUSY) => {}
        Err(e) => return Err(not_looked(no_cell(mount, e))),
    }
    let text = loop {
        let text = get(mount, SCRUB_XATTR).map_err(|e| not_looked(no_cell(mount, e)))?;
        if text.lines().next() != Some("state\trunning") {
            break text;
        }
        std::thread::sleep(LOOK);
    };
    let (mut values, mut damaged) = (BTreeMap::new(), Vec::new());
    for line in text.lines() {
        let parts: Vec<&str> = line.splitn(6, '\t').collect();
        match parts[..] {
            ["block", kind, inode, block, state, ref why @ ..] => damaged.push(DamagedBlock {
                kind: kind.to_owned(),
                inode: inode.parse().unwrap_or_default(),
                block: block.to_owned(),
                healed: state == "healed",
                why: why.concat(),
            }),
            [name, value] => drop(values.insert(name, value)),
            _ => {}
        }
    }
    let number = |name: &str| values.get(name).and_then(|v| v.parse().ok()).unwrap_or(0);
    if values.get("state") != Some(&"done") {
        let why = values.get("why").copied().unwrap_or("incomplete");
        return Err(not_looked(Failure::new(format!("{}: {why}", mount.display()))));
    }
    let report = ScrubReport {
        blocks: number("blocks"),
        bytes: number("bytes"),
        healed: number("healed"),
        lost: number("lost"),
        damaged,
    };
    out.report(&report, |to| {
        for DamagedBlock { kind, inode, block, healed, why } in &report.damaged {
            let state = if *healed { "repaired" } else { "lost" };
            let why = if why.is_empty() { String::new() } else { format!(": {why}") };
            writeln!(to, "{kind} block {block} of inode {inode}: damaged, {state}{why}")?;
        }
        let (blocks, bytes) = (count(report.blocks, "block"), human(report.bytes));
        let (healed, lost) = (report.healed, report.lost);
        writeln!(to, "{blocks}, {bytes}: {healed} repaired, {lost} damaged and not repairable")
    })?;
    Ok(match (report.healed, report.lost) {
        (0, 0) => DONE,
        (_, 0) => HEALED,
        _ => SOMETHING_WRONG,
    })
}
