//! Names and numbers of companions.

use super::forks::Forks;
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
}
