//! `mount`: in the foreground, or in a background process.
//!
//! `--background` runs this same program again with `--detached` ([`super::background`]).

use super::{background, transform};
use crate::cli;
use crate::failure::{DONE, Failure, Outcome};
use crate::output::Output;
use std::process::Command;
use std::sync::Arc;
use weft::hfs::Permissions;
use weft::hfs::view::Forks;
use weft::mount_options::MountOptions;
use weft::{AtFailure, Options, Stack, Tree, mounts};

/// What the background process says when it is ready, with a volume that was not unmounted and without.
const CHECKED: &str = "mounted, and being checked";
const MOUNTED: &str = "mounted";
/// The note on such a volume.
const NOT_UNMOUNTED: &str = "it was not unmounted the last time: a check in the background reclaims what \
    that left";

/// `mount`.
pub fn run(out: Output, args: &cli::Mount, verbose: u8) -> Outcome {
    let options = options(args)?;
    if args.background && !args.detached {
        return detach(out, args, verbose);
    }
    let dead = mounts::clear_dead(&args.mountpoint)?;
    if dead {
        let dir = args.mountpoint.display();
        out.note(&format!("unmounted {dir}: the process of an earlier mount there had died"));
    }
    let networks = transform::of_mount(&transforming(args, &options)?)?;
    let meters = networks.as_ref().and_then(|networks| networks.meters.clone());
    let (tree, cached, checked) = open(out, args, &options, meters.clone())?;
    let behind_cache = matches!(cached, Some(super::cache::Opened::Cached(..)));
    let _metrics = match (&args.caching.metrics, meters) {
        (Some(address), Some(meters)) if !behind_cache => {
            Some(weft::cache::NetworkMetrics::serve(address, meters)?)
        }
        (Some(_), _) if !behind_cache => {
            let why = "--metrics is for a cache or networks: give --cache or --transform too";
            return Err(Failure::usage(why));
        }
        _ => None,
    };
    let tree = match &networks {
        Some(networks) => tree.with_networks(networks)?,
        None => tree,
    };
    let detached = args.detached;
    let session = tree.mount(&args.mountpoint, &options)?;
    if let (Some(file), false) = (&args.pid_file, detached) {
        background::write_own_pid(file)?;
    }
    if detached {
        background::let_go(if checked { CHECKED } else { MOUNTED })?;
    } else {
        let (image, dir) = (&args.image, args.mountpoint.display());
        out.note(&format!("{image} is mounted on {dir}; unmount it, or press Ctrl-C, to end"));
        if checked {
            out.note(&format!("{image}: {NOT_UNMOUNTED}"));
        }
    }
    // In the foreground the waiting user sees the failure, and may start again.
    let at_failure = if detached { AtFailure::KeepTrying } else { AtFailure::GiveUp };
    session.wait_and(at_failure, || match cached {
        Some(cached) => cached.close(out, &args.image),
        None => Ok(()),
    })?;
    Ok(DONE)
}

/// Opens the tree to be mounted, behind its cache if it has one. Returns with it whether a check of it
/// runs, as it was not unmounted.
fn open(
    out: Output,
    args: &cli::Mount,
    options: &MountOptions,
    meters: Option<Arc<weft::transform::Meters>>,
) -> Result<(Tree, Option<super::cache::Opened>, bool), Failure> {
    if let Some(directory) = Tree::host_directory(&args.image) {
        if args.caching.cache.is_some() || options.cache.is_some() {
            return Err(Failure::usage("a directory of the host has no cache; the host has one"));
        }
        if let Some(option) = options.ownership() {
            let why = "a directory of the host has owners and modes";
            return Err(Failure::usage(format!("mount option '{option}': {why}")));
        }
        return Ok((directory?, None, false));
    }
    let image = options.source(&args.image)?;
    let engine = weft::patch::Options::default();
    let max_age = options.max_age.unwrap_or(engine.max_age);
    let engine = weft::patch::Options { max_age, ..engine };
    let opening = Options {
        engine,
        read_only: options.read_only,
        order: options.order,
        fsync: options.fsync,
        open_files: options.open_files,
        no_atime: options.kernel.iter().any(|o| o == "noatime"),
        journal: args.opening.journal.clone(),
        mount_point: std::path::absolute(&args.mountpoint)?.to_str().map(str::to_owned),
        forks: options.forks.unwrap_or(Forks::MOUNTED),
        leaves_doubles: true,
        utc_offset_secs: crate::zone::offset_secs(),
        permissions: Some(permissions(options)),
        ..Options::default()
    };
    let caching = caching(args, options)?;
    let cached = super::cache::open_source(&image, &caching, meters, opening.read_only)?;
    let stack = Stack::open_device(&image, cached.device(), &opening)?;
    if let (None, Some(option)) = (stack.mac(), options.ownership()) {
        return Err(Failure::usage(format!(
            "mount option '{option}': {image} stores the owners and modes of its files; chown and chmod \
             change them"
        )));
    }
    if stack.is_read_only() && !options.read_only {
        let why = stack
            .why_read_only()
            .unwrap_or("weft info says which features of the volume call for that");
        out.note(&format!("mounted read-only: {why}"));
    }
    let checked = stack.is_being_checked();
    Ok((stack.into(), Some(cached), checked))
}

/// The networks of the command line, or those of `-o`.
fn transforming(args: &cli::Mount, options: &MountOptions) -> Result<cli::Transforming, Failure> {
    let mut transforming = args.transforming.clone();
    if let (None, Some(rules)) = (&transforming.transform, &options.transform) {
        transforming.transform = Some(rules.into());
    }
    for key in &options.keys {
        transforming.keys.keys.push(key.parse().map_err(Failure::from)?);
    }
    let outside = &transforming.keys;
    let named = outside.keys.len() + outside.programs.len() + outside.modules.len();
    if transforming.transform.is_none() && named > 0 {
        let why = "keys, programs and modules are for networks: give --transform RULES too";
        return Err(Failure::usage(why));
    }
    Ok(transforming)
}

/// The cache of the command line, or that of `-o`.
fn caching(args: &cli::Mount, options: &MountOptions) -> Result<cli::Caching, Failure> {
    let mut caching = args.caching.clone();
    if let (None, Some(cache)) = (&caching.cache, &options.cache) {
        caching.cache = Some(cache.clone());
        if let Some(mode) = &options.cache_mode {
            caching.cache_mode =
                Some(mode.parse().map_err(|e: weft::cache::Error| Failure::usage(e.to_string()))?);
        }
    }
    Ok(caching)
}

/// The owner and the permissions on a volume that stores none.
fn permissions(options: &MountOptions) -> Permissions {
    Permissions {
        uid: options.uid.unwrap_or_else(|| rustix::process::geteuid().as_raw()),
        gid: options.gid.unwrap_or_else(|| rustix::process::getegid().as_raw()),
        fmask: options.fmask.unwrap_or(0),
        dmask: options.dmask.unwrap_or(0),
    }
}

/// Merges the options of the command line and of `-o`.
fn options(args: &cli::Mount) -> Result<MountOptions, Failure> {
    let mut options = MountOptions::default();
    for list in &args.options {
        options.parse(list).map_err(|e| Failure::usage(e.to_string()))?;
    }
    options.read_only |= args.read_only;
    options.order = args.opening.order.or(options.order);
    options.forks = args.forks.or(options.forks);
    options.threads = args.threads.or(options.threads);
    options.check()?;
    Ok(options)
}

/// Runs the mount in a background process and waits until it is ready.
fn detach(out: Output, args: &cli::Mount, verbose: u8) -> Outcome {
    let program = std::env::current_exe()?;
    let mut command = Command::new(program);
    command.arg("mount").arg("--detached").arg("--quiet");
    for _ in 0..verbose {
        command.arg("--verbose");
    }
    if let Some(order) = args.opening.order {
        command.arg(format!("--order={order}"));
    }
    if let Some(journal) = &args.opening.journal {
        command.arg(format!("--journal={}", mounts::absolute_source(journal)?));
    }
    command.args(args.caching.to_args());
    command.arg(format!("--timezone={}", crate::zone::text()));
    if let Some(forks) = args.forks {
        command.arg(format!("--forks={forks}"));
    }
    command.args(args.transforming.to_args()?);
    if args.read_only {
        command.arg("--read-only");
    }
    for list in &args.options {
        command.arg(format!("--options={list}"));
    }
    if let Some(threads) = args.threads {
        command.arg(format!("--threads={threads}"));
    }
    // Relative paths must be resolved before the other process leaves this directory.
    command.arg("--").arg(mounts::absolute_source(&args.image)?);
    command.arg(std::path::absolute(&args.mountpoint)?);
    let (process, said) = background::start(&mut command, args.pid_file.as_deref())?;
    let (image, dir) = (&args.image, args.mountpoint.display());
    let text = format!("{image} is mounted on {dir}");
    if said == CHECKED {
        out.note(&format!("{image}: {NOT_UNMOUNTED} (the system log has its result)"));
    }
    out.confirm(&serde_json::json!({ "mounted": image, "process": process }), &text)?;
    Ok(DONE)
}
