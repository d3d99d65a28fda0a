//! A file read through a sequential stage: the length is known at the end, and reading backwards
//! starts again from the beginning.
//!
//! A decoder whose checksum stands at the end of a long frame would show bytes before it has seen
//! that. So such a file is *proven* before anything of it is shown: decoded once to its end
//! ([`super::proof`]), and read at random from then on ([`super::at_random`]). Both are of one opening
//! of the file: when what is stored changes, it is opened anew, and what has changed without that being
//! known has another hash.

#[cfg(test)]
pub(super) mod tests;

use super::at_random::AtRandom;
use super::checked::PLACES;
use super::pass::{Course, Pass, start};
use super::proof::Proof;
use super::{Limits, Store};
use crate::{Error, Layer, Result};

/// What is known of the output before it is shown.
enum Trust {
    /// The stage says at once what is wrong. A pass, if one was begun.
    Plain(Option<Box<Pass>>),
    /// To be proven: how far that has come.
    Unproven(Option<Box<Proof>>),
    /// All of it.
    Proven(Box<AtRandom>),
    /// Cannot be proven: where the stage found out, and what.
    Damaged(u64, String),
}

/// A file through a sequential stage. It cannot be written.
pub struct StreamFile {
    below: Box<dyn Store>,
    layer: Layer,
    limits: Limits,
    /// Once the end was reached.
    len: Option<u64>,
    trust: Trust,
    /// How far places to begin again at are apart at first, and what they may take, in bytes.
    places: (u64, usize),
}

impl std::fmt::Debug for StreamFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamFile").field("layer", &self.layer).finish_non_exhaustive()
    }
}

impl StreamFile {
    /// `below` through the stage of `layer`.
    #[must_use]
    pub fn new(below: Box<dyn Store>, layer: Layer, limits: Limits) -> Self {
        Self { below, layer, limits, len: None, trust: Trust::Plain(None), places: PLACES }
    }

    /// The same through a stage whose output counts only once the stage has seen all of its input.
    #[must_use]
    pub fn proven(below: Box<dyn Store>, layer: Layer, limits: Limits) -> Self {
        Self::proven_by(None, below, layer, limits)
    }

    /// The same, where a part was decoded already.
    pub(super) fn proven_by(
        proof: Option<Box<Proof>>,
        below: Box<dyn Store>,
        layer: Layer,
        limits: Limits,
    ) -> Self {
        Self { trust: Trust::Unproven(proof), ..Self::new(below, layer, limits) }
    }

    /// Reads everything once, before anything is shown.
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
            // What the file below has to say may be otherwise the next time.
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
        // A pass that failed is dropped: the next read starts again, and fails in the same place.
        let got = pass.read(&course, &mut *self.below, offset, buf)?;
        self.len = pass.len_bytes().or(self.len);
        *kept = Some(pass);
        Ok(got)
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
}
