//! The proxy's cache of rnodes: the parent's lease on each, and the state under it.

use std::collections::BTreeMap;

use super::Proxy;
use crate::error::Refusal;
use crate::mds::note_writer;
use crate::op::{Logged, Op, View, execute, same_base};
use crate::rnode::{Dirent, Holders, Name, Rnode};
use crate::types::{ClientId, Cookie, Mode, RequestId, RnodeId, Token};
use crate::wire::Entry;

/// The item that a client waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Want {
    /// The reply to a grant that is in the table already.
    Grant { mode: Mode, token: Token },
    /// The entry of a name.
    Name(Name),
    /// The names after a cookie.
    List(Cookie),
}

#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) client: ClientId,
    pub(super) request: RequestId,
    pub(super) want: Want,
}

/// A cached rnode.
#[derive(Debug, Default)]
pub(super) struct Cached {
    /// The mode and the token of the parent's grant.
    pub(super) mode: Option<Mode>,
    pub(super) token: Token,
    /// A client is about to make it, and the parent is not known to have it yet.
    pub(super) unborn: bool,
    /// The mode to downgrade to, when clients have released theirs.
    pub(super) recall: Option<Mode>,
    /// The stamp of the last event that made earlier replies of the parent invalid.
    pub(super) stamp: u64,
    /// The rnode as the parent has it, if that is known; only under [`Mode::Read`] or more.
    pub(super) state: Option<(Rnode, Holders)>,
    /// The known names; and whether these are all.
    pub(super) names: BTreeMap<Name, Option<Dirent>>,
    pub(super) complete: bool,
    /// The received parts of a listing.
    pub(super) listing: Vec<Entry>,
    pub(super) waiting: Vec<Waiting>,
}

impl Cached {
    pub(super) fn forget_state(&mut self) {
        self.state = None;
        self.names.clear();
        self.complete = false;
        self.listing.clear();
    }

    /// Returns the entries after a cookie, at most `limit`, and whether these are the last.
    pub(super) fn list(&self, after: Cookie, limit: usize) -> (Vec<Entry>, bool) {
        let known = self.names.iter().filter_map(|(name, dirent)| {
            let dirent = (*dirent)?;
            (dirent.cookie > after).then_some((name, dirent))
        });
        let mut known: Vec<(&Name, Dirent)> = known.collect();
        let end = known.len() <= limit;
        if !end {
            known.select_nth_unstable_by_key(limit, |(_, dirent)| dirent.cookie);
            known.truncate(limit);
        }
        known.sort_unstable_by_key(|(_, dirent)| dirent.cookie);
        let entry = |(name, dirent): (&Name, Dirent)| Entry { name: name.clone(), dirent };
        let entries = known.into_iter().map(entry).collect();
        (entries, end)
    }
}

/// The proxy does not know; or a change is refused, which then was not carried out in this form.
struct Unknown;

impl From<Refusal> for Unknown {
    fn from(_: Refusal) -> Self {
        Self
    }
}

/// The proxy's cache, as a change sees it.
struct Sight<'a>(&'a BTreeMap<RnodeId, Cached>);

impl View for Sight<'_> {
    type Stop = Unknown;

    fn rnode(&self, id: RnodeId) -> Result<Rnode, Unknown> {
        let state = self.0.get(&id).and_then(|c| c.state.as_ref());
        state.map(|(rnode, _)| rnode.clone()).ok_or(Unknown)
    }

    fn claim(&self, _: RnodeId) -> Result<(), Unknown> {
        Ok(())
    }

    fn dirent(&self, dir: RnodeId, name: &Name) -> Result<Option<Dirent>, Unknown> {
        let cached = self.0.get(&dir).ok_or(Unknown)?;
        match cached.names.get(name) {
            Some(known) => Ok(*known),
            None if cached.complete => Ok(None),
            None => Err(Unknown),
        }
    }

    fn is_within(&self, dir: RnodeId, ancestor: RnodeId) -> Result<bool, Unknown> {
        if dir == ancestor { Ok(true) } else { Err(Unknown) }
    }
}

impl Proxy {
    /// Notes an event on an rnode: replies to earlier requests about it are ignored.
    pub(super) fn touch(&mut self, id: RnodeId) {
        let stamp = self.next_stamp();
        if let Some(cached) = self.rnodes.get_mut(&id) {
            cached.stamp = stamp;
            cached.listing.clear();
        }
    }

    /// Forgets the state of an rnode, so that it is requested anew.
    pub(super) fn forget(&mut self, id: RnodeId) {
        self.touch(id);
        if let Some(cached) = self.rnodes.get_mut(&id) {
            cached.forget_state();
        }
    }

    /// Applies a client's change that the parent has carried out, or forgets the rnodes that it
    /// touched.
    pub(super) fn follow(&mut self, client: ClientId, logged: &Logged) {
        let effects = execute(&logged.op, logged.mark(), &Sight(&self.rnodes));
        let Some(effects) = effects.ok().filter(|e| same_base(&e.base, &logged.base)) else {
            for id in touched(logged) {
                self.forget(id);
            }
            return;
        };
        for (id, rnode) in effects.rnodes {
            let Some(cached) = self.rnodes.get_mut(&id) else { continue };
            // A new directory is empty.
            let is_new = cached.state.is_none();
            cached.complete |= is_new && rnode.is_dir();
            let mut holders = cached.state.take().map(|(_, holders)| holders).unwrap_or_default();
            if matches!(logged.op, Op::Write { .. }) {
                note_writer(&mut holders, client, rnode.version);
            }
            cached.state = Some((rnode, holders));
        }
        for ((dir, name), dirent) in effects.dirents {
            if let Some(cached) = self.rnodes.get_mut(&dir) {
                cached.names.insert(name, dirent);
            }
        }
    }
}

/// Returns the rnodes that a change is made on, and the one that it makes.
pub(super) fn touched(logged: &Logged) -> impl Iterator<Item = RnodeId> {
    let made = match logged.op {
        Op::Create { id, .. } => Some(id),
        _ => None,
    };
    logged.base.iter().map(|(id, _)| *id).chain(made)
}
