//! `hfs convert`: converts between formats that pack both forks, on files of the host.

use crate::cli::hfs::Convert;
use crate::failure::{DONE, Failure, Outcome};
use crate::output::Output;
use serde_json::json;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use weft::hfs::interchange::{self, Fork, Format, Meta, Reader, extension};
use weft::hfs::macroman;
use weft::vfs::host_file::NewFile;

/// Both forks and the metadata of a file. The forks are in unnamed files, as they may be large and
/// are needed in another order than they are read.
struct Whole {
    meta: Meta,
    data: File,
    resource: File,
}

/// `hfs convert`.
pub fn run(out: Output, args: &Convert) -> Outcome {
    let format = match args.from_format {
        Some(format) => format,
        None => detect(&args.from)?,
    };
    let mut whole = read(&args.from, format)?;
    let to = target(args, &whole.meta)?;
    let failed = |path: &Path, e: interchange::Error| {
        Failure::new(format!("cannot pack {}: {e}", path.display()))
    };
    let mut written = Vec::new();
    if args.format == Format::AppleDouble {
        let name = to.file_name().map_or(&b""[..], OsStr::as_bytes);
        let plain = match name.strip_prefix(b"._") {
            Some(base) => to.with_file_name(OsStr::from_bytes(base)),
            None => to.clone(),
        };
        let base = plain.file_name().map_or(&b""[..], OsStr::as_bytes);
        let double = plain.with_file_name(OsStr::from_bytes(&[b"._", base].concat()));
        pack(&mut whole, Format::Data, &plain).map_err(|e| failed(&plain, e))?;
        pack(&mut whole, Format::AppleDouble, &double).map_err(|e| failed(&double, e))?;
        written.extend([plain, double]);
    } else {
        let lost = whole.meta.resource_bytes;
        if matches!(args.format, Format::Data | Format::Text) && lost > 0 {
            out.note(&format!(
                "{lost} bytes of resource fork are left behind: {} has no place for them",
                args.format.name()
            ));
        }
        pack(&mut whole, args.format, &to).map_err(|e| failed(&to, e))?;
        written.push(to);
    }
    let shown: Vec<String> = written.iter().map(|path| path.display().to_string()).collect();
    let from = args.from.display();
    let text =
        format!("{from}: {}, now {} in {}", format.name(), args.format.name(), shown.join(" and "));
    let report = json!({
        "from": format.name(),
        "to": args.format.name(),
        "files": shown,
        "name": macroman::name_to_unix(&whole.meta.name),
        "data_bytes": whole.meta.data_bytes,
        "resource_bytes": whole.meta.resource_bytes,
    });
    out.confirm(&report, &text)?;
    Ok(DONE)
}

fn open(path: &Path) -> Result<BufReader<File>, Failure> {
    let file = File::open(path).map_err(|e| weft::Error::host("read", path, e))?;
    Ok(BufReader::with_capacity(256 << 10, file))
}

/// Detects the format of a file; a plain one with an AppleDouble beside it is one half of that.
fn detect(path: &Path) -> Result<Format, Failure> {
    let format = interchange::detect(&mut open(path)?).map_err(|e| unpacking(path, &e))?;
    let has_double = || double_of(path).is_some_and(|double| double.is_file());
    Ok(if format == Format::Data && has_double() { Format::AppleDouble } else { format })
}

fn double_of(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.as_bytes();
    Some(path.with_file_name(OsStr::from_bytes(&[b"._", name].concat())))
}

fn unpacking(path: &Path, e: &interchange::Error) -> Failure {
    Failure::new(format!("cannot unpack {}: {e}", path.display()))
}

fn spool<R: Read + Seek>(reader: &mut Reader<R>, fork: Fork, path: &Path) -> Result<File, Failure> {
    let file = tempfile::tempfile()?;
    let mut to = BufWriter::new(file);
    reader.copy_fork(fork, &mut to).map_err(|e| unpacking(path, &e))?;
    let mut file = to.into_inner().map_err(|e| Failure::from(e.into_error()))?;
    file.seek(SeekFrom::Start(0))?;
    Ok(file)
}

fn read(path: &Path, format: Format) -> Result<Whole, Failure> {
    let name = path.file_name().map_or(&b""[..], OsStr::as_bytes);
    if format == Format::AppleDouble {
        let (plain, double) = match name.strip_prefix(b"._") {
            Some(base) => (path.with_file_name(OsStr::from_bytes(base)), path.to_owned()),
            None => (path.to_owned(), double_of(path).unwrap_or_default()),
        };
        let mut reader =
            Reader::open(format, open(&double)?).map_err(|e| unpacking(&double, &e))?;
        let resource = spool(&mut reader, Fork::Resource, &double)?;
        let mut meta = reader.meta().clone();
        // An AppleDouble with only a resource fork may have no data file.
        let data = if plain.is_file() { File::open(&plain)? } else { tempfile::tempfile()? };
        meta.data_bytes = data.metadata()?.len();
        name_it(&mut meta, plain.file_name().map_or(&b""[..], OsStr::as_bytes));
        return Ok(Whole { meta, data, resource });
    }
    let mut reader = Reader::open(format, open(path)?).map_err(|e| unpacking(path, &e))?;
    let data = spool(&mut reader, Fork::Data, path)?;
    let resource = spool(&mut reader, Fork::Resource, path)?;
    let mut meta = reader.meta().clone();
    meta.data_bytes = data.metadata()?.len();
    if matches!(format, Format::Data | Format::Text) {
        name_it(&mut meta, name);
        let (file_type, creator) = match extension::guess(&meta.name) {
            extension::UNKNOWN if format == Format::Text => (*b"TEXT", *b"ttxt"),
            guess => guess,
        };
        meta.set_type(file_type, creator);
    } else {
        name_it(&mut meta, path.file_stem().map_or(&b""[..], OsStr::as_bytes));
    }
    Ok(Whole { meta, data, resource })
}

/// Gives a file that was packed without a name the name of the packed file.
fn name_it(meta: &mut Meta, name: &[u8]) {
    if meta.name.is_empty() {
        meta.name = match macroman::name_from_unix(name) {
            Ok(mac) if !mac.is_empty() => mac[..mac.len().min(31)].to_vec(),
            _ => b"Untitled".to_vec(),
        };
    }
}

/// The path of the new file: the one given, or in a directory one with a suitable name.
fn target(args: &Convert, meta: &Meta) -> Result<PathBuf, Failure> {
    if !args.to.is_dir() {
        return Ok(args.to.clone());
    }
    let name = macroman::name_to_unix(&meta.name);
    let name = match args.format {
        Format::AppleDouble => name,
        format => format.file_name(&name),
    };
    Ok(args.to.join(name))
}

fn pack(whole: &mut Whole, format: Format, to: &Path) -> interchange::Result<()> {
    whole.data.seek(SeekFrom::Start(0))?;
    whole.resource.seek(SeekFrom::Start(0))?;
    if to.symlink_metadata().is_ok() {
        return Err(std::io::Error::from(std::io::ErrorKind::AlreadyExists).into());
    }
    let mut new = NewFile::create(to, 0o666)?;
    let mut out = BufWriter::with_capacity(256 << 10, &mut new);
    interchange::write(format, &whole.meta, &mut whole.data, &mut whole.resource, &mut out)?;
    out.flush()?;
    drop(out);
    Ok(new.persist_new()?)
}
