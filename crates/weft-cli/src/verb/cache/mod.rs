//! `cache`: creates and inspects caches, and controls caches in use.
//!
//! A cache that is in use is locked by the process that uses it; that process listens on a socket
//! (see `weft::cache::control_path`), which takes the operations on a cache in use.

mod advise;
mod inspect;
mod show;
pub mod top;

use crate::cli::Cache;
use crate::cli::cache as args;
use crate::failure::{DONE, Failure, Outcome};
use crate::output::{Output, human};
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use weft::block::{BlockDevice, OpenMode, parse_size};
use weft::cache::{self, CachedSource, CreateOptions, Settings};

/// `cache`.
pub fn run(out: Output, verb: &Cache) -> Outcome {
    match verb {
        Cache::Create(args) => create(out, args),
        Cache::Info(args) => show::info(out, &args.cache),
        Cache::Options => show::settings(out),
        Cache::Check(args) => inspect::check(out, args),
        Cache::Dump(args) => inspect::dump(out, args),
        Cache::Repair(args) => inspect::repair(out, args),
        Cache::Resize(args) => resize(out, args),
        Cache::Flush(args) => flush(out, args),
        Cache::Mode(args) => tell(out, &args.cache, &format!("/mode?{}", args.mode)),
        Cache::Policy(args) => policy(out, args),
        Cache::Detach(args) => detach(out, args),
        Cache::Trace(args) => trace(out, args),
        Cache::Advise(args) => advise::run(out, args),
    }
}

/// The directory of the control sockets of caches in use: `WEFT_RUNTIME_DIR`, or a directory of the
/// user. `None` if there is none.
fn runtime_dir() -> Option<PathBuf> {
    if let Some(dir) = std::env::var_os("WEFT_RUNTIME_DIR") {
        return Some(dir.into());
    }
    if rustix::process::geteuid().is_root() {
        return Some("/run/weft".into());
    }
    std::env::var_os("XDG_RUNTIME_DIR").map(|dir| PathBuf::from(dir).join("weft"))
}

/// The settings of the cache in front of a volume; `None` if there is no cache.
fn settings(args: &args::Caching) -> Result<Option<Settings>, Failure> {
    let Some(cache) = &args.cache else { return Ok(None) };
    let mut settings = Settings {
        cache: cache.clone(),
        name: args.cache_name.clone(),
        metrics: args.metrics.clone(),
        runtime_dir: runtime_dir(),
        ..Settings::default()
    };
    settings.open.persistence = !args.cache_volatile;
    settings.attach.mode = args.cache_mode.unwrap_or_default();
    settings.attach.quota_bytes = args.cache_quota.as_deref().map(size).transpose()?;
    settings.attach.add = args.cache_add;
    settings.attach.invalidate = args.cache_invalidate;
    settings.attach.resized = args.cache_resized;
    for list in &args.cache_options {
        settings.set(list).map_err(|e| Failure::usage(e.to_string()))?;
    }
    Ok(Some(settings))
}

/// A source, with or without a cache.
pub enum Opened {
    Plain(Arc<dyn BlockDevice>),
    Cached(String, CachedSource),
}

/// Opens a source, behind a cache if the options name one.
pub fn open_source(
    source: &str,
    caching: &args::Caching,
    networks: Option<Arc<weft::transform::Meters>>,
    read_only: bool,
) -> Result<Opened, Failure> {
    let mode = if read_only { OpenMode::READ_ONLY } else { OpenMode::READ_WRITE };
    let origin = weft::source::open_source(source, mode)?;
    Ok(match settings(caching)? {
        None => Opened::Plain(origin),
        Some(settings) => {
            let settings = Settings { networks, ..settings };
            let cached = CachedSource::open(source, origin, &settings)?;
            Opened::Cached(settings.cache, cached)
        }
    })
}

impl Opened {
    pub fn device(&self) -> Arc<dyn BlockDevice> {
        match self {
            Self::Plain(device) => Arc::clone(device),
            Self::Cached(_, cached) => cached.device(),
        }
    }

    /// Closes the cache, and reports the dirty data left in it.
    pub fn close(self, out: Output, source: &str) -> weft::Result<()> {
        let Self::Cached(cache, cached) = self else { return Ok(()) };
        let dirty_bytes = cached.close()?;
        if dirty_bytes > 0 {
            out.note(&format!(
                "{} of {source} are in the cache {cache} only; weft cache flush {cache} {source} \
                 writes them back",
                human(dirty_bytes)
            ));
        }
        Ok(())
    }
}

fn size(text: &str) -> Result<u64, Failure> {
    parse_size(text).map_err(|e| Failure::usage(e.to_string()))
}

fn create(out: Output, args: &args::Create) -> Outcome {
    let block_bytes = size(&args.block_size)?;
    let options = CreateOptions {
        block_bytes: u32::try_from(block_bytes)
            .map_err(|_| Failure::usage(format!("blocks of {block_bytes} bytes are too large")))?,
        label: args.label.clone(),
        policy: args.policy,
        ..CreateOptions::default()
    };
    let len_bytes = args.size.as_deref().map(size).transpose()?;
    cache::create(&args.cache, len_bytes, args.force, &options)?;
    let opened = show::look(&args.cache)?;
    let slots = opened.stats().slots;
    warn_of_no_room(out, &args.cache)?;
    let text = format!(
        "made a cache in {}: {slots} blocks of {}, {}",
        args.cache,
        human(block_bytes),
        args.policy
    );
    let report = json!({
        "cache": args.cache,
        "slots": slots,
        "block_bytes": block_bytes,
        "policy": args.policy.to_string(),
    });
    out.confirm(&report, &text)?;
    Ok(DONE)
}

/// Warns if the file system of a cache's file, which is sparse at first, has no room for all of it.
fn warn_of_no_room(out: Output, cache: &str) -> Result<(), Failure> {
    use std::os::unix::fs::MetadataExt;
    let path = cache::file_of(cache)?;
    let meta = std::fs::metadata(&path)?;
    let room = rustix::fs::statvfs(&path).map_err(std::io::Error::from)?;
    let free = room.f_bavail.saturating_mul(room.f_frsize);
    let missing = meta.len().saturating_sub(meta.blocks() * 512).saturating_sub(free);
    if meta.is_file() && missing > 0 {
        out.note(&format!(
            "{cache} is to take {}, and its file system has room for {} less: the cache fails when \
             that is full",
            human(meta.len()),
            human(missing)
        ));
    }
    Ok(())
}

/// Sends a request to the process that uses the cache. `None` if there is none.
fn ask(cache: &str, method: &str, target: &str) -> Result<Option<String>, Failure> {
    let Some(dir) = runtime_dir() else { return Ok(None) };
    let socket = cache::control_path(&dir, &cache::file_of(cache)?)?;
    Ok(cache::request(&socket, method, target)?)
}

/// Sends a command to the process that uses the cache, and reports its answer.
fn tell(out: Output, cache: &str, target: &str) -> Outcome {
    match ask(cache, "POST", target)? {
        Some(said) => {
            out.confirm(&json!({ "cache": cache, "done": said.trim_end() }), said.trim_end())?;
            Ok(DONE)
        }
        None => Err(Failure::new(format!(
            "no process of yours uses {cache} (weft mount and weft serve take --cache)"
        ))),
    }
}

fn flush(out: Output, args: &args::Flush) -> Outcome {
    let Some(source) = &args.source else { return tell(out, &args.cache, "/flush") };
    let origin = weft::source::open_source(source, OpenMode::READ_WRITE)?;
    let mut settings = Settings {
        cache: args.cache.clone(),
        name: args.cache_name.clone(),
        ..Settings::default()
    };
    settings.attach.resized = args.resized;
    // A source that has grown is written back to when it is attached.
    let before = args.resized.then(|| show::look(&args.cache)).transpose()?;
    let before = before.map(|opened| opened.stats().dirty_bytes);
    let cached = CachedSource::open(source, origin, &settings)?;
    let before = before.unwrap_or_else(|| cached.stats().dirty_bytes);
    let written = cached.write_back();
    let left = cached.close()?;
    written?;
    let text = format!("wrote {} back to {source}", human(before));
    out.confirm(
        &json!({ "cache": args.cache, "written_bytes": before, "dirty_bytes": left }),
        &text,
    )?;
    Ok(DONE)
}

fn resize(out: Output, args: &args::Resize) -> Outcome {
    let len_bytes = size(&args.size)?;
    if ask(&args.cache, "GET", "/origins")?.is_some() {
        return tell(out, &args.cache, &format!("/resize?{len_bytes}"));
    }
    cache::resize(&args.cache, len_bytes)?;
    let text = format!("{} takes {} now", args.cache, human(len_bytes));
    out.confirm(&json!({ "cache": args.cache, "len_bytes": len_bytes }), &text)?;
    Ok(DONE)
}

fn policy(out: Output, args: &args::SetPolicy) -> Outcome {
    if ask(&args.cache, "GET", "/origins")?.is_some() {
        return tell(out, &args.cache, &format!("/policy?{}", args.policy));
    }
    cache::set_policy(&args.cache, args.policy)?;
    let text = format!("the policy of {} is {} now", args.cache, args.policy);
    out.confirm(&json!({ "cache": args.cache, "policy": args.policy.to_string() }), &text)?;
    Ok(DONE)
}

fn detach(out: Output, args: &args::Detach) -> Outcome {
    if ask(&args.cache, "GET", "/origins")?.is_some() {
        return tell(out, &args.cache, "/detach");
    }
    let opened = cache::open(&args.cache, weft::cache::OpenOptions::default())?;
    let named = |e| cache::named(&args.cache, &e);
    let origins = opened.origins();
    let label = match (&args.origin, &origins[..]) {
        (Some(label), _) => label.clone(),
        (None, [one]) => one.id.label.clone(),
        (None, []) => return Err(Failure::new(format!("{} has no source", args.cache))),
        (None, _) => {
            let known: Vec<&str> = origins.iter().map(|o| o.id.label.as_str()).collect();
            let known = known.join(", ");
            return Err(Failure::usage(format!("{} has several sources: {known}", args.cache)));
        }
    };
    let dirty_bytes = origins.iter().find(|o| o.id.label == label).map_or(0, |o| o.dirty_bytes);
    if dirty_bytes > 0 && !args.discard_dirty {
        return Err(Failure::new(format!(
            "{}: {} of {label} are in this cache only; weft cache flush {} '{label}' writes them back \
             (if the source has another name now, with --cache-name '{label}'; if it has grown, with \
             --resized), and --discard-dirty gives them up",
            args.cache,
            human(dirty_bytes),
            args.cache
        )));
    }
    let forgotten = opened.forget(&label, args.discard_dirty);
    let closed = opened.close();
    forgotten.and(closed).map_err(named)?;
    let text = format!("removed {label} from {}", args.cache);
    out.confirm(&json!({ "cache": args.cache, "detached": label }), &text)?;
    Ok(DONE)
}

fn trace(out: Output, args: &args::Trace) -> Outcome {
    let path = std::path::absolute(&args.output)?;
    let shown = path.to_str().filter(|p| !p.contains([' ', '\r', '\n'])).ok_or_else(|| {
        Failure::usage("the output's path must be UTF-8 and have no spaces in it")
    })?;
    tell(Output { quiet: true, json: false }, &args.cache, &format!("/trace/start?{shown}"))?;
    std::thread::sleep(Duration::from_secs(args.seconds));
    tell(out, &args.cache, "/trace/stop")
}
