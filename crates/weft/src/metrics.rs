//! Counters and gauges for monitoring, in the text form of OpenMetrics 1.0, which Prometheus reads.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::fmt;
use weft_cache::{Figure, Stats};

/// The media type of what [`render`] returns (OpenMetrics 1.0, "Content-Type").
pub(crate) const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Renders everything that the collectors have.
pub(crate) fn render(collectors: Vec<Box<dyn Collector>>) -> String {
    let mut registry = Registry::default();
    for collector in collectors {
        registry.register_collector(collector);
    }
    let mut rendered = String::new();
    // Writing to a string does not fail.
    let _ = text::encode(&mut rendered, &registry);
    rendered
}

/// The figures of a cache, labelled with its name.
#[derive(Debug)]
pub(crate) struct CacheFigures {
    pub(crate) cache: String,
    pub(crate) stats: Stats,
}

impl Collector for CacheFigures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let labels = [("cache", self.cache.as_str())];
        let mut each = |kind, figure: Figure| {
            let name = format!("weft_cache_{}", figure.name);
            let help = figure.help.trim().trim_end_matches('.');
            let mut encoder = encoder.encode_descriptor(&name, help, None, kind)?;
            let mut encoder = encoder.encode_family(&labels)?;
            match kind {
                MetricType::Counter => {
                    encoder.encode_counter::<NoLabelSet, _, u64>(&figure.value, None)
                }
                _ => encoder.encode_gauge(&figure.value),
            }
        };
        self.stats.counters().try_for_each(|figure| each(MetricType::Counter, figure))?;
        self.stats.gauges().try_for_each(|figure| each(MetricType::Gauge, figure))
    }
}

/// Renders the figures of a cache.
#[must_use]
pub fn render_cache(cache: &str, stats: &Stats) -> String {
    render(vec![Box::new(CacheFigures { cache: cache.to_owned(), stats: *stats })])
}

/// The state of a cell of the shared file service.
#[cfg(feature = "ringer")]
#[derive(Debug)]
pub(crate) struct CellFigures(pub(crate) weft_ringer_net::CellStatus);

#[cfg(feature = "ringer")]
impl Collector for CellFigures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        use weft_ringer_net::ClientStatus;
        let status = &self.0;
        let sum = |of: &dyn Fn(&ClientStatus) -> u64| status.clients.iter().map(of).sum::<u64>();
        let counters = [
            ("transactions", "Transactions of the cell since it was made", status.revision),
            ("starts", "Starts of the cell's server", u64::from(status.generation.0)),
            ("messages_received", "Messages from the clients that are known", sum(&|c| c.received)),
            ("messages_sent", "Messages to the clients that are known", sum(&|c| c.sent)),
            ("recalls", "Leases recalled from the clients that are known", sum(&|c| c.recalls)),
        ];
        for (name, help, value) in counters {
            let name = format!("weft_ringer_{name}");
            let mut encoder = encoder.encode_descriptor(&name, help, None, MetricType::Counter)?;
            encoder.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
        }
        let gauges = [
            ("in_grace", "1 while clients reclaim their leases", u64::from(status.in_grace)),
            ("clients_known", "Clients with a session", status.clients.len() as u64),
            ("clients_connected", "Clients with a connection", sum(&|c| u64::from(c.connected))),
            ("clients_live", "Clients whose session has not expired", sum(&|c| u64::from(c.live))),
            ("read_leases", "Read leases held", sum(&|c| c.reads)),
            ("write_leases", "Write leases held", sum(&|c| c.writes)),
        ];
        for (name, help, value) in gauges {
            let name = format!("weft_ringer_{name}");
            encoder
                .encode_descriptor(&name, help, None, MetricType::Gauge)?
                .encode_gauge(&value)?;
        }
        Ok(())
    }
}

/// One parsed sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Its name, `weft_cache_hits_total`.
    pub name: String,
    /// The text in the braces, `cache="c.img"`; empty without any.
    pub labels: String,
    /// Its value.
    pub value: f64,
}

/// Parses the samples of figures that weft has rendered. Other lines are skipped.
#[must_use]
pub fn parse(text: &str) -> Vec<Sample> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let (name, labels) = match series.split_once('{') {
                Some((name, rest)) => (name, rest.strip_suffix('}')?),
                None => (series, ""),
            };
            let value = value.parse().ok()?;
            Some(Sample { name: name.to_owned(), labels: labels.to_owned(), value })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_of_a_cache_is_there_and_reads_back() {
        let stats = Stats::default();
        let text = render_cache("a \"b\"\\c", &stats);
        let samples = parse(&text);
        assert_eq!(samples.len(), stats.counters().count() + stats.gauges().count());
        assert!(samples.iter().any(|s| s.name == "weft_cache_hits_total"));
        assert!(samples.iter().any(|s| s.name == "weft_cache_dirty_bytes"));
        assert!(samples.iter().all(|s| s.labels == "cache=\"a \\\"b\\\"\\\\c\""), "{text}");
        assert!(
            text.contains("# TYPE weft_cache_hits counter\n") && text.ends_with("# EOF\n"),
            "{text}"
        );
        assert!(
            text.contains("# HELP weft_cache_hits Blocks read that were found in the cache\n"),
            "{text}"
        );
    }

    #[cfg(feature = "ringer")]
    #[test]
    fn figures_of_a_cell_are_of_all_clients() {
        use weft_ringer::{ClientId, Epoch, Generation};
        use weft_ringer_net::{CellStatus, ClientStatus};
        let client = |n, connected| ClientStatus {
            client: ClientId(n),
            epoch: Epoch(n),
            live: true,
            connected,
            listens: None,
            reads: n,
            writes: 2,
            received: 10 * n,
            sent: n,
            recalls: 1,
        };
        let status = CellStatus {
            cell: 1,
            generation: Generation(3),
            revision: 99,
            in_grace: false,
            epoch_micros: 1,
            clients: vec![client(5, true), client(7, false)],
            is_full: false,
        };
        let samples = parse(&render(vec![Box::new(CellFigures(status))]));
        assert_eq!(samples.len(), 11, "{samples:?}");
        for (name, value) in [
            ("transactions_total", 99.0),
            ("starts_total", 3.0),
            ("clients_connected", 1.0),
            ("clients_live", 2.0),
            ("read_leases", 12.0),
            ("write_leases", 4.0),
            ("messages_received_total", 120.0),
            ("messages_sent_total", 12.0),
            ("recalls_total", 2.0),
            ("in_grace", 0.0),
        ] {
            let name = format!("weft_ringer_{name}");
            let found = samples.iter().find(|s| s.name == name).map(|s| s.value);
            assert_eq!(found, Some(value), "{name}");
        }
    }
}
