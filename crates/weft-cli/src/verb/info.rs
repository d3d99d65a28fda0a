//! `info`.

use crate::cli;
use crate::failure::{DONE, Outcome};
use crate::output::{Output, human, utc};
use serde::Serialize;
use weft::VolumeInfo;
use weft::vfs::Time;

#[derive(Serialize)]
struct Report<'a> {
    image: &'a str,
    format: &'a str,
    label: &'a str,
    uuid: &'a str,
    revision: u32,
    features: &'a [String],
    unknown_incompatible: &'a [String],
    unknown_read_only: &'a [String],
    len_bytes: u64,
    block_bytes: u32,
    blocks: u64,
    blocks_free: u64,
    blocks_reserved: u64,
    inode_bytes: u32,
    inodes: u64,
    inodes_free: u64,
    groups: u32,
    clean: bool,
    has_errors: bool,
    needs_recovery: bool,
    made: u32,
    mounted: u32,
    written: u32,
    checked: u32,
}

/// `info`.
pub fn run(out: Output, args: &cli::Info) -> Outcome {
    let i = weft::info(&args.image)?;
    let report = Report {
        image: &args.image,
        format: i.format,
        label: &i.label,
        uuid: &i.uuid,
        revision: i.revision,
        features: &i.features,
        unknown_incompatible: &i.unknown_incompatible,
        unknown_read_only: &i.unknown_read_only,
        len_bytes: i.len_bytes,
        block_bytes: i.block_bytes,
        blocks: i.blocks,
        blocks_free: i.blocks_free,
        blocks_reserved: i.blocks_reserved,
        inode_bytes: i.inode_bytes,
        inodes: i.inodes,
        inodes_free: i.inodes_free,
        groups: i.groups,
        clean: i.clean,
        has_errors: i.has_errors,
        needs_recovery: i.needs_recovery,
        made: i.made,
        mounted: i.mounted,
        written: i.written,
        checked: i.checked,
    };
    out.report(&report, |w| {
        let when = |secs: u32| match secs {
            0 => "never".to_owned(),
            s => format!("{} UTC", utc(Time { secs: s.into(), nanos: 0 })),
        };
        writeln!(w, "   format: {} (revision {})", i.format, i.revision)?;
        if !i.label.is_empty() {
            writeln!(w, "    label: {}", crate::output::shown(i.label.as_bytes()))?;
        }
        writeln!(w, "     uuid: {}", i.uuid)?;
        writeln!(
            w,
            "     size: {}, {} blocks of {} bytes in {} groups",
            human(i.len_bytes),
            i.blocks,
            i.block_bytes,
            i.groups
        )?;
        writeln!(
            w,
            "     free: {} blocks, {} for the superuser",
            i.blocks_free, i.blocks_reserved
        )?;
        let (inodes, free, bytes) = (i.inodes, i.inodes_free, i.inode_bytes);
        writeln!(w, "   inodes: {inodes} of {bytes} bytes, {free} free")?;
        writeln!(w, " features: {}", i.features.join(" "))?;
        writeln!(w, "    state: {}", state(&i))?;
        writeln!(w, "     made: {}", when(i.made))?;
        writeln!(w, "  mounted: {}", when(i.mounted))?;
        writeln!(w, "  written: {}", when(i.written))?;
        writeln!(w, "  checked: {}", when(i.checked))
    })?;
    Ok(DONE)
}

fn state(i: &VolumeInfo) -> String {
    let mut state = if i.clean {
        "unmounted cleanly".to_owned()
    } else if i.needs_recovery {
        "in use, or in need of its journal's replay (opening does that)".to_owned()
    } else {
        "in use, or not unmounted cleanly".to_owned()
    };
    if i.has_errors {
        state.push_str("; errors were found, weft fsck looks at them");
    }
    if !i.unknown_incompatible.is_empty() {
        let names = i.unknown_incompatible.join(", ");
        state.push_str(&format!("; weft cannot open it: {names} is not supported"));
    } else if !i.unknown_read_only.is_empty() {
        let names = i.unknown_read_only.join(", ");
        state.push_str(&format!("; weft opens it read-only: {names} is not supported"));
    }
    state
}
