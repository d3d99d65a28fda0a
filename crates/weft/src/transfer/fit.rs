//! Fits names to a Macintosh volume.
//!
//! A name of more than 31 letters, or with letters that MacRoman does not have, is changed: letters
//! become `_`, the end before the extension becomes `#` and four digits derived from the whole
//! name, so that names come out the same each time. Two names of a directory that would collide get
//! different digits; case does not distinguish names on the volume.

use super::{Content, Item, ItemKind, Sink, join, split_last};
use crate::{Error, Result};
use std::collections::{HashMap, HashSet};
use weft_hfs::macroman;

/// The longest name on HFS, in bytes of MacRoman.
const NAME_MAX_BYTES: usize = 31;
/// The longest extension that is kept, in bytes with its dot.
const EXTENSION_MAX_BYTES: usize = 8;

/// A sink that fits names and passes items to another sink.
pub struct FitNames<'a> {
    sink: &'a mut dyn Sink,
    changed: Vec<(String, String)>,
    /// The fitted path of each path, and the set of all fitted paths.
    paths: HashMap<Vec<u8>, Vec<u8>>,
    taken: HashSet<Vec<u8>>,
}

impl std::fmt::Debug for FitNames<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FitNames").field("changed", &self.changed).finish_non_exhaustive()
    }
}

impl<'a> FitNames<'a> {
    /// Fits names for `sink`.
    pub fn new(sink: &'a mut dyn Sink) -> Self {
        Self { sink, changed: Vec::new(), paths: HashMap::new(), taken: HashSet::new() }
    }

    /// The names that were changed, and their new names.
    #[must_use]
    pub fn changed(&self) -> &[(String, String)] {
        &self.changed
    }

    /// Returns the fitted path; always the same one for a path.
    fn fit_path(&mut self, path: &[u8]) -> Vec<u8> {
        if path.is_empty() {
            return Vec::new();
        }
        let (above, own) = split_last(path);
        if let Some(base) = own.strip_prefix(COMPANION) {
            let base = self.fit_path(&join(above, base));
            let (above, base) = split_last(&base);
            return join(above, &[COMPANION, base].concat());
        }
        if let Some(fitted) = self.paths.get(path) {
            return fitted.clone();
        }
        let above = self.fit_path(above);
        let free = (0_u32..).map(|turn| join(&above, &fit_again(own, turn)));
        let fitted =
            free.into_iter().find(|path| !self.taken.contains(&folded(path))).unwrap_or_default();
        self.taken.insert(folded(&fitted));
        self.paths.insert(path.to_vec(), fitted.clone());
        fitted
    }
}

/// Returns a key that is the same for all paths to one item of the volume.
fn folded(path: &[u8]) -> Vec<u8> {
    path.split(|b| *b == b'/')
        .map(|name| match macroman::name_from_unix(name) {
            Ok(mac) => mac.into_iter().map(weft_hfs::relstring::weight).collect(),
            Err(_) => name.to_vec(),
        })
        .collect::<Vec<Vec<u8>>>()
        .join(&b'/')
}

/// The prefix of a companion's name, before the file's name; no volume stores it.
const COMPANION: &[u8] = b"._";

/// Returns the fitted name; unchanged if it fits.
#[must_use]
pub fn fit(name: &[u8]) -> Vec<u8> {
    if let Some(base) = name.strip_prefix(COMPANION) {
        return [COMPANION, &fit(base)[..]].concat();
    }
    fit_again(name, 0)
}

/// Returns the fitted name for attempt `turn`, after the names of earlier attempts were taken.
fn fit_again(name: &[u8], turn: u32) -> Vec<u8> {
    match macroman::name_from_unix(name) {
        Ok(mac) if turn == 0 && mac.len() <= NAME_MAX_BYTES => return name.to_vec(),
        _ => {}
    }
    let text = String::from_utf8_lossy(name);
    // Letter by letter; a combining mark together with the letter it follows.
    let mut mac: Vec<u8> = Vec::new();
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        let pair = letters.peek().map(|mark| String::from_iter([letter, *mark]));
        let composed = pair.and_then(|pair| macroman::name_from_unix(pair.as_bytes()).ok());
        if let Some(composed) = composed.filter(|c| c.len() == 1) {
            letters.next();
            mac.extend(composed);
            continue;
        }
        // A dot alone is no name.
        if letter == '.' {
            mac.push(b'.');
            continue;
        }
        let one = letter.encode_utf8(&mut [0; 4]).as_bytes().to_vec();
        mac.extend(macroman::name_from_unix(&one).unwrap_or_else(|_| b"_".to_vec()));
    }
    let dot = mac.iter().rposition(|b| *b == b'.').unwrap_or(mac.len());
    let extension = match mac.get(dot..) {
        Some(end) if dot > 0 && (2..=EXTENSION_MAX_BYTES).contains(&end.len()) => end.to_vec(),
        _ => Vec::new(),
    };
    let mark = format!("#{:04x}", hash(name, turn));
    let keep = NAME_MAX_BYTES - mark.len() - extension.len();
    let stem = mac.len() - extension.len();
    mac.truncate(stem.min(keep));
    mac.extend_from_slice(mark.as_bytes());
    mac.extend(extension);
    macroman::name_to_unix(&mac).into_bytes()
}

/// FNV-1a, folded to 16 bits, plus the number of the attempt.
fn hash(name: &[u8], turn: u32) -> u16 {
    let hash = name
        .iter()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    ((hash >> 16) as u16 ^ hash as u16).wrapping_add(turn as u16)
}

impl Sink for FitNames<'_> {
    fn put(&mut self, item: &Item<'_>, content: &mut dyn Content) -> Result<()> {
        if item.path.is_empty() {
            return self.sink.put(item, content);
        }
        let path = self.fit_path(item.path);
        let (own, fitted) = (split_last(item.path).1, split_last(&path).1);
        if own != fitted && !own.starts_with(COMPANION) {
            let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
            self.changed.push((text(item.path), text(fitted)));
        }
        let first;
        let kind = match item.kind {
            ItemKind::HardLink(earlier) => {
                first = self.fit_path(earlier);
                ItemKind::HardLink(&first)
            }
            kind => kind,
        };
        self.sink.put(&Item { path: &path, kind, ..item.clone() }, content)
    }

    fn unreadable(&mut self, path: &[u8], e: Error) -> Result<()> {
        let path = self.fit_path(path);
        self.sink.unreadable(&path, e)
    }

    fn finish(&mut self) -> Result<()> {
        self.sink.finish()
    }

    fn abandon(&mut self) {
        self.sink.abandon();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fitted(name: &str) -> String {
        String::from_utf8(fit(name.as_bytes())).unwrap()
    }

    #[test]
    fn what_fits_stays() {
        for name in ["a", "Été ƒ.txt", "24:7", &"x".repeat(31), "._a"] {
            assert_eq!(fitted(name), name);
        }
    }

    #[test]
    fn what_case_alone_tells_apart_is_one_to_the_volume() {
        assert_eq!(folded(b"Dir/File"), folded(b"dir/fILE"));
        assert_eq!(folded("É".as_bytes()), folded("é".as_bytes()));
        assert_ne!(folded(b"a/b"), folded(b"a/c"));
    }

    #[test]
    fn what_does_not_keeps_its_beginning_and_its_extension() {
        let long = fitted("A rather long name of a file from today.tar.gz");
        assert!(long.starts_with("A rather long name of") && long.ends_with(".gz"), "{long}");
        let double = fitted("._A rather long name of a file from today.tar.gz");
        assert_eq!(double, format!("._{long}"));
        assert_ne!(fitted(&"x".repeat(40)), fitted(&"x".repeat(41)));
        let japanese = fitted("日本.txt");
        assert!(japanese.starts_with("__#") && japanese.ends_with(".txt"), "{japanese}");
        for name in
            ["x".repeat(255), "日".repeat(80), ".".repeat(40), format!("{}.x", "y".repeat(99))]
        {
            let mac = macroman::name_from_unix(fitted(&name).as_bytes()).unwrap();
            assert!((1..=31).contains(&mac.len()), "{name}");
        }
    }
}
