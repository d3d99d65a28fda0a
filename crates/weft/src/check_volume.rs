//! The check of a volume, for each format, and its result.

use crate::format::Format;
use crate::image::Image;
use crate::{Error, Result, mac};
use std::sync::Arc;
use weft_block::{BlockDevice, FileDevice, OpenMode, Overlay};
use weft_ext2::fsck::{self, Report};

pub(crate) use weft_ext2::fsck::Options;

/// The result of a check, by the kind of volume.
#[derive(Debug)]
pub enum Checked {
    /// Result for ext2 and its descendants.
    Ext(Box<Report>),
    /// Result for HFS and MFS.
    Mac(MacReport),
}

impl Checked {
    /// Returns the problems found, each as a line of text.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        match self {
            Self::Ext(report) => report.problems.iter().map(ToString::to_string).collect(),
            Self::Mac(report) => report.problems.iter().map(|found| found.what.clone()).collect(),
        }
    }

    /// Returns the problems that remain: without a repair, the same.
    #[must_use]
    pub fn remaining(&self) -> Vec<String> {
        match self {
            Self::Ext(report) => report.remaining.iter().map(ToString::to_string).collect(),
            Self::Mac(report) => report.remaining.clone(),
        }
    }

    /// Returns true if no problem remains.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        match self {
            Self::Ext(report) => report.is_clean(),
            Self::Mac(report) => report.remaining.is_empty(),
        }
    }
}

/// The result of a check of an HFS or MFS volume.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MacReport {
    /// `"hfs"` or `"mfs"`.
    pub format: &'static str,
    /// The volume's wrapping, from the outside in.
    pub layers: Vec<String>,
    /// The problems found.
    pub problems: Vec<Found>,
    /// The problems that remain after a repair; all of them without one.
    pub remaining: Vec<String>,
    /// Oddities that no Mac treats as errors.
    pub notes: Vec<String>,
    /// True if the volume was unmounted cleanly. If not, opening it corrects its counts and bitmap.
    pub unmounted: bool,
    /// True if a repair rewrote the trees in place, as the volume is too full for new ones beside
    /// them: a power failure during the repair might have lost records.
    pub in_place: bool,
    /// True if its journal held changes, which were replayed (in memory, without a repair).
    pub journal_replayed: bool,
    /// Number of files.
    pub files: u32,
    /// Number of folders, with the root.
    pub folders: u32,
    /// Number of allocation blocks.
    pub blocks: u32,
    /// Number of allocation blocks in use.
    pub blocks_used: u32,
}

/// One problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The problem and its location.
    pub what: String,
    /// The action of a repair.
    pub fix: String,
    /// True if a repair can mend it.
    pub repairable: bool,
}

pub(crate) fn ext(source: &str, image: &Image, options: &Options<'_>) -> Result<Checked> {
    let report = fsck::check(&*image.device, options).map_err(|e| match e {
        weft_ext2::Error::NotExt2 { .. } if image.format != Format::Ext => {
            image.format.clone().refused(source)
        }
        weft_ext2::Error::Device(e) => Error::Block(e),
        e => Error::Volume { image: source.to_owned(), message: e.to_string() },
    })?;
    Ok(Checked::Ext(Box::new(report)))
}

pub(crate) fn hfs(source: &str, image: &Image, options: &Options<'_>) -> Result<Checked> {
    let failed = |e: weft_hfs::Error| match e {
        weft_hfs::Error::Device { errno, message } => Error::Block(weft_block::Error::Io {
            op: "check",
            offset: 0,
            len_bytes: 0,
            source: std::io::Error::other(format!("{message} (errno {errno})")),
        }),
        e => Error::Volume { image: source.to_owned(), message: e.to_string() },
    };
    let repair = options.repair.is_some();
    let writable = repair && !image.device.geometry().read_only;
    if repair && !writable {
        let why = image.why_read_only().unwrap_or_else(|| "it cannot be written".into());
        return Err(Error::Invalid(format!("{source} cannot be repaired: {why}")));
    }
    let device: Arc<dyn BlockDevice> = if writable {
        Arc::clone(&image.device)
    } else {
        Arc::new(Overlay::new(Arc::clone(&image.device)))
    };
    let journal_replayed = replay(source, image, &device, writable).map_err(|e| match e {
        Replay::Volume(e) => failed(e),
        Replay::Block(e) => Error::Block(e),
    })?;
    let (before, after, in_place) = if writable {
        let done = weft_hfs::fsck::repair(&*device).map_err(failed)?;
        (done.before, done.after, done.in_place)
    } else {
        let report = match weft_hfs::fsck::check(&*device) {
            Ok(report) => report,
            Err(e @ weft_hfs::Error::Device { .. }) => return Err(failed(e)),
            // There is nothing to walk: report that as the problem.
            Err(e) => {
                let what = e.to_string();
                let problem = weft_hfs::fsck::Problem::Unreadable { what };
                weft_hfs::fsck::Report { problems: vec![problem], ..Default::default() }
            }
        };
        (report.clone(), report, false)
    };
    let cut = before.cut();
    let found = |p: &weft_hfs::fsck::Problem| Found {
        what: p.to_string(),
        fix: cut.unwrap_or(p).fix().into(),
        repairable: cut.is_none() && p.is_repairable(),
    };
    Ok(Checked::Mac(MacReport {
        format: "hfs",
        layers: image.layer_names(),
        problems: before.problems.iter().map(found).collect(),
        remaining: after.problems.iter().map(ToString::to_string).collect(),
        notes: after.notes.iter().map(ToString::to_string).collect(),
        unmounted: before.unmounted,
        in_place,
        journal_replayed,
        files: after.files,
        folders: after.folders,
        blocks: blocks_of(&*device)?,
        blocks_used: after.used_blocks,
    }))
}

enum Replay {
    Volume(weft_hfs::Error),
    Block(weft_block::Error),
}

/// Replays the journal beside the volume on the device that will be checked.
fn replay(
    source: &str,
    image: &Image,
    device: &Arc<dyn BlockDevice>,
    writable: bool,
) -> Result<bool, Replay> {
    let Some(path) = mac::journal_beside(source, image).filter(|path| path.exists()) else {
        return Ok(false);
    };
    let mode = if writable { OpenMode::READ_WRITE } else { OpenMode::READ_ONLY };
    let journal = FileDevice::open(&path, mode).map_err(Replay::Block)?;
    let journal: Arc<dyn BlockDevice> =
        if writable { Arc::new(journal) } else { Arc::new(Overlay::new(journal)) };
    weft_hfs::replay_journal(device, &journal).map_err(Replay::Volume)
}

fn blocks_of(device: &dyn BlockDevice) -> Result<u32> {
    let mut raw = [0; 512];
    device.read_at(&mut raw, 1024)?;
    Ok(weft_hfs::layout::Mdb::parse(&raw).map_or(0, |mdb| mdb.alloc_blocks.into()))
}

pub(crate) fn mfs(source: &str, image: &Image, options: &Options<'_>) -> Result<Checked> {
    let repair = options.repair.is_some();
    if repair && image.device.geometry().read_only {
        let why = image.why_read_only().unwrap_or_else(|| "it cannot be written".into());
        return Err(Error::Invalid(format!("{source} cannot be repaired: {why}")));
    }
    let failed =
        |e: weft_vfs::Error| Error::Volume { image: source.to_owned(), message: e.to_string() };
    let report = weft_hfs::mfs::check(&*image.device, repair).map_err(failed)?;
    if repair {
        image.device.flush()?;
    }
    let fix =
        |what: &String, fix: &str| Found { what: what.clone(), fix: fix.into(), repairable: true };
    let problems: Vec<Found> = report
        .loose
        .iter()
        .map(|what| fix(what, "correct it, as opening the volume does"))
        .chain(
            report.damage.iter().map(|what| fix(what, "rebuild the directory and the block map")),
        )
        .collect();
    let remaining = if repair && report.repaired {
        Vec::new()
    } else {
        problems.iter().map(|p| p.what.clone()).collect()
    };
    let volume = weft_hfs::mfs::Mfs::open(
        Arc::clone(&image.device),
        weft_hfs::mfs::OpenOptions { read_only: true, ..Default::default() },
    );
    let space = volume.and_then(|v| weft_vfs::FileSystem::statfs(&*v)).ok();
    let count = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    Ok(Checked::Mac(MacReport {
        format: "mfs",
        layers: image.layer_names(),
        problems,
        remaining,
        notes: Vec::new(),
        unmounted: report.loose.is_empty(),
        in_place: false,
        journal_replayed: false,
        files: u32::try_from(report.files).unwrap_or(u32::MAX),
        folders: 1,
        blocks: space.map_or(0, |s| count(s.blocks)),
        blocks_used: space.map_or(0, |s| count(s.blocks.saturating_sub(s.blocks_free))),
    }))
}
