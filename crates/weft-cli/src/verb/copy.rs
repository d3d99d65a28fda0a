//! `cp`, `get`, `put`.

use super::damage::Damage;
use super::landing::landing;
use super::transferring::counted;
use super::{
    change_options, changing_with, file_error, image_file, ownership, read_options, refuse_image,
    volume_path, with_volume,
};
use crate::cli::hfs::As;
use crate::cli::{self, Keeping, Opening};
use crate::failure::{DONE, FAILED, Failure, Outcome};
use crate::output::{Output, TallyReport, count, shown};
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use weft::Options;
use weft::hfs::interchange::Format;
use weft::hfs::view::Forks;
use weft::transfer::fit::{FitNames, fit};
use weft::transfer::{
    Content, HostSink, HostSource, Item, ItemKind, Ownership, PastNames, Sink, Tally, VolumeSink,
    VolumeSource,
};
use weft::vfs::{Error as FsError, Ino, Node, Time, Walker};
use weft::volume::VolumePath;

/// `get`.
pub fn get(out: Output, args: &cli::Get) -> Outcome {
    let from: Vec<VolumePath> =
        args.paths.iter().map(|p| volume_path(p)).collect::<Result<_, _>>()?;
    if args.format.is_none() || args.format == Some(As::Xattr) || args.format == Some(DOUBLE) {
        let forks = if args.format == Some(As::Xattr) { Forks::Xattr } else { Forks::AppleDouble };
        let how = (!args.no_xattrs, forks, args.strict);
        return copy_out(out, &from, &args.destination, how);
    }
    if args.destination == Path::new("-") {
        return Err(Failure::usage("packed files are not for standard output; name the copy"));
    }
    super::hfs::pack::get(out, &from, &args.destination, (args.format, args.strict))
}

const DOUBLE: As = As::Packed(Format::AppleDouble);

/// `put`.
pub fn put(out: Output, args: &cli::Put) -> Outcome {
    let to = volume_path(&args.destination)?;
    let xattr = args.format == Some(As::Xattr);
    let said = args.file_type.is_some() || args.creator.is_some();
    if (args.format.is_none() || xattr) && !said {
        let forks = if xattr { Forks::Xattr } else { Forks::AppleDouble };
        return copy_in(out, &args.paths, &to, &args.keeping, (&args.opening, forks));
    }
    let volume = image_file(&to.image);
    for path in &args.paths {
        HostSource::new(path).sparing(volume.as_deref())?;
    }
    super::hfs::pack::put(out, &args.paths, &to, args)
}

/// `cp`.
pub fn cp(out: Output, args: &cli::Cp) -> Outcome {
    let Some((to, from)) = args.paths.split_last() else {
        return Err(Failure::usage("cp needs a source and a destination"));
    };
    let in_volume = |p: &&OsString| weft::volume::looks_like_one(p);
    let volumes = from.iter().filter(in_volume).count();
    if volumes != 0 && volumes != from.len() {
        return Err(Failure::usage("all sources are on the host, or all are in volumes"));
    }
    match (volumes > 0, weft::volume::looks_like_one(to)) {
        (false, false) => Err(Failure::usage(
            "neither the source nor the destination is in a volume; a volume path is IMAGE:/path",
        )),
        (false, true) => {
            let from: Vec<PathBuf> = from.iter().map(PathBuf::from).collect();
            let how = (&args.opening, Forks::AppleDouble);
            copy_in(out, &from, &volume_path(to)?, &args.keeping, how)
        }
        (true, to_volume) => {
            let from: Vec<VolumePath> =
                from.iter().map(|p| volume_path(p)).collect::<Result<_, _>>()?;
            if to_volume {
                copy_across(out, &from, &volume_path(to)?, &args.keeping, &args.opening)
            } else {
                let how = (!args.keeping.no_xattrs, Forks::AppleDouble, false);
                copy_out(out, &from, Path::new(to), how)
            }
        }
    }
}

/// The name of an AppleDouble.
fn double_of(name: &[u8]) -> Vec<u8> {
    [b"._", name].concat()
}

/// The number of items that a destination refused, and the reasons.
#[derive(Debug, Default)]
pub struct Refused {
    items: u64,
    for_names: bool,
}

impl Refused {
    /// Returns the exit code of a copy that left this out.
    pub fn outcome(&self, out: Output) -> Outcome {
        if self.items == 0 {
            return Ok(DONE);
        }
        let items = count(self.items, "name");
        out.error(&if self.for_names {
            format!("{items} left out, as the volume has no place for them; see --fit-names")
        } else {
            format!("{items} left out, for the reasons above; everything else was copied")
        });
        Ok(FAILED)
    }
}

/// Calls `send` with `sink`, with names fitted if `fit`, and skips items that the destination refuses:
/// their number, with that of the items left out with them, is added to `refused`.
pub fn fitted(
    out: Output,
    fit: bool,
    refused: &mut Refused,
    sink: &mut dyn Sink,
    send: impl FnOnce(&mut dyn Sink) -> weft::Result<()>,
) -> weft::Result<()> {
    fitted_of(out, (fit, false), refused, sink, send).map(drop)
}

/// As [`fitted`]; if this source is one of `several`, its top may be refused, too. Returns whether
/// it was.
fn fitted_of(
    out: Output,
    (fit, several): (bool, bool),
    refused: &mut Refused,
    sink: &mut dyn Sink,
    send: impl FnOnce(&mut dyn Sink) -> weft::Result<()>,
) -> weft::Result<bool> {
    let mut past = PastNames::new(sink).one_of_several(several);
    let sent = if fit {
        let mut fitting = FitNames::new(&mut past);
        let sent = send(&mut fitting);
        for (path, name) in fitting.changed() {
            out.note(&format!("{path} is copied as {name}"));
        }
        sent
    } else {
        send(&mut past)
    };
    past.refused().iter().for_each(|what| out.error(what));
    refused.items += past.refused().len() as u64 + past.left_out_with_them();
    refused.for_names |= past.refused_for_names();
    sent.map(|()| past.is_top_refused())
}

/// The bytes of files of the host that are to be copied; unknown if a directory is among them.
fn known_bytes(paths: &[PathBuf]) -> Option<u64> {
    let len = |path: &PathBuf| {
        std::fs::symlink_metadata(path).ok().filter(|meta| !meta.is_dir()).map(|meta| meta.len())
    };
    paths.iter().map(len).sum()
}

fn report(out: Output, tally: &Tally, since: Instant) -> Outcome {
    let report = TallyReport::new(tally, since.elapsed());
    out.confirm(&report, &format!("copied {}", report.sentence()))?;
    Ok(DONE)
}

fn copy_in(
    out: Output,
    from: &[PathBuf],
    to: &VolumePath,
    keeping: &Keeping,
    (opening, forks): (&Opening, Forks),
) -> Outcome {
    let began = Instant::now();
    let mut total = Tally::default();
    let mut refused = Refused::default();
    let ownership = ownership(keeping.owner.as_deref())?;
    if from == [Path::new("-")] {
        return from_stdin(out, to, ownership, opening);
    }
    let volume = image_file(&to.image);
    for path in from {
        HostSource::new(path).sparing(volume.as_deref())?;
        if let Err(e) = std::fs::symlink_metadata(path) {
            return Err(weft::Error::host("read", path, e).into());
        }
    }
    let bytes = known_bytes(from);
    let options = Options { forks, ..change_options(opening) };
    changing_with(&to.image, &options, |stack| {
        let walker = Walker::new(stack.fs());
        let landing = landing(&walker, &to.path, from.len())?;
        let doubles = stack.mac().is_some() && forks == Forks::AppleDouble;
        let mut earlier: Option<VolumeSink<'_>> = None;
        let is_joined = |path: &PathBuf| doubles && is_half_of(path, from);
        for path in from.iter().filter(|path| !is_joined(path)) {
            if doubles {
                note_basilisk(out, path);
            }
            let host_name = own_name_of_host(path);
            let host_name = host_name.as_deref().map(OsStr::as_bytes);
            let fitted_name = host_name.filter(|_| keeping.fit_names).map(fit);
            let own = fitted_name.as_deref().or(host_name);
            let mut sink = landing.sink(&walker, own, ownership)?;
            if let Some(earlier) = &mut earlier {
                sink.go_on_from(earlier);
            }
            let how = (keeping.fit_names, from.len() > 1);
            let mut left_out = false;
            let sent = counted(out, ("copying", bytes), &mut total, &mut sink, |sink| {
                let sent = fitted_of(out, how, &mut refused, sink, |sink| {
                    HostSource::new(path)
                        .sparing(volume.as_deref())?
                        .with_xattrs(!keeping.no_xattrs)
                        .joining_doubles(doubles)
                        .send(sink)
                });
                left_out = sent?;
                Ok(())
            });
            note_left_out(out, &sink);
            sent?;
            earlier = Some(sink);
            // The AppleDouble of a single file; in a directory the walk finds it.
            let (Some(own), Some(host_name), true) = (own, host_name, doubles && !left_out) else {
                continue;
            };
            let beside = path.with_file_name(OsStr::from_bytes(&double_of(host_name)));
            let double = if beside.is_file() {
                Some(beside).filter(|beside| !from.contains(beside))
            } else {
                HostSource::double_elsewhere(path)
            };
            if let Some(double) = double {
                let name = double_of(landing.name.as_deref().unwrap_or(own));
                let mut sink = landing.named(&walker, &name, ownership)?;
                HostSource::new(&double).with_xattrs(false).send(&mut sink)?;
            }
        }
        Ok(())
    })?;
    report(out, &total, began)?;
    refused.outcome(out)
}

/// Returns true if a file is the AppleDouble `NAME.rsrc` of another source.
fn is_half_of(path: &Path, from: &[PathBuf]) -> bool {
    let name = path.file_name().and_then(|name| name.as_bytes().strip_suffix(b".rsrc"));
    let base = name.map(|name| path.with_file_name(OsStr::from_bytes(name)));
    base.is_some_and(|base| {
        from.contains(&base) && HostSource::double_elsewhere(&base).as_deref() == Some(path)
    })
}

/// Says that a directory has companions that are copied as plain files.
pub fn note_basilisk(out: Output, top: &Path) {
    if let Some(dir) = HostSource::find_basilisk(top) {
        out.note(&format!(
            "{} has the folders .rsrc and .finf of Basilisk II, which are copied as folders; weft put \
             --as basilisk joins the files in them with theirs",
            dir.display()
        ));
    }
}

/// Copies standard input into a file: `put - IMAGE:/path`.
fn from_stdin(out: Output, to: &VolumePath, ownership: Ownership, opening: &Opening) -> Outcome {
    let began = Instant::now();
    let mut total = Tally::default();
    changing_with(&to.image, &change_options(opening), |stack| {
        let walker = Walker::new(stack.fs());
        let landing = landing(&walker, &to.path, 1)?;
        let Some(name) = &landing.name else {
            let what = "a directory: name the file that standard input becomes";
            return Err(Failure::usage(format!("{} is {what}", shown(&to.path))));
        };
        let mut sink = landing.named(&walker, name, ownership)?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let item = Item {
            path: b"",
            // The length is not known in advance.
            kind: ItemKind::File { len_bytes: 0 },
            perm: 0o644,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            atime: None,
            mtime: Time {
                secs: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
                nanos: since.subsec_nanos(),
            },
            xattrs: &[],
        };
        let mut content = Stdin { at: 0 };
        let sent = counted(out, ("copying", None), &mut total, &mut sink, |sink| {
            sink.put(&item, &mut content)?;
            sink.finish()
        });
        note_left_out(out, &sink);
        total.bytes = content.at;
        sent
    })?;
    report(out, &total, began)
}

/// Standard input as the content of a file.
struct Stdin {
    at: u64,
}

impl Content for Stdin {
    fn next_run(&mut self, buf: &mut [u8]) -> weft::Result<Option<(u64, usize)>> {
        let mut filled = 0;
        let mut stdin = std::io::stdin().lock();
        while filled < buf.len() {
            match stdin.read(&mut buf[filled..]) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(weft::Error::host("read", "standard input", e)),
            }
        }
        let start = self.at;
        self.at += filled as u64;
        Ok((filled > 0).then_some((start, filled)))
    }
}

/// Returns the last name of a host path; none for `.`, `..`, `/` and `dir/.`.
fn own_name_of_host(path: &Path) -> Option<OsString> {
    if path.as_os_str().as_bytes().ends_with(b"/.") {
        return None;
    }
    path.file_name().map(OsStr::to_owned)
}

fn own_name(path: &[u8]) -> Option<&[u8]> {
    path.split(|b| *b == b'/').rfind(|name| !name.is_empty()).filter(|n| *n != b"." && *n != b"..")
}

pub fn note_left_out(out: Output, sink: &VolumeSink<'_>) {
    sink.left_out().iter().chain(sink.remarks()).for_each(|what| out.note(what));
    let xattrs = sink.xattrs_left_out();
    if xattrs > 0 {
        out.note(&format!("the volume has no place for {xattrs} of the extended attributes"));
    }
    let lists = sink.lists_left_out();
    if lists > 0 {
        out.note(&format!(
            "the volume has no place for {}; no user has more rights by the mode alone",
            count(lists, "access control list")
        ));
    }
}

fn copy_out(
    out: Output,
    from: &[VolumePath],
    to: &Path,
    (with_xattrs, forks, strict): (bool, Forks, bool),
) -> Outcome {
    if to == Path::new("-") {
        return super::cat::run_paths(from, false);
    }
    let began = Instant::now();
    let mut total = Tally::default();
    let mut damage = Damage::new(out, strict);
    let mut refused = Refused::default();
    let into_directory = to.is_dir();
    if from.len() > 1 && !into_directory {
        let to = to.display();
        return Err(Failure::usage(format!("{to} is no directory, and there are several sources")));
    }
    let mut earlier: Option<HostSink> = None;
    for run in from.chunk_by(|a, b| a.image == b.image) {
        let options = Options { forks, ..read_options() };
        with_volume(&run[0].image, &options, |stack| {
            let walker = Walker::new(stack.fs());
            let mac = stack.mac().is_some();
            let doubles = mac && forks == Forks::AppleDouble;
            for place in run {
                let node = walker
                    .resolve_link(&place.path)
                    .map_err(|e| file_error("read", &place.path, e))?;
                let host = match own_name(&place.path) {
                    Some(name) if into_directory => to.join(OsStr::from_bytes(name)),
                    _ => to.to_owned(),
                };
                refuse_image(&place.image, &host)?;
                let mut sink = HostSink::new(&host);
                if let Some(earlier) = &mut earlier {
                    sink.go_on_from(earlier);
                }
                let mut spelled = NoteSpelled::new(out, doubles);
                let one = from.len() == 1 && !node.is_dir();
                let how = ("copying", one.then(|| node.attr().size_bytes));
                let mut left_out = false;
                let several = (false, from.len() > 1);
                let sent = counted(out, how, &mut total, &mut sink, |sink| {
                    let sent = fitted_of(out, several, &mut refused, sink, |sink| {
                        VolumeSource::new(stack.fs(), &place.path)
                            .with_xattrs(with_xattrs)
                            .past_damage(|e| damage.pass_error(told_of_forks(e)))
                            .send(node, &mut spelled.over(sink))
                    });
                    left_out = sent?;
                    Ok(())
                });
                let is_refused = left_out || !sink.refused().is_empty();
                landed(out, &sink, mac && forks == Forks::Xattr, &mut damage)?;
                sent?;
                damage.look(stack)?;
                let name = host.file_name().map(OsStr::as_bytes);
                if let (true, false, Some(name)) = (doubles, is_refused, name)
                    && let Some((path, double)) = double_beside(&walker, &place.path)
                    && !run.iter().any(|other| other.path == path)
                {
                    let beside = host.with_file_name(OsStr::from_bytes(&double_of(name)));
                    let mut second = HostSink::new(&beside);
                    second.go_on_from(&mut sink);
                    VolumeSource::new(stack.fs(), &place.path).send(double, &mut second)?;
                    landed(out, &second, false, &mut damage)?;
                    sink = second;
                }
                earlier = Some(sink);
            }
            Ok(())
        })?;
    }
    report(out, &total, began)?;
    Ok(damage.outcome()?.max(refused.outcome(out)?))
}

/// Reports the items that a sink on the host left out. Those whose names were taken are counted;
/// so are attributes if they are the only place of forks.
pub fn landed(
    out: Output,
    sink: &HostSink,
    count_attributes: bool,
    damage: &mut Damage,
) -> Result<(), Failure> {
    for what in sink.left_out() {
        if count_attributes && what.contains(": attribute user.") {
            damage.pass(Failure::new(what.clone()))?;
        } else {
            out.note(what);
        }
    }
    sink.refused().iter().try_for_each(|what| damage.pass(Failure::new(what.clone())))
}

/// Says what can be done about a fork that is too long for an attribute.
fn told_of_forks(e: weft::Error) -> weft::Error {
    match e {
        weft::Error::File { action, path, source: FsError::Range } => {
            let message =
                "its resource fork is longer than 64 KiB, the longest attribute of Linux; \
                           take --as appledouble or macbinary"
                    .to_owned();
            weft::Error::File { action, path, source: FsError::Io { errno: 34, message } }
        }
        e => e,
    }
}

/// Notes the files of a volume that are spelled in another way, as companions have their names.
pub struct NoteSpelled {
    out: Output,
    wanted: bool,
}

/// [`NoteSpelled`] before a sink.
pub struct Spelled<'a> {
    note: &'a NoteSpelled,
    sink: &'a mut dyn Sink,
}

impl NoteSpelled {
    pub fn new(out: Output, wanted: bool) -> Self {
        Self { out, wanted }
    }

    pub fn over<'a>(&'a mut self, sink: &'a mut dyn Sink) -> Spelled<'a> {
        Spelled { note: self, sink }
    }
}

impl Sink for Spelled<'_> {
    fn put(&mut self, item: &Item<'_>, content: &mut dyn Content) -> weft::Result<()> {
        let name = item.path.rsplit(|b| *b == b'/').next().unwrap_or(b"");
        if self.note.wanted
            && let Some(rest) = name.strip_prefix("\u{2024}_".as_bytes())
        {
            let (path, rest) = (shown(item.path), String::from_utf8_lossy(rest));
            self.note.out.note(&format!(
                "the file ._{rest} is copied as {path} (with U+2024 for the dot), as ._{rest} is the \
                 AppleDouble of {rest}"
            ));
        }
        self.sink.put(item, content)
    }

    fn unreadable(&mut self, path: &[u8], e: weft::Error) -> weft::Result<()> {
        self.sink.unreadable(path, e)
    }

    fn finish(&mut self) -> weft::Result<()> {
        self.sink.finish()
    }

    fn abandon(&mut self) {
        self.sink.abandon();
    }
}

/// The AppleDouble beside a file, if there is one, and its path.
fn double_beside<'a>(walker: &Walker<'a>, path: &[u8]) -> Option<(Vec<u8>, Node<'a>)> {
    let name = own_name(path)?;
    let at = path.len() - name.len() - path.iter().rev().take_while(|b| **b == b'/').count();
    let beside = [path.get(..at)?, &double_of(name)].concat();
    let double = walker.resolve_link(&beside).ok()?;
    Some((beside, double))
}

fn copy_across(
    out: Output,
    from: &[VolumePath],
    to: &VolumePath,
    keeping: &Keeping,
    opening: &Opening,
) -> Outcome {
    let began = Instant::now();
    let mut total = Tally::default();
    let mut refused = Refused::default();
    let ownership = ownership(keeping.owner.as_deref())?;
    let options = Options { forks: Forks::AppleDouble, ..change_options(opening) };
    changing_with(&to.image, &options, |target| {
        let walker = Walker::new(target.fs());
        let landing = landing(&walker, &to.path, from.len())?;
        let mut earlier: Option<VolumeSink<'_>> = None;
        for place in from {
            let mut one = |source: &Walker<'_>, same: bool, forks: bool| {
                let node = source
                    .resolve_link(&place.path)
                    .map_err(|e| file_error("read", &place.path, e))?;
                if same && node.is_dir() {
                    refuse_copy_into_itself(&landing.dir, node.ino(), &place.path)?;
                }
                let mut sink = landing.sink(&walker, own_name(&place.path), ownership)?;
                if let Some(earlier) = &mut earlier {
                    sink.go_on_from(earlier);
                }
                let fitting = (keeping.fit_names, from.len() > 1);
                let mut spelled = NoteSpelled::new(out, forks && target.mac().is_none());
                let mut left_out = false;
                let one = from.len() == 1 && !node.is_dir();
                let how = ("copying", one.then(|| node.attr().size_bytes));
                let sent = counted(out, how, &mut total, &mut sink, |sink| {
                    let sent = fitted_of(out, fitting, &mut refused, sink, |sink| {
                        VolumeSource::new(source.fs(), &place.path)
                            .with_xattrs(!keeping.no_xattrs)
                            .send(node, &mut spelled.over(sink))
                    });
                    left_out = sent?;
                    Ok(())
                });
                note_left_out(out, &sink);
                sent?;
                earlier = Some(sink);
                let double = double_beside(source, &place.path).filter(|(path, _)| {
                    let named =
                        |other: &VolumePath| other.image == place.image && other.path == *path;
                    forks && !left_out && !from.iter().any(named)
                });
                if let (Some((_, double)), Some(own)) = (double, own_name(&place.path)) {
                    let name = double_of(landing.name.as_deref().unwrap_or(own));
                    let mut sink = landing.named(&walker, &name, ownership)?;
                    VolumeSource::new(source.fs(), &place.path)
                        .with_xattrs(false)
                        .send(double, &mut sink)?;
                }
                Ok(())
            };
            if place.image == to.image {
                one(&walker, true, target.mac().is_some())?;
            } else {
                let options = Options { forks: Forks::AppleDouble, ..read_options() };
                with_volume(&place.image, &options, |stack| {
                    let forks = target.mac().is_some() || stack.mac().is_some();
                    one(&Walker::new(stack.fs()), false, forks)
                })?;
            }
        }
        Ok(())
    })?;
    report(out, &total, began)?;
    refused.outcome(out)
}

/// Refuses to copy a directory into one that lies in it, which would never end.
fn refuse_copy_into_itself(dir: &Node<'_>, source: Ino, path: &[u8]) -> Result<(), Failure> {
    let failed = |e| file_error("copy", path, e);
    let mut at = dir.lookup(b".").map_err(failed)?;
    loop {
        if at.ino() == source {
            return Err(failed(FsError::Invalid("the destination lies inside it")));
        }
        let up = at.lookup(b"..").map_err(failed)?;
        if up.ino() == at.ino() {
            return Ok(());
        }
        at = up;
    }
}
