//! Counters of network activity: for each network its reads and writes, for each of its stages the
//! bytes processed and the time taken.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// A monotonic counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of all networks used since the tree was opened.
#[derive(Debug, Default)]
pub struct Meters {
    pub(crate) networks: Mutex<BTreeMap<String, Arc<NetworkMeter>>>,
}

/// The counters of the files that carry one network.
#[derive(Debug, Default)]
pub(crate) struct NetworkMeter {
    pub(crate) opens: Counter,
    /// Opens that found the kernel's cached data still valid.
    pub(crate) opens_cached: Counter,
    /// Opens for which the kernel reads the file of the output cache directly.
    pub(crate) opens_past: Counter,
    /// Opens that found the output in the cache on disk, and those that did not.
    pub(crate) outputs_found: Counter,
    pub(crate) outputs_missed: Counter,
    pub(crate) reads: Counter,
    pub(crate) read_bytes: Counter,
    pub(crate) writes: Counter,
    pub(crate) write_bytes: Counter,
    pub(crate) errors: Counter,
    pub(crate) stages: Vec<Arc<StageMeter>>,
}

/// The counters of one stage.
#[derive(Debug, Default)]
pub(crate) struct StageMeter {
    pub(crate) name: &'static str,
    pub(crate) calls: Counter,
    pub(crate) bytes: Counter,
    pub(crate) nanos: Counter,
    pub(crate) errors: Counter,
}

impl StageMeter {
    /// Runs and counts a read by `work`, which returns the number of bytes read.
    pub(crate) fn count_read<E>(
        &self,
        work: impl FnOnce() -> Result<usize, E>,
    ) -> Result<usize, E> {
        let read = self.count(0, work);
        self.bytes.add(read.as_ref().map_or(0, |got| *got as u64));
        read
    }

    /// Runs and counts `work`, which processes `bytes` plain bytes.
    pub(crate) fn count<T, E>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let began = Instant::now();
        let result = work();
        self.nanos.add(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
        self.calls.add(1);
        match &result {
            Ok(_) => self.bytes.add(bytes as u64),
            Err(_) => self.errors.add(1),
        }
        result
    }
}

impl Meters {
    fn all(&self) -> Vec<(String, Arc<NetworkMeter>)> {
        let networks = self.networks.lock().unwrap_or_else(PoisonError::into_inner);
        networks.iter().map(|(text, meter)| (text.clone(), meter.clone())).collect()
    }

    /// Returns the counters for export.
    #[must_use]
    pub fn collector(&self) -> impl Collector + use<> {
        Networks(self.all())
    }

    /// Formats all counters in the text form of OpenMetrics, which Prometheus reads.
    #[must_use]
    pub fn open_metrics(&self) -> String {
        let mut registry = prometheus_client::registry::Registry::default();
        registry.register_collector(Box::new(self.collector()));
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
        text
    }

    /// Formats all counters as a human-readable table.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = String::new();
        for (network, meter) in self.all() {
            let _ = writeln!(text, "{network}");
            let opens = meter.opens.get();
            let cached = 100.0 * meter.opens_cached.get() as f64 / opens.max(1) as f64;
            let _ = writeln!(
                text,
                "  opened {opens} times, {cached:.1}% of them with what the kernel had kept; \
                 read {} bytes in {}, written {} in {}; {} errors",
                meter.read_bytes.get(),
                meter.reads.get(),
                meter.write_bytes.get(),
                meter.writes.get(),
                meter.errors.get(),
            );
            let (found, missed) = (meter.outputs_found.get(), meter.outputs_missed.get());
            if found + missed > 0 {
                let _ = writeln!(
                    text,
                    "  looked for in the output cache {} times, found {found} times; opened {} \
                     times for the kernel to read it there",
                    found + missed,
                    meter.opens_past.get(),
                );
            }
            for stage in &meter.stages {
                let (bytes, nanos) = (stage.bytes.get(), stage.nanos.get());
                let _ = writeln!(
                    text,
                    "  {:<12} {bytes} bytes in {} calls, {nanos} ns ({:.0} MB/s); {} errors",
                    stage.name,
                    stage.calls.get(),
                    bytes as f64 * 1e3 / nanos.max(1) as f64,
                    stage.errors.get(),
                );
            }
        }
        text
    }
}

/// The counters of networks, in their order.
#[derive(Debug)]
struct Networks(Vec<(String, Arc<NetworkMeter>)>);

impl Collector for Networks {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, pick) in NETWORK_FIGURES {
            let name = format!("weft_network_{name}");
            let mut all = encoder.encode_descriptor(&name, help, None, MetricType::Counter)?;
            for (network, meter) in &self.0 {
                let labels = [("network", network.as_str())];
                encode_counter(all.encode_family(&labels)?, pick(meter))?;
            }
        }
        for (name, help, pick) in STAGE_FIGURES {
            let name = format!("weft_stage_{name}");
            let mut all = encoder.encode_descriptor(&name, help, None, MetricType::Counter)?;
            for (network, meter) in &self.0 {
                for (nr, stage) in meter.stages.iter().enumerate() {
                    let nr = nr.to_string();
                    let labels =
                        [("network", network.as_str()), ("stage", stage.name), ("place", &nr)];
                    encode_counter(all.encode_family(&labels)?, pick(stage))?;
                }
            }
        }
        Ok(())
    }
}

fn encode_counter(mut encoder: MetricEncoder<'_>, counter: &Counter) -> fmt::Result {
    encoder.encode_counter::<NoLabelSet, _, u64>(&counter.get(), None)
}

type NetworkFigure = fn(&NetworkMeter) -> &Counter;
type StageFigure = fn(&StageMeter) -> &Counter;

const NETWORK_FIGURES: [(&str, &str, NetworkFigure); 10] = [
    ("opens", "Opens of files", |meter| &meter.opens),
    ("opens_cached", "Opens that found the data in the kernel still valid", |meter| {
        &meter.opens_cached
    }),
    ("opens_past", "Opens for which the kernel reads the kept output directly", |meter| {
        &meter.opens_past
    }),
    ("outputs_found", "Opens that found the output in the cache on disk", |meter| {
        &meter.outputs_found
    }),
    ("outputs_missed", "Opens that did not find the output in the cache on disk", |meter| {
        &meter.outputs_missed
    }),
    ("reads", "Reads of files", |meter| &meter.reads),
    ("read_bytes", "Bytes read from files", |meter| &meter.read_bytes),
    ("writes", "Writes to files", |meter| &meter.writes),
    ("write_bytes", "Bytes written to files", |meter| &meter.write_bytes),
    ("errors", "Reads and writes that failed", |meter| &meter.errors),
];

const STAGE_FIGURES: [(&str, &str, StageFigure); 4] = [
    ("calls", "Calls of a stage", |stage| &stage.calls),
    ("bytes", "Bytes that a stage processed", |stage| &stage.bytes),
    ("nanoseconds", "Time that a stage took", |stage| &stage.nanos),
    ("errors", "Calls of a stage that failed", |stage| &stage.errors),
];
