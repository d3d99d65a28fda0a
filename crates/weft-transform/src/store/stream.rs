//! A file read through a sequential stage: the length is known only at the end, and reading
//! backwards starts again from the beginning.
//!
//! A decoder whose checksum stands at the end of a long frame would return bytes before it has
//! verified them. Such a file is therefore *proven* before any of it is returned: decoded once to
//! its end ([`super::proof`]), and read at random from then on ([`super::at_random`]). Both belong
//! to one open of the file: when the stored file changes, it is opened anew, and an undetected
//! change fails the hash check.

#[cfg(test)]
pub(super) mod tests;

use super::at_random::AtRandom;
use super::checked::PLACES;
use super::pass::{Course, Pass, start};
use super::proof::Proof;
use super::{Limits, Store};
use crate::{Error, Layer, Result};

/// The state of verification of the output.
enum Trust {
    /// The output needs no verification in advance: the stage reports damage at once. Holds the
    /// pass, if one was begun.
    Plain(Option<Box<Pass>>),
    /// The output is to be proven. Holds the verification pass, if one was begun.
    Unproven(Option<Box<Proof>>),
    /// All of the output is proven.
    Proven(Box<AtRandom>),
    /// The output is damaged: the offset and the description.
    Damaged(u64, String),
}

/// A file read through a sequential stage. It is read-only.
pub struct StreamFile {
    below: Box<dyn Store>,
    layer: Layer,
    limits: Limits,
    /// The length of the output, once the end was reached.
    len: Option<u64>,
    trust: Trust,
    /// The initial distance of restart points, and their maximum memory, in bytes.
    places: (u64, usize),
}

impl std::fmt::Debug for StreamFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamFile").field("layer", &self.layer).finish_non_exhaustive()
    }
}

impl StreamFile {
    /// Opens `below` through the stage of `layer`.
    #[must_use]
    pub fn new(below: Box<dyn Store>, layer: Layer, limits: Limits) -> Self {
        Self { below, layer, limits, len: None, trust: Trust::Plain(None), places: PLACES }
    }

    /// As [`new`](Self::new), for a stage whose output is valid only once the stage has seen all of
    /// its input.
    #[must_use]
    pub fn proven(below: Box<dyn Store>, layer: Layer, limits: Limits) -> Self {
        Self::proven_by(None, below, layer, limits)
    }

    /// As [`proven`](Self::proven), continuing a verification pass if one is given.
    pub(super) fn proven_by(
        proof: Option<Box<Proof>>,
        below: Box<dyn Store>,
        layer: Layer,
        limits: Limits,
    ) -> Self {
        Self { trust: Trust::Unproven(proof), ..Self::new(below, layer, limits) }
    }

    /// Verifies all of the output, before any of it is returned.
    fn prove(&mut self) -> Result<()> {
        let stage = self.layer.stage.name();
        let mut proof = match &mut self.trust {
            Trust::Plain(_) | Trust::Proven(_) => return Ok(()),
            Trust::Damaged(offset, what) => {
                return Err(Error::Corrupt { stage, offset: *offset, what: what.clone() });
            }
            Trust::Unproven(proof) => match proof.take() {
                Some(proof) => proof,
                None => {
                    let stream = start(&self.layer.stage, self.layer.on_read)?;
                    Box::new(Proof::new(stage, stream, self.places))
                }
            },
        };
        if let Err(e) = proof.run(&mut *self.below, &self.limits, u64::MAX) {
            // Errors of the file below may not recur, so only the stage's own are kept.
            self.trust = match &e {
                Error::Corrupt { stage: found, offset, what } if *found == stage => {
                    Trust::Damaged(*offset, what.clone())
                }
                _ => Trust::Unproven(Some(proof)),
            };
            return Err(e);
        }
        let (stage, on_read) = (self.layer.stage.clone(), self.layer.on_read);
        let (checked, _) = proof.finish();
        self.len = Some(checked.len_bytes());
        self.trust = Trust::Proven(Box::new(AtRandom::new(stage, on_read, self.limits, checked)));
        Ok(())
    }
}

impl Store for StreamFile {
    fn len_bytes(&mut self) -> Result<Option<u64>> {
        Ok(self.len)
    }

    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if self.len.is_some_and(|len| offset >= len) || buf.is_empty() {
            return Ok(0);
        }
        self.prove()?;
        if self.len.is_some_and(|len| offset >= len) {
            return Ok(0);
        }
        let kept = match &mut self.trust {
            Trust::Proven(at_random) => return at_random.read_at(&mut *self.below, offset, buf),
            Trust::Plain(kept) => kept,
            Trust::Unproven(_) | Trust::Damaged(..) => {
                let (stage, what) = (self.layer.stage.name(), "not proven".to_owned());
                return Err(Error::Corrupt { stage, offset, what });
            }
        };
        let upto = offset.saturating_add(buf.len() as u64);
        let stage = self.layer.stage.name();
        let course = Course { stage, limits: &self.limits, checked: None };
        let mut pass = match kept.take() {
            Some(pass) if pass.is_near(&course, offset, upto) => pass,
            _ => Box::new(Pass::new(start(&self.layer.stage, self.layer.on_read)?)),
        };
        // A pass that failed is dropped: the next read starts again, and fails in the same place. From
        // one that was interrupted another reader goes on.
        let got = pass.read(&course, &mut *self.below, offset, buf);
        if got.as_ref().err().is_none_or(Error::is_interrupted) {
            self.len = pass.len_bytes().or(self.len);
            *kept = Some(pass);
        }
        got
    }

    fn write_at(&mut self, _: u64, _: &[u8]) -> Result<()> {
        Err(weft_vfs::Error::Unsupported("writing through a sequential stage").into())
    }

    fn set_len(&mut self, _: u64) -> Result<()> {
        Err(weft_vfs::Error::Unsupported("writing through a sequential stage").into())
    }

    fn commit(&mut self) -> Result<()> {
        self.below.commit()
    }

    fn is_dirty(&self) -> bool {
        self.below.is_dirty()
    }

    fn release_buffers(&mut self) {
        match &mut self.trust {
            Trust::Plain(kept) => *kept = None,
            Trust::Proven(at_random) => at_random.release_buffers(),
            Trust::Unproven(_) | Trust::Damaged(..) => {}
        }
        self.below.release_buffers();
    }
}
