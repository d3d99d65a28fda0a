//! `info`.

use crate::cli;
use crate::failure::{DONE, Outcome};
use crate::output::{Output, count, human, utc};
use crate::zone;
use serde::Serialize;
use weft::vfs::Time;
use weft::{ExtInfo, MacInfo, VolumeInfo};

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
    match weft::info(&args.image)? {
        VolumeInfo::Ext(info) => ext(out, args, &info),
        VolumeInfo::Mac(info) => mac(out, args, &info),
    }
}

#[derive(Serialize)]
struct MacReport<'a> {
    image: &'a str,
    format: &'a str,
    layers: &'a [String],
    label: &'a str,
    len_bytes: u64,
    block_bytes: u32,
    blocks: u64,
    blocks_free: u64,
    files: Option<u32>,
    folders: Option<u32>,
    clean: bool,
    locked: bool,
    bootable: bool,
    created: String,
    modified: String,
    backed_up: String,
    write_count: u32,
    blessed_folder: Option<u32>,
    catalog_bytes: Option<u64>,
    extents_bytes: Option<u64>,
    clump_bytes: Option<u64>,
    journal: Option<&'a str>,
    read_only: Option<&'a str>,
}

fn mac(out: Output, args: &cli::Info, i: &MacInfo) -> Outcome {
    let part = |name| i.parts.iter().find(|(n, _)| *n == name).map(|(_, bytes)| *bytes);
    let report = MacReport {
        image: &args.image,
        format: i.format,
        layers: &i.layers,
        label: &i.label,
        len_bytes: i.len_bytes,
        block_bytes: i.block_bytes,
        blocks: i.blocks,
        blocks_free: i.blocks_free,
        files: i.files,
        folders: i.folders,
        clean: i.clean,
        locked: i.locked,
        bootable: i.bootable,
        created: zone::shown(i.created),
        modified: zone::shown(i.modified),
        backed_up: zone::shown(i.backed_up),
        write_count: i.write_count,
        blessed_folder: i.blessed,
        catalog_bytes: part("catalog"),
        extents_bytes: part("extents"),
        clump_bytes: part("clump"),
        journal: i.journal.as_deref(),
        read_only: i.why_read_only.as_deref(),
    };
    out.report(&report, |w| {
        let clock = if i.format == "hfs+" { "UTC" } else { "on its own clock" };
        writeln!(w, "   format: {}", i.format)?;
        if !i.layers.is_empty() {
            writeln!(w, "       in: {}", i.layers.join(", "))?;
        }
        writeln!(w, "    label: {}", crate::output::shown(i.label.as_bytes()))?;
        let (size, blocks, bytes) = (human(i.len_bytes), i.blocks, i.block_bytes);
        writeln!(w, "     size: {size}, {blocks} allocation blocks of {bytes} bytes")?;
        let free = human(i.blocks_free * u64::from(i.block_bytes));
        writeln!(w, "     free: {free}, {} blocks", i.blocks_free)?;
        if let Some(files) = i.files {
            let folders = i.folders.map(|n| format!(", {}", count(n.into(), "folder")));
            writeln!(
                w,
                "    holds: {}{}",
                count(files.into(), "file"),
                folders.unwrap_or_default()
            )?;
        }
        if !i.parts.is_empty() {
            let parts = i.parts.iter().map(|(name, bytes)| format!("{name} {}", human(*bytes)));
            writeln!(w, "    parts: {}", parts.collect::<Vec<_>>().join(", "))?;
        }
        let mut state =
            if i.clean { "unmounted cleanly" } else { "in use, or not unmounted" }.to_owned();
        if let Some(why) = &i.why_read_only {
            state.push_str(&format!("; read-only: {why}"));
        }
        writeln!(w, "    state: {state}")?;
        if let Some(journal) = &i.journal {
            writeln!(w, "  journal: {journal}")?;
        }
        let boot = if i.bootable { "boot blocks" } else { "no boot blocks" };
        let blessed = i
            .blessed
            .map_or("no blessed folder".to_owned(), |id| format!("folder {id} is blessed"));
        writeln!(w, "  startup: {boot}, {blessed}")?;
        writeln!(w, "     made: {}, {clock}", zone::shown(i.created))?;
        if i.format != "mfs" {
            writeln!(w, "  changed: {}", zone::shown(i.modified))?;
        }
        writeln!(w, "backed up: {}", zone::shown(i.backed_up))
    })?;
    Ok(DONE)
}

fn ext(out: Output, args: &cli::Info, i: &ExtInfo) -> Outcome {
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
        writeln!(w, "    state: {}", state(i))?;
        writeln!(w, "     made: {}", when(i.made))?;
        writeln!(w, "  mounted: {}", when(i.mounted))?;
        writeln!(w, "  written: {}", when(i.written))?;
        writeln!(w, "  checked: {}", when(i.checked))
    })?;
    Ok(DONE)
}

fn state(i: &ExtInfo) -> String {
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
