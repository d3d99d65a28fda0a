//! Counters of network activity: for each network its reads and writes, for each of its stages the
//! bytes processed and the time taken.
//!
//! A stage is counted by a wrapper of the same shape around it, which is transparent to all other
//! code.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::stages::Merge;
use crate::store::Store;
use crate::{
    ByteMap, Declares, Direction, Frame, FrameCodec, Layer, OnError, Point, Result, Seal, Sealer,
    Shape, SizeRule, Stream, StreamCodec, Transform,
};

/// Maximum number of counted networks: a user who may set attributes can create arbitrarily many.
const NETWORKS_MAX: usize = 1000;

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
    networks: Mutex<BTreeMap<String, Arc<NetworkMeter>>>,
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
    stages: Vec<Arc<StageMeter>>,
}

/// The counters of one stage.
#[derive(Debug)]
pub(crate) struct StageMeter {
    name: &'static str,
    calls: Counter,
    bytes: Counter,
    nanos: Counter,
    errors: Counter,
}

/// Appends a meter for each stage: for a merge those of its branches, followed by its own.
fn meters_of(layers: &[Layer], meters: &mut Vec<Arc<StageMeter>>) {
    for layer in layers {
        if let Shape::Merged(merge) = layer.stage.shape() {
            merge.paths().iter().for_each(|path| meters_of(path, meters));
        }
        meters.push(Arc::new(StageMeter {
            name: layer.stage.name(),
            calls: Counter::default(),
            bytes: Counter::default(),
            nanos: Counter::default(),
            errors: Counter::default(),
        }));
    }
}

/// Wraps each stage in its meter, in the order of [`meters_of`].
fn count_layers(layers: &mut [Layer], meters: &mut std::slice::Iter<'_, Arc<StageMeter>>) {
    for layer in layers {
        let merged = match layer.stage.shape() {
            Shape::Merged(merge) => {
                let mut paths = merge.paths().to_vec();
                paths.iter_mut().for_each(|path| count_layers(path, meters));
                Some((paths, merge.by()))
            }
            _ => None,
        };
        let Some(meter) = meters.next().cloned() else { return };
        let inner = layer.stage.clone();
        layer.stage = match merged {
            Some((paths, by)) => Arc::new(Merge::counted(paths, by, meter)),
            None => Arc::new(Metered { inner, meter }),
        };
    }
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
    fn count<T, E>(&self, bytes: usize, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
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
    /// Counts the activity of `layers`, the layers of the network `text`, from now on; returns
    /// `None` if too many networks are counted already.
    pub(crate) fn count(&self, text: &str, layers: &mut [Layer]) -> Option<Arc<NetworkMeter>> {
        let mut networks = self.networks.lock().unwrap_or_else(PoisonError::into_inner);
        if !networks.contains_key(text) {
            if networks.len() >= NETWORKS_MAX {
                return None;
            }
            let mut stages = Vec::new();
            meters_of(layers, &mut stages);
            let meter = NetworkMeter { stages, ..NetworkMeter::default() };
            networks.insert(text.to_owned(), Arc::new(meter));
        }
        let network = networks.get(text)?.clone();
        count_layers(layers, &mut network.stages.iter());
        Some(network)
    }

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

/// A wrapper that counts the activity of a stage.
struct Metered {
    inner: Arc<dyn Transform>,
    meter: Arc<StageMeter>,
}

impl fmt::Debug for Metered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Transform for Metered {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn shape(&self) -> Shape<'_> {
        match self.inner.shape() {
            Shape::Bytes(inner) => Shape::Bytes(self.is(inner)),
            Shape::Sealed(inner) => Shape::Sealed(self.is(inner)),
            Shape::Framed(inner) => Shape::Framed(self.is(inner)),
            Shape::Stream(inner) => Shape::Stream(self.is(inner)),
            // A merge counts itself, because it is opened together with its branches.
            Shape::Merged(inner) => Shape::Merged(inner),
        }
    }

    fn invertible(&self) -> bool {
        self.inner.invertible()
    }

    /// Joined stages are counted as one, on the meter of the first.
    fn joined(
        &self,
        direction: Direction,
        next: &dyn Transform,
        next_direction: Direction,
    ) -> Option<Arc<dyn Transform>> {
        let inner = self.inner.joined(direction, next, next_direction)?;
        Some(Arc::new(Self { inner, meter: self.meter.clone() }))
    }

    fn as_neighbour(&self) -> Option<&dyn std::any::Any> {
        self.inner.as_neighbour()
    }

    fn kept_as(&self) -> Option<Vec<u8>> {
        self.inner.kept_as()
    }

    fn on_error(&self) -> OnError {
        self.inner.on_error()
    }

    fn declares(&self, direction: Direction) -> Declares {
        self.inner.declares(direction)
    }
}

impl Metered {
    /// Returns `self` in place of the inner stage, which has the requested shape.
    fn is<T: ?Sized>(&self, _: &T) -> &Self {
        self
    }

    fn no_such_shape<T>(&self) -> Result<T> {
        Err(crate::model::no_inverse(self.name()))
    }
}

impl ByteMap for Metered {
    fn apply(&self, direction: Direction, offset: u64, block: &mut [u8]) -> Result<()> {
        let Shape::Bytes(inner) = self.inner.shape() else { return self.no_such_shape() };
        self.meter.count(block.len(), || inner.apply(direction, offset, block))
    }
}

impl StreamCodec for Metered {
    fn start(&self, direction: Direction) -> Result<Box<dyn Stream>> {
        let Shape::Stream(inner) = self.inner.shape() else { return self.no_such_shape() };
        let inner = inner.start(direction)?;
        Ok(Box::new(MeteredStream { inner, meter: self.meter.clone() }))
    }
}

struct MeteredStream {
    inner: Box<dyn Stream>,
    meter: Arc<StageMeter>,
}

impl Stream for MeteredStream {
    fn push(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize> {
        let before = out.len();
        let taken = self.meter.count(0, || self.inner.push(input, out));
        self.meter.bytes.add((out.len() - before) as u64);
        taken
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        let before = out.len();
        let done = self.meter.count(0, || self.inner.finish(out));
        self.meter.bytes.add((out.len() - before) as u64);
        done
    }

    fn offer_points(&mut self, every: u64) {
        self.inner.offer_points(every);
    }

    fn point(&self) -> Option<Box<dyn Point>> {
        let inner = self.inner.point()?;
        Some(Box::new(MeteredPoint { inner, meter: self.meter.clone() }))
    }

    fn take_frames(&mut self) -> Vec<Frame> {
        self.inner.take_frames()
    }
}

/// A restart point of a counted stream.
struct MeteredPoint {
    inner: Box<dyn Point>,
    meter: Arc<StageMeter>,
}

impl Point for MeteredPoint {
    fn held_bytes(&self) -> usize {
        size_of::<Self>() + self.inner.held_bytes()
    }

    fn resume(&self) -> Result<Box<dyn Stream>> {
        let inner = self.inner.resume()?;
        Ok(Box::new(MeteredStream { inner, meter: self.meter.clone() }))
    }
}

/// Evaluates to the inner codec of the given shape, or returns `$else`.
macro_rules! inner {
    ($self:ident, $shape:ident, $else:expr) => {
        match $self.inner.shape() {
            Shape::$shape(inner) => inner,
            _ => return $else,
        }
    };
}

impl FrameCodec for Metered {
    fn stage(&self) -> &'static str {
        self.name()
    }

    fn frame_bytes(&self) -> usize {
        inner!(self, Framed, 1).frame_bytes()
    }

    fn size_rule(&self) -> SizeRule {
        inner!(self, Framed, SizeRule::Unknown).size_rule()
    }

    fn guards(&self) -> bool {
        inner!(self, Framed, false).guards()
    }

    fn encode(&self, plain: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let inner = inner!(self, Framed, self.no_such_shape());
        self.meter.count(plain.len(), || inner.encode(plain, out))
    }

    fn decode(&self, stored: &[u8], out: &mut [u8]) -> Result<(), String> {
        let inner = inner!(self, Framed, Err("no frames".to_owned()));
        self.meter.count(out.len(), || inner.decode(stored, out))
    }

    fn finish(&self, frames: &[Frame], out: &mut Vec<u8>) {
        if let Shape::Framed(inner) = self.inner.shape() {
            inner.finish(frames, out);
        }
    }

    fn pad(&self, stored_bytes: u64) -> Option<Vec<u8>> {
        inner!(self, Framed, None).pad(stored_bytes)
    }

    fn index(&self, file: &mut dyn Store) -> Result<Option<Vec<Frame>>> {
        inner!(self, Framed, self.no_such_shape()).index(file)
    }

    fn decoder(&self) -> Result<Box<dyn Stream>> {
        let inner = inner!(self, Framed, self.no_such_shape()).decoder()?;
        Ok(Box::new(MeteredStream { inner, meter: self.meter.clone() }))
    }
}

impl Seal for Metered {
    fn stage(&self) -> &'static str {
        self.name()
    }

    fn algorithm(&self) -> u8 {
        inner!(self, Sealed, 0).algorithm()
    }

    fn block_bytes(&self) -> u32 {
        inner!(self, Sealed, 4096).block_bytes()
    }

    fn overhead_bytes(&self) -> usize {
        inner!(self, Sealed, 0).overhead_bytes()
    }

    fn is_deterministic(&self) -> bool {
        inner!(self, Sealed, false).is_deterministic()
    }

    fn key_id(&self) -> [u8; 16] {
        inner!(self, Sealed, [0; 16]).key_id()
    }

    fn sealer(&self, file_id: [u8; 16], key_id: [u8; 16]) -> Result<Box<dyn Sealer>> {
        let inner = inner!(self, Sealed, self.no_such_shape()).sealer(file_id, key_id)?;
        Ok(Box::new(MeteredSealer { inner, meter: self.meter.clone() }))
    }
}

struct MeteredSealer {
    inner: Box<dyn Sealer>,
    meter: Arc<StageMeter>,
}

impl Sealer for MeteredSealer {
    fn seal(&self, index: u64, plain: &[u8], out: &mut Vec<u8>) -> Result<()> {
        self.meter.count(plain.len(), || self.inner.seal(index, plain, out))
    }

    fn open(&self, index: u64, sealed: &[u8], out: &mut [u8]) -> Result<(), &'static str> {
        self.meter.count(out.len(), || self.inner.open(index, sealed, out))
    }

    fn tag(&self, what: &[u8]) -> [u8; 16] {
        self.inner.tag(what)
    }
}
