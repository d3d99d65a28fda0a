//! The state of a cell during a batch of changes: the store, overlaid with the earlier changes.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use super::leases::Leases;
use super::records::{self, dirent_key};
use super::stop::Stop;
use crate::error::Refusal;
use crate::op::View;
use crate::policy::Policy;
use crate::rnode::{Body, Dirent, Name, Rnode};
use crate::store::Store;
use crate::types::{ClientId, Mode, RnodeId};

/// The state of a batch, and the holder of its leases.
pub(super) struct Batch<'a> {
    pub(super) store: &'a dyn Store,
    pub(super) leases: &'a Leases,
    /// The client that holds the leases.
    pub(super) holder: ClientId,
    pub(super) rnodes: RefCell<BTreeMap<RnodeId, Rnode>>,
    pub(super) dirents: RefCell<BTreeMap<(RnodeId, Name), Option<Dirent>>>,
    pub(super) made: BTreeSet<RnodeId>,
    /// True once the current change has asked what a client cannot know (`is_within`).
    pub(super) asked: Cell<bool>,
    pub(super) moves_policies: bool,
}

impl Batch<'_> {
    /// Returns a directory in which an rnode has a name.
    pub(super) fn a_directory_of(&self, id: RnodeId) -> Result<Option<RnodeId>, Stop> {
        let dirents = self.dirents.borrow();
        let found = dirents.iter().find(|(_, dirent)| dirent.is_some_and(|d| d.id == id));
        match found {
            Some(((dir, _), _)) => Ok(Some(*dir)),
            None => Ok(records::a_directory_of(self.store, id)?),
        }
    }

    /// Returns the name of directory `id` in `parent`.
    pub(super) fn name_of_directory(&self, parent: RnodeId, id: RnodeId) -> Result<Vec<u8>, Stop> {
        let dirents = self.dirents.borrow();
        let is_its = |dir: RnodeId, to: &Option<Dirent>| {
            dir == parent && to.is_some_and(|dirent| dirent.id == id)
        };
        match dirents.iter().find(|((dir, _), to)| is_its(*dir, to)) {
            Some(((_, name), _)) => Ok(name.bytes().to_vec()),
            None => Ok(records::name_of(self.store, parent, id)?),
        }
    }

    /// Returns the policy of the files in a directory.
    pub(super) fn policy(&self, dir: RnodeId) -> Result<Policy, Stop> {
        let mut at = dir;
        loop {
            let rnode = self.rnode(at)?;
            match rnode.body {
                Body::Directory { parent, .. } => match Policy::of(&rnode) {
                    Some(policy) => return Ok(policy),
                    None if parent == at => return Ok(Policy::default()),
                    None => at = parent,
                },
                _ => return Err(Refusal::NotADirectory.into()),
            }
        }
    }
}

impl View for Batch<'_> {
    type Stop = Stop;

    fn rnode(&self, id: RnodeId) -> Result<Rnode, Stop> {
        if let Some(rnode) = self.rnodes.borrow().get(&id) {
            return Ok(rnode.clone());
        }
        Ok(records::load_rnode(self.store, id)?.ok_or(Refusal::Stale)?)
    }

    fn claim(&self, id: RnodeId) -> Result<(), Stop> {
        let held = self.leases.held(id, self.holder).is_some_and(|(mode, _)| mode == Mode::Write);
        if held || self.made.contains(&id) { Ok(()) } else { Err(Refusal::Fenced.into()) }
    }

    fn dirent(&self, dir: RnodeId, name: &Name) -> Result<Option<Dirent>, Stop> {
        if let Some(dirent) = self.dirents.borrow().get(&(dir, name.clone())) {
            return Ok(*dirent);
        }
        Ok(records::load(self.store, &dirent_key(dir, name), "name")?)
    }

    fn is_within(&self, dir: RnodeId, ancestor: RnodeId) -> Result<bool, Stop> {
        self.asked.set(true);
        let mut at = dir;
        loop {
            if at == ancestor {
                return Ok(true);
            }
            let Body::Directory { parent, .. } = self.rnode(at)?.body else {
                return Err(Refusal::NotADirectory.into());
            };
            if parent == at {
                return Ok(false);
            }
            at = parent;
        }
    }
}
