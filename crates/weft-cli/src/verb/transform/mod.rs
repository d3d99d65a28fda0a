//! `transform`: networks on files, and on streams.

mod attach;
mod explain;
mod files;
mod keys;
mod run;
mod test;
pub mod top;

use crate::cli::transform::{Keys, Transform, Transforming, Trusted};
use crate::failure::{DONE, Failure, Outcome};
use crate::output::Output;
use std::path::PathBuf;
use weft::networks::{Networks, key_directory};
use weft::transform::Trust;

/// `transform`.
pub fn run(out: Output, verb: &Transform) -> Outcome {
    match verb {
        Transform::Attach(args) => attach::attach(out, args),
        Transform::Detach(args) => attach::detach(out, args),
        Transform::Push(args) => attach::push(out, args),
        Transform::Pop(args) => attach::pop(out, args),
        Transform::Show(args) => explain::show(out, args),
        Transform::Explain(args) => explain::explain(out, args),
        Transform::Link(args) => attach::link(out, args),
        Transform::Test(args) => test::run(out, args),
        Transform::Run(args) => run::run(out, args),
        Transform::List => list(out),
        Transform::Keys(verb) => keys::run(out, verb),
    }
}

/// The directory of the user's keys, if there is a home.
fn user_keys() -> Option<PathBuf> {
    if let Some(directory) = std::env::var_os("WEFT_KEYS") {
        return Some(directory.into());
    }
    let configuration = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".config"));
    configuration.or_else(home).map(|directory| key_directory(&directory))
}

/// The directory of compiled modules, if there is a home.
fn user_cache() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    cache.or_else(home).map(|directory| directory.join("weft/wasm"))
}

/// Networks with the keys of a command line and those of the user.
fn networks(keys: &Keys) -> Networks {
    Networks {
        keys: keys.keys.clone(),
        key_directory: user_keys(),
        programs: keys.programs.clone(),
        modules: keys.modules.clone(),
        module_cache: user_cache(),
        ..Networks::default()
    }
}

/// The networks of a mount; `None` if it has none.
pub fn of_mount(args: &Transforming) -> Result<Option<Networks>, Failure> {
    let Some(rules) = &args.transform else { return Ok(None) };
    let mut networks = networks(&args.keys);
    networks.meters = Some(std::sync::Arc::default());
    networks.rules = (rules.as_os_str() != "-").then(|| rules.clone());
    networks.output_cache = args.output_cache.clone().map(|d| (d, args.output_cache_size));
    networks.snapshot_views = args.snapshot_views;
    networks.trust = match args.transform_trust {
        Trusted::Mount => Trust::Mount,
        Trusted::Tree => Trust::Tree,
    };
    for log in &args.log {
        let (name, file) = log
            .split_once('=')
            .ok_or_else(|| Failure::usage(format!("invalid log '{log}': write NAME=FILE")))?;
        networks.logs.push((name.to_owned(), file.into()));
    }
    Ok(Some(networks))
}

impl From<weft::transform::Error> for Failure {
    fn from(error: weft::transform::Error) -> Self {
        Self::new(error.to_string())
    }
}

fn list(out: Output) -> Outcome {
    let registry = Networks::default().registry()?;
    let stages: Vec<serde_json::Value> = registry
        .stages()
        .map(|stage| {
            let parameters: serde_json::Map<String, serde_json::Value> = stage
                .parameters
                .iter()
                .map(|(name, what)| ((*name).to_owned(), (*what).into()))
                .collect();
            serde_json::json!({
                "stage": stage.name, "summary": stage.summary, "parameters": parameters,
            })
        })
        .collect();
    out.report(&stages, |w| {
        for stage in registry.stages() {
            writeln!(w, "{:<12}{}", stage.name, stage.summary)?;
            for (name, what) in stage.parameters {
                writeln!(w, "            {name}=  {what}")?;
            }
        }
        Ok(())
    })?;
    Ok(DONE)
}
