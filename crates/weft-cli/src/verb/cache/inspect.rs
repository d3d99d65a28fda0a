//! Caches that are not in use: their content, check and repair.

use crate::cli::cache as args;
use crate::failure::{DONE, Failure, Outcome};
use crate::output::{Output, count, human};
use serde_json::{Value, json};
use std::io::Write;
use std::sync::Arc;
use weft::block::{BlockDevice, FileDevice, OpenMode};
use weft::cache::{self, Finding, Severity};

/// Exit codes of fsck(8).
const REPAIRED: u8 = 1;
const LEFT: u8 = 4;
const NOT_CHECKED: u8 = 8;

/// The most findings that are listed as text.
const SHOWN: usize = 50;

fn open(cache: &str, mode: OpenMode) -> Result<FileDevice, Failure> {
    Ok(FileDevice::open(&cache::file_of(cache)?, mode)?)
}

/// The failure of a check or a repair that found damage which it cannot get behind, or that found
/// nothing out.
fn failed(cache: &str, error: &cache::Error) -> Failure {
    use cache::Error as E;
    let damage = matches!(error, E::Damaged { .. } | E::Shortened { .. } | E::DirtyDamaged { .. });
    let code = if damage { LEFT } else { NOT_CHECKED };
    Failure { code, ..cache::named(cache, error).into() }
}

/// Opens a cache that is to be checked.
fn open_to_check(cache: &str, mode: OpenMode) -> Result<FileDevice, Failure> {
    open(cache, mode).map_err(|failure| Failure { code: NOT_CHECKED, ..failure })
}

/// `cache check`.
pub fn check(out: Output, args: &args::Check) -> Outcome {
    let device = open_to_check(&args.cache, OpenMode::READ_ONLY)?;
    let progress = out.progress("checking");
    progress.say(if args.quick { "metadata" } else { "metadata and data" });
    let report = cache::check(&device, !args.quick).map_err(|e| failed(&args.cache, &e))?;
    drop(progress);
    // Findings that heal in use need no repair: an ordinary power failure leaves them.
    let code = if report.needs_repair() { LEFT } else { DONE };
    show(out, &args.cache, &report, code)?;
    Ok(code)
}

/// `cache repair`.
pub fn repair(out: Output, args: &args::Repair) -> Outcome {
    if args.dry_run {
        return check(out, &args::Check { cache: args.cache.clone(), quick: false });
    }
    let device: Arc<dyn BlockDevice> = Arc::new(open_to_check(&args.cache, OpenMode::READ_WRITE)?);
    let progress = out.progress("repairing");
    progress.say("metadata and data");
    let report = cache::repair(device).map_err(|e| failed(&args.cache, &e))?;
    drop(progress);
    let code = if report.findings.is_empty() { DONE } else { REPAIRED };
    show(out, &args.cache, &report, code)?;
    Ok(code)
}

fn show(out: Output, cache: &str, report: &cache::Report, code: u8) -> Result<(), Failure> {
    let findings: Vec<Value> = report
        .findings
        .iter()
        .map(|f| json!({ "dirty": f.severity() == Severity::Dirty, "finding": f.to_string() }))
        .collect();
    let json = json!({
        "cache": cache,
        "clean": report.findings.is_empty(),
        "needs_repair": report.needs_repair() && code != REPAIRED,
        "repaired": code == REPAIRED,
        "blocks": report.blocks,
        "dirty_bytes": report.dirty_bytes,
        "findings": findings,
    });
    out.report(&json, |w| {
        if !out.quiet {
            list(w, &report.findings)?;
        }
        let state = match code {
            DONE if report.findings.is_empty() => "clean".to_owned(),
            REPAIRED => format!("{} found and repaired", count(findings.len() as u64, "problem")),
            DONE => "nothing is lost: what is named above heals in use".to_owned(),
            _ => "dirty data is damaged or may be: weft cache repair keeps what is good".to_owned(),
        };
        let (blocks, dirty) = (count(report.blocks, "block"), human(report.dirty_bytes));
        writeln!(w, "{cache}: {state}; {blocks} in it, {dirty} dirty")
    })
}

fn list(w: &mut dyn Write, findings: &[Finding]) -> std::io::Result<()> {
    for finding in findings.iter().take(SHOWN) {
        writeln!(w, "{finding}")?;
    }
    if findings.len() > SHOWN {
        let more = count((findings.len() - SHOWN) as u64, "problem");
        writeln!(w, "... and {more} more (--json lists all)")?;
    }
    Ok(())
}

/// `cache dump`: the metadata, then a line for each block.
pub fn dump(out: Output, args: &args::Dump) -> Outcome {
    let device = open(&args.cache, OpenMode::READ_ONLY)?;
    let mut slots = Vec::new();
    let dump = cache::dump(&device, |slot| {
        if !args.dirty || slot.dirty != 0 {
            slots.push(slot);
        }
    })
    .map_err(|e| cache::named(&args.cache, &e))?;
    let sb = &dump.superblock;
    let report = json!({
        "cache": args.cache,
        "label": sb.label,
        "block_bytes": sb.block_bytes,
        "slots": sb.slots,
        "sequence": sb.sequence,
        "life": sb.life,
        "log": { "first": dump.log.start, "end": dump.log.end, "durable": dump.log_durable },
        "findings": dump.findings.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "blocks": slots.iter().map(|s| json!({
            "slot": s.slot, "source": s.origin, "offset": s.offset,
            "valid": s.valid, "dirty": s.dirty, "zero": s.zero, "crc32c": s.crcs,
        })).collect::<Vec<_>>(),
    });
    out.report(&report, |w| {
        writeln!(
            w,
            "superblock {} of life {}: {} blocks of {} bytes",
            sb.sequence, sb.life, sb.slots, sb.block_bytes
        )?;
        let durable = dump.log_durable;
        writeln!(w, "log: {} to {}, durable to {durable}", dump.log.start, dump.log.end)?;
        list(w, &dump.findings)?;
        for s in &slots {
            writeln!(
                w,
                "{:>10}  {} at {:#x}  valid {:04x} dirty {:04x} zero {:04x}",
                s.slot, s.origin, s.offset, s.valid, s.dirty, s.zero
            )?;
        }
        Ok(())
    })?;
    Ok(DONE)
}
