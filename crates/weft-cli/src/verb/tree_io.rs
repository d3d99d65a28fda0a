//! `import` and `export`: whole trees, as directories or tar streams.

use super::copy::{NoteSpelled, Refused, fitted, landed, note_basilisk, note_left_out};
use super::damage::Damage;
use super::transferring::counted;
use super::{
    change_options, changing_with, file_error, image_file, ownership, read_options, refuse_image,
    volume_path, with_volume,
};
use crate::cli;
use crate::failure::{Failure, Outcome};
use crate::output::{Output, TallyReport};
use std::fs::File;
use std::io::{BufWriter, IsTerminal, Read, Write};
use std::path::Path;
use std::time::Instant;
use weft::Options;
use weft::hfs::view::Forks;
use weft::transfer::{
    HostSink, HostSource, ReadAhead, Tally, TarSink, TarSource, VolumeSink, VolumeSource,
};
use weft::vfs::Walker;
use weft::vfs::host_file::NewFile;

/// `import`.
pub fn import(out: Output, args: &cli::Import) -> Outcome {
    let began = Instant::now();
    let to = volume_path(&args.to)?;
    let ownership = ownership(args.keeping.owner.as_deref())?;
    let with_xattrs = !args.keeping.no_xattrs;
    let from = Import::open(&args.from)?;
    let options = Options { forks: Forks::AppleDouble, ..change_options(&args.opening) };
    let mut refused = Refused::default();
    let mut tally = Tally::default();
    changing_with(&to.image, &options, |stack| {
        let walker = Walker::new(stack.fs());
        let top = walker
            .mkdir_all(&to.path, 0o755)
            .map_err(|e| file_error("make directory", &to.path, e))?;
        let mut sink = VolumeSink::new(stack.fs(), top, None, &to.path, ownership)
            .with_whiteouts(args.whiteouts);
        let doubles = stack.mac().is_some();
        if let (Import::Directory(dir), true) = (&from, doubles) {
            note_basilisk(out, dir);
        }
        let how = ("importing", from.len_bytes());
        let sent = counted(out, how, &mut tally, &mut sink, |sink| {
            fitted(out, args.keeping.fit_names, &mut refused, sink, |sink| match from {
                Import::Directory(dir) => HostSource::new(dir)
                    .sparing(image_file(&to.image).as_deref())?
                    .with_xattrs(with_xattrs)
                    .joining_doubles(doubles)
                    .send(sink),
                Import::Stream(stream, _) => TarSource::new(stream)
                    .with_xattrs(with_xattrs)
                    .noting(|line| out.note(&line))
                    .send(sink),
            })
        });
        note_left_out(out, &sink);
        sent
    })?;
    // The volume is closed: everything is on the disk.
    let report = TallyReport::new(&tally, began.elapsed());
    out.confirm(&report, &format!("imported {}, durable", report.sentence()))?;
    refused.outcome(out)
}

enum Import<'a> {
    Directory(&'a Path),
    /// A stream, and its length in bytes if it is a file.
    Stream(Box<dyn Read>, Option<u64>),
}

impl<'a> Import<'a> {
    /// Opens the source of the import, before the volume is opened.
    fn open(from: &'a Path) -> Result<Self, Failure> {
        if from == Path::new("-") {
            return Ok(Self::Stream(Box::new(ReadAhead::new(std::io::stdin())?), None));
        }
        let failed = |e| Failure::from(weft::Error::host("read", from, e));
        let meta = std::fs::metadata(from).map_err(failed)?;
        if meta.is_dir() {
            return Ok(Self::Directory(from));
        }
        let mut file = File::open(from).map_err(failed)?;
        if meta.is_file() {
            let mut head = vec![0; 1024];
            let got = file.read(&mut head).map_err(failed)?;
            std::io::Seek::rewind(&mut file).map_err(failed)?;
            if let Some(program) = decompressor(&head[..got]) {
                let from = from.display();
                return Err(Failure::new(format!(
                    "{from} is compressed; give the stream to weft instead: {program} -dc {from} \
                     | weft import - IMAGE:/path"
                )));
            }
        }
        let len_bytes = meta.is_file().then_some(meta.len());
        Ok(Self::Stream(Box::new(ReadAhead::new(file)?), len_bytes))
    }

    fn len_bytes(&self) -> Option<u64> {
        match self {
            Self::Directory(_) => None,
            Self::Stream(_, len_bytes) => *len_bytes,
        }
    }
}

fn decompressor(head: &[u8]) -> Option<&'static str> {
    const MAGICS: [(&[u8], &str); 4] = [
        (&[0x1f, 0x8b], "gzip"),
        (b"\xfd7zXZ\0", "xz"),
        (&[0x28, 0xb5, 0x2f, 0xfd], "zstd"),
        (b"BZh", "bzip2"),
    ];
    MAGICS.iter().find(|(magic, _)| head.starts_with(magic)).map(|(_, program)| *program)
}

/// The program that compresses archives with this suffix.
fn compressor(to: &Path) -> Option<&'static str> {
    const SUFFIXES: [(&str, &str); 10] = [
        (".tar.gz", "gzip"),
        (".tgz", "gzip"),
        (".tar.zst", "zstd"),
        (".tzst", "zstd"),
        (".tar.xz", "xz"),
        (".txz", "xz"),
        (".tar.bz2", "bzip2"),
        (".tbz", "bzip2"),
        (".tbz2", "bzip2"),
        (".tar.lz4", "lz4"),
    ];
    let name = to.file_name()?.to_str()?.to_ascii_lowercase();
    SUFFIXES.iter().find(|(suffix, _)| name.ends_with(suffix)).map(|(_, program)| *program)
}

/// `export`.
pub fn export(out: Output, args: &cli::Export) -> Outcome {
    let began = Instant::now();
    let from = volume_path(&args.from)?;
    let to_stdout = args.to == Path::new("-");
    let as_tar = to_stdout || args.tar || args.to.extension().is_some_and(|e| e == "tar");
    if let (Some(program), false) = (compressor(&args.to), args.to.is_dir()) {
        let (from, to) = (args.from.to_string_lossy(), args.to.display());
        return Err(Failure::usage(format!(
            "weft does not compress; give its stream to {program}: weft export {from} - | \
             {program} > {to}"
        )));
    }
    refuse_image(&from.image, &args.to)?;
    if to_stdout && std::io::stdout().is_terminal() {
        return Err(Failure::usage("a tar stream is not for a terminal; redirect it"));
    }
    let options = Options { forks: Forks::AppleDouble, ..read_options() };
    let mut damage = Damage::new(out, args.strict);
    let mut refused = Refused::default();
    let mut tally = Tally::default();
    with_volume(&from.image, &options, |stack| {
        let walker = Walker::new(stack.fs());
        let failed = |e| file_error("read", &from.path, e);
        let top = walker.resolve(&from.path).map_err(failed)?;
        let mut spelled = NoteSpelled::new(out, stack.mac().is_some());
        let source = VolumeSource::new(stack.fs(), &from.path)
            .with_xattrs(!args.no_xattrs)
            .past_damage(|e| damage.pass_error(e));
        let how = ("exporting", (!top.is_dir()).then(|| top.attr().size_bytes));
        if as_tar {
            let host = |what, e| weft::Error::host(what, &args.to, e);
            let mut file = match to_stdout {
                true => None,
                false => Some(NewFile::create(&args.to, 0o666).map_err(|e| host("make", e))?),
            };
            let stream: Box<dyn Write> = match &mut file {
                None => Box::new(std::io::stdout().lock()),
                Some(file) => Box::new(file),
            };
            // A single file goes into the stream under its own name.
            let name = if top.is_dir() { b"" } else { last_name(&from.path) };
            let mut sink = TarSink::new(BufWriter::with_capacity(1 << 20, stream)).named(name);
            let sent = counted(out, how, &mut tally, &mut sink, |sink| {
                source.send(top, &mut spelled.over(sink))
            });
            sink.left_out().iter().for_each(|what| out.note(what));
            drop(sink);
            match file {
                None => sent.inspect_err(|_| out.note("the tar stream is incomplete"))?,
                // An earlier file stays otherwise.
                Some(file) => {
                    sent?;
                    file.replace().map_err(|e| host("write", e))?;
                }
            }
            return damage.look(stack);
        }
        let mut sink = HostSink::new(&args.to);
        let sent = counted(out, how, &mut tally, &mut sink, |sink| {
            fitted(out, false, &mut refused, sink, |sink| source.send(top, &mut spelled.over(sink)))
        });
        landed(out, &sink, false, &mut damage)?;
        sent?;
        damage.look(stack)
    })?;
    if !to_stdout {
        let report = TallyReport::new(&tally, began.elapsed());
        out.confirm(&report, &format!("exported {}", report.sentence()))?;
    }
    Ok(damage.outcome()?.max(refused.outcome(out)?))
}

fn last_name(path: &[u8]) -> &[u8] {
    path.split(|b| *b == b'/').rfind(|name| !name.is_empty()).unwrap_or(b"")
}
