//! `fsck`: with the exit codes of fsck(8).

use crate::cli;
use crate::failure::{DONE, Failure, Outcome};
use crate::output::{Output, count};
use serde::Serialize;
use std::fs::File;
use std::io::Write as _;
use weft::VolumeInfo;
use weft::block::{BlockDevice, OpenMode};
use weft::check::{
    Checked as Found, JournalFix, MacReport, Options, Problem, Progress, Report, Severity, check,
};
use weft::source::open_source;

/// All problems have been repaired.
const REPAIRED: u8 = 1;
/// Problems remain.
const LEFT: u8 = 4;

/// The note for a repair that could not keep the old trees until it was done.
const IN_PLACE: &str = "the volume is too full for new trees beside the old ones: they were written \
    over those, and a power cut meanwhile might have cost records";

/// The most problems that are listed as text.
const SHOWN: usize = 50;

#[derive(Serialize)]
struct Checked<'a> {
    image: &'a str,
    clean: bool,
    repaired: bool,
    leaks: u64,
    counts_off: u64,
    corruptions: u64,
    problems: Vec<String>,
    remaining: Vec<String>,
    journal_replayed: bool,
    inodes: u32,
    inodes_used: u32,
    directories: u32,
    blocks: u64,
    blocks_used: u64,
}

/// `fsck`.
pub fn run(out: Output, args: &cli::Fsck) -> Outcome {
    if args.preen && !args.force && !out.json && was_unmounted(&args.image) {
        let image = &args.image;
        out.confirm(
            &serde_json::json!({ "image": image, "clean": true }),
            &format!("{image}: clean (it was unmounted; --force checks it all the same)"),
        )?;
        return Ok(DONE);
    }
    let mut checked = checked(out, args, args.repair)?;
    let left = args.preen && needs_attention(&checked);
    if args.preen && !left {
        // Marks a volume without problems as unmounted, too.
        checked = self::checked(out, args, true)?;
    }
    let report = match checked {
        Found::Ext(report) => report,
        Found::Mac(report) => return mac(out, args, &report),
    };

    let found: u64 = report.counts.iter().sum();
    let found = found.max(report.problems.len() as u64);
    let code = match (found, report.is_clean()) {
        (0, true) => DONE,
        (_, true) => REPAIRED,
        (_, false) => LEFT,
    };
    let [leaks, counts_off, corruptions] = report.counts;
    let lines = |problems: &[_]| problems.iter().map(ToString::to_string).collect();
    let checked = Checked {
        image: &args.image,
        clean: report.is_clean(),
        repaired: code == REPAIRED,
        leaks,
        counts_off,
        corruptions,
        problems: lines(&report.problems),
        remaining: lines(&report.remaining),
        journal_replayed: report.journal.is_some(),
        inodes: report.inodes,
        inodes_used: report.inodes_used,
        directories: report.directories,
        blocks: report.blocks,
        blocks_used: report.blocks_used,
    };
    out.report(&checked, |w| {
        if !out.quiet {
            for problem in report.problems.iter().take(SHOWN) {
                match args.dry_run {
                    true => writeln!(w, "{problem}: would {}", problem.fix())?,
                    false => writeln!(w, "{problem}")?,
                }
            }
            if report.problems.len() > SHOWN {
                let more = report.problems.len() - SHOWN;
                writeln!(w, "... and {} more (--json lists all)", count(more as u64, "problem"))?;
            }
        }
        writeln!(w, "{}", sentence(args, &report, code, found))
    })?;
    Ok(code)
}

#[derive(Serialize)]
struct MacChecked<'a> {
    image: &'a str,
    format: &'a str,
    layers: &'a [String],
    clean: bool,
    repaired: bool,
    dry_run: bool,
    unmounted: bool,
    in_place: bool,
    journal_replayed: bool,
    problems: Vec<MacProblem<'a>>,
    remaining: &'a [String],
    notes: &'a [String],
    files: u32,
    folders: u32,
    blocks: u32,
    blocks_used: u32,
}

#[derive(Serialize)]
struct MacProblem<'a> {
    problem: &'a str,
    fix: &'a str,
    repairable: bool,
}

/// Reports on an HFS or MFS volume.
fn mac(out: Output, args: &cli::Fsck, report: &MacReport) -> Result<u8, Failure> {
    let code = match (report.problems.len(), report.remaining.len()) {
        (0, 0) => DONE,
        (_, 0) => REPAIRED,
        _ => LEFT,
    };
    let checked = MacChecked {
        image: &args.image,
        format: report.format,
        layers: &report.layers,
        clean: report.remaining.is_empty(),
        repaired: code == REPAIRED,
        dry_run: args.dry_run,
        unmounted: report.unmounted,
        in_place: report.in_place,
        journal_replayed: report.journal_replayed,
        problems: report
            .problems
            .iter()
            .map(|p| MacProblem { problem: &p.what, fix: &p.fix, repairable: p.repairable })
            .collect(),
        remaining: &report.remaining,
        notes: &report.notes,
        files: report.files,
        folders: report.folders,
        blocks: report.blocks,
        blocks_used: report.blocks_used,
    };
    let image = &args.image;
    let found = report.problems.len() as u64;
    let state = match code {
        DONE if report.unmounted => "clean".to_owned(),
        DONE => "whole, and not unmounted".to_owned(),
        REPAIRED => format!("{} found and repaired", count(found, "problem")),
        _ if args.repair => {
            let left = count(report.remaining.len() as u64, "problem");
            format!("{} found, {left} left", count(found, "problem"))
        }
        _ => {
            let hopeless = report.problems.iter().filter(|p| !p.repairable).count() as u64;
            let what = match hopeless {
                0 => "--repair repairs them".to_owned(),
                n if n == found => "a repair cannot help".to_owned(),
                n => format!("--repair repairs all but {n}"),
            };
            format!("{} found; {what}", count(found, "problem"))
        }
    };
    out.report(&checked, |w| {
        if !out.quiet {
            for p in report.problems.iter().take(SHOWN) {
                if args.dry_run {
                    writeln!(w, "{}: would {}", p.what, p.fix)?;
                } else {
                    writeln!(w, "{}", p.what)?;
                }
            }
            for note in report.notes.iter().take(SHOWN) {
                writeln!(w, "note: {note}; harmless")?;
            }
            if report.problems.len() > SHOWN {
                let more = (report.problems.len() - SHOWN) as u64;
                writeln!(w, "... and {} more (--json lists all)", count(more, "problem"))?;
            }
            if args.repair {
                for left in report.remaining.iter().take(SHOWN) {
                    writeln!(w, "left: {left}")?;
                }
            }
            if report.in_place {
                writeln!(w, "{IN_PLACE}")?;
            }
        }
        writeln!(
            w,
            "{image}: {state}; {}, {}, {} of {} allocation blocks in use",
            count(report.files.into(), "file"),
            count(report.folders.into(), "folder"),
            report.blocks_used,
            report.blocks
        )
    })?;
    Ok(code)
}

/// Reports whether a volume says that it was unmounted and has no errors.
fn was_unmounted(image: &str) -> bool {
    match weft::info(image) {
        Ok(VolumeInfo::Ext(info)) => info.clean && !info.has_errors && !info.needs_recovery,
        Ok(VolumeInfo::Mac(info)) => info.clean,
        // The check says what is wrong.
        Err(_) => false,
    }
}

/// Checks the volume, and repairs it if asked to.
fn checked(out: Output, args: &cli::Fsck, repair: bool) -> Result<Found, Failure> {
    let progress = out.progress("checking");
    let lines = args.progress_to.and_then(progress_lines);
    let tell = |p: Progress| {
        if let Some(mut lines) = lines.as_ref() {
            // The reader may have ended.
            let _ = writeln!(lines, "{} {} {} {}", p.pass, p.done, p.total, args.image);
            return;
        }
        let percent = p.done.saturating_mul(100) / p.total.max(1);
        progress.say(format!("pass {} of 5, {percent}%", p.pass));
    };
    let (mode, options) = if repair {
        (OpenMode::READ_WRITE, Options::repair())
    } else {
        (OpenMode::READ_ONLY, Options::default())
    };
    let open = |source: &String| open_source(source, mode).map_err(weft::Error::Block);
    let journal = args.journal.as_ref().map(open).transpose()?;
    let journal = journal.as_deref().map(|device| device as &dyn BlockDevice);
    let options = Options { progress: Some(&tell), journal, ..options };
    Ok(check(&args.image, &options)?)
}

/// Opens the descriptor of `-C`; none if it is 0 or negative, or nobody can be told there.
fn progress_lines(fd: i32) -> Option<File> {
    (fd > 0).then(|| File::options().append(true).open(format!("/proc/self/fd/{fd}")).ok())?
}

/// Reports whether there is damage that a repair without questions should not touch.
fn needs_attention(checked: &Found) -> bool {
    match checked {
        Found::Ext(report) => report.worst() == Some(Severity::Corruption),
        Found::Mac(report) => report.problems.iter().any(|p| !p.repairable),
    }
}

/// Reports whether a problem is that the journal beside the volume was not given.
fn needs_journal(problem: &Problem) -> bool {
    matches!(problem, Problem::Journal { fix: JournalFix::Give, .. })
}

/// Says what stands in the way of a repair that has left something, and the way out.
fn way_out(image: &str, report: &Report) -> String {
    if report.remaining.iter().any(needs_journal) {
        return "its journal lies beside it: give that with --journal FILE".into();
    }
    let first = report.remaining.first().map(ToString::to_string).unwrap_or_default();
    format!(
        "a repair cannot correct this: {first}; get the files out with weft export, or try \
         e2fsck -fy on a copy of {image}"
    )
}

fn sentence(args: &cli::Fsck, report: &Report, code: u8, found: u64) -> String {
    let image = &args.image;
    let state = match code {
        DONE => "clean".to_owned(),
        REPAIRED => {
            let removed =
                |p: &&Problem| matches!(p, Problem::Journal { fix: JournalFix::Remove, .. });
            let note = match report.problems.iter().find(removed) {
                Some(_) => " (its journal was lost and is removed; tune2fs -j makes a new one)",
                None => "",
            };
            format!("{} found and repaired{note}", count(found, "problem"))
        }
        _ => {
            let left = count(report.remaining.len() as u64, "problem");
            if args.repair {
                format!("{left} left: {}", way_out(image, report))
            } else {
                let [leaks, counts_off, corruptions] = report.counts;
                let kinds =
                    format!("{leaks} leaked, {counts_off} counts off, {corruptions} corrupt");
                let way = if report.remaining.iter().any(needs_journal) {
                    way_out(image, report)
                } else if args.preen {
                    "nothing was changed, as there is more than a crash leaves; run weft fsck --repair"
                        .into()
                } else {
                    "--repair repairs what it can".into()
                };
                format!("{left} left ({kinds}); {way}")
            }
        }
    };
    format!(
        "{image}: {state}; {} of {} inodes and {} of {} blocks in use",
        report.inodes_used, report.inodes, report.blocks_used, report.blocks
    )
}
