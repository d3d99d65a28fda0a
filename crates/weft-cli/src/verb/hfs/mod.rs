//! `hfs`: operations that only Macintosh volumes have, one file for each small family of verbs.

mod convert;
pub mod pack;
mod set;
mod show;

use super::{changing, file_error, reading};
use crate::cli::Opening;
use crate::cli::hfs::{Bless, Hfs, Label, Unwrap, Volume};
use crate::failure::{DONE, Failure, Outcome};
use crate::output::{Output, human};
use crate::zone;
use serde_json::json;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use weft::Stack;
use weft::block::OpenMode;
use weft::hfs::macroman;
use weft::hfs::streams::MacVolume;
use weft::vfs::host_file::NewFile;
use weft::vfs::{Error as FsError, Walker};

/// `hfs`.
pub fn run(out: Output, verb: &Hfs) -> Outcome {
    match verb {
        Hfs::Ls(args) => show::ls(out, args),
        Hfs::Info(args) => show::info(out, args),
        Hfs::Set(args) => set::run(args),
        Hfs::Bless(args) => bless(out, args),
        Hfs::Label(args) => label(out, args),
        Hfs::Volume(args) => volume(out, args),
        Hfs::Convert(args) => convert::run(out, args),
        Hfs::Unwrap(args) => unwrap(out, args),
    }
}

/// The volume as one whose files have two forks.
fn mac_of(stack: &Stack) -> Result<Arc<dyn MacVolume>, Failure> {
    stack.mac().ok_or_else(|| {
        Failure::usage(format!(
            "{} is no Macintosh volume: its files have one fork",
            stack.source()
        ))
    })
}

fn volume_error(image: &str) -> impl Fn(FsError) -> Failure + '_ {
    move |e| Failure::new(format!("{image}: {e}"))
}

/// Converts the name of a volume to MacRoman.
pub fn volume_name(label: &str) -> Result<Vec<u8>, Failure> {
    let name = macroman::encode(label).map_err(|e| Failure::usage(format!("--label: {e}")))?;
    match name.len() {
        1..=27 if !name.contains(&b':') => Ok(name),
        1..=27 => Err(Failure::usage("a volume's name has no colon")),
        n => Err(Failure::usage(format!("a volume's name has 1 to 27 letters, and this has {n}"))),
    }
}

/// `hfs bless`.
fn bless(out: Output, args: &Bless) -> Outcome {
    let place = weft::volume::parse(&args.path).map_err(|e| Failure::usage(e.to_string()))?;
    let boot_blocks = args.boot_blocks_from.as_deref().map(read_boot_blocks).transpose()?;
    changing(&place.image, &args.opening, |stack| {
        let volume = mac_of(stack)?;
        let mut meta = volume.volume_meta();
        let Some(words) = &mut meta.finder_info else {
            return Err(Failure::usage("MFS has no folder that could be blessed"));
        };
        let id = if args.none {
            0
        } else {
            let node = Walker::new(stack.fs())
                .resolve(&place.path)
                .map_err(|e| file_error("bless", &place.path, e))?;
            if !node.is_dir() {
                return Err(file_error("bless", &place.path, FsError::NotADirectory));
            }
            u32::try_from(node.ino().0).unwrap_or(0)
        };
        // The startup folder, stored a second time for later systems.
        (words[0], words[3]) = (id, id);
        volume.set_volume_meta(&meta).map_err(volume_error(&place.image))
    })?;
    if let Some(blocks) = boot_blocks {
        let device = weft::source::open_source(&place.image, OpenMode::READ_WRITE)?;
        let image = weft::image::unwrap(&place.image, device)?;
        image.device.write_at(&blocks, 0)?;
        image.device.flush()?;
    }
    if args.none {
        out.confirm(&json!({ "blessed": null }), "no folder is blessed")?;
    } else {
        let path = String::from_utf8_lossy(&place.path).into_owned();
        out.confirm(&json!({ "blessed": path }), &format!("{path} is blessed"))?;
    }
    Ok(DONE)
}

/// Reads the boot blocks of a volume: the 1024 bytes before its volume information.
fn read_boot_blocks(source: &str) -> Result<[u8; 1024], Failure> {
    let device = weft::source::open_source(source, OpenMode::READ_ONLY)?;
    let image = weft::image::unwrap(source, device)?;
    let mut blocks = [0; 1024];
    image.device.read_at(&mut blocks, 0)?;
    if blocks[..2] == *b"LK" {
        return Ok(blocks);
    }
    Err(Failure::new(format!("{source} has no boot blocks")))
}

/// `hfs label`.
fn label(out: Output, args: &Label) -> Outcome {
    let Some(label) = &args.label else {
        let name = reading(&args.image, |stack| Ok(mac_of(stack)?.volume_meta().name))?;
        let name = macroman::name_to_unix(&name);
        out.report(&json!({ "label": name }), |w| writeln!(w, "{name}"))?;
        return Ok(DONE);
    };
    let name = volume_name(label)?;
    changing(&args.image, &args.opening, |stack| {
        let volume = mac_of(stack)?;
        let meta = weft::hfs::streams::VolumeMeta { name, ..volume.volume_meta() };
        volume.set_volume_meta(&meta).map_err(volume_error(&args.image))
    })?;
    out.confirm(&json!({ "label": label }), &format!("{} is called {label}", args.image))?;
    Ok(DONE)
}

/// `hfs volume`.
fn volume(out: Output, args: &Volume) -> Outcome {
    let date = |text: &Option<String>| text.as_deref().map(zone::date).transpose();
    let (created, modified) = (date(&args.dates.created)?, date(&args.dates.modified)?);
    let backed_up = date(&args.dates.backed_up)?;
    if created.is_none() && modified.is_none() && backed_up.is_none() {
        return Err(Failure::usage("say what to set: --created, --modified or --backed-up"));
    }
    refuse_with_journal(&args.image, created, &args.opening)?;
    // The time of this change is the date to be set, in place of the clock.
    let options = weft::Options {
        clock: modified.map(zone::time_of),
        ..super::change_options(&args.opening)
    };
    super::changing_with(&args.image, &options, |stack| {
        let volume = mac_of(stack)?;
        let mut meta = volume.volume_meta();
        meta.created = created.unwrap_or(meta.created);
        meta.backed_up = backed_up.unwrap_or(meta.backed_up);
        // Checkers compare the date of the root folder with that of the volume.
        if let (Some(date), Some(_)) = (created, meta.finder_info) {
            let root = volume.root();
            let of_root = weft::hfs::interchange::Meta {
                created: date,
                ..volume.meta(root).map_err(volume_error(&args.image))?
            };
            volume.set_meta(root, &of_root).map_err(volume_error(&args.image))?;
        }
        volume.set_volume_meta(&meta).map_err(volume_error(&args.image))
    })?;
    out.confirm(&json!({ "image": args.image }), &format!("set the dates of {}", args.image))?;
    Ok(DONE)
}

/// Refuses to change the date of creation of a volume with a journal, which knows its volume by it.
fn refuse_with_journal(
    image: &str,
    created: Option<u32>,
    opening: &Opening,
) -> Result<(), Failure> {
    let weft::VolumeInfo::Mac(info) = weft::info(image)? else { return Ok(()) };
    let journal = info.journal.or_else(|| opening.journal.clone());
    match journal {
        Some(journal) if created.is_some_and(|date| date != info.created) => {
            Err(Failure::new(format!(
                "{image} has the journal {journal}, which knows it by the date it was made: after \
                 a clean unmount the journal is empty and can be removed"
            )))
        }
        _ => Ok(()),
    }
}

/// `hfs unwrap`.
fn unwrap(out: Output, args: &Unwrap) -> Outcome {
    const RUN_BYTES: usize = 1 << 20;
    let device = weft::source::open_source(&args.image, OpenMode::READ_ONLY)?;
    let image = weft::image::unwrap(&args.image, device)?;
    // Damaged parts are written all the same, and reported: there may be no better copy.
    let wrong = image.verify();
    for what in &wrong {
        out.note(&format!("{}: {what}", args.image));
    }
    let len = image.device.geometry().len_bytes;
    let failed = |e: std::io::Error| Failure::from(weft::Error::host("write", &args.to, e));
    let made = |e| weft::Error::host("make", &args.to, e);
    if args.to.symlink_metadata().is_ok() {
        return Err(made(std::io::ErrorKind::AlreadyExists.into()).into());
    }
    let new = NewFile::create(&args.to, 0o666).map_err(made)?;
    let file = new.file();
    file.set_len(len).map_err(failed)?;
    let mut buffer = vec![0; RUN_BYTES];
    let mut at = 0;
    while at < len {
        let n = usize::try_from(len - at).unwrap_or(usize::MAX).min(RUN_BYTES);
        image.device.read_at(&mut buffer[..n], at)?;
        // Zeroes are left as a hole.
        if buffer[..n].iter().any(|b| *b != 0) {
            file.write_all_at(&buffer[..n], at).map_err(failed)?;
        }
        at += n as u64;
    }
    new.persist_new().map_err(failed)?;
    let (to, layers) = (args.to.display().to_string(), image.layer_names());
    let off = if layers.is_empty() { "nothing".to_owned() } else { layers.join(", ") };
    let report = json!({ "image": to, "len_bytes": len, "layers": layers, "problems": wrong });
    let what = image.format.words();
    out.confirm(&report, &format!("{to}: {what}, {}; taken off: {off}", human(len)))?;
    Ok(DONE)
}

/// Calls `work` for the item at each of the paths.
fn each_item(
    paths: &[std::ffi::OsString],
    opening: Option<&Opening>,
    mut work: impl FnMut(&dyn MacVolume, &weft::vfs::Node<'_>, &[u8]) -> Result<(), Failure>,
) -> Outcome {
    super::by_volume(paths, |image, paths| {
        let run = |stack: &Stack| {
            let volume = mac_of(stack)?;
            let walker = Walker::new(stack.fs());
            for place in paths {
                let node = walker
                    .resolve_link(&place.path)
                    .map_err(|e| file_error("look up", &place.path, e))?;
                work(&*volume, &node, &place.path)?;
            }
            Ok(())
        };
        match opening {
            Some(opening) => changing(image, opening, run),
            None => reading(image, run),
        }
    })
}

/// Formats a type or creator.
fn code(bytes: [u8; 4]) -> String {
    if bytes == [0; 4] {
        return "-".into();
    }
    if bytes.iter().any(|b| *b < 0x20 || *b == 0x7f) {
        return format!("{:#010x}", u32::from_be_bytes(bytes));
    }
    macroman::decode(&bytes)
}

/// The named flags, as `hfs set --flags` takes them.
const FLAGS: [(&str, u16); 10] = {
    use weft::hfs::layout::finder_flags as f;
    [
        ("alias", f::IS_ALIAS),
        ("invisible", f::IS_INVISIBLE),
        ("bundle", f::HAS_BUNDLE),
        ("name-locked", f::NAME_LOCKED),
        ("stationery", f::IS_STATIONERY),
        ("custom-icon", f::HAS_CUSTOM_ICON),
        ("inited", f::HAS_BEEN_INITED),
        ("no-inits", f::HAS_NO_INITS),
        ("shared", f::IS_SHARED),
        ("on-desk", f::IS_ON_DESK),
    ]
};

fn flag_names(flags: u16) -> Vec<&'static str> {
    FLAGS.iter().filter(|(_, bit)| flags & bit != 0).map(|(name, _)| *name).collect()
}
