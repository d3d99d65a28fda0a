//! Names of Macintosh files that would be taken, and the layouts in which other programs keep the
//! halves of a file.
//!
//! AppleDoubles lie beside their file as `._NAME`. unar calls them `NAME.rsrc` unless it is told
//! otherwise, and archives of macOS have them below `__MACOSX`. All are known by their content.

use std::ffi::OsStr;
use std::fs::File;
use std::io::BufReader;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use weft_hfs::interchange::apple;
use weft_hfs::macroman;

/// The longest name on HFS, in letters.
const LETTERS_MAX: usize = 31;
/// The longest extension that is kept at the end of a name, in bytes with its dot.
const EXTENSION_MAX_BYTES: usize = 8;
/// The directory of AppleDoubles in archives of macOS.
const MACOSX: &[u8] = b"__MACOSX";

/// Returns the name that an item gets if its own is taken: `Game 2`, `Read Me 2.txt`.
pub(super) fn another_name(name: &[u8], turn: u32) -> Vec<u8> {
    let mark = format!(" {}", u64::from(turn) + 2);
    let mac = macroman::name_from_unix(name);
    let (bytes, most) = match &mac {
        Ok(mac) => (&mac[..], LETTERS_MAX),
        Err(_) => (name, 255),
    };
    let dot = bytes.iter().rposition(|b| *b == b'.').filter(|dot| *dot > 0).unwrap_or(bytes.len());
    let (stem, extension) = bytes.split_at(dot);
    let (stem, extension) =
        if extension.len() > EXTENSION_MAX_BYTES { (bytes, &[][..]) } else { (stem, extension) };
    let room = most.saturating_sub(mark.len() + extension.len());
    let whole = [&stem[..stem.len().min(room)], mark.as_bytes(), extension].concat();
    if mac.is_ok() { macroman::name_to_unix(&whole).into_bytes() } else { whole }
}

/// Returns the name of a file that would otherwise be taken for a companion: U+2024 in place of the
/// dot that it begins with. The volume takes that for a dot.
pub(super) fn without_dot(name: &[u8]) -> Vec<u8> {
    match name.strip_prefix(b".") {
        Some(rest) => ["\u{2024}".as_bytes(), rest].concat(),
        None => name.to_vec(),
    }
}

/// Returns true if a file is a whole AppleDouble.
pub(super) fn is_double(host: &Path) -> bool {
    let Ok(meta) = std::fs::symlink_metadata(host) else { return false };
    let open = || apple::open(&mut BufReader::new(File::open(host).ok()?)).ok();
    meta.is_file() && open().is_some_and(|header| header.kind == apple::Kind::Double)
}

fn exists(host: &Path) -> bool {
    std::fs::symlink_metadata(host).is_ok_and(|meta| meta.is_file() || meta.is_dir())
}

fn with_name(host: &Path, name: &[u8]) -> PathBuf {
    host.with_file_name(OsStr::from_bytes(name))
}

/// Returns the AppleDouble of a file or directory that is not called `._NAME`, if there is one. It
/// may be in the directory `__MACOSX` of each directory from `top` down.
pub(super) fn double_elsewhere(host: &Path, top: &Path) -> Option<PathBuf> {
    let name = host.file_name()?.as_bytes();
    let double = [b"._", name].concat();
    // Whatever is called so is sent under that name: one stream has room for one of the two.
    if name.starts_with(b"._") || exists(&with_name(host, &double)) {
        return None;
    }
    let visible = with_name(host, &[name, b".rsrc"].concat());
    if is_double(&visible) {
        return Some(visible);
    }
    let dir = host.parent()?;
    dir.ancestors()
        .take_while(|above| above.starts_with(top) || *above == dir)
        .map(|above| {
            let below = dir.strip_prefix(above).unwrap_or(Path::new(""));
            above.join(OsStr::from_bytes(MACOSX)).join(below).join(OsStr::from_bytes(&double))
        })
        .find(|double| is_double(double))
}

/// Returns true if a file or directory holds AppleDoubles of other files only, which
/// [`double_elsewhere`] finds.
pub(super) fn is_elsewhere(host: &Path, top: &Path) -> bool {
    let Some(name) = host.file_name().map(OsStr::as_bytes) else { return false };
    if let Some(base) = name.strip_suffix(b".rsrc") {
        let base = with_name(host, base);
        return exists(&base) && double_elsewhere(&base, top).as_deref() == Some(host);
    }
    name == MACOSX && host.is_dir() && all_found(host, host, top)
}

/// Returns true if each file below `dir` in `macosx` is found from its own.
fn all_found(dir: &Path, macosx: &Path, top: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(dir) else { return false };
    entries.into_iter().all(|entry| {
        let Ok(path) = entry.map(|entry| entry.path()) else { return false };
        if std::fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_dir()) {
            return all_found(&path, macosx, top);
        }
        let base = path.file_name().and_then(|name| name.as_bytes().strip_prefix(b"._"));
        let below = path.strip_prefix(macosx).ok().and_then(Path::parent);
        let (Some(base), Some(below), Some(above)) = (base, below, macosx.parent()) else {
            return false;
        };
        let base = above.join(below).join(OsStr::from_bytes(base));
        exists(&base) && double_elsewhere(&base, top).as_deref() == Some(&path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_name_fits_and_keeps_its_extension() {
        let named =
            |name: &str, turn| String::from_utf8(another_name(name.as_bytes(), turn)).unwrap();
        assert_eq!(named("Game", 0), "Game 2");
        assert_eq!(named("Read Me.txt", 1), "Read Me 3.txt");
        assert_eq!(named(".hidden", 0), ".hidden 2");
        assert_eq!(named("Été ƒ", 8), "Été ƒ 10");
        for long in ["x".repeat(31), format!("{}.text", "é".repeat(26)), "日".repeat(80)] {
            for turn in [0, 8, 98] {
                let name = named_bytes(&long, turn);
                assert!(name.len() <= 255, "{long}");
                if let Ok(mac) = macroman::name_from_unix(&name) {
                    assert!(mac.len() <= 31, "{long}");
                }
                assert_ne!(name, long.as_bytes());
            }
        }
    }

    fn named_bytes(name: &str, turn: u32) -> Vec<u8> {
        another_name(name.as_bytes(), turn)
    }

    #[test]
    fn halves_of_other_layouts_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path();
        let meta = weft_hfs::interchange::Meta::default();
        let double = apple::short_header(&meta).unwrap();
        let put = |path: &str, bytes: &[u8]| {
            let path = top.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        };
        for path in ["App", "a/b/File", "Plain", "Both"] {
            put(path, b"data");
        }
        put("App.rsrc", &double);
        put("Plain.rsrc", b"no AppleDouble");
        put("Both.rsrc", &double);
        put("._Both", &double);
        put("__MACOSX/a/b/._File", &double);
        put("__MACOSX/._a", &double);
        let found = |path: &str| double_elsewhere(&top.join(path), top);
        assert_eq!(found("App"), Some(top.join("App.rsrc")));
        assert_eq!(found("a/b/File"), Some(top.join("__MACOSX/a/b/._File")));
        assert_eq!(found("a"), Some(top.join("__MACOSX/._a")));
        assert_eq!((found("Plain"), found("Both")), (None, None));
        let elsewhere = |path: &str| is_elsewhere(&top.join(path), top);
        assert!(elsewhere("App.rsrc") && elsewhere("__MACOSX"));
        assert!(!elsewhere("Plain.rsrc") && !elsewhere("Both.rsrc") && !elsewhere("App"));
        put("__MACOSX/a/._Gone", &double);
        assert!(!elsewhere("__MACOSX"), "one of them has no file");
    }
}
