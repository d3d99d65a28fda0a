//! The proxy: a metadata server in front of a remote one. A state machine without clock and without
//! I/O, like the [client](crate::client) that it is towards its *parent* and the
//! [server](crate::mds) that it is towards clients of its own.
//!
//! A proxy takes leases of its parent when its clients ask for them, and keeps them, with their
//! state, until they are recalled. It grants its clients the leases that it has without asking
//! again; so an rnode that one client has read costs the others no message to the parent. It relays
//! changes, locks and all other requests that are not about leases; the parent carries changes out,
//! under the proxy's leases.
//!
//! Invariants:
//! - *Cover*: the leases that the proxy's clients may believe to hold on an rnode are no more than
//!   the parent has granted the proxy and the proxy not released. A grant is answered only under
//!   such a lease, and a lease is downgraded at the parent only when no client has more in the
//!   proxy's table.
//! - *Time*: the epoch of a client of the proxy ends, by any clock, no later than the proxy's own
//!   at the parent: no client is renewed for longer than the remaining time of that.
//! - *Fence*: the leases of a client whose epoch has ended are granted to others when the parent
//!   has begun another epoch for it, so that no message it sent before can take effect later.
//! - *State*: the proxy's state of an rnode is that of the parent, while no change of it is in
//!   progress. A reply of the parent to a request made before such a change is ignored.
//! - To its clients, a generation of the proxy is an epoch at the parent, and has its number: when
//!   the epoch is over, the proxy and its clients drop all state.
//!
//! A proxy that dies blocks other clients for an epoch: leases that it granted its clients are
//! theirs until then. One that is stopped releases the leases that no client holds.

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

/// Options of a proxy.
#[derive(Debug, Clone)]
pub struct ProxyOptions {
    /// The time after which an unanswered request to the parent is sent again, in microseconds.
    pub retry_micros: u64,
    /// The time after which an unanswered recall is sent to a client again, in microseconds.
    pub recall_retry_micros: u64,
    /// The most rnodes kept that no client holds.
    pub kept_max: usize,
}

impl Default for ProxyOptions {
    fn default() -> Self {
        Self { retry_micros: 500_000, recall_retry_micros: 1_000_000, kept_max: 200_000 }
    }
}

/// An event for the proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProxyEvent {
    /// A message from the parent.
    FromParent(FromServer),
    /// A message from a client.
    FromClient(ToServer),
    /// The connection to the parent is restored.
    Connected,
    /// Time has passed. The caller sends this at least ten times or so in an epoch.
    Tick,
}

/// A message to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProxyAction {
    /// To the parent.
    ToParent(ToServer),
    /// To a client.
    ToClient(ToClient),
}

/// A proxy of one cell.
#[derive(Debug)]
pub struct Proxy {
    id: ClientId,
    options: ProxyOptions,
    parent: Parent,
    /// The table of the clients' leases. The parent is in it as the proxy itself: it waits for the
    /// leases that it has recalled.
    leases: Leases,
    locals: BTreeMap<ClientId, Local>,
    rnodes: BTreeMap<RnodeId, Cached>,
    /// Grows with every event that must be told from earlier ones.
    stamp: u64,
    out: Vec<ProxyAction>,
}

impl Proxy {
    /// Returns a proxy that begins incarnation `incarnation`, which must be larger than all before.
    #[must_use]
    pub fn new(id: ClientId, incarnation: Incarnation, options: ProxyOptions) -> Self {
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

    /// Handles an event at the moment `now`, which never goes back. Returns the messages to send,
    /// in order.
    pub fn handle(&mut self, now: Moment, event: ProxyEvent) -> Vec<ProxyAction> {
        self.end_due(now);
        match event {
            ProxyEvent::FromParent(message) => self.parent_says(now, message),
            ProxyEvent::FromClient(message) => self.client_says(now, message),
            ProxyEvent::Connected => self.greet(now),
            ProxyEvent::Tick => self.tick(now),
        }
        std::mem::take(&mut self.out)
    }

    /// Returns the messages to send before the proxy stops: it releases the leases that no client
    /// holds, so that no client of the parent has to wait for the end of the proxy's epoch.
    pub fn leave(&mut self) -> Vec<ProxyAction> {
        self.let_go_of_unused();
        std::mem::take(&mut self.out)
    }

    /// Returns a client's lease, as far as the proxy knows: never less than the client believes.
    #[must_use]
    pub fn held(&self, rnode: RnodeId, client: ClientId) -> Option<(Mode, Token)> {
        self.leases.held(rnode, client)
    }

    /// Returns the mode of the lease that the parent has granted the proxy, as far as the proxy
    /// knows.
    #[must_use]
    pub fn covers(&self, rnode: RnodeId) -> Option<Mode> {
        self.rnodes.get(&rnode)?.mode
    }

    /// Returns true if the proxy's epoch lasts at `now`. The proxy answers for nothing after its
    /// end, and its clients' epochs end before it.
    #[must_use]
    pub fn is_serving(&self, now: Moment) -> bool {
        now < self.parent.ends
    }

    /// Returns every rnode that the proxy has a lease on, or has granted a client a lease on.
    pub fn known(&self) -> impl Iterator<Item = RnodeId> {
        self.rnodes.keys().copied()
    }

    /// Returns the state of an rnode in the proxy.
    #[must_use]
    pub fn cached(&self, rnode: RnodeId) -> Option<&Rnode> {
        self.rnodes.get(&rnode)?.state.as_ref().map(|(rnode, _)| rnode)
    }

    /// Returns the known names of a directory in the proxy, and whether these are all.
    #[must_use]
    pub fn names(&self, dir: RnodeId) -> Option<(&BTreeMap<Name, Option<Dirent>>, bool)> {
        self.rnodes.get(&dir).map(|cached| (&cached.names, cached.complete))
    }

    /// Returns the proxy's epoch at the parent; 0 before its first.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.parent.epoch
    }

    /// Returns true if a client is in this epoch, as far as the proxy knows.
    #[must_use]
    pub fn knows(&self, client: ClientId, epoch: Epoch) -> bool {
        self.locals.get(&client).is_some_and(|local| local.epoch == epoch)
    }

    /// Returns the clients that are in their epoch, or were until recently.
    pub fn clients(&self, now: Moment) -> impl Iterator<Item = KnownClient> {
        let counts = self.leases.counts();
        self.locals.iter().map(move |(&client, local)| {
            let (reads, writes) = counts.get(&client).copied().unwrap_or_default();
            let live = local.is_in_session(now);
            KnownClient { client, epoch: local.epoch, live, reads, writes }
        })
    }

    /// Returns the duration of a client's epoch, in microseconds.
    #[must_use]
    pub fn client_epoch_micros(&self) -> u64 {
        self.span().0
    }

    /// Returns true if no request to the parent is in progress.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.parent.is_idle()
    }

    /// Returns the proxy's generation for its clients.
    fn generation(&self) -> Generation {
        // A cell never begins four thousand million epochs.
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
        self.out.push(ProxyAction::ToClient(ToClient { client, message }));
    }
}
