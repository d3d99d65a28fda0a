//! `ringer attach` and `detach`, and the state of attached cells as a mount reports it.

use super::{FoundReport, UNEXPECTED, addresses, ask, no_cell, xattr};
use crate::cli::ringer::{Attach, Detach, Reaching};
use crate::failure::{DONE, Failure, Outcome};
use crate::output::Output;
use rustix::io::Errno;
use serde::Serialize;
use std::path::Path;
use weft::net::Address;
use weft::ringer::{CELL_MOUNT_XATTR, CellId, CellMount};
use weft::ringer_client::{CELLS_XATTR, COMPLETE_XATTR, STORE_XATTR};
use weft::ringer_net::{Answer, Ask};

/// An attached cell that a mount has entered, as JSON.
#[derive(Debug, Serialize)]
pub(super) struct InnerCell {
    pub(super) cell: String,
    /// `connected`, `away`, or `closed` if it could not be opened.
    pub(super) state: String,
    pub(super) servers: String,
    pub(super) changes_not_sent: u64,
    pub(super) conflicts: u64,
    /// The reason why it is not connected, if known.
    pub(super) why: String,
}

impl InnerCell {
    fn parse(line: &str) -> Option<Self> {
        let mut parts = line.splitn(6, '\t');
        let mut next = || parts.next();
        Some(Self {
            cell: next()?.to_owned(),
            state: next()?.to_owned(),
            changes_not_sent: next()?.parse().ok()?,
            conflicts: next()?.parse().ok()?,
            servers: next()?.to_owned(),
            why: next()?.to_owned(),
        })
    }
}

/// The attached cells of a mount; none for another directory.
pub(super) fn inside(mountpoint: &Path) -> Vec<InnerCell> {
    let text = xattr::get(mountpoint, CELLS_XATTR).unwrap_or_default();
    text.lines().filter_map(InnerCell::parse).collect()
}

/// The number of the cell whose root a directory is, as its mount reports it.
pub(super) fn number_at(mountpoint: &Path) -> Result<String, Errno> {
    let text = xattr::get(mountpoint, STORE_XATTR)?;
    let number = text.lines().find_map(|line| line.strip_prefix("cell\t")?.parse().ok());
    Ok(CellId(number.unwrap_or(0)).to_string())
}

/// The number of a server's cell.
pub(super) fn number_of(reaching: &Reaching) -> Result<CellId, Failure> {
    match ask(reaching, &Ask::Status {})? {
        Answer::Status { status } => Ok(CellId(status.cell)),
        _ => Err(Failure::new(UNEXPECTED)),
    }
}

/// The outcome of a search in one cell, as JSON.
#[derive(Debug, Serialize)]
pub(super) struct AskedCell {
    cell: String,
    /// The path of the cell, from the mount's root.
    path: String,
    /// `complete`, `cut`, `pruned`, `unreachable` or `refused`.
    state: String,
    found: u64,
    /// The reason why not all results are listed, if so.
    why: String,
}

impl AskedCell {
    fn parse(line: &str) -> Option<Self> {
        let mut parts = line.splitn(5, '\t');
        let mut next = || parts.next();
        Some(Self {
            cell: next()?.to_owned(),
            state: next()?.to_owned(),
            found: next()?.parse().ok()?,
            path: next()?.to_owned(),
            why: next()?.to_owned(),
        })
    }
}

/// `ringer search` of a mount: attached cells are searched too.
pub(super) fn search(out: Output, mountpoint: &Path, query: &str, limit: u32) -> Outcome {
    let fails = |e: std::io::Error| Failure::new(format!("{}: {e}", mountpoint.display()));
    xattr::get(mountpoint, STORE_XATTR).map_err(|e| no_cell(mountpoint, e))?;
    if query.contains('/') {
        return Err(Failure::usage("conditions on a mount cannot contain '/'"));
    }
    let folder = mountpoint.join(".query").join(query);
    let mut paths = Vec::new();
    for link in std::fs::read_dir(&folder).map_err(fails)? {
        let target = match std::fs::read_link(link.map_err(fails)?.path()) {
            Ok(target) => target,
            // The file no longer matches.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
            Err(e) => return Err(fails(e)),
        };
        let target = target.to_string_lossy().into_owned();
        paths.push(target.strip_prefix("../..").map(str::to_owned).unwrap_or(target));
    }
    paths.sort_unstable();
    let has_all = xattr::get(&folder, COMPLETE_XATTR).is_ok_and(|text| text == "1");
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let complete = has_all && paths.len() <= limit;
    paths.truncate(limit);
    let asked = xattr::get(&folder, CELLS_XATTR).unwrap_or_default();
    let cells = asked.lines().filter_map(AskedCell::parse).collect();
    let report = FoundReport { paths, complete, cells };
    out.report(&report, |to| report.paths.iter().try_for_each(|path| writeln!(to, "{path}")))?;
    for AskedCell { cell, path, state, why, .. } in &report.cells {
        match state.as_str() {
            "complete" | "pruned" => {}
            "cut" => out.note(&format!("cell {cell} at {path}: incomplete results ({why})")),
            _ => out.note(&format!("cell {cell} at {path} is {state}: {why}")),
        }
    }
    if !complete {
        out.note("the results may be incomplete");
    }
    Ok(DONE)
}

fn why_not(dir: &Path, e: Errno) -> Failure {
    Failure::new(match e {
        Errno::NOTEMPTY => format!("{} is not empty", dir.display()),
        Errno::NOTDIR => format!("{} is not a directory", dir.display()),
        Errno::EXIST => format!("another cell is already attached to {}", dir.display()),
        Errno::LOOP => {
            format!("{} is in that cell: a cell cannot be attached below itself", dir.display())
        }
        Errno::INVAL => format!("no cell can be attached to {}", dir.display()),
        e => return no_cell(dir, e),
    })
}

/// `ringer attach`.
pub(super) fn attach(out: Output, args: &Attach) -> Outcome {
    let dir = &args.directory;
    if xattr::get(dir, CELL_MOUNT_XATTR).is_ok() {
        return Err(why_not(dir, Errno::EXIST));
    }
    let servers: Vec<String> = addresses(&args.server)?.iter().map(Address::to_string).collect();
    let tls_certificates = args.tls_certificates.clone();
    let cell = number_of(&Reaching { server: args.server.clone(), tls_certificates })?;
    let cell_mount = CellMount { cell, servers };
    let text = cell_mount.to_string();
    // Checked here, because this error gives the reason.
    CellMount::parse(text.as_bytes()).map_err(|e| Failure::usage(e.to_string()))?;
    xattr::set(dir, CELL_MOUNT_XATTR, text.as_bytes()).map_err(|e| match e {
        Errno::ACCESS => Failure::new(format!(
            "permission denied: {}: only root and the user of the mount can attach cells, unless \
            it was mounted with --allow-attach",
            dir.display()
        )),
        e => why_not(dir, e),
    })?;
    let shown = dir.display().to_string();
    let report = serde_json::json!({
        "directory": shown,
        "cell": cell.to_string(),
        "servers": cell_mount.servers,
    });
    out.confirm(&report, &format!("attached cell {cell} to {shown}"))?;
    Ok(DONE)
}

/// `ringer detach`.
pub(super) fn detach(out: Output, args: &Detach) -> Outcome {
    let dir = &args.directory;
    let shown = dir.display().to_string();
    let text = match xattr::get(dir, CELL_MOUNT_XATTR) {
        Ok(text) => text,
        Err(Errno::NODATA) => return Err(Failure::new(format!("no cell is attached to {shown}"))),
        Err(e) => return Err(no_cell(dir, e)),
    };
    xattr::remove(dir, CELL_MOUNT_XATTR).map_err(|e| why_not(dir, e))?;
    let cell = CellMount::parse(text.as_bytes()).map(|cell_mount| cell_mount.cell.to_string());
    let cell = cell.unwrap_or_else(|_| "unknown".into());
    let report = serde_json::json!({ "directory": shown, "cell": cell });
    out.confirm(&report, &format!("detached cell {cell} from {shown}"))?;
    Ok(DONE)
}
