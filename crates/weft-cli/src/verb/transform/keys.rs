//! `transform keys`.

use super::{networks, user_keys};
use crate::cli::transform::{KeysVerb, ListKeys, NewKey};
use crate::failure::{DONE, Failure, Outcome};
use crate::output::Output;
use data_encoding::HEXLOWER;
use std::path::PathBuf;
use weft::networks::KeyPlace;
use weft::transform::{KEY_BYTES, Key};
use weft::vfs::host_file;

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
    // A key that a power cut takes away takes along what was sealed with it.
    host_file::create_dir_all(&directory, 0o777)
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
    // For its owner alone, and durably: files are sealed with the key from now on.
    host_file::replace(&path, &content, 0o600).map_err(failed)?;
    let id = HEXLOWER.encode(&Key::new(key).id());
    let shown = path.display().to_string();
    let report = serde_json::json!({ "file": shown, "id": id });
    out.confirm(&report, &format!("{shown}: key {id}; keep a copy: without it files are lost"))?;
    Ok(DONE)
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
