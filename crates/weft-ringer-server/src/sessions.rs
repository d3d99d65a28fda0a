//! The connected clients, proxied clients, and observers, with the permissions of each.
//!
//! Invariant: a client has one session. A second one ends the first, which is dead or a
//! duplicate's.

use std::collections::BTreeMap;
use std::sync::Arc;

use weft_ringer::mds::Access;
use weft_ringer::wire::FromServer;
use weft_ringer::{BlockHash, Bytes, ClientId};
use weft_ringer_net::{Answer, Denial, Outbox, Peer, Rendezvous};

/// The session of a client.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) number: u64,
    pub(super) outbox: Arc<Outbox>,
    pub(super) listens: Option<Bytes>,
    pub(super) certificate: Option<BlockHash>,
    pub(super) access: Access,
    /// The clients of a proxy.
    pub(super) proxied: BTreeMap<ClientId, Proxied>,
    /// The last revision that was announced to it.
    pub(super) reached: u64,
}

/// A proxied client.
#[derive(Debug)]
pub(super) struct Proxied {
    pub(super) listens: Option<Bytes>,
    pub(super) certificate: Option<BlockHash>,
}

/// The connection of an observer, which is not a client of the cell.
#[derive(Debug)]
pub(super) struct Observer {
    pub(super) outbox: Arc<Outbox>,
    pub(super) certificate: Option<BlockHash>,
    pub(super) access: Access,
}

/// All sessions of a server.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    clients: BTreeMap<ClientId, Session>,
    /// The observers, by the numbers of their connections.
    observers: BTreeMap<u64, Observer>,
}

impl Sessions {
    /// Adds an observer.
    pub(super) fn observe(&mut self, number: u64, observer: Observer) {
        self.observers.retain(|_, o| !o.outbox.is_closed());
        self.observers.insert(number, observer);
    }

    /// Begins the session of a client.
    pub(super) fn begin(&mut self, client: ClientId, session: Session) {
        if let Some(old) = self.clients.insert(client, session) {
            old.outbox.close();
        }
    }

    /// Ends the session of a client, if it is the one of this connection.
    pub(super) fn end(&mut self, number: u64, client: ClientId) {
        if self.clients.get(&client).is_some_and(|c| c.number == number) {
            self.clients.remove(&client);
        }
    }

    /// Returns the session of a client, if it is that of this connection.
    pub(super) fn current(&self, number: u64, client: ClientId) -> Option<&Session> {
        self.clients.get(&client).filter(|c| c.number == number)
    }

    /// Returns the session of a connection.
    pub(super) fn of_connection(&mut self, number: u64) -> Option<&mut Session> {
        self.clients.values_mut().find(|c| c.number == number)
    }

    /// Returns the session of a client, and its entry at a proxy.
    pub(super) fn of_client(&self, client: ClientId) -> (Option<&Session>, Option<&Proxied>) {
        let proxied = self.clients.values().find_map(|c| c.proxied.get(&client));
        (self.clients.get(&client), proxied)
    }

    /// Returns the permissions of a connection.
    pub(super) fn access_of(&self, number: u64) -> Access {
        let client = self.clients.values().find(|c| c.number == number).map(|c| &c.access);
        let access = client.or(self.observers.get(&number).map(|o| &o.access));
        access.cloned().unwrap_or(Access { grants: Vec::new() })
    }

    /// The outboxes of all connections.
    pub(super) fn outboxes(&self) -> impl Iterator<Item = &Arc<Outbox>> {
        let observers = self.observers.values().map(|o| &o.outbox);
        self.clients.values().map(|c| &c.outbox).chain(observers)
    }

    /// Sends an answer on a connection.
    pub(super) fn answer(&self, number: u64, answer: &Answer) {
        let client = self.clients.values().find(|c| c.number == number).map(|c| &c.outbox);
        if let Some(outbox) = client.or(self.observers.get(&number).map(|o| &o.outbox)) {
            outbox.post(answer);
        }
    }

    /// Sends a message of the state machine, which is of the revision `reached` at most. A client
    /// that is not connected asks again when it is.
    pub(super) fn send(&mut self, client: ClientId, message: FromServer, reached: u64) {
        let Some(session) = self.clients.get_mut(&client) else { return };
        if session.reached < reached {
            session.reached = reached;
            session.outbox.post(&Answer::Reached { revision: reached });
        }
        session.outbox.post(&Answer::Mds { message: Box::new(message) });
    }

    /// Tells a client, or its proxy, that another client calls it. `false` if it is not connected.
    pub(super) fn call(&self, peer: ClientId, rendezvous: Rendezvous) -> bool {
        let proxy = || self.clients.values().find(|c| c.proxied.contains_key(&peer));
        let session = self.clients.get(&peer).or_else(proxy);
        if let Some(session) = session {
            session.outbox.post(&Answer::Called { client: peer, rendezvous });
        }
        session.is_some()
    }

    /// Sends a new client the addresses of the others, and its address to them. A client that has
    /// left may still answer, and is not announced. A proxied client hears what its proxy does.
    pub(super) fn introduce(&self, new: ClientId) {
        let direct = self.clients.iter().map(|(client, c)| (*client, &c.listens));
        let proxied = self.clients.values().flat_map(|c| &c.proxied);
        let proxied = proxied.map(|(client, p)| (*client, &p.listens));
        let reached = direct
            .chain(proxied)
            .filter_map(|(client, listens)| Some(Peer { client, listens: listens.clone()? }));
        let (one, others) = reached.partition(|peer: &Peer| peer.client == new);
        let (one, others) = (Answer::Peers { peers: one }, Answer::Peers { peers: others });
        for (client, session) in &self.clients {
            session.outbox.post(if *client == new { &others } else { &one });
        }
    }

    /// Sends every client the revoked certificates, which get no blocks any more.
    pub(super) fn tell_revoked(&self, certificates: Vec<BlockHash>) {
        let revoked = Answer::RevokedMembers { certificates };
        for session in self.clients.values() {
            session.outbox.post(&revoked);
        }
    }

    /// Ends all connections of a certificate. Its epochs expire by themselves: changes that its
    /// clients made under leases before, and did not send, are lost to the cell.
    pub(super) fn hang_up_on(&mut self, certificate: BlockHash) {
        let is_of = |shown: &Option<BlockHash>| *shown == Some(certificate);
        for proxy in self.clients.values_mut() {
            for (client, _) in proxy.proxied.extract_if(.., |_, p| is_of(&p.certificate)) {
                let denial = Denial::Revoked;
                proxy.outbox.post(&Answer::NotIntroduced { client, denial });
            }
        }
        let denied = Answer::Denied { denial: Denial::Revoked };
        self.clients.retain(|_, c| {
            if is_of(&c.certificate) {
                c.outbox.post(&denied);
                c.outbox.end();
            }
            !is_of(&c.certificate)
        });
        self.observers.retain(|_, o| {
            if is_of(&o.certificate) {
                o.outbox.close();
            }
            !is_of(&o.certificate)
        });
    }
}
