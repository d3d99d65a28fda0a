//! `top`: a cache in use, second by second.

use super::ask;
use crate::cli::cache::Top;
use crate::failure::{Failure, Outcome};
use crate::output::{Output, human};
use crate::verb::top::watch;
use serde_json::json;
use std::collections::HashMap;
use weft::metrics;

/// The figures of a cache, by name.
type Figures = HashMap<String, f64>;

/// `top`.
pub fn run(out: Output, args: &Top) -> Outcome {
    watch(out, args, read, show)
}

fn read(cache: &str) -> Result<Figures, Failure> {
    let text = ask(cache, "GET", "/metrics")?.ok_or_else(|| {
        Failure::new(format!(
            "no process of yours uses {cache} (weft mount and weft serve take --cache)"
        ))
    })?;
    Ok(metrics::parse(&text).into_iter().map(|s| (s.name, s.value)).collect())
}

fn show(
    out: Output,
    cache: &str,
    before: &Figures,
    now: &Figures,
    secs: f64,
) -> Result<(), Failure> {
    let total = |name: &str| now.get(&format!("weft_cache_{name}_total")).copied().unwrap_or(0.0);
    let gauge = |name: &str| now.get(&format!("weft_cache_{name}")).copied().unwrap_or(0.0);
    let rate = |name: &str| {
        let earlier = before.get(&format!("weft_cache_{name}_total")).copied().unwrap_or(0.0);
        (total(name) - earlier).max(0.0) / secs.max(0.001)
    };
    let ratio = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
    // Mean latency in milliseconds of the requests that have ended since the previous figures.
    let latency = |requests: &str, time: &str| ratio(rate(time), rate(requests)) / 1e6;
    let latencies = [
        ("read", latency("reads", "read_nanoseconds")),
        ("write", latency("writes", "write_nanoseconds")),
        ("flush", latency("flushes", "flush_nanoseconds")),
        ("source_read", latency("origin_reads", "origin_read_nanoseconds")),
    ];
    let asked = rate("hits") + rate("misses");
    let used = total("user_bytes_written") + total("miss_bytes") + total("read_ahead_bytes");
    let report = json!({
        "cache": cache,
        "hit_ratio": ratio(rate("hits"), asked),
        "hit_ratio_total": ratio(total("hits"), total("hits") + total("misses")),
        "blocks_per_second": asked,
        "latency_ms": latencies.iter().copied().collect::<HashMap<_, _>>(),
        "fills_per_second": rate("fills"),
        "read_ahead_bytes_per_second": rate("read_ahead_bytes"),
        "dirty_bytes": gauge("dirty_bytes"),
        "writeback_bytes_per_second": rate("writeback_bytes"),
        "log_writes_per_second": rate("log_writes"),
        "metadata_updates_per_second": rate("metadata_updates"),
        "batched_updates_per_second": rate("batched_updates"),
        "flash_bytes_per_user_byte":
            ratio(total("flash_bytes_written"), used),
        "origin_errors": total("origin_errors"),
        "cache_errors": total("cache_errors"),
        "damaged_blocks": total("heals") + total("dirty_damaged"),
        "used_slots": gauge("used_slots"),
        "slots": gauge("slots"),
    });
    let bytes = |b: f64| human(b as u64);
    out.report(&report, |w| {
        writeln!(w, "{cache}: {:.0} of {:.0} blocks used", gauge("used_slots"), gauge("slots"))?;
        writeln!(
            w,
            "hits        {:5.1}% now, {:5.1}% in all, of {asked:.0} blocks/s",
            100.0 * ratio(rate("hits"), asked),
            100.0 * ratio(total("hits"), total("hits") + total("misses")),
        )?;
        let [read, write, flush, source] = latencies.map(|(_, ms)| ms);
        writeln!(
            w,
            "latency     {read:.2} ms a read, {write:.2} a write, {flush:.2} a flush; {source:.2} a \
             read of the source"
        )?;
        writeln!(
            w,
            "fills       {:.0}/s, {}/s read ahead",
            rate("fills"),
            bytes(rate("read_ahead_bytes"))
        )?;
        writeln!(
            w,
            "dirty       {}, written back {}/s",
            bytes(gauge("dirty_bytes")),
            bytes(rate("writeback_bytes"))
        )?;
        writeln!(
            w,
            "metadata    {:.0} updates/s, {:.0} batched, {:.1} log writes/s",
            rate("metadata_updates"),
            rate("batched_updates"),
            rate("log_writes")
        )?;
        writeln!(
            w,
            "flash       {} written, {:.2} for each byte of the user's",
            bytes(total("flash_bytes_written")),
            ratio(total("flash_bytes_written"), used)
        )?;
        writeln!(
            w,
            "errors      {:.0} of the source, {:.0} of the cache's disk, {:.0} damaged blocks",
            total("origin_errors"),
            total("cache_errors"),
            total("heals") + total("dirty_damaged")
        )
    })
}
