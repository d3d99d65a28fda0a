//! A metadata server in front of a remote one: a state machine without clock and without I/O, like
//! the [client](crate::client) that it is towards its *parent* and the [server](crate::mds) that it is
//! towards clients of its own.
//!
//! A front takes leases of its parent when its clients ask for them, and keeps them, with what they
//! are on, until they are recalled. It grants its clients what it has without asking again; so what
//! one of them has read costs the others no message to the parent. Changes, locks and whatever else
//! is not about leases it hands on; the parent carries changes out, under the front's leases.
//!
//! Invariants:
//! - *Cover*: what the front's clients may believe to hold of an rnode is no more than what the parent
//!   has granted the front and not had back. A grant is answered only under such a lease, and a lease
//!   is lowered at the parent only when the front's table has nobody above that any more.
//! - *Time*: the epoch of a client of the front ends, by any clock, no later than the front's own at
//!   the parent: nobody is renewed for longer than what is left of that.
//! - *Fence*: the leases of a client whose epoch has ended are given to others when the parent has
//!   begun another epoch for it, so that nothing it sent before can take effect later.
//! - *State*: what the front keeps of an rnode is what the parent has, while no change of it is under
//!   way. An answer of the parent that was asked for before such a change counts for nothing.
//! - A life of the front is an epoch at the parent, whose number is its generation: when the epoch is
//!   over, everything is forgotten, by the front and by its clients.
//!
//! A front that dies holds everybody up for an epoch: what it gave its clients is theirs until then. One
//! that is stopped gives back what no client holds.

mod cache;
mod clients;
mod parent;
mod pump;

use std::collections::BTreeMap;

use self::cache::Cached;
use self::clients::Local;
use self::parent::Parent;
use crate::mds::{KnownClient, Leases, ToClient};
use crate::rnode::{Dirent, Name, Rnode};
use crate::types::{
    ClientId, Epoch, Generation, Incarnation, Mode, Moment, RequestId, RnodeId, Token,
};
use crate::wire::{FromServer, Reply, ToServer};

/// What can be set.
#[derive(Debug, Clone)]
pub struct FrontOptions {
    /// After how long a request to the parent that was not answered is sent again, in microseconds.
    pub retry_micros: u64,
    /// After how long a recall that a client did not answer is sent again, in microseconds.
    pub recall_retry_micros: u64,
    /// How many rnodes are kept that no client holds.
    pub kept_max: usize,
}

impl Default for FrontOptions {
    fn default() -> Self {
        Self { retry_micros: 500_000, recall_retry_micros: 1_000_000, kept_max: 200_000 }
    }
}

/// What happens to a front.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FrontEvent {
    /// The parent says something.
    FromParent(FromServer),
    /// A client says something.
    FromClient(ToServer),
    /// There is a connection to the parent again.
    Connected,
    /// Time has passed. Comes at least some ten times in an epoch.
    Tick,
}

/// What a front wants sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FrontAction {
    /// To the parent.
    ToParent(ToServer),
    /// To a client.
    ToClient(ToClient),
}

/// A front of one cell.
#[derive(Debug)]
pub struct Front {
    id: ClientId,
    options: FrontOptions,
    parent: Parent,
    /// The table of what clients hold. The parent is in it as the front itself: it waits for what it
    /// has recalled.
    leases: Leases,
    locals: BTreeMap<ClientId, Local>,
    rnodes: BTreeMap<RnodeId, Cached>,
    /// Grows with everything that has to be told from what was before.
    stamp: u64,
    out: Vec<FrontAction>,
}

impl Front {
    /// A front that begins its life number `incarnation`, which must be larger than all before.
    #[must_use]
    pub fn new(id: ClientId, incarnation: Incarnation, options: FrontOptions) -> Self {
        Self {
            leases: Leases::new(Generation(0), options.recall_retry_micros),
            parent: Parent::new(incarnation),
            id,
            options,
            locals: BTreeMap::new(),
            rnodes: BTreeMap::new(),
            stamp: 0,
            out: Vec::new(),
        }
    }

    /// Takes an event at the moment `now`, which never goes back. Returns what to send, in order.
    pub fn handle(&mut self, now: Moment, event: FrontEvent) -> Vec<FrontAction> {
        self.end_due(now);
        match event {
            FrontEvent::FromParent(message) => self.parent_says(now, message),
            FrontEvent::FromClient(message) => self.client_says(now, message),
            FrontEvent::Connected => self.greet(now),
            FrontEvent::Tick => self.tick(now),
        }
        std::mem::take(&mut self.out)
    }

    /// What to send before the front ends its life: what no client holds is given back, so that nobody
    /// waits for that until the front's epoch is over.
    pub fn leave(&mut self) -> Vec<FrontAction> {
        self.let_go_of_unused();
        std::mem::take(&mut self.out)
    }

    /// What a client holds, as far as the front knows: never less than the client believes.
    #[must_use]
    pub fn held(&self, rnode: RnodeId, client: ClientId) -> Option<(Mode, Token)> {
        self.leases.held(rnode, client)
    }

    /// What the parent has granted the front, as far as the front knows.
    #[must_use]
    pub fn covers(&self, rnode: RnodeId) -> Option<Mode> {
        self.rnodes.get(&rnode)?.mode
    }

    /// Whether the front's epoch goes on at `now`. It vouches for nothing after its end, and its clients
    /// are at theirs before it.
    #[must_use]
    pub fn is_serving(&self, now: Moment) -> bool {
        now < self.parent.ends
    }

    /// Every rnode that the front has a lease on, or has let a client have one on.
    pub fn known(&self) -> impl Iterator<Item = RnodeId> {
        self.rnodes.keys().copied()
    }

    /// The state of an rnode as the front keeps it.
    #[must_use]
    pub fn cached(&self, rnode: RnodeId) -> Option<&Rnode> {
        self.rnodes.get(&rnode)?.state.as_ref().map(|(rnode, _)| rnode)
    }

    /// The names of a directory that the front keeps, and whether these are all.
    #[must_use]
    pub fn names(&self, dir: RnodeId) -> Option<(&BTreeMap<Name, Option<Dirent>>, bool)> {
        self.rnodes.get(&dir).map(|cached| (&cached.names, cached.complete))
    }

    /// The front's epoch at the parent; 0 before its first.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.parent.epoch
    }

    /// Whether a client is in this epoch, as far as the front knows.
    #[must_use]
    pub fn knows(&self, client: ClientId, epoch: Epoch) -> bool {
        self.locals.get(&client).is_some_and(|local| local.epoch == epoch)
    }

    /// Clients that are in their epoch, or were not long ago.
    pub fn clients(&self, now: Moment) -> impl Iterator<Item = KnownClient> {
        let counts = self.leases.counts();
        self.locals.iter().map(move |(&client, local)| {
            let (reads, writes) = counts.get(&client).copied().unwrap_or_default();
            let live = local.is_in_session(now);
            KnownClient { client, epoch: local.epoch, live, reads, writes }
        })
    }

    /// How long an epoch of a client lasts, in microseconds.
    #[must_use]
    pub fn client_epoch_micros(&self) -> u64 {
        self.span().0
    }

    /// Whether nothing is under way between the front and its parent.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.parent.is_idle()
    }

    /// Which life of the front this is, to its clients.
    fn generation(&self) -> Generation {
        // Four thousand million epochs of a cell are never begun.
        Generation(u32::try_from(self.parent.epoch.0).unwrap_or(u32::MAX))
    }

    fn next_stamp(&mut self) -> u64 {
        self.stamp += 1;
        self.stamp
    }

    fn answer(&mut self, client: ClientId, id: RequestId, reply: Reply) {
        let message = FromServer::Reply { generation: self.generation(), id, reply };
        self.tell(client, message);
    }

    fn tell(&mut self, client: ClientId, message: FromServer) {
        self.out.push(FrontAction::ToClient(ToClient { client, message }));
    }
}
