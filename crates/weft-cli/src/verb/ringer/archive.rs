//! `ringer archive`: manages the archives of a cell, and deletes unused blocks from them.

use super::{UNEXPECTED, ask, ask_all, failed, the_owners};
use crate::cli::ringer::{
    Archive as Verb, ArchiveAdd, ArchiveList, ArchiveRemove, ArchiveSweep, Reaching,
};
use crate::failure::{DONE, Failure, Outcome};
use crate::output::{Output, count};
use serde::Serialize;
use std::time::Duration;
use weft::net::ClientTls;
use weft::ringer::wire::ArchiveInfo;
use weft::ringer::{ArchiveId, Bytes};
use weft::ringer_client::archive::{Archive, Opener, sweep as sweep_archive};
use weft::ringer_net::{Answer, Ask, Observer};

/// The time limit for claiming an archive.
const LIMIT: Duration = Duration::from_secs(60);

/// `ringer archive`.
pub(super) fn run(out: Output, verb: &Verb) -> Outcome {
    match verb {
        Verb::Add(args) => add(out, args),
        Verb::List(args) => list(out, args),
        Verb::Remove(args) => remove(out, args),
        Verb::Sweep(args) => sweep(out, args),
    }
}

fn text(bytes: &Bytes) -> String {
    String::from_utf8_lossy(&bytes.0).into_owned()
}

/// An archive, as JSON.
#[derive(Debug, Serialize)]
struct ArchiveReport {
    archive: String,
    url: String,
}

impl ArchiveReport {
    fn new(info: &ArchiveInfo) -> Self {
        Self { archive: format!("{:016x}", info.archive.0), url: text(&info.url) }
    }
}

fn archives(reaching: &Reaching) -> Result<Vec<ArchiveInfo>, Failure> {
    match ask(reaching, &Ask::Archives {})? {
        Answer::Archives { archives } => Ok(archives),
        _ => Err(Failure::new(UNEXPECTED)),
    }
}

fn number(archive: &str) -> Result<ArchiveId, Failure> {
    let number = u64::from_str_radix(archive, 16);
    number
        .map(ArchiveId)
        .map_err(|_| Failure::usage("not the number of an archive: see `archive list`"))
}

/// Makes a random number for a new archive.
fn random() -> Result<ArchiveId, Failure> {
    let mut bytes = [0; 8];
    let flags = rustix::rand::GetRandomFlags::empty();
    rustix::rand::getrandom(&mut bytes[..], flags).map_err(|e| Failure::new(e.to_string()))?;
    // 0 means no archive.
    Ok(ArchiveId(u64::from_be_bytes(bytes) | 1))
}

/// `ringer archive add`.
fn add(out: Output, args: &ArchiveAdd) -> Outcome {
    let wrong = |e: weft::ringer_client::archive::ArchiveError| Failure::new(e.to_string());
    let Answer::Status { status } = the_owners(ask_all(&args.reaching, &Ask::Status {})?)? else {
        return Err(Failure::new(UNEXPECTED));
    };
    let id = random()?;
    let archive = Archive::new(&args.url, &Opener::default()).map_err(wrong)?;
    // Only an administrator gets this answer, so no other member marks a store.
    archives(&args.reaching)?;
    archive.claim(id, status.cell, LIMIT).map_err(wrong)?;
    let info = ArchiveInfo { archive: id, url: Bytes(args.url.clone().into_bytes()) };
    if let Err(e) = ask(&args.reaching, &Ask::AddArchive { info: info.clone() }) {
        let _ = archive.disclaim(LIMIT);
        return Err(e);
    }
    let report = ArchiveReport::new(&info);
    let text = format!("added {} as archive {}", report.url, report.archive);
    out.confirm(&report, &text)?;
    Ok(DONE)
}

/// `ringer archive list`.
fn list(out: Output, args: &ArchiveList) -> Outcome {
    let reports: Vec<_> = archives(&args.reaching)?.iter().map(ArchiveReport::new).collect();
    out.report(&reports, |to| {
        reports.iter().try_for_each(|r| writeln!(to, "archive {}  {}", r.archive, r.url))
    })?;
    Ok(DONE)
}

/// `ringer archive remove`.
fn remove(out: Output, args: &ArchiveRemove) -> Outcome {
    let archive = number(&args.archive)?;
    ask(&args.reaching, &Ask::RemoveArchive { archive })?;
    let report = serde_json::json!({ "removed": args.archive });
    out.confirm(&report, &format!("removed archive {} from the cell", args.archive))?;
    Ok(DONE)
}

/// The result of a sweep, as JSON.
#[derive(Debug, Serialize)]
struct SweptReport {
    archive: String,
    url: String,
    blocks: u64,
    unused_blocks: u64,
    deleted_blocks: u64,
}

/// `ringer archive sweep`.
fn sweep(out: Output, args: &ArchiveSweep) -> Outcome {
    let wanted = args.archive.as_deref().map(number).transpose()?;
    let mut list = archives(&args.reaching)?;
    list.retain(|info| wanted.is_none_or(|id| id == info.archive));
    if list.is_empty() {
        return Err(Failure::new("no such archive in this cell"));
    }
    let tls = args.reaching.tls_certificates.as_deref().map(ClientTls::mutual).transpose();
    let tls = tls.map_err(failed)?;
    let mut observer = None;
    for server in super::addresses(&args.reaching.server)? {
        let Ok(mut link) = Observer::connect(&server, tls.as_ref()) else { continue };
        if link.ask(&Ask::Archives {}).is_ok() {
            observer = Some(link);
            break;
        }
    }
    let Some(mut observer) = observer else {
        return Err(Failure::new("cannot reach the server that owns the cell"));
    };
    let mut reports = Vec::new();
    for info in &list {
        let ArchiveReport { archive, url } = ArchiveReport::new(info);
        let wrong = |e: weft::ringer_client::archive::ArchiveError| Failure::new(e.to_string());
        let store = Archive::new(&url, &Opener::default()).map_err(wrong)?;
        let swept = sweep_archive(&mut observer, info.archive, &store, args.dry_run);
        let swept = swept.map_err(|e| Failure::new(e.to_string()))?;
        reports.push(SweptReport {
            archive,
            url,
            blocks: swept.blocks,
            unused_blocks: swept.unused,
            deleted_blocks: swept.deleted,
        });
    }
    out.report(&reports, |to| {
        reports.iter().try_for_each(|r| {
            let deleted = if args.dry_run {
                "none deleted".into()
            } else {
                format!("{} deleted", r.deleted_blocks)
            };
            let (blocks, unused) = (count(r.blocks, "block"), r.unused_blocks);
            writeln!(to, "archive {}  {}: {blocks}, {unused} unused, {deleted}", r.archive, r.url)
        })
    })?;
    Ok(DONE)
}
