//! `ringer key id|trust|share|members`: keys that members share through the cell.

use super::encryption::key_of;
use super::no_cell;
use super::xattr::{get, set};
use crate::failure::{DONE, Failure, Outcome};
use crate::output::{Output, count};
use rustix::io::Errno;
use serde::Serialize;
use std::path::Path;
use weft::ringer::SHARES_XATTR;
use weft::ringer_client::{MEMBER_XATTR, MemberId, SHARE, TRUSTED_XATTR};

/// A member, as JSON.
#[derive(Debug, Serialize)]
struct MemberReport {
    /// Absent if only the holder of the directory's key knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    /// The fingerprint of the id, as the cell stores it.
    fingerprint: String,
    /// The fingerprint of the member that shared the directory with this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    shared_by: Option<String>,
    /// Whether it is the id of this mount.
    #[serde(skip_serializing_if = "Option::is_none")]
    here: Option<bool>,
}

impl MemberReport {
    fn of(id: &MemberId) -> Self {
        let (id, fingerprint) = (Some(id.to_string()), id.fingerprint().to_string());
        Self { id, fingerprint, shared_by: None, here: None }
    }
}

fn own_id(mountpoint: &Path) -> Result<MemberId, Failure> {
    let text = get(mountpoint, MEMBER_XATTR).map_err(|e| no_cell(mountpoint, e))?;
    text.parse().map_err(|_| {
        Failure::new("protocol error: unexpected reply from the mount (another version of weft?)")
    })
}

/// `ringer key id`.
pub(super) fn id(out: Output, mountpoint: &Path) -> Outcome {
    let id = own_id(mountpoint)?;
    out.report(&MemberReport::of(&id), |to| writeln!(to, "{id}"))?;
    Ok(DONE)
}

/// `ringer key trust`.
pub(super) fn trust(out: Output, mountpoint: &Path, ids: &[MemberId], remove: bool) -> Outcome {
    if !ids.is_empty() {
        let sign = if remove { "-" } else { "" };
        let text: String = ids.iter().map(|id| format!("{sign}{id}\n")).collect();
        set(mountpoint, TRUSTED_XATTR, text.as_bytes()).map_err(|e| match e {
            Errno::PERM => not_root(mountpoint),
            e => no_cell(mountpoint, e),
        })?;
    }
    let text = get(mountpoint, TRUSTED_XATTR).map_err(|e| match e {
        Errno::NODATA if get(mountpoint, MEMBER_XATTR).is_ok() => not_root(mountpoint),
        e => no_cell(mountpoint, e),
    })?;
    let trusted: Vec<MemberId> = text.lines().filter_map(|line| line.parse().ok()).collect();
    let reports: Vec<_> = trusted.iter().map(MemberReport::of).collect();
    if !ids.is_empty() {
        let now = count(reports.len() as u64, "member");
        out.confirm(&reports, &format!("{now} may give keys to {}", mountpoint.display()))?;
        return Ok(DONE);
    }
    out.report(&reports, |to| {
        trusted.iter().try_for_each(|id| writeln!(to, "{id}  {}", id.fingerprint()))
    })?;
    Ok(DONE)
}

fn not_root(path: &Path) -> Failure {
    Failure::new(format!(
        "{} is not the root of a mounted cell: give its mount point",
        path.display()
    ))
}

fn failed(directory: &Path, e: Errno) -> Failure {
    let shown = directory.display();
    match e {
        Errno::INVAL => Failure::new(format!(
            "cannot share {shown}: its key belongs to a directory above it (share that one), or \
            the id is invalid"
        )),
        Errno::NOKEY => Failure::new(format!("this mount does not have the key of {shown}")),
        Errno::KEYREJECTED => Failure::new(format!(
            "the server's list of the shares of {shown} is not authentic: it was not made with \
            the directory's key; see the log of the mount"
        )),
        Errno::NOSPC => {
            Failure::new(format!("{shown} is already shared with the most members possible"))
        }
        e => no_cell(directory, e),
    }
}

/// `ringer key share`.
pub(super) fn share(out: Output, directory: &Path, ids: &[MemberId]) -> Outcome {
    encrypted(directory)?;
    let words: String = ids.iter().map(|id| format!(" {id}")).collect();
    set(directory, SHARES_XATTR, format!("{SHARE}{words}").as_bytes())
        .map_err(|e| failed(directory, e))?;
    let reports: Vec<_> = ids.iter().map(MemberReport::of).collect();
    let (shown, members) = (directory.display(), count(ids.len() as u64, "member"));
    out.confirm(&reports, &format!("shared {shown} with {members}"))?;
    let own = own_id(directory)?;
    out.note(&format!(
        "they get the key once they trust the id of this mount (`key trust`): {own}"
    ));
    Ok(DONE)
}

fn encrypted(directory: &Path) -> Result<(), Failure> {
    let none = || Failure::new(format!("{} is not encrypted", directory.display()));
    key_of(directory)?.map(|_| ()).ok_or_else(none)
}

/// `ringer key members`.
pub(super) fn members(out: Output, directory: &Path) -> Outcome {
    encrypted(directory)?;
    let text = get(directory, SHARES_XATTR).map_err(|e| failed(directory, e))?;
    let member = |line: &str| {
        let mut words = line.split('\t').map(str::to_owned);
        let id = words.next().filter(|id| id != "-");
        let (fingerprint, shared_by) = (words.next()?, words.next());
        let here = Some(words.next().as_deref() == Some("own"));
        Some(MemberReport { id, fingerprint, shared_by, here })
    };
    let reports: Vec<MemberReport> = text.lines().filter_map(member).collect();
    out.report(&reports, |to| {
        reports.iter().try_for_each(|member| {
            let who = member.id.as_deref().unwrap_or(&member.fingerprint);
            let by = member.shared_by.as_deref().unwrap_or_default();
            let here = if member.here == Some(true) { ", this mount" } else { "" };
            writeln!(to, "{who}  shared by {by}{here}")
        })
    })?;
    Ok(DONE)
}
