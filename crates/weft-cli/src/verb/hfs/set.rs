//! `hfs set`: every field of the Finder, dates and lock.

use super::{FLAGS, each_item};
use crate::cli::hfs::{MoreFields, Set, YesNo};
use crate::failure::{Failure, Outcome};
use crate::verb::file_error;
use crate::zone;
use data_encoding::HEXLOWER_PERMISSIVE;
use weft::hfs::interchange::Meta;
use weft::hfs::layout::{DInfo, DXInfo, FInfo, FXInfo, Point, Rect, finder_flags};

/// The offset of the flags, the same in both halves of Finder information.
const FLAGS_AT: usize = 8;

/// The parsed values to set, read before any volume is opened.
struct Wish {
    flags: Option<(u16, u16)>,
    location: Option<Point>,
    window: Option<Rect>,
    scroll: Option<Point>,
    created: Option<u32>,
    modified: Option<u32>,
    backed_up: Option<u32>,
    finder_info: Option<[u8; 32]>,
}

/// `hfs set`.
pub fn run(args: &Set) -> Outcome {
    let wish = Wish {
        flags: args.flags.as_deref().map(flags).transpose()?,
        location: args.location.as_deref().map(location).transpose()?,
        window: args.window.as_deref().map(window).transpose()?,
        scroll: args.more.scroll.as_deref().map(location).transpose()?,
        created: args.dates.created.as_deref().map(zone::date).transpose()?,
        modified: args.dates.modified.as_deref().map(zone::date).transpose()?,
        backed_up: args.dates.backed_up.as_deref().map(zone::date).transpose()?,
        finder_info: args.finder_info.as_deref().map(hex).transpose()?,
    };
    each_item(&args.paths, Some(&args.opening), |volume, node, path| {
        let failed = |e| file_error("change", path, e);
        let mut meta = volume.meta(node.ino()).map_err(failed)?;
        change(&mut meta, args, &wish, node.is_dir())?;
        volume.set_meta(node.ino(), &meta).map_err(failed)
    })
}

fn change(meta: &mut Meta, args: &Set, wish: &Wish, is_dir: bool) -> Result<(), Failure> {
    let of_files = args.file_type.is_some() || args.creator.is_some() || args.locked.is_some();
    if is_dir && of_files {
        return Err(Failure::usage("a folder has neither type nor creator nor lock"));
    }
    let more = &args.more;
    let of_folders = args.view.is_some() || wish.window.is_some();
    if !is_dir && (of_folders || wish.scroll.is_some() || more.open_chain.is_some()) {
        return Err(Failure::usage(
            "a file has no window; --window, --view, --scroll and --open-chain are for folders",
        ));
    }
    if is_dir && (more.folder.is_some() || more.icon_id.is_some()) {
        return Err(Failure::usage("--folder and --icon-id are for files"));
    }
    if let Some(raw) = wish.finder_info {
        meta.finder_info = raw;
    }
    let file_type = args.file_type.map_or(meta.file_type(), |code| code.0);
    let creator = args.creator.map_or(meta.creator(), |code| code.0);
    if !is_dir {
        meta.set_type(file_type, creator);
    }
    let mut flags = meta.finder_flags();
    if let Some((clear, set)) = wish.flags {
        flags = flags & !clear | set;
    }
    if let Some(color) = args.color {
        flags = flags & !finder_flags::COLOR | color << 1;
    }
    meta.finder_info[FLAGS_AT..FLAGS_AT + 2].copy_from_slice(&flags.to_be_bytes());
    place(meta, wish, args, is_dir);
    extend(meta, wish, more, is_dir);
    meta.created = wish.created.unwrap_or(meta.created);
    meta.modified = wish.modified.unwrap_or(meta.modified);
    meta.backed_up = wish.backed_up.unwrap_or(meta.backed_up);
    meta.locked = args.locked.map_or(meta.locked, |answer| answer == YesNo::Yes);
    Ok(())
}

/// Sets the positions of icon and window.
fn place(meta: &mut Meta, wish: &Wish, args: &Set, is_dir: bool) {
    let mut half = [0; 16];
    half.copy_from_slice(&meta.finder_info[..16]);
    let half = if is_dir {
        let info = DInfo::parse(&half);
        DInfo {
            rect: wish.window.unwrap_or(info.rect),
            location: wish.location.unwrap_or(info.location),
            view: args.view.unwrap_or(info.view),
            ..info
        }
        .encode()
    } else {
        let info = FInfo::parse(&half);
        FInfo {
            location: wish.location.unwrap_or(info.location),
            folder: args.more.folder.unwrap_or(info.folder),
            ..info
        }
        .encode()
    };
    meta.finder_info[..16].copy_from_slice(&half);
}

/// Sets the fields of the second half, the extended information.
fn extend(meta: &mut Meta, wish: &Wish, more: &MoreFields, is_dir: bool) {
    let mut half = [0; 16];
    half.copy_from_slice(&meta.finder_info[16..]);
    let half = if is_dir {
        let info = DXInfo::parse(&half);
        DXInfo {
            scroll: wish.scroll.unwrap_or(info.scroll),
            open_chain: more.open_chain.unwrap_or(info.open_chain),
            script: more.script.unwrap_or(info.script),
            x_flags: more.x_flags.unwrap_or(info.x_flags),
            comment_id: more.comment_id.unwrap_or(info.comment_id),
            put_away: more.put_away.unwrap_or(info.put_away),
        }
        .encode()
    } else {
        let info = FXInfo::parse(&half);
        FXInfo {
            icon_id: more.icon_id.unwrap_or(info.icon_id),
            script: more.script.unwrap_or(info.script),
            x_flags: more.x_flags.unwrap_or(info.x_flags),
            comment_id: more.comment_id.unwrap_or(info.comment_id),
            put_away: more.put_away.unwrap_or(info.put_away),
            ..info
        }
        .encode()
    };
    meta.finder_info[16..].copy_from_slice(&half);
}

/// Parses `+invisible,-bundle`, or a number: the flags to clear, and those to set.
fn flags(text: &str) -> Result<(u16, u16), Failure> {
    let number = match text.strip_prefix("0x") {
        Some(hex) => u16::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    };
    if let Some(all) = number {
        return Ok((u16::MAX, all));
    }
    let (mut clear, mut set) = (0, 0);
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let (name, on) = match word.strip_prefix('-') {
            Some(name) => (name, false),
            None => (word.strip_prefix('+').unwrap_or(word), true),
        };
        let Some((_, bit)) = FLAGS.iter().find(|(known, _)| *known == name) else {
            let all: Vec<&str> = FLAGS.iter().map(|(name, _)| *name).collect();
            return Err(Failure::usage(format!("there is no flag '{name}': {}", all.join(", "))));
        };
        *(if on { &mut set } else { &mut clear }) |= bit;
    }
    Ok((clear, set))
}

fn numbers<const N: usize>(text: &str) -> Option<[i16; N]> {
    let all: Vec<i16> =
        text.split(',').map(|n| n.trim().parse().ok()).collect::<Option<Vec<_>>>()?;
    all.try_into().ok()
}

fn location(text: &str) -> Result<Point, Failure> {
    let [h, v] = numbers(text)
        .ok_or_else(|| Failure::usage(format!("'{text}' is no place: write RIGHT,DOWN")))?;
    Ok(Point { v, h })
}

fn window(text: &str) -> Result<Rect, Failure> {
    let [left, top, right, bottom] = numbers(text).ok_or_else(|| {
        Failure::usage(format!("'{text}' is no window: write LEFT,TOP,RIGHT,BOTTOM"))
    })?;
    Ok(Rect { top, left, bottom, right })
}

fn hex(text: &str) -> Result<[u8; 32], Failure> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    let bytes = HEXLOWER_PERMISSIVE.decode(&digits).ok().and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or_else(|| Failure::usage("Finder information is 64 hexadecimal digits"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_words_or_a_number() {
        assert_eq!(flags("+invisible,-bundle").ok(), Some((0x2000, 0x4000)));
        assert_eq!(flags("alias").ok(), Some((0, 0x8000)));
        assert_eq!(flags("0x0400").ok(), Some((0xffff, 0x400)));
        assert!(flags("+shiny").is_err());
    }

    #[test]
    fn places_and_windows() {
        assert_eq!(location("-3, 40").ok(), Some(Point { v: 40, h: -3 }));
        assert!(location("3").is_err() && location("1,2,3").is_err() && location("a,b").is_err());
        let rect = Rect { top: 2, left: 1, bottom: 4, right: 3 };
        assert_eq!(window("1,2,3,4").ok(), Some(rect));
        assert!(hex("00").is_err());
        assert_eq!(hex(&"0f".repeat(32)).ok(), Some([15; 32]));
    }
}
