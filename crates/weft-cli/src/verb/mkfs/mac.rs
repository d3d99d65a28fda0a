//! `mkfs hfs` and `mkfs mfs`.

use super::size;
use crate::cli::{self, MkfsFormat};
use crate::failure::{DONE, Failure, Outcome};
use crate::output::{Output, human};
use crate::verb::copy::{Refused, fitted, note_basilisk, note_left_out};
use crate::verb::hfs::volume_name;
use crate::zone;
use serde::Serialize;
use weft::hfs::view::Forks;
use weft::mkfs::{Drivers, MacFormat, MacMade, MacOptions, Wrapping, make_mac};
use weft::transfer::{HostSource, Ownership, VolumeSink};
use weft::vfs::{Node, Time};

/// 2000-01-01, the default date of a reproducible volume.
const REPRODUCIBLE_SECS: i64 = 946_684_800;

#[derive(Serialize)]
struct Made<'a> {
    image: &'a str,
    format: &'static str,
    alloc_block_bytes: u32,
    alloc_blocks: u64,
    blocks_free: u64,
    start_bytes: u64,
}

/// `mkfs hfs`, `mkfs mfs`.
pub fn run(out: Output, args: &cli::Mkfs) -> Outcome {
    refuse_ext_options(args)?;
    let clock = clock(args)?;
    let options = options(args, clock)?;
    let len_bytes = args.size.as_deref().map(size).transpose()?;
    super::check_directory(args)?;
    let mut refused = Refused::default();
    let mut made = make_mac(&args.image, len_bytes, args.force, &options)?;
    if let Some(dir) = &args.directory {
        note_basilisk(out, dir);
        let opening = weft::Options {
            forks: Forks::AppleDouble,
            clock,
            utc_offset_secs: offset_secs(args),
            ..weft::Options::default()
        };
        made.free_blocks = crate::verb::with_volume(&made.source, &opening, |stack| {
            let failed = |e| crate::verb::file_error("open", b"/", e);
            let root = Node::root(stack.fs()).map_err(failed)?;
            let mut sink = VolumeSink::new(stack.fs(), root, None, b"/", Ownership::Keep);
            let latest = clock.filter(|_| std::env::var_os("SOURCE_DATE_EPOCH").is_some());
            fitted(out, args.fit_names, &mut refused, &mut sink, |sink| {
                HostSource::new(dir)
                    .sparing(crate::verb::image_file(&args.image).as_deref())?
                    .no_later_than(latest)
                    .joining_doubles(true)
                    .send(sink)
            })?;
            note_left_out(out, &sink);
            Ok(stack.fs().statfs().map_err(failed)?.blocks_free)
        })?;
    }
    report(out, args, &made)?;
    refused.outcome(out)
}

/// The fixed time of a reproducible volume; `None` otherwise.
fn clock(args: &cli::Mkfs) -> Result<Option<Time>, Failure> {
    if !args.reproducible {
        return Ok(None);
    }
    let secs = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => text.parse().map_err(|_| {
            Failure::usage(format!("SOURCE_DATE_EPOCH is '{text}', and no number of seconds"))
        })?,
        Err(_) => REPRODUCIBLE_SECS,
    };
    Ok(Some(Time { secs, nanos: 0 }))
}

/// The offset of local time, which is 0 for a reproducible volume: it must not depend on the host.
fn offset_secs(args: &cli::Mkfs) -> i32 {
    if args.reproducible { 0 } else { zone::offset_secs() }
}

fn options(args: &cli::Mkfs, clock: Option<Time>) -> Result<MacOptions, Failure> {
    let bytes = |text: &Option<String>| -> Result<Option<u32>, Failure> {
        let Some(text) = text else { return Ok(None) };
        let bytes = u32::try_from(size(text)?);
        bytes.map(Some).map_err(|_| Failure::usage(format!("{text} is too much")))
    };
    let format = if args.format == MkfsFormat::Hfs { MacFormat::Hfs } else { MacFormat::Mfs };
    if format == MacFormat::Mfs && args.apm {
        return Err(Failure::usage("MFS is on floppies, which have no partition map"));
    }
    let wrapping = match (args.apm, args.diskcopy) {
        (true, _) => Wrapping::PartitionMap,
        (_, true) => Wrapping::DiskCopy,
        _ => Wrapping::None,
    };
    let epoch = weft::hfs::layout::EPOCH_1904_SECS;
    let created = match clock {
        Some(time) => u32::try_from(time.secs + epoch).unwrap_or(0),
        None => weft::hfs::unix_now(zone::offset_secs()),
    };
    Ok(MacOptions {
        format,
        name: volume_name(args.label.as_deref().unwrap_or("Untitled"))?,
        alloc_block_bytes: args.block_size,
        catalog_bytes: bytes(&args.catalog_size)?,
        extents_bytes: bytes(&args.extents_size)?,
        clump_bytes: bytes(&args.clump)?,
        directory_blocks: args.directory_blocks,
        created,
        wrapping,
        drivers: args.drivers_from.as_deref().map(Drivers::of).transpose()?,
    })
}

/// Refuses options of ext only.
fn refuse_ext_options(args: &cli::Mkfs) -> Result<(), Failure> {
    let mfs = args.format == MkfsFormat::Mfs;
    let given = [
        ("--inode-size", args.inode_size.is_some()),
        ("--bytes-per-inode", args.bytes_per_inode.is_some()),
        ("--inodes", args.inodes.is_some()),
        ("--uuid", args.uuid.is_some()),
        ("--reserved", args.reserved.is_some()),
        ("--features", args.features.is_some()),
        ("--journal-size", args.journal_size.is_some()),
        ("--blocks-per-group", args.blocks_per_group.is_some()),
        ("--revision", args.revision.is_some()),
        ("--root-owner", args.root_owner.is_some()),
        ("--block-size", mfs && args.block_size.is_some()),
        ("--clump", mfs && args.clump.is_some()),
        ("--catalog-size", mfs && args.catalog_size.is_some()),
        ("--extents-size", mfs && args.extents_size.is_some()),
        ("--directory-blocks", !mfs && args.directory_blocks.is_some()),
    ];
    if let Some((option, _)) = given.iter().find(|(_, given)| *given) {
        let format = if mfs { "MFS" } else { "HFS" };
        return Err(Failure::usage(format!("{option} means nothing for {format}")));
    }
    if args.journal.is_some() {
        return Err(Failure::usage(
            "a Macintosh volume is made without a journal; --order journal makes one beside it \
             when it is first opened so",
        ));
    }
    Ok(())
}

/// Refuses options that ext does not have.
pub fn refuse_for_ext(args: &cli::Mkfs) -> Result<(), Failure> {
    let given = [
        ("--apm", args.apm),
        ("--diskcopy", args.diskcopy),
        ("--clump", args.clump.is_some()),
        ("--catalog-size", args.catalog_size.is_some()),
        ("--extents-size", args.extents_size.is_some()),
        ("--directory-blocks", args.directory_blocks.is_some()),
        ("--reproducible", args.reproducible),
        ("--fit-names", args.fit_names),
    ];
    match given.iter().find(|(_, given)| *given) {
        Some((option, _)) => {
            Err(Failure::usage(format!("{option} is for HFS and MFS, and means nothing here")))
        }
        None => Ok(()),
    }
}

fn report(out: Output, args: &cli::Mkfs, made: &MacMade) -> Outcome {
    let format = if args.format == MkfsFormat::Hfs { "hfs" } else { "mfs" };
    let report = Made {
        image: &args.image,
        format,
        alloc_block_bytes: made.alloc_block_bytes,
        alloc_blocks: made.alloc_blocks,
        blocks_free: made.free_blocks,
        start_bytes: made.start_bytes,
    };
    let bytes = |blocks: u64| human(blocks * u64::from(made.alloc_block_bytes));
    let within = match (args.apm, args.diskcopy) {
        (true, _) => " behind an Apple partition map",
        (_, true) => " in a DiskCopy 4.2 image",
        _ => "",
    };
    let text = format!(
        "made {format} in {}{within}: {} in allocation blocks of {} bytes, {} free",
        args.image,
        bytes(made.alloc_blocks),
        made.alloc_block_bytes,
        bytes(made.free_blocks)
    );
    out.confirm(&report, &text)?;
    Ok(DONE)
}
