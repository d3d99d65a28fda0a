//! `top` of a mount with networks, second by second.

use crate::cli::cache::Top;
use crate::failure::{Failure, Outcome};
use crate::output::{Output, human};
use crate::verb::top::watch;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use weft::metrics;

/// The figures of a mount: by labels, then by name.
type Figures = BTreeMap<String, BTreeMap<String, f64>>;

fn metrics(mount: &str) -> PathBuf {
    Path::new(mount).join(".weft/metrics")
}

/// Returns true if `name` is the directory of a mount with networks.
pub fn is_mount(name: &str) -> bool {
    metrics(name).is_file()
}

/// `top`.
pub fn run(out: Output, args: &Top) -> Outcome {
    watch(out, args, read, show)
}

fn read(mount: &str) -> Result<Figures, Failure> {
    let path = metrics(mount);
    let text = std::fs::read_to_string(&path).map_err(|e| weft::Error::host("read", &path, e))?;
    let mut figures = Figures::new();
    for sample in metrics::parse(&text) {
        figures.entry(sample.labels).or_default().insert(sample.name, sample.value);
    }
    Ok(figures)
}

fn show(
    out: Output,
    mount: &str,
    before: &Figures,
    now: &Figures,
    secs: f64,
) -> Result<(), Failure> {
    let rate = |labels: &String, name: &str| {
        let of = |all: &Figures| all.get(labels).and_then(|f| f.get(name)).copied().unwrap_or(0.0);
        (of(now) - of(before)).max(0.0) / secs.max(0.001)
    };
    let mut report = Vec::new();
    for (labels, figures) in now {
        if figures.contains_key("weft_network_reads_total") {
            let opens = rate(labels, "weft_network_opens_total");
            report.push(json!({
                "of": labels,
                "opens_per_second": opens,
                "opens_cached_ratio":
                    rate(labels, "weft_network_opens_cached_total") / opens.max(0.001),
                "read_bytes_per_second": rate(labels, "weft_network_read_bytes_total"),
                "write_bytes_per_second": rate(labels, "weft_network_write_bytes_total"),
                "errors_per_second": rate(labels, "weft_network_errors_total"),
            }));
        } else {
            let nanos = rate(labels, "weft_stage_nanoseconds_total");
            report.push(json!({
                "of": labels,
                "bytes_per_second": rate(labels, "weft_stage_bytes_total"),
                "busy_percent": nanos / 1e7,
                "errors_per_second": rate(labels, "weft_stage_errors_total"),
            }));
        }
    }
    out.report(&report, |w| {
        writeln!(w, "{mount}: {} networks and stages", report.len())?;
        for line in &report {
            let figure = |name: &str| line[name].as_f64().unwrap_or(0.0);
            let bytes = |name: &str| human(figure(name) as u64);
            let of = line["of"].as_str().unwrap_or_default();
            if line.get("busy_percent").is_some() {
                writeln!(
                    w,
                    "  {of}: {}/s, busy {:.1}% of a processor, {:.0} errors/s",
                    bytes("bytes_per_second"),
                    figure("busy_percent"),
                    figure("errors_per_second"),
                )?;
            } else {
                writeln!(
                    w,
                    "{of}: read {}/s, written {}/s, {:.0} opened/s ({:.0}% as the kernel had them)",
                    bytes("read_bytes_per_second"),
                    bytes("write_bytes_per_second"),
                    figure("opens_per_second"),
                    100.0 * figure("opens_cached_ratio"),
                )?;
            }
        }
        Ok(())
    })?;
    Ok(())
}
