//! The state that a client has under leases, and the view of it for changes.
//!
//! Invariants:
//! - A lease has a state exactly if its mode is [`Mode::Read`] or [`Mode::Write`]; it is then the
//!   state that every other client would see after this client's log was carried out.
//! - A known name stays known while the lease lasts: no other client changes it.
//! - While a recall is pending, only the calls that have the lease pinned see more than the mode
//!   left after it, and no call requests the lease again.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use crate::error::Refusal;
use crate::op::{Effects, View};
use crate::rnode::{Dirent, Holders, Name, Rnode};
use crate::types::{Mode, RnodeId, Seq, Token};

/// An rnode, and of a directory its known names.
#[derive(Debug, Clone)]
pub(super) struct State {
    pub(super) rnode: Rnode,
    pub(super) names: BTreeMap<Name, Option<Dirent>>,
    /// Every existing name is in `names`.
    pub(super) complete: bool,
    /// The holders of the blocks, as the server reported them with the lease.
    pub(super) holders: Holders,
}

impl State {
    pub(super) fn new(rnode: Rnode) -> Self {
        Self { rnode, names: BTreeMap::new(), complete: false, holders: Holders::default() }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Lease {
    pub(super) mode: Mode,
    pub(super) token: Token,
    pub(super) state: Option<State>,
    /// The last change in the log that touches this; `Seq(0)` or an applied change if none does.
    pub(super) dirty: Seq,
    /// The mode to downgrade to, once that is possible.
    pub(super) recall: Option<Option<Mode>>,
}

/// The state that an attempt lacks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Need {
    /// A lease; and the names of a directory that will be needed under it.
    Lease(RnodeId, Mode, Option<Names>),
    /// Names of a directory, under a lease on it.
    Names(RnodeId, Names),
}

/// The names of a directory that are needed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Names {
    /// One name.
    One(Name),
    /// All names.
    All,
}

/// The reason why an attempt stopped.
#[derive(Debug)]
pub(super) enum Stop {
    Refused(Refusal),
    Need(Need),
    /// Only the server can decide; all leases are held.
    Server,
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// All leases of a client.
#[derive(Debug, Default)]
pub(super) struct Cache {
    pub(super) leases: BTreeMap<RnodeId, Lease>,
    /// All leases with a pending recall, and possibly others.
    pub(super) recalled: BTreeSet<RnodeId>,
    /// Numbers of rnodes that no longer exist, and never will again.
    pub(super) gone: BTreeSet<RnodeId>,
    /// Leases that the server will not grant in this session: those of this mode and more.
    pub(super) denied: BTreeMap<RnodeId, Mode>,
}

/// The most denials remembered.
const DENIED_MAX: usize = 4096;
/// The most numbers of gone rnodes remembered: enough for those that calls in progress ask for.
const GONE_MAX: usize = 1024;

impl Cache {
    pub(super) fn set_gone(&mut self, id: RnodeId) {
        if self.gone.len() >= GONE_MAX {
            self.gone.clear();
        }
        self.gone.insert(id);
    }

    pub(super) fn set_denied(&mut self, id: RnodeId, mode: Mode) {
        if self.denied.len() >= DENIED_MAX {
            self.denied.clear();
        }
        let denied = self.denied.entry(id).or_insert(mode);
        *denied = mode.min(*denied);
    }

    /// Stores the states after a change, which is `seq` of the log.
    pub(super) fn apply(&mut self, effects: Effects, seq: Seq) {
        for (id, rnode) in effects.rnodes {
            if let Some(lease) = self.leases.get_mut(&id) {
                lease.dirty = seq;
                if let Some(state) = &mut lease.state {
                    state.rnode = rnode;
                }
            } else {
                // Made by this change: no other client knows of it, and a directory is empty.
                let state = State { complete: rnode.is_dir(), ..State::new(rnode) };
                let (mode, token, state) = (Mode::Write, Token::BORN, Some(state));
                self.leases.insert(id, Lease { mode, token, state, dirty: seq, recall: None });
            }
        }
        for ((dir, name), dirent) in effects.dirents {
            if let Some(state) = self.leases.get_mut(&dir).and_then(|l| l.state.as_mut()) {
                state.names.insert(name, dirent);
            }
        }
    }

    /// Returns the last change in the log that the rnodes `seen` depend on.
    pub(super) fn dirty(&self, seen: &BTreeSet<RnodeId>) -> Seq {
        let dirty = seen.iter().filter_map(|id| self.leases.get(id)).map(|l| l.dirty);
        dirty.max().unwrap_or_default()
    }
}

/// The cache as one attempt sees it.
pub(super) struct Sight<'a> {
    pub(super) cache: &'a Cache,
    /// Leases that the attempt's call has pinned.
    pub(super) pinned: &'a BTreeSet<RnodeId>,
    /// The attempt will make changes: missing leases are requested as [`Mode::Write`] at once.
    pub(super) writes: bool,
    /// The server's answer to [`View::is_within`], if it was asked.
    pub(super) within: Option<bool>,
    /// The rnodes that the attempt has read.
    pub(super) seen: RefCell<BTreeSet<RnodeId>>,
}

impl<'a> Sight<'a> {
    pub(super) fn new(cache: &'a Cache, pinned: &'a BTreeSet<RnodeId>, writes: bool) -> Self {
        Self { cache, pinned, writes, within: None, seen: RefCell::default() }
    }

    /// Returns the usable mode of a lease.
    fn mode(&self, id: RnodeId, lease: &Lease) -> Mode {
        match lease.recall {
            Some(to) if !self.pinned.contains(&id) => to.unwrap_or(Mode::Hold).min(lease.mode),
            _ => lease.mode,
        }
    }

    fn lease(&self, id: RnodeId, at_least: Mode) -> Result<&'a State, Stop> {
        let lease = self.cache.leases.get(&id).filter(|l| self.mode(id, l) >= at_least);
        if let Some(state) = lease.and_then(|l| l.state.as_ref()) {
            self.seen.borrow_mut().insert(id);
            return Ok(state);
        }
        if self.cache.gone.contains(&id) {
            return Err(Refusal::Stale.into());
        }
        let denied = self.cache.denied.get(&id);
        if denied.is_some_and(|denied| at_least >= *denied) {
            return Err(Refusal::NotPermitted.into());
        }
        // A client with read access alone does not request a write lease.
        let mode = if self.writes && denied.is_none() { Mode::Write } else { at_least };
        Err(Stop::Need(Need::Lease(id, mode, None)))
    }

    /// Returns the state of a directory, of which these names will be needed.
    pub(super) fn directory(
        &self,
        dir: RnodeId,
        names: impl Fn() -> Names,
    ) -> Result<&'a State, Stop> {
        let state = self.lease(dir, Mode::Read).map_err(|stop| match stop {
            Stop::Need(Need::Lease(dir, mode, None)) => {
                Stop::Need(Need::Lease(dir, mode, Some(names())))
            }
            other => other,
        })?;
        if state.rnode.is_dir() { Ok(state) } else { Err(Refusal::NotADirectory.into()) }
    }
}

impl View for Sight<'_> {
    type Stop = Stop;

    fn rnode(&self, id: RnodeId) -> Result<Rnode, Stop> {
        self.lease(id, Mode::Read).map(|state| state.rnode.clone())
    }

    fn claim(&self, id: RnodeId) -> Result<(), Stop> {
        self.lease(id, Mode::Write).map(|_| ())
    }

    fn dirent(&self, dir: RnodeId, name: &Name) -> Result<Option<Dirent>, Stop> {
        let wanted = || Names::One(name.clone());
        let state = self.directory(dir, wanted)?;
        match state.names.get(name) {
            Some(known) => Ok(*known),
            None if state.complete => Ok(None),
            None => Err(Stop::Need(Need::Names(dir, wanted()))),
        }
    }

    fn is_within(&self, dir: RnodeId, ancestor: RnodeId) -> Result<bool, Stop> {
        if dir == ancestor {
            return Ok(true);
        }
        self.within.ok_or(Stop::Server)
    }
}
