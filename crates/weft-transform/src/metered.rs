//! Stages that are counted: each is wrapped in one of the same shape, which is transparent to all
//! other code.

use std::fmt;
use std::sync::{Arc, PoisonError};

use crate::meter::{NetworkMeter, StageMeter};
use crate::model::Merge;
use crate::store::Store;
use crate::{
    ByteMap, Declares, Direction, Frame, FrameCodec, Layer, Meters, OnError, Point, Result, Seal,
    Sealer, Shape, SizeRule, Stream, StreamCodec, Transform,
};

/// Maximum number of counted networks: a user who may set attributes can create arbitrarily many.
const NETWORKS_MAX: usize = 1000;

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
}

/// Appends a meter for each stage: for a merge those of its branches, followed by its own.
fn meters_of(layers: &[Layer], meters: &mut Vec<Arc<StageMeter>>) {
    for layer in layers {
        if let Shape::Merged(merge) = layer.stage.shape() {
            merge.paths().iter().for_each(|path| meters_of(path, meters));
        }
        let name = layer.stage.name();
        meters.push(Arc::new(StageMeter { name, ..StageMeter::default() }));
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

    fn acts_outside(&self) -> bool {
        self.inner.acts_outside()
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
