//! `mkfs`.

mod mac;

use super::copy::{Refused, fitted, note_left_out};
use super::{image_file, parse_owner, with_volume};
use crate::cli::{self, MkfsFormat};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, human};
use serde::Serialize;
use weft::block::{FileDevice, parse_size};
use weft::ext2::mkfs::{
    Journal, JournalDeviceOptions, MkfsOptions, Report, Revision, format_journal_device,
};
use weft::transfer::{HostSource, Ownership, VolumeSink};
use weft::vfs::Node;

#[derive(Serialize)]
struct Made<'a> {
    image: &'a str,
    format: &'static str,
    block_bytes: u32,
    blocks: u32,
    blocks_free: u32,
    blocks_reserved: u32,
    inodes: u32,
    inode_bytes: u32,
    groups: u32,
    journal_blocks: u32,
    features: &'a [String],
}

/// `mkfs`.
pub fn run(out: Output, args: &cli::Mkfs) -> Outcome {
    if matches!(args.format, MkfsFormat::Hfs | MkfsFormat::Mfs) {
        return mac::run(out, args);
    }
    mac::refuse_for_ext(args)?;
    let options = options(args)?;
    let len_bytes = args.size.as_deref().map(size).transpose()?;
    check_directory(args)?;
    let made = weft::mkfs::make(&args.image, len_bytes, args.force, &options);
    if let (Err(_), Some(journal)) = (&made, &args.journal) {
        // The journal was just made for a volume that could not be made.
        let _ = std::fs::remove_file(journal);
    }
    let made = made?;
    let mut refused = Refused::default();
    if let Some(dir) = &args.directory {
        with_volume(&args.image, &weft::Options::default(), |stack| {
            let root = Node::root(stack.fs()).map_err(|e| super::file_error("open", b"/", e))?;
            let mut sink = VolumeSink::new(stack.fs(), root, None, b"/", Ownership::Keep);
            let sent = fitted(out, false, &mut refused, &mut sink, |sink| {
                HostSource::new(dir).sparing(image_file(&args.image).as_deref())?.send(sink)
            });
            note_left_out(out, &sink);
            Ok(sent?)
        })?;
    }
    report(out, &args.image, args.format, &made)?;
    refused.outcome(out)
}

/// Checks that the directory that fills the new volume is readable, before anything is made.
fn check_directory(args: &cli::Mkfs) -> Result<(), Failure> {
    let Some(dir) = &args.directory else { return Ok(()) };
    std::fs::read_dir(dir).map(drop).map_err(|e| weft::Error::host("list", dir, e).into())
}

fn size(text: &str) -> Result<u64, Failure> {
    parse_size(text).map_err(|e| Failure::usage(e.to_string()))
}

fn options(args: &cli::Mkfs) -> Result<MkfsOptions, Failure> {
    let mut options = match args.format {
        MkfsFormat::Ext2 => MkfsOptions::ext2(),
        _ => MkfsOptions::ext3(),
    };
    options.block_bytes = args.block_size;
    options.inode_bytes = args.inode_size.map(u32::from);
    options.bytes_per_inode = args.bytes_per_inode;
    options.inodes = args.inodes;
    options.blocks_per_group = args.blocks_per_group;
    if let Some(label) = &args.label {
        options.label = label.clone().into_bytes();
    }
    if let Some(uuid) = &args.uuid {
        options.uuid = Some(parse_uuid(uuid)?);
    }
    if let Some(percent) = args.reserved {
        options.reserved_percent = percent;
    }
    match args.revision {
        None => {}
        Some(0) => {
            options.revision = Revision::GoodOld;
            options.features = weft::ext2::layout::Features::default();
        }
        Some(1) => options.revision = Revision::Dynamic,
        Some(other) => {
            return Err(Failure::usage(format!("invalid revision {other}: expected 0 or 1")));
        }
    }
    if let Some(list) = &args.features {
        options.set_features(list).map_err(|e| Failure::usage(e.to_string()))?;
    }
    if let Some(size) = &args.journal_size {
        if args.format == MkfsFormat::Ext2 {
            return Err(Failure::usage("ext2 has no journal; ext3 is ext2 with one"));
        }
        options.journal = Some(Journal::Internal { len_bytes: Some(self::size(size)?) });
    }
    if let Some(path) = &args.journal {
        if args.format == MkfsFormat::Ext2 {
            return Err(Failure::usage("ext2 has no journal; ext3 is ext2 with one"));
        }
        options.journal = Some(make_journal(path, args.journal_size.as_deref(), &mut options)?);
    }
    let (uid, gid) = match &args.root_owner {
        Some(owner) => parse_owner(owner)?,
        None => {
            let uid = rustix::process::geteuid().as_raw();
            (uid, rustix::process::getegid().as_raw())
        }
    };
    (options.root_uid, options.root_gid) = (uid, gid);
    Ok(options)
}

/// Makes the journal that lies beside a volume. As on Linux, the journal names its one user and has
/// the volume's block size; so both are set here.
fn make_journal(
    path: &std::path::Path,
    size: Option<&str>,
    options: &mut MkfsOptions,
) -> Result<Journal, Failure> {
    const DEFAULT_BYTES: u64 = 32 << 20;
    let len_bytes = size.map(self::size).transpose()?.unwrap_or(DEFAULT_BYTES);
    let block_bytes = *options.block_bytes.get_or_insert(4096);
    let uuid = *options.uuid.get_or_insert_with(|| uuid::Uuid::new_v4().into_bytes());
    let device = FileDevice::create(path, len_bytes)?;
    let made = JournalDeviceOptions {
        block_bytes,
        uuid: None,
        label: Vec::new(),
        users: vec![uuid],
        checksums: options.journal_checksums,
    };
    let uuid = format_journal_device(&device, &made)
        .map_err(|e| Failure::new(format!("{}: {e}", path.display())))?;
    Ok(Journal::External { uuid })
}

fn parse_uuid(text: &str) -> Result<[u8; 16], Failure> {
    let bad = || Failure::usage(format!("invalid UUID: '{text}'"));
    let hex: Vec<u8> = text.bytes().filter(|b| *b != b'-').collect();
    if hex.len() != 32 || !hex.is_ascii() {
        return Err(bad());
    }
    let mut uuid = [0; 16];
    for (byte, pair) in uuid.iter_mut().zip(hex.chunks(2)) {
        let pair = std::str::from_utf8(pair).map_err(|_| bad())?;
        *byte = u8::from_str_radix(pair, 16).map_err(|_| bad())?;
    }
    Ok(uuid)
}

fn report(out: Output, image: &str, format: MkfsFormat, made: &Report) -> Result<(), Failure> {
    let format = match format {
        MkfsFormat::Ext2 => "ext2",
        _ => "ext3",
    };
    let report = Made {
        image,
        format,
        block_bytes: made.block_bytes,
        blocks: made.blocks,
        blocks_free: made.free_blocks,
        blocks_reserved: made.reserved_blocks,
        inodes: made.inodes,
        inode_bytes: made.inode_bytes,
        groups: made.groups,
        journal_blocks: made.journal_blocks,
        features: &made.features,
    };
    let bytes = |blocks: u32| human(u64::from(blocks) * u64::from(made.block_bytes));
    let journal = if made.journal_blocks > 0 {
        format!(", a journal of {}", bytes(made.journal_blocks))
    } else {
        String::new()
    };
    let text = format!(
        "made {format} in {image}: {} in blocks of {} bytes, {} free, {} inodes{journal}",
        bytes(made.blocks),
        made.block_bytes,
        bytes(made.free_blocks),
        made.inodes
    );
    out.confirm(&report, &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids() {
        let uuid = parse_uuid("00112233-4455-6677-8899-aabbccddeeff").unwrap();
        assert_eq!((uuid[0], uuid[1], uuid[15]), (0, 0x11, 0xff));
        for bad in ["", "00112233", "g0112233-4455-6677-8899-aabbccddeeff"] {
            assert!(parse_uuid(bad).is_err(), "{bad}");
        }
    }
}
