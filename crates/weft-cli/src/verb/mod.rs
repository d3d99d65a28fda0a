//! The verbs, one file each or one for a small family.

pub mod background;
mod cache;
mod cat;
mod change;
mod copy;
mod crash;
mod crash_live;
mod crash_run;
mod damage;
mod df;
mod fsck;
mod generate;
mod hfs;
mod info;
mod landing;
mod list;
mod mkfs;
pub mod mount;
mod order;
#[cfg(feature = "ringer")]
mod ringer;
mod serve;
mod top;
mod trace;
mod transferring;
mod transform;
mod tree_io;
pub mod umount;

use crate::cli::{Cli, Opening, Verb};
use crate::failure::{DONE, Failure, Outcome};
use crate::output::Output;
use crate::zone;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use weft::transfer::Ownership;
use weft::volume::VolumePath;
use weft::{Options, Stack};

/// Runs the verb of a command line.
pub fn run(cli: Cli) -> Outcome {
    let out = Output::new(&cli);
    match cli.verb {
        Verb::Fsck(args) => fsck::run(out, &args),
        Verb::Hfs(verb) => hfs::run(out, &verb),
        Verb::Crash(args) => crash::run(out, &args),
        Verb::Trace(args) => trace::run(out, &args),
        Verb::Mount(args) => mount::run(out, &args, cli.verbose),
        Verb::Serve(args) => serve::run(out, &args),
        Verb::Mkfs(args) => mkfs::run(out, &args),
        Verb::Cache(verb) => cache::run(out, &verb),
        Verb::Transform(verb) => transform::run(out, &verb),
        #[cfg(feature = "ringer")]
        Verb::Ringer(verb) => ringer::run(out, &verb),
        Verb::Top(args) if transform::top::is_mount(&args.cache) => transform::top::run(out, &args),
        #[cfg(feature = "ringer")]
        Verb::Top(args) if ringer::top::is_mount(&args.cache) => ringer::top::of_mount(out, &args),
        Verb::Top(args) => cache::top::run(out, &args),
        Verb::Order(args) => order::run(out, &args),
        Verb::Umount(args) => umount::run(out, &args),
        Verb::Info(args) => info::run(out, &args),
        Verb::Ls(args) => list::ls(out, &args),
        Verb::Tree(args) => list::tree(out, &args),
        Verb::Stat(args) => list::stat(out, &args),
        Verb::Cat(args) => cat::run(&args),
        Verb::Cp(args) => copy::cp(out, &args),
        Verb::Get(args) => copy::get(out, &args),
        Verb::Put(args) => copy::put(out, &args),
        Verb::Mkdir(args) => change::mkdir(&args),
        Verb::Rm(args) => change::rm(out, &args),
        Verb::Mv(args) => change::mv(&args),
        Verb::Ln(args) => change::ln(&args),
        Verb::Df(args) => df::run(out, &args),
        Verb::Import(args) => tree_io::import(out, &args),
        Verb::Export(args) => tree_io::export(out, &args),
        Verb::Completions(args) => generate::completions(&args),
        Verb::Man(args) => generate::man(&args),
    }
}

/// Opens a volume, calls `work` and closes it: the changes are durable when this returns, also if a
/// part of them failed.
fn with_volume<T>(
    image: &str,
    options: &Options,
    work: impl FnOnce(&Stack) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let stack = Stack::open(image, options)?;
    for caution in stack.cautions() {
        let _ = writeln!(std::io::stderr(), "weft: {image}: {caution}");
    }
    let result = work(&stack);
    let closed = stack.close();
    let value = result?;
    closed?;
    Ok(value)
}

fn reading<T>(image: &str, work: impl FnOnce(&Stack) -> Result<T, Failure>) -> Result<T, Failure> {
    with_volume(image, &read_options(), work)
}

/// The options for opening a volume to read it.
fn read_options() -> Options {
    Options { utc_offset_secs: zone::offset_secs(), ..Options::read_only() }
}

/// The options for opening a volume to change it.
fn change_options(opening: &Opening) -> Options {
    Options {
        order: opening.order,
        journal: opening.journal.clone(),
        utc_offset_secs: zone::offset_secs(),
        ..Options::default()
    }
}

fn changing<T>(
    image: &str,
    opening: &Opening,
    work: impl FnOnce(&Stack) -> Result<T, Failure>,
) -> Result<T, Failure> {
    changing_with(image, &change_options(opening), work)
}

/// As [`changing`], but fails at once if weft only reads the volume.
fn changing_with<T>(
    image: &str,
    options: &Options,
    work: impl FnOnce(&Stack) -> Result<T, Failure>,
) -> Result<T, Failure> {
    with_volume(image, options, |stack| match stack.why_read_only() {
        Some(why) => Err(Failure::new(format!("{image} cannot be changed: {why}"))),
        None => work(stack),
    })
}

/// Handles volume paths in order, and opens each volume once for all adjacent paths of it.
fn by_volume<P: AsRef<OsStr>>(
    paths: &[P],
    mut work: impl FnMut(&str, &[VolumePath]) -> Result<(), Failure>,
) -> Outcome {
    let paths: Vec<VolumePath> = paths
        .iter()
        .map(|p| weft::volume::parse(p.as_ref()))
        .collect::<weft::Result<_>>()
        .map_err(|e| Failure::usage(e.to_string()))?;
    for run in paths.chunk_by(|a, b| a.image == b.image) {
        work(&run[0].image, run)?;
    }
    Ok(DONE)
}

/// Parses a volume path from the command line; an image alone is the root of its volume.
fn volume_path(text: &OsStr) -> Result<VolumePath, Failure> {
    weft::volume::parse(text).map_err(|e| Failure::usage(e.to_string()))
}

/// The file of the host that holds an image, if there is one.
fn image_file(image: &str) -> Option<PathBuf> {
    let source: weft::source::Source = image.parse().ok()?;
    source.file().map(Path::to_owned)
}

/// Refuses to overwrite the image that is read.
fn refuse_image(image: &str, to: &Path) -> Result<(), Failure> {
    let id = |path: &Path| std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    match image_file(image).and_then(|file| id(&file)) {
        Some(file) if id(to) == Some(file) => Err(Failure::usage(format!(
            "{} is the volume that is read; give another name",
            to.display()
        ))),
        _ => Ok(()),
    }
}

/// Parses `UID:GID`.
fn parse_owner(text: &str) -> Result<(u32, u32), Failure> {
    text.split_once(':').and_then(|(u, g)| Some((u.parse().ok()?, g.parse().ok()?))).ok_or_else(
        || Failure::usage(format!("invalid owner '{text}': write numbers, such as 1000:1000")),
    )
}

fn ownership(owner: Option<&str>) -> Result<Ownership, Failure> {
    owner.map_or(Ok(Ownership::Keep), |text| {
        let (uid, gid) = parse_owner(text)?;
        Ok(Ownership::Fixed { uid, gid })
    })
}

/// Makes the failure of a call on a path in a volume.
fn file_error(action: &'static str, path: &[u8], source: weft::vfs::Error) -> Failure {
    weft::Error::file(action, path, source).into()
}
