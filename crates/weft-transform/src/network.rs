//! Networks of stages, and the check that they support the required access.

use std::fmt;
use std::sync::Arc;

use crate::exec::Fused;
use crate::meter::NetworkMeter;
use crate::text::{Element, Text};
use crate::{Access, Direction, Io, Layer, Shape, Write};

/// A network of stages: a chain, whose tees have branches.
#[derive(Debug, Clone)]
pub struct Network {
    text: Text,
    /// From the stored file up to the reader.
    layers: Vec<Layer>,
    meter: Option<Arc<NetworkMeter>>,
    /// All stages fused into one, if all of them work in place.
    in_place: Option<Arc<Fused>>,
}

impl Network {
    pub(crate) fn new(text: Text, layers: Vec<Layer>, meter: Option<Arc<NetworkMeter>>) -> Self {
        let in_place = Fused::new(&layers, Io::Read).map(Arc::new);
        Self { text, layers, meter, in_place }
    }

    /// Returns all stages fused into one, in read order, if all of them work in place.
    pub(crate) fn in_place(&self) -> Option<Arc<Fused>> {
        self.in_place.clone()
    }

    /// Updates the counters of this network, if it has any.
    pub(crate) fn count(&self, what: impl FnOnce(&NetworkMeter)) {
        if let Some(meter) = &self.meter {
            what(meter);
        }
    }

    /// The canonical text.
    #[must_use]
    pub fn text(&self) -> &Text {
        &self.text
    }

    /// The stages, from the stored file up to the reader.
    #[must_use]
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Returns the access that the whole network supports.
    #[must_use]
    pub fn can(&self) -> Need {
        let declares = || self.layers.iter().map(Layer::declares);
        let rewriters = declares().filter(|d| d.write == Write::Rewrite).count();
        let write = declares().map(|d| d.write).min().unwrap_or(Write::InPlace);
        Need {
            exact_size: declares().all(|d| d.size.is_exact()),
            random_read: declares().all(|d| d.access == Access::Random),
            write: if rewriters > 1 { Write::None } else { write },
        }
    }

    /// Returns true if repeated reads return the same bytes while the stored file does not change.
    #[must_use]
    pub fn is_deterministic(&self) -> bool {
        self.layers.iter().all(Layer::reads_the_same_again)
    }

    /// Returns true if even an empty file has a header in its stored form.
    pub(crate) fn has_header(&self) -> bool {
        let has = |layer: &Layer| {
            matches!(layer.stage.shape(), Shape::Sealed(_)) && layer.on_read == Direction::Inverse
        };
        self.layers.iter().any(has)
    }

    /// Returns true if a stage does more than give its output.
    pub(crate) fn acts_outside(&self) -> bool {
        self.layers.iter().any(|layer| layer.stage.acts_outside())
    }

    /// Returns a hash of all that determines the network's output besides the stored file, as a
    /// part of the key under which the output is cached on disk; `None` if it must not be cached.
    pub(crate) fn kept_as(&self) -> Option<blake3::Hash> {
        if !self.is_deterministic() {
            return None;
        }
        let mut hasher = blake3::Hasher::new();
        // Another version may produce another output.
        hasher.update(concat!("weft ", env!("CARGO_PKG_VERSION"), "\n").as_bytes());
        hasher.update(self.text.to_string().as_bytes());
        for layer in &self.layers {
            let about = layer.stage.kept_as()?;
            hasher.update(&(about.len() as u64).to_le_bytes()).update(&about);
        }
        Some(hasher.finalize())
    }

    /// Checks that the network supports the access `need`.
    ///
    /// # Errors
    /// A [`Refusal`] that names the first stage that does not, the reason, and the nearest network
    /// that would.
    pub fn check(&self, need: &Need) -> Result<(), Box<Refusal>> {
        let Some((at, reason)) = self.obstacle(need) else { return Ok(()) };
        let stage = self.layers[at].stage.name();
        if self.layers.iter().any(|layer| matches!(layer.stage.shape(), Shape::Merged(_))) {
            // Layers and elements of the text do not correspond one to one.
            let nearest = self.text.identity();
            return Err(Box::new(Refusal { stage, reason, nearest }));
        }
        let mut nearest = self.clone();
        while let Some((at, _)) = nearest.obstacle(need) {
            let index = nearest.layers.len() - 1 - at;
            nearest.layers.remove(at);
            // The text of a store network has the opposite order.
            let place = if nearest.text.side == crate::text::Side::Store { index } else { at };
            nearest.text.pipe.remove(place);
        }
        if nearest.layers.is_empty() {
            nearest.text.pipe.push(Element::identity());
        }
        Err(Box::new(Refusal { stage, reason, nearest: nearest.text }))
    }

    /// Returns the first layer, from the stored file up, that does not support `need`.
    fn obstacle(&self, need: &Need) -> Option<(usize, Reason)> {
        let mut rewriters = 0;
        for (at, layer) in self.layers.iter().enumerate() {
            let declares = layer.declares();
            if layer.on_read == Direction::Inverse && !declares.invertible {
                return Some((at, Reason::UnreadableWithoutInverse));
            }
            if need.exact_size && !declares.size.is_exact() {
                return Some((at, Reason::UnknownSize));
            }
            if need.random_read && declares.access == Access::Sequential {
                return Some((at, Reason::SequentialOnly));
            }
            rewriters += usize::from(declares.write == Write::Rewrite);
            if need.write > declares.write {
                return Some((
                    at,
                    match declares.write {
                        Write::None if !declares.invertible => Reason::NoInverse,
                        Write::None => Reason::NotWritable,
                        _ => Reason::RewritesOnly,
                    },
                ));
            }
            if need.write > Write::None && rewriters > 1 {
                return Some((at, Reason::SecondRewriter));
            }
        }
        None
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

/// The access that a caller requires of a network, or that a network supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// The size is known before all of the output was read.
    pub exact_size: bool,
    /// Any block can be read independently.
    pub random_read: bool,
    /// The kind of writes.
    pub write: Write,
}

/// The reason why a network does not support an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// Writing needs an inverse.
    #[error("it has no inverse to write through")]
    NoInverse,
    /// Reading a file stored through it needs an inverse.
    #[error("it has no inverse to read through, and works in a view only")]
    UnreadableWithoutInverse,
    /// The size of the output is known only at its end.
    #[error("the size of its output is not known before all was read")]
    UnknownSize,
    /// Reading starts at the beginning.
    #[error("it can be read from the beginning only")]
    SequentialOnly,
    /// Reading works, writing does not.
    #[error("files cannot be written through it in this direction")]
    NotWritable,
    /// Writes in the middle rewrite the whole stored file.
    #[error("writing in the middle writes the stored file anew")]
    RewritesOnly,
    /// Only one stage of a chain may rewrite.
    #[error("a second stage that writes the stored file anew")]
    SecondRewriter,
    /// It keeps a header with the length, so its output must be a file.
    #[error("its stored form has a header that is written last, which a stream cannot have")]
    NeedsFile,
    /// Each of its branches reads the whole stored file.
    #[error("its branches each read what is stored, which of a stream can be read once")]
    ReadsAgain,
}

/// The refusal of a network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("stage {stage}: {reason} (\"{nearest}\" would do)")]
pub struct Refusal {
    /// The first stage that does not support the access.
    pub stage: &'static str,
    /// The reason.
    pub reason: Reason,
    /// The nearest network that would do.
    pub nearest: Text,
}
