//! Opening a stored file through a network.

use super::framed::Refused;
use super::in_place::open_in_place;
use super::merged::{MergedFile, Shared};
use super::{Base, FramedFile, Home, Limits, SealedFile, Store, StreamFile};
use crate::{Direction, Error, Layer, Network, Reason, Refusal, Result, Shape};

/// Opens the file of `base` through a network.
///
/// # Errors
/// Damage that the stages find in the stored file; [`Error::Refused`] if one of them does not
/// support this access.
pub fn open(base: Box<dyn Base>, network: &Network, limits: &Limits) -> Result<Box<dyn Store>> {
    let layers = network.layers();
    let decodes = |layer: &Layer| {
        matches!(layer.stage.shape(), Shape::Framed(_)) && layer.on_read == Direction::Inverse
    };
    let below = layers.iter().take_while(|layer| stays_in_place(layer)).count();
    let (below, above) = layers.split_at(below);
    let is_new = base.may_be_new();
    let store: Box<dyn Store>;
    let rest = match above.split_first() {
        Some((framed, rest)) if decodes(framed) => {
            store = frames(framed, Home::new(base, below.to_vec(), *limits)?, limits)?;
            rest
        }
        _ => {
            let mut base = base;
            store = open_in_place(base.current()?, below, limits, is_new)?;
            above
        }
    };
    above_it(store, rest, network, limits, is_new)
}

/// Seals a stored file of a network again, in place, with the newest key of its sealed stage, if
/// another has sealed it.
///
/// # Errors
/// Damage; an error if not only its lowest sealed stage seals.
pub(crate) fn seal_again(raw: Box<dyn Store>, network: &Network, limits: &Limits) -> Result<()> {
    let layers = network.layers();
    let seals = |layer: &Layer| matches!(layer.stage.shape(), Shape::Sealed(_));
    let Some(at) = layers.iter().position(seals) else { return Ok(()) };
    let (below, above) = layers.split_at(at);
    if !below.iter().all(stays_in_place) || above.iter().skip(1).any(seals) {
        let why = "sealing a file with several names again, of which several stages seal blocks";
        return Err(weft_vfs::Error::Unsupported(why).into());
    }
    let store = open_in_place(raw, below, limits, false)?;
    SealedFile::open(above[0].stage.clone(), store, limits, false)?.seal_again()
}

/// Opens `store` through layers; `is_new`: the file may be new, with nothing written to it yet.
fn above_it(
    mut store: Box<dyn Store>,
    layers: &[Layer],
    network: &Network,
    limits: &Limits,
    is_new: bool,
) -> Result<Box<dyn Store>> {
    for layer in layers {
        store = match layer.stage.shape() {
            Shape::Framed(_) if layer.on_read == Direction::Inverse => {
                frames(layer, Home::read_only(store, *limits), limits)?
            }
            _ if stays_in_place(layer) => {
                open_in_place(store, std::slice::from_ref(layer), limits, is_new)?
            }
            Shape::Sealed(_) => {
                let refusal = Refusal {
                    stage: layer.stage.name(),
                    reason: Reason::NeedsFile,
                    nearest: network.text().without(layer.stage.name()),
                };
                return Err(Error::Refused(Box::new(refusal)));
            }
            Shape::Merged(merge) => {
                let shared = Shared::times(store, merge.paths().len());
                let branches = shared.into_iter().zip(merge.paths());
                let open = |(store, path): (_, &Vec<Layer>)| {
                    above_it(Box::new(store), path, network, limits, is_new)
                };
                let branches = branches.map(open).collect::<Result<_>>()?;
                Box::new(MergedFile::new(branches, merge.by(), merge.meter()))
            }
            _ => Box::new(StreamFile::new(store, layer.clone(), *limits)),
        };
    }
    Ok(store)
}

/// Opens a file of frames. A file whose frames are too long is read as a stream once all of it was
/// verified, and its length is known then. So is a file over one of unknown length: the position of
/// its index, or of its last frame, is known only at its end.
pub(super) fn frames(layer: &Layer, mut home: Home, limits: &Limits) -> Result<Box<dyn Store>> {
    let mut is_stream = home.current().len_bytes()?.is_none();
    if is_stream {
        // A file that is verified on the first read knows its length afterwards. (A stored file may
        // be empty because nothing was written to it yet; empty output is decoded, as a stream is.)
        home.current().read_at(0, &mut [0])?;
        is_stream = home.current().len_bytes()?.is_none_or(|len| len == 0);
    }
    if is_stream {
        let (current, layer) = (home.into_current(), layer.clone());
        // Without checksums there is nothing to verify in advance.
        let guards = layer.declares().guards;
        let file = if guards { StreamFile::proven } else { StreamFile::new };
        return Ok(Box::new(file(current, layer, *limits)));
    }
    match FramedFile::try_open(layer.stage.clone(), home) {
        Ok(file) => Ok(Box::new(file)),
        Err(refused) => match *refused {
            Refused { home, error: Error::LongFrame { .. }, proof } => {
                let (below, layer) = (home.into_current(), layer.clone());
                Ok(Box::new(StreamFile::proven_by(proof, below, layer, *limits)))
            }
            Refused { error, .. } => Err(error),
        },
    }
}

fn stays_in_place(layer: &Layer) -> bool {
    match layer.stage.shape() {
        Shape::Bytes(_) => true,
        Shape::Sealed(_) => layer.on_read == Direction::Inverse,
        Shape::Framed(_) | Shape::Stream(_) | Shape::Merged(_) => false,
    }
}
