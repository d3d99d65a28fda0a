//! Names and numbers of companions.

use super::forks::Forks;
use crate::macroman;
use std::borrow::Cow;
use weft_vfs::Ino;

/// The part of a file that a companion shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// All but the data fork, as an AppleDouble.
    Double,
    /// The resource fork.
    Resource,
    /// The 32 bytes of Finder information.
    Info,
}

/// Inode numbers of companions are those of their files with one of these bits, which no volume
/// here uses: ids have 32 bits, and a few more on MFS where numbers are there twice.
const BITS: [(u64, Part); 3] =
    [(1 << 60, Part::Double), (1 << 61, Part::Resource), (1 << 62, Part::Info)];

impl Part {
    /// Returns the inode number of this companion of a file.
    pub fn ino(self, base: Ino) -> Ino {
        let bit = BITS.iter().find(|(_, part)| *part == self).map_or(0, |(bit, _)| *bit);
        Ino(base.0 | bit)
    }

    /// Returns the companions that a presentation shows.
    pub fn shown(forks: Forks) -> &'static [Self] {
        match forks {
            Forks::AppleDouble => &[Self::Double],
            Forks::Suffix => &[Self::Resource, Self::Info],
            Forks::Xattr | Forks::None => &[],
        }
    }

    /// Returns the name of this companion of a file.
    pub fn name(self, base: &[u8]) -> Vec<u8> {
        match self {
            Self::Double => [b"._", base].concat(),
            Self::Resource => [base, b"..rsrc"].concat(),
            Self::Info => [base, b"..finf"].concat(),
        }
    }
}

/// U+2024, the leader of one dot, which [`macroman::name_from_unix`] takes for a dot.
const LEADER: &str = "\u{2024}";

/// Returns another spelling of the name of a file on the volume, for one that is also the name of
/// a companion: leaders take the place of the dots that make it one.
pub(super) fn other_spelling(part: Part, name: &[u8]) -> Vec<u8> {
    let leader = LEADER.as_bytes();
    match part {
        Part::Double => [leader, &name[1..]].concat(),
        Part::Resource | Part::Info => {
            let (base, suffix) = name.split_at(name.len() - "..rsrc".len());
            [base, leader, leader, &suffix[2..]].concat()
        }
    }
}

/// Returns a name with dots in place of leaders; `None` if it has none.
pub(super) fn with_dots(name: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(name).ok().filter(|text| text.contains(LEADER))?;
    Some(text.replace(LEADER, ".").into_bytes())
}

/// The longest name on HFS, in letters.
const LETTERS_MAX: usize = 31;

/// Returns the name under which an AppleDouble is stored whose name is too long for the volume,
/// since `._` makes it longer than the file's; `turn` counts the names that were taken.
pub(super) fn shortened(name: &[u8], turn: u32) -> Cow<'_, [u8]> {
    let mac = match macroman::name_from_unix(name) {
        Ok(mac) if turn > 0 || mac.len() > LETTERS_MAX => mac,
        _ => return Cow::Borrowed(name),
    };
    // FNV-1a: the same name each time.
    let hash = mac
        .iter()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    let mark = format!("#{:04x}", (((hash >> 16) ^ hash) & 0xffff).wrapping_add(turn) as u16);
    let keep = mac.len().min(LETTERS_MAX - mark.len());
    let short = [&mac[..keep], mark.as_bytes()].concat();
    Cow::Owned(macroman::name_to_unix(&short).into_bytes())
}

/// Returns the file that an inode number belongs to, and the companion if it is one's number.
pub(super) fn split(ino: Ino) -> (Ino, Option<Part>) {
    match BITS.iter().find(|(bit, _)| ino.0 & bit != 0) {
        Some((bit, part)) => (Ino(ino.0 & !bit), Some(*part)),
        None => (ino, None),
    }
}

/// Returns the name of the file that `name` would be a companion of.
pub(super) fn base_of(forks: Forks, name: &[u8]) -> Option<(&[u8], Part)> {
    Part::shown(forks).iter().find_map(|part| {
        let base = match part {
            Part::Double => name.strip_prefix(b"._"),
            Part::Resource => name.strip_suffix(b"..rsrc"),
            Part::Info => name.strip_suffix(b"..finf"),
        }?;
        let sound = !base.is_empty() && base != b"." && base != b"..";
        sound.then_some((base, *part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_come_back() {
        for forks in [Forks::AppleDouble, Forks::Suffix] {
            for part in Part::shown(forks) {
                let name = part.name(b"Game");
                assert_eq!(base_of(forks, &name), Some((&b"Game"[..], *part)));
                assert_eq!(split(part.ino(Ino(77))), (Ino(77), Some(*part)));
            }
        }
        assert_eq!(split(Ino(77)), (Ino(77), None));
        for no in [&b"._"[..], b"._.", b"._..", b"Game", b"Game..rsrc"] {
            assert_eq!(base_of(Forks::AppleDouble, no), None);
        }
        assert_eq!(base_of(Forks::Xattr, b"._Game"), None);
    }

    #[test]
    fn a_name_has_a_spelling_that_no_companion_has() {
        for forks in [Forks::AppleDouble, Forks::Suffix] {
            for part in Part::shown(forks) {
                let name = part.name(b"Game");
                let other = other_spelling(*part, &name);
                assert_eq!(base_of(forks, &other), None);
                assert_eq!(with_dots(&other).as_deref(), Some(&name[..]));
                let mac = macroman::name_from_unix(&name);
                assert_eq!(macroman::name_from_unix(&other), mac);
            }
        }
        assert_eq!(with_dots(b"._Game"), None);
    }

    #[test]
    fn long_names_of_appledoubles_fit_and_differ() {
        let long = |c: char| format!("._{}", String::from(c).repeat(31)).into_bytes();
        let (a, b, short) = (long('a'), long('b'), b"._short");
        let all = [
            shortened(&a, 0),
            shortened(&a, 1),
            shortened(&b, 0),
            shortened(short, 0),
            shortened(short, 1),
        ];
        assert_eq!(&*all[3], b"._short");
        for (n, name) in all.iter().enumerate() {
            assert!(macroman::name_from_unix(name).unwrap().len() <= 31, "{name:?}");
            assert!(name.starts_with(b"._") && !all[..n].contains(name), "{name:?}");
        }
    }
}
