//! `ringer policy`, `holders`, `pin`, `unpin`, and `status` of a mount, through the attributes of a
//! mount.

use super::xattr::{get, remove, set};
use super::{cells, no_cell};
use crate::cli::ringer::{Holders, Pin, PolicyArgs, Waits, When};
use crate::failure::{DONE, Failure, Outcome};
use crate::output::{Output, human};
use rustix::io::Errno;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use weft::ringer::{Archiving, POLICY_XATTR, Policy};
use weft::ringer_client::{HOLDERS_XATTR, PIN_XATTR, STORE_XATTR};

/// The copies of a file, as the mount lists them.
struct Listed {
    policy: Policy,
    copies: Vec<CopyReport>,
}

/// A copy, as JSON.
#[derive(Debug, Serialize)]
struct CopyReport {
    client: String,
    /// Whether it is of the file's current version.
    current: bool,
    /// Whether it is on this mount.
    here: bool,
    /// Whether it is an archive's; then `client` is the number of the archive.
    archive: bool,
}

fn listed(path: &Path) -> Result<Listed, Failure> {
    let text = get(path, HOLDERS_XATTR).map_err(|e| no_cell(path, e))?;
    let mut lines = text.lines();
    let policy = lines.next().and_then(|line| line.strip_prefix("policy\t")?.parse().ok());
    let policy = policy.ok_or_else(|| {
        Failure::new("protocol error: unexpected reply from the mount (another version of weft?)")
    })?;
    let copies = lines.map(|line| {
        let mut words = line.split('\t');
        let client = words.next().unwrap_or_default().to_owned();
        let current = words.next() == Some("current");
        let whose = words.next();
        let (here, archive) = (whose == Some("here"), whose == Some("archive"));
        CopyReport { client, current, here, archive }
    });
    Ok(Listed { policy, copies: copies.collect() })
}

/// A policy, as JSON.
#[derive(Debug, Serialize)]
struct PolicyReport {
    directory: String,
    /// Whether the policy is set on the directory itself.
    own: bool,
    copies: u32,
    fsync_waits_for: u32,
    /// `no`, `later`, or `fsync` if fsync waits for the archive.
    archive: &'static str,
    versions: u32,
    keep_seconds: u64,
    every_seconds: u64,
    /// The longest text file that is indexed for search, in bytes; 0 for none.
    text_bytes: u64,
}

fn not_set(dir: &Path, e: Errno) -> Failure {
    match e {
        Errno::PERM | Errno::ACCESS => Failure::new(format!(
            "permission denied: the policy of {} may be set by its owner and by root; and, on a \
            mount of an administrator of the cell, by the user who runs the mount",
            dir.display()
        )),
        e => no_cell(dir, e),
    }
}

/// `ringer policy`.
pub(super) fn policy(out: Output, args: &PolicyArgs) -> Outcome {
    let dir = &args.directory;
    if args.inherit {
        match remove(dir, POLICY_XATTR) {
            Ok(()) | Err(Errno::NODATA) => {}
            Err(e) => return Err(not_set(dir, e)),
        }
    } else if args.sets() {
        let mut policy = listed(dir)?.policy;
        policy.copies = args.copies.unwrap_or(policy.copies);
        policy.versions = args.versions.unwrap_or(policy.versions);
        policy.keep_secs = args.keep.unwrap_or(policy.keep_secs);
        policy.every_secs = args.every.unwrap_or(policy.every_secs);
        policy.text_bytes = args.text.unwrap_or(policy.text_bytes);
        policy.archive = match args.archive {
            Some(When::No) => Archiving::No,
            Some(When::Later) => Archiving::Later,
            Some(When::Fsync) => Archiving::Fsync,
            None => policy.archive,
        };
        policy.fsync = match args.fsync {
            Some(Waits::Local) => 0,
            Some(Waits::Copies(n)) => n,
            None => policy.fsync.min(policy.copies),
        };
        // Checked here, because this error gives the reason.
        let policy: Policy =
            policy.to_string().parse().map_err(|e| Failure::usage(format!("{e}")))?;
        set(dir, POLICY_XATTR, policy.to_string().as_bytes()).map_err(|e| not_set(dir, e))?;
    }
    let own = get(dir, POLICY_XATTR).is_ok();
    let Policy { copies, fsync, archive, versions, keep_secs, every_secs, text_bytes } =
        listed(dir)?.policy;
    let report = PolicyReport {
        directory: dir.display().to_string(),
        own,
        copies,
        fsync_waits_for: fsync,
        archive: match archive {
            Archiving::No => "no",
            Archiving::Later => "later",
            Archiving::Fsync => "fsync",
        },
        versions,
        keep_seconds: keep_secs,
        every_seconds: every_secs,
        text_bytes,
    };
    out.report(&report, |to| {
        writeln!(
            to,
            "{} ({})",
            dir.display(),
            if own { "its own" } else { "from above, or none" }
        )?;
        let waits = match fsync {
            0 => "waits for no copy".to_owned(),
            n => format!("waits for {n}"),
        };
        writeln!(to, "copies on other clients: {copies}; fsync {waits}")?;
        match archive {
            Archiving::No => {}
            Archiving::Later => writeln!(to, "in every archive, some time after a change")?,
            Archiving::Fsync => writeln!(to, "in every archive; fsync waits for one")?,
        }
        match versions {
            0 => writeln!(to, "earlier versions: none"),
            n => {
                let days = keep_secs as f64 / 86400.0;
                writeln!(to, "earlier versions: {n}, for {days} days, {every_secs} s apart")
            }
        }?;
        match text_bytes {
            0 => writeln!(to, "text: not searched"),
            n => writeln!(to, "text: searched, in files of up to {}", human(n)),
        }
    })?;
    Ok(DONE)
}

/// The holders of a file, as JSON.
#[derive(Debug, Serialize)]
struct HoldersReport {
    wanted_copies: u32,
    copies: Vec<CopyReport>,
}

/// `ringer holders`.
pub(super) fn holders(out: Output, args: &Holders) -> Outcome {
    let Listed { policy, copies } = listed(&args.path)?;
    let report = HoldersReport { wanted_copies: policy.copies, copies };
    out.report(&report, |to| {
        for copy in &report.copies {
            let state = if copy.current { "has it" } else { "has an older version" };
            let here = if copy.here { " (here)" } else { "" };
            let whose = if copy.archive { "archive" } else { "client" };
            writeln!(to, "{whose} {}  {state}{here}", copy.client)?;
        }
        if report.copies.is_empty() {
            writeln!(
                to,
                "no client keeps a copy; the blocks are on the clients that wrote or read the file"
            )?;
        }
        Ok(())
    })?;
    Ok(DONE)
}

/// `ringer pin` and `ringer unpin`.
pub(super) fn pin(out: Output, args: &Pin, pinned: bool) -> Outcome {
    let path = &args.path;
    let done = if pinned { set(path, PIN_XATTR, b"1") } else { remove(path, PIN_XATTR) };
    match done {
        Err(Errno::NODATA) if !pinned && get(path, HOLDERS_XATTR).is_ok() => {
            return Err(Failure::new(format!("{} is not pinned", path.display())));
        }
        done => done.map_err(|e| no_cell(path, e))?,
    }
    let text = if pinned { "is pinned" } else { "is no longer pinned" };
    let report = serde_json::json!({ "path": path.display().to_string(), "pinned": pinned });
    out.confirm(&report, &format!("{} {text}", path.display()))?;
    Ok(DONE)
}

/// `ringer status` of a mount.
pub(super) fn store_status(out: Output, mountpoint: &Path) -> Outcome {
    let text = get(mountpoint, STORE_XATTR).map_err(|e| no_cell(mountpoint, e))?;
    let numbers: BTreeMap<&str, u64> = text
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .filter_map(|(name, n)| Some((name, n.parse().ok()?)))
        .collect();
    let of = |name| numbers.get(name).copied().unwrap_or(0);
    let mut report: BTreeMap<&str, serde_json::Value> =
        numbers.iter().map(|(name, n)| (*name, (*n).into())).collect();
    for name in ["cell", "client"] {
        report.insert(name, format!("{:016x}", of(name)).into());
    }
    let inside = cells::inside(mountpoint);
    if !inside.is_empty() {
        let list = serde_json::to_value(&inside).map_err(|e| Failure::new(e.to_string()))?;
        report.insert("cells", list);
    }
    out.report(&report, |to| {
        writeln!(to, "cell {:016x}, client {:016x}", of("cell"), of("client"))?;
        writeln!(
            to,
            "stored: {}, cached: {}",
            human(of("staying_bytes")),
            human(of("cached_bytes"))
        )?;
        let (pins, lacking) = (of("pins"), of("pinned_files_lacking"));
        writeln!(to, "pinned: {pins}; not yet stored here: {lacking} files")?;
        writeln!(to, "under-replicated files: {}", of("files_with_copies_to_make"))?;
        writeln!(to, "changes not yet sent to the server: {}", of("changes_not_sent"))?;
        inside.iter().try_for_each(|cell| {
            let cells::InnerCell { cell, state, servers, changes_not_sent, conflicts, why } = cell;
            write!(to, "cell {cell} at {servers}: {state}, ")?;
            write!(to, "{changes_not_sent} changes not sent, {conflicts} conflicts")?;
            if why.is_empty() { writeln!(to) } else { writeln!(to, " ({why})") }
        })
    })?;
    Ok(DONE)
}
