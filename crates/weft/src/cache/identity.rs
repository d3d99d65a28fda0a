//! Which of a cache's sources a source is, however it is written: a file by any path to it, an NBD
//! export by any URI of it. And what to do about a source that the cache does not take, in words.

use crate::source::Source;
use crate::{Error, Result};
use weft_block::BlockDevice;
use weft_cache::{AttachOptions, Cache};

/// The most bytes that a name in the cache has.
const NAME_MAX: usize = 96;

/// Returns the name under which the cache knows a source, or gets to know it: `given`, or that of the
/// one recorded source that is the same. `source` is as the user wrote it.
///
/// # Errors
/// [`Error::Invalid`] for a source that cannot be told from others.
pub(super) fn name_of(cache: &Cache, source: &str, given: Option<&str>) -> Result<String> {
    if let Some(name) = given {
        return Ok(name.to_owned());
    }
    let known: Vec<String> = cache.origins().into_iter().map(|origin| origin.id.label).collect();
    let name = identity(source)?;
    let written = crate::mounts::absolute_source(source)?;
    // As it was named before, by this version of weft or an earlier one.
    if let Some(same) = known.iter().find(|label| **label == name || **label == written) {
        return Ok(same.clone());
    }
    let same: Vec<&String> = known.iter().filter(|label| is_same(label, source)).collect();
    match same[..] {
        [one] => Ok(one.clone()),
        [] if name.len() > NAME_MAX => Err(Error::Invalid(format!(
            "the cache has no room for a name as long as {name}: give a shorter one, which must be \
             the same each time: --cache-name NAME"
        ))),
        [] => Ok(name),
        _ => {
            let same: Vec<&str> = same.into_iter().map(String::as_str).collect();
            Err(Error::Invalid(format!(
                "the cache has {source} under several names: choose one by --cache-name: {}",
                same.join(", ")
            )))
        }
    }
}

/// Returns the text that names a source, without what only says how it is reached.
fn identity(source: &str) -> Result<String> {
    let mut parsed: Source = source.parse()?;
    parsed.make_absolute()?;
    Ok(parsed.export_only().to_string())
}

/// Returns true if a recorded name and a source are one device at present.
fn is_same(label: &str, source: &str) -> bool {
    let resolved = |text: &str| {
        let mut parsed: Source = text.parse().ok()?;
        parsed.make_absolute().ok()?;
        Some(parsed.export_only().resolved())
    };
    matches!((resolved(label), resolved(source)), (Some(a), Some(b)) if a == b)
}

/// Refuses to add a source that the cache seems to have under another name, with data that the source
/// lacks.
///
/// # Errors
/// [`Error::Invalid`] if it does; those of the cache.
pub(super) fn refuse_known(
    cache_name: &str,
    cache: &Cache,
    source: &str,
    name: &str,
    origin: &dyn BlockDevice,
) -> Result<()> {
    if cache.origins().iter().any(|known| known.id.label == name) {
        return Ok(());
    }
    let found = cache.similar_origin(origin).map_err(|e| super::named(cache_name, &e))?;
    let Some(found) = found else { return Ok(()) };
    let (label, dirty) = (found.id.label, found.dirty_bytes);
    Err(Error::Invalid(format!(
        "{cache_name}: {source} seems to be {label}, of which {dirty} bytes are in this cache only: \
         without them it would be served as it was before. If it is, give --cache-name '{label}'; if \
         it is another source that reads the same, name it: --cache-add --cache-name NAME"
    )))
}

/// The error of a source that was not attached, with the way out.
pub(super) fn not_attached(
    cache_name: &str,
    cache: &Cache,
    source: &str,
    error: &weft_cache::Error,
) -> Error {
    use weft_cache::Error as E;
    let advice = match error {
        E::OtherOrigin { .. } => {
            let known: Vec<_> = cache.origins();
            let same = known.iter().map(|o| format!("--cache-name '{}'", o.id.label));
            let same: Vec<String> = same.collect();
            let dirty = known.iter().any(|o| o.dirty_bytes > 0);
            let dirty = if dirty { ", so that its dirty data is served" } else { "" };
            format!(
                "If it is the same source under another name, give {}{dirty}; to keep blocks of both, \
                 give --cache-add; to forget the other: weft cache detach {cache_name}",
                same.join(" or ")
            )
        }
        E::OriginChanged { dirty_bytes, .. } => {
            let dirty = if *dirty_bytes > 0 {
                "; the dirty data stays, and replaces what is in its place now"
            } else {
                ""
            };
            format!("--cache-invalidate drops its clean blocks and uses it as it is now{dirty}")
        }
        E::OriginResized { was_bytes, is_bytes, dirty_bytes, .. } if is_bytes > was_bytes => {
            let first = match dirty_bytes {
                0 => "takes its new length",
                _ => "writes the dirty data back within its old length, and takes the new one",
            };
            format!(
                "weft cache flush {cache_name} '{source}' --resized {first} (so does \
                 --cache-resized of weft mount and weft serve)"
            )
        }
        E::OriginResized { was_bytes, lost_bytes: 0, dirty_bytes: 0, .. } => format!(
            "Nothing of it is dirty: weft cache detach {cache_name} forgets it, and it is taken in its \
             new length; or make it {was_bytes} bytes long again"
        ),
        E::OriginResized { was_bytes, .. } => format!(
            "Make it {was_bytes} bytes long again and write its data back: weft cache flush \
             {cache_name} '{source}'; or give the dirty data up: weft cache detach {cache_name} \
             --discard-dirty"
        ),
        _ => return super::named(cache_name, error),
    };
    Error::Volume { image: cache_name.to_owned(), message: format!("{error}. {advice}") }
}

/// Whether these options admit a source that may be another one.
pub(super) fn adds(options: &AttachOptions, given: Option<&str>) -> bool {
    options.add && given.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_export_has_one_name_however_its_uri_is_written() {
        let is = |a: &str, b: &str| {
            assert_eq!(identity(a).unwrap(), identity(b).unwrap(), "{a} and {b}");
            assert!(is_same(a, b) && is_same(b, a), "{a} and {b}");
        };
        let plain = "nbd+unix:///disk?socket=/run/s";
        for same in [
            "nbd+unix:///disk?timeout=5&socket=/run/s",
            "nbd+unix:///disk?socket=/run/s&timeout=5&connections=2",
            "nbds+unix:///disk?socket=/run/s&tls-certificates=/etc/pki",
            "nbd+unix:///disk?tls-hostname=h&socket=%2frun%2fs",
        ] {
            is(plain, same);
        }
        is("nbd://host/disk", "nbd://host:10809/disk?timeout=9");
        is("nbd://HOST/disk", "nbds://host/disk?tls-certificates=/etc/pki");
        is("nbd:///disk", "nbd://localhost/disk");
        for other in ["nbd+unix:///other?socket=/run/s", "nbd+unix:///disk?socket=/run/t"] {
            assert_ne!(identity(plain).unwrap(), identity(other).unwrap());
            assert!(!is_same(plain, other), "{other}");
        }
        assert!(!is_same("nbd://host/disk", "nbd://host:10810/disk"));
        assert!(!is_same("/disk.img?partition=1", "/disk.img?partition=2"));
    }

    #[test]
    fn one_file_is_one_source_by_every_path_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        std::fs::create_dir(at("d")).unwrap();
        std::fs::write(at("disk.img"), "x").unwrap();
        std::fs::write(at("other.img"), "x").unwrap();
        std::os::unix::fs::symlink(at("disk.img"), at("link")).unwrap();
        assert!(is_same(&at("disk.img"), &at("link")));
        assert!(is_same(&at("d/../disk.img"), &at("./disk.img")));
        assert!(!is_same(&at("disk.img"), &at("other.img")));
        // A recorded name that is no source any more is no obstacle.
        assert!(!is_same(&at("gone.img"), &at("disk.img")));
        assert!(!is_same("a name of the user's own", &at("disk.img")));
    }
}
