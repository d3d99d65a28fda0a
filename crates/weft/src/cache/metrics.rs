//! The counters and gauges of a cache in the text form of Prometheus (its exposition format
//! 0.0.4): a line of type, then `name{cache="..."} value`.

use std::fmt::Write;
use weft_cache::Stats;

/// One parsed sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Its name, `weft_cache_hits_total`.
    pub name: String,
    /// The text in the braces, `cache="c.img"`.
    pub labels: String,
    /// Its value.
    pub value: f64,
}

/// Renders all figures of `stats`, labelled with the cache's name.
#[must_use]
pub fn render(cache: &str, stats: &Stats) -> String {
    let mut text = String::new();
    let label = escaped(cache);
    for (name, value) in stats.counters() {
        line(&mut text, "counter", &format!("weft_cache_{name}_total"), &label, value);
    }
    for (name, value) in stats.gauges() {
        line(&mut text, "gauge", &format!("weft_cache_{name}"), &label, value);
    }
    text
}

fn line(text: &mut String, kind: &str, name: &str, label: &str, value: u64) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "# TYPE {name} {kind}\n{name}{{cache=\"{label}\"}} {value}");
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Parses the output of [`render`]. Lines that are no sample are skipped.
#[must_use]
pub fn parse(text: &str) -> Vec<Sample> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let (name, rest) = series.split_once('{')?;
            Some(Sample {
                name: name.to_owned(),
                labels: rest.strip_suffix('}')?.to_owned(),
                value: value.parse().ok()?,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_there_and_reads_back() {
        let stats = Stats::default();
        let samples = parse(&render("a \"b\"\\c", &stats));
        assert_eq!(samples.len(), stats.counters().count() + stats.gauges().count());
        assert!(samples.iter().any(|s| s.name == "weft_cache_hits_total"));
        assert!(samples.iter().any(|s| s.name == "weft_cache_dirty_bytes"));
        assert!(samples.iter().all(|s| s.labels == "cache=\"a \\\"b\\\"\\\\c\""));
    }
}
