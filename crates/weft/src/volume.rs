//! Paths in a volume: `IMAGE:/path`.

use crate::source::SCHEMES;
use crate::{Error, Result};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// A parsed `IMAGE:/path`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumePath {
    /// The source, as [`crate::Stack::open`] takes it.
    pub image: String,
    /// An absolute path in the volume.
    pub path: Vec<u8>,
}

/// Splits `IMAGE:/path` at the first `:/` that is followed by a path. Without one the whole text is
/// the image and the path is the root.
///
/// # Errors
/// [`Error::Usage`] for an empty or non-UTF-8 image name, or a path that is not absolute.
pub fn parse(text: &OsStr) -> Result<VolumePath> {
    let bytes = text.as_bytes();
    let shown = text.to_string_lossy();
    let (image, path) = match path_at(bytes) {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None if bytes.last() == Some(&b':') => (&bytes[..bytes.len() - 1], &b"/"[..]),
        None => (bytes, &b"/"[..]),
    };
    if image.is_empty() {
        return Err(Error::Usage(format!(
            "'{shown}' names no image; a volume path is IMAGE:/path"
        )));
    }
    if path.contains(&0) {
        return Err(Error::Usage(format!("'{shown}' has a NUL in it")));
    }
    let image = std::str::from_utf8(image)
        .map_err(|_| Error::Usage(format!("the image name in '{shown}' is not UTF-8")))?;
    Ok(VolumePath { image: image.to_owned(), path: path.to_vec() })
}

/// Returns the position of the `:` before the path: that of the first `:/`, not counting those of
/// filters and a URI's `://`.
fn path_at(bytes: &[u8]) -> Option<usize> {
    // The name of an image is UTF-8, only what is behind it may be other bytes.
    let text = bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    let filters = weft_block::filters_len_bytes(text);
    let scheme = SCHEMES
        .iter()
        .map(|scheme| format!("{scheme}://"))
        .find(|scheme| text[filters..].starts_with(scheme.as_str()))
        .map_or(0, |scheme| scheme.len());
    let device = filters + scheme;
    bytes[device..].windows(2).position(|w| w == b":/").map(|at| device + at)
}

/// Returns true if `text` reads as `IMAGE:/path` (and not as a path of the host).
#[must_use]
pub fn looks_like_one(text: &OsStr) -> bool {
    let bytes = text.as_bytes();
    bytes.last() == Some(&b':') || path_at(bytes).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ok(text: &str) -> (String, String) {
        let v = parse(OsStr::new(text)).expect("parses");
        (v.image, String::from_utf8(v.path).expect("UTF-8"))
    }

    #[test]
    fn paths_are_taken_apart() {
        assert_eq!(ok("v.img:/a/b"), ("v.img".into(), "/a/b".into()));
        assert_eq!(ok("v.img:/"), ("v.img".into(), "/".into()));
        assert_eq!(ok("v.img"), ("v.img".into(), "/".into()));
        assert_eq!(ok("v.img:"), ("v.img".into(), "/".into()));
        assert_eq!(
            ok("/d/v.img?partition=2:/x:/y"),
            ("/d/v.img?partition=2".into(), "/x:/y".into())
        );
        assert_eq!(ok("a:b.img:/x"), ("a:b.img".into(), "/x".into()));
        assert_eq!(
            ok("delay=1ms:record=/x/a.log:/d/v.img:/a"),
            ("delay=1ms:record=/x/a.log:/d/v.img".into(), "/a".into())
        );
        assert!(!looks_like_one(OsStr::new("delay=1ms:/d/v.img")));
        for uri in [
            "delay=1ms:nbd://h/e",
            "nbd://h:10809/e",
            "nbds://[::1]/e",
            "nbd+unix:///e?socket=/s",
            "nbd://h",
        ] {
            assert_eq!(ok(&format!("{uri}:/a:/b")), (uri.into(), "/a:/b".into()));
            assert_eq!(ok(uri), (uri.into(), "/".into()));
            assert!(!looks_like_one(OsStr::new(uri)));
        }
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(parse(OsStr::new(":/x")).is_err());
        assert!(parse(OsStr::new("")).is_err());
        assert!(parse(OsStr::from_bytes(b"\xff.img:/x")).is_err());
        assert!(parse(OsStr::from_bytes(b"v.img:/\xff")).is_ok(), "names in a volume are bytes");
    }
}
