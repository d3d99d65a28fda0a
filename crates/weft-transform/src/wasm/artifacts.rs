//! A cache of compiled modules on disk.
//!
//! Compiled code that is read here is executed, so it must have been written by this program:
//! reading it back is `unsafe` for that reason. A file is named by a BLAKE3 hash of the module and
//! of all that compiling depends on, holds a hash of its content (against damage), and is used only
//! if it and its directory belong to this user and are not writable by others: a user who can write
//! them can also replace this program.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use wasmtime::{Engine, Module};
use weft_vfs::host_file::NewFile;

use crate::Result;

const HASH_BYTES: usize = 32;

/// Loads a module from its compiled form in `directory`, or else calls `compile` and stores the
/// result.
pub(super) fn through(
    engine: &Engine,
    directory: &Path,
    module: &[u8],
    compile: impl FnOnce() -> Result<Module>,
) -> Result<Module> {
    let mut settings = DefaultHasher::new();
    engine.precompile_compatibility_hash().hash(&mut settings);
    let mut name = blake3::Hasher::new();
    name.update(&settings.finish().to_le_bytes()).update(module);
    let path = directory.join(format!("{}.cwasm", name.finalize().to_hex()));
    if !is_own_directory(directory) {
        tracing::warn!("{}: not this user's alone; not used", directory.display());
        return compile();
    }
    if let Some(compiled) = read(&path) {
        // SAFETY: the file belongs to this user, no other user can write it or its directory, and
        // its content has the hash that was written with it by `write` below, from the output of
        // `serialize`.
        match unsafe { Module::deserialize(engine, compiled) } {
            Ok(module) => return Ok(module),
            Err(e) => tracing::debug!("{}: compiled again: {e:#}", path.display()),
        }
    }
    let module = compile()?;
    let kept = module.serialize().map_err(std::io::Error::other);
    if let Err(e) = kept.and_then(|compiled| write(&path, &compiled)) {
        tracing::debug!("{}: not kept: {e}", path.display());
    }
    Ok(module)
}

fn is_own(metadata: &std::fs::Metadata) -> bool {
    metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & 0o022 == 0
}

fn is_own_directory(directory: &Path) -> bool {
    let _ = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
    let found = std::fs::symlink_metadata(directory);
    found.is_ok_and(|found| found.is_dir() && is_own(&found))
}

/// Reads a compiled module, if the file belongs to this user and is intact.
fn read(path: &Path) -> Option<Vec<u8>> {
    let no_links = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    let mut file = std::fs::File::options().read(true).custom_flags(no_links).open(path).ok()?;
    let metadata = file.metadata().ok()?;
    if !metadata.is_file() || !is_own(&metadata) {
        return None;
    }
    let mut content = Vec::new();
    file.read_to_end(&mut content).ok()?;
    let compiled = content.split_off(HASH_BYTES.min(content.len()));
    (blake3::hash(&compiled).as_bytes()[..] == content[..]).then_some(compiled)
}

fn write(path: &Path, compiled: &[u8]) -> std::io::Result<()> {
    let mut file = NewFile::create(path, 0o600)?;
    file.write_all(blake3::hash(compiled).as_bytes())?;
    file.write_all(compiled)?;
    file.replace()
}
