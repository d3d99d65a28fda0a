//! `transform keys`.

use super::{networks, user_keys};
use crate::cli::transform::{KeysVerb, ListKeys, NewKey};
use crate::failure::{DONE, Failure, Outcome};
use crate::output::Output;
use data_encoding::HEXLOWER;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use weft::networks::KeyPlace;
use weft::transform::{KEY_BYTES, Key};

/// `keys`.
pub fn run(out: Output, verb: &KeysVerb) -> Outcome {
    match verb {
        KeysVerb::New(args) => new(out, args),
        KeysVerb::List(args) => list(out, args),
    }
}

/// The path of a key with this name.
fn place(name: &str) -> Result<PathBuf, Failure> {
    if name.contains('/') {
        return Ok(name.into());
    }
    let directory =
        user_keys().ok_or_else(|| Failure::usage("HOME is not set: give a path for the keys"))?;
    make_directory(&directory)
        .map_err(|e| Failure::from(weft::Error::host("make", &directory, e)))?;
    Ok(directory.join(name))
}

fn new(out: Output, args: &NewKey) -> Outcome {
    let path = place(&args.name)?;
    let failed = |e| Failure::from(weft::Error::host("write", &path, e));
    let mut key = [0; KEY_BYTES];
    let random = rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty());
    if random.map_err(|e| failed(e.into()))? != KEY_BYTES {
        return Err(Failure::new("cannot get random numbers from the system"));
    }
    let old = match (args.rotate, path.exists()) {
        (true, _) => {
            let keys = KeyPlace::File(path.clone()).keys()?;
            let content = std::fs::read(&path).map_err(failed)?;
            // A file of 32 bytes has no lines: it is rewritten as a line, so that another can be
            // added.
            if keys.len() == 1 && content.len() == KEY_BYTES {
                HEXLOWER.encode(&content).into_bytes()
            } else {
                content
            }
        }
        (false, true) => {
            let shown = path.display();
            return Err(Failure::new(format!(
                "{shown} exists, and without its keys the files sealed with them could not be \
                opened: --rotate adds a new key before them"
            )));
        }
        (false, false) => Vec::new(),
    };
    let mut content = HEXLOWER.encode(&key).into_bytes();
    content.push(b'\n');
    content.extend_from_slice(&old);
    replace(&path, &content).map_err(failed)?;
    let id = HEXLOWER.encode(&Key::new(key).id());
    let shown = path.display().to_string();
    let report = serde_json::json!({ "file": shown, "id": id });
    out.confirm(&report, &format!("{shown}: key {id}; keep a copy: without it files are lost"))?;
    Ok(DONE)
}

/// Makes a directory, and those above it, durably: a key that a power cut takes away takes along what
/// was sealed with it.
fn make_directory(directory: &Path) -> std::io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    let above = directory.parent().filter(|above| !above.as_os_str().is_empty());
    if let Some(above) = above {
        make_directory(above)?;
    }
    match std::fs::create_dir(directory) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        made => made.and_then(|()| sync_directory(above.unwrap_or(Path::new(".")))),
    }
}

fn sync_directory(directory: &Path) -> std::io::Result<()> {
    std::fs::File::open(directory)?.sync_all()
}

/// Writes a file that only its owner can read, atomically and durably: files are sealed with the key
/// from now on.
fn replace(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let above = path.parent().filter(|above| !above.as_os_str().is_empty());
    let directory = above.unwrap_or(Path::new("."));
    // No key has a name that begins so, and no two processes the same.
    let mut fresh = tempfile::Builder::new().prefix(".weft-key-").tempfile_in(directory)?;
    fresh.write_all(content)?;
    fresh.as_file().sync_all()?;
    fresh.persist(path)?;
    sync_directory(directory)
}

fn list(out: Output, args: &ListKeys) -> Outcome {
    let networks = networks(&args.keys);
    let mut places: Vec<(String, KeyPlace)> =
        networks.keys.iter().map(|key| (key.name.clone(), key.place.clone())).collect();
    let files = networks.key_files().into_iter();
    places.extend(files.map(|(name, path)| (name, KeyPlace::File(path))));
    let mut reports = Vec::new();
    for (name, place) in places {
        let ids: Vec<String> = place.keys()?.iter().map(|key| HEXLOWER.encode(&key.id())).collect();
        reports.push((name, place.to_string(), ids));
    }
    let json: Vec<_> = reports
        .iter()
        .map(|(name, place, ids)| serde_json::json!({ "name": name, "place": place, "ids": ids }))
        .collect();
    out.report(&json, |w| {
        for (name, place, ids) in &reports {
            writeln!(w, "{name:<16}{}  {place}", ids.join(" "))?;
        }
        Ok(())
    })?;
    Ok(DONE)
}
