//! The properties and content of a cache, in use or not.

use super::ask;
use crate::failure::{DONE, Failure, Outcome};
use crate::output::{Output, count, human};
use serde_json::{Value, json};
use std::sync::Arc;
use weft::cache::{self, OpenOptions};
use weft::metrics;

/// Opens a cache that is not in use, read-only.
pub fn look(cache: &str) -> Result<Arc<weft::cache::Cache>, Failure> {
    let options = OpenOptions {
        read_only: true,
        background: false,
        lazy_load: false,
        ..OpenOptions::default()
    };
    Ok(cache::open(cache, options)?)
}

/// `cache info`.
pub fn info(out: Output, cache: &str) -> Outcome {
    let (figures, origins, in_use) = match ask(cache, "GET", "/metrics")? {
        Some(metrics) => {
            let origins = ask(cache, "GET", "/origins")?.unwrap_or_default();
            (metrics::parse(&metrics), origins, true)
        }
        None => {
            let opened = look(cache)?;
            let stats = metrics::render_cache(cache, &opened.stats());
            (metrics::parse(&stats), cache::describe_origins(&opened, None), false)
        }
    };
    let figure = |name: &str| {
        let sample = figures.iter().find(|s| s.name == format!("weft_cache_{name}"));
        sample.map_or(0, |s| s.value as u64)
    };
    let origins: Vec<Origin<'_>> = origins.lines().filter_map(Origin::parse).collect();
    let report = json!({
        "cache": cache,
        "in_use": in_use,
        "figures": figures.iter().map(|s| (s.name.clone(), json!(s.value)))
            .collect::<serde_json::Map<String, Value>>(),
        "origins": origins.iter().map(|o| json!({
            "name": o.name, "mode": o.mode, "dirty_bytes": o.dirty_bytes, "blocks": o.blocks,
        })).collect::<Vec<_>>(),
    });
    out.report(&report, |w| {
        let (slots, used, block) = (figure("slots"), figure("used_slots"), figure("block_bytes"));
        writeln!(w, "  size: {}", count(slots, "block"))?;
        writeln!(w, " block: {}", human(block))?;
        writeln!(w, "  used: {used} ({}%)", used * 100 / slots.max(1))?;
        writeln!(w, " dirty: {}", human(figure("dirty_bytes")))?;
        writeln!(w, "memory: {}", human(figure("memory_bytes")))?;
        if in_use {
            let (hits, misses) = (figure("hits_total"), figure("misses_total"));
            let percent = hits * 100 / (hits + misses).max(1);
            writeln!(w, "  hits: {percent}% of {}", count(hits + misses, "block"))?;
        }
        for o in &origins {
            let mode = if o.mode == "-" { "not in use" } else { o.mode };
            let dirty = human(o.dirty_bytes);
            writeln!(
                w,
                "source: {} ({mode}), {}, {dirty} dirty",
                o.name,
                count(o.blocks, "block")
            )?;
        }
        Ok(())
    })?;
    Ok(DONE)
}

/// A line in which a cache describes one of its sources: `MODE DIRTY_BYTES BLOCKS NAME`.
struct Origin<'a> {
    mode: &'a str,
    dirty_bytes: u64,
    blocks: u64,
    name: &'a str,
}

impl<'a> Origin<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.splitn(4, ' ');
        Some(Self {
            mode: words.next()?,
            dirty_bytes: words.next()?.parse().ok()?,
            blocks: words.next()?.parse().ok()?,
            name: words.next()?,
        })
    }
}

/// `cache options`.
pub fn settings(out: Output) -> Outcome {
    let report: Vec<Value> = cache::SETTINGS
        .iter()
        .map(|(name, value, meaning)| json!({ "name": name, "value": value, "meaning": meaning }))
        .collect();
    out.report(&report, |w| {
        for (name, value, meaning) in cache::SETTINGS {
            writeln!(w, "{:<28} {meaning}", format!("{name}={value}"))?;
        }
        Ok(())
    })?;
    Ok(DONE)
}
