//! Invariants of a world at any moment, and when it is at rest.

use std::collections::BTreeMap;

use weft_ringer::locks::Lock;
use weft_ringer::{BlockHash, Body, ClientId, Epoch, Mode, Rnode, RnodeId};

use super::{PROXY, World};
use crate::sim::{block, value_of};

impl World {
    /// Checks that a version names one state of an rnode for good, on all clients. Only an open block
    /// may be replaced by the block that it was sealed as.
    pub(super) fn check_versions(&mut self, i: usize) {
        let node = &self.nodes[i];
        let Some(client) = &node.client else { return };
        for (id, _) in client.leases(node.clock.read(self.now)) {
            let Some(rnode) = client.cached(id) else { continue };
            let mut rnode = rnode.clone();
            let open = match &rnode.body {
                Body::File { blocks, .. } => {
                    blocks.get(&0).map(|b| b.hash).filter(BlockHash::is_open)
                }
                _ => None,
            };
            node.close(&mut rnode);
            let of = (rnode.clone(), open.map(|name| (i, name)));
            let (known, open) = self.states.entry((id, rnode.version)).or_insert(of);
            let later = open.and_then(|open| self.written.get(&open));
            if let (Some(later), Some(value)) = (later, value_of(&rnode.body))
                && later.contains(&value)
                && let Body::File { blocks, .. } = &mut known.body
            {
                blocks.set(0, Some(block(value)));
            }
            assert_eq!(*known, rnode, "seed {}: two states with one version", self.seed);
        }
    }

    /// No two owners have locked what excludes the other's, wherever they are.
    pub(super) fn check_locks(&self) {
        let mut all: BTreeMap<RnodeId, Vec<(usize, Lock)>> = BTreeMap::new();
        for (i, node) in self.nodes.iter().enumerate() {
            let Some(client) = &node.client else { continue };
            for (id, lock) in client.locks(node.clock.read(self.now)) {
                let others = all.entry(id).or_default();
                for (j, other) in &*others {
                    let same = (*j, other.owner) == (i, lock.owner);
                    assert!(
                        same || !lock.excludes(other),
                        "seed {}: at {} of {id}: {j} has {other:?}, {i} has {lock:?}",
                        self.seed,
                        self.now
                    );
                }
                others.push((i, *lock));
            }
        }
    }

    /// Checks that the server believes that a proxy has the leases on which it relies.
    pub(super) fn check_cover(&self) {
        let Some(proxy) = &self.proxy.proxy else { return };
        let Some(server) = self.server.as_ref().filter(|s| !s.in_grace()) else { return };
        let now = self.proxy.clock.read(self.now);
        for id in proxy.known() {
            let key = [&b"r"[..], &id.0.to_be_bytes()].concat();
            let exists = weft_ringer::store::Store::get(&self.store, &key).expect("memory");
            let believed = server.held(id, PROXY).map(|(mode, _)| mode);
            let covers = proxy.covers(id).filter(|_| proxy.is_serving(now));
            assert!(
                exists.is_none() || believed >= covers,
                "seed {}: at {}: the proxy has {covers:?} on {id}, the server thinks {believed:?}",
                self.seed,
                self.now
            );
        }
    }

    /// The one thing that must never be.
    pub(super) fn check_exclusion(&self) {
        self.check_locks();
        let mut held: BTreeMap<RnodeId, Vec<(usize, Mode)>> = BTreeMap::new();
        for (i, node) in self.nodes.iter().enumerate() {
            let Some(client) = &node.client else { continue };
            if client.leases(node.clock.read(self.now)).next().is_some() {
                // Without a lease other clients may change it: the proxy was notified.
                for id in &node.cached {
                    assert!(
                        client.mode(*id) >= Some(Mode::Read),
                        "seed {}: at {}: the proxy of client {i} has {id} cached, without a lease",
                        self.seed,
                        self.now
                    );
                }
            }
            for (id, mode) in client.leases(node.clock.read(self.now)) {
                held.entry(id).or_default().push((i, mode));
                let known = self.server.as_ref().filter(|s| !s.in_grace());
                let exists = weft_ringer::store::Store::get(
                    &self.store,
                    &[&b"r"[..], &id.0.to_be_bytes()].concat(),
                );
                let exists = exists.expect("memory").is_some();
                if let Some(server) = known
                    && exists
                {
                    let holder = if node.behind { PROXY } else { ClientId(i as u64 + 1) };
                    let believed = server.held(id, holder).map(|(mode, _)| mode);
                    assert!(
                        believed >= Some(mode),
                        "seed {}: at {}: client {i} has {mode:?} on {id}, the server thinks {believed:?} of {holder:?}",
                        self.seed,
                        self.now
                    );
                }
                if let (true, Some(proxy)) = (node.behind, &self.proxy.proxy)
                    && exists
                    && proxy.epoch() > Epoch(0)
                    && proxy.knows(ClientId(i as u64 + 1), client.epoch())
                {
                    let believed = proxy.held(id, ClientId(i as u64 + 1)).map(|(mode, _)| mode);
                    // Other clients do not know what it created itself.
                    let told = client.is_flushed(id);
                    assert!(
                        !told || (believed >= Some(mode) && proxy.covers(id) >= Some(mode)),
                        "seed {}: at {}: client {i} has {mode:?} on {id}, the proxy thinks \
                        {believed:?} and has {:?}",
                        self.seed,
                        self.now,
                        proxy.covers(id)
                    );
                }
            }
        }
        self.check_cover();
        for (id, holders) in held {
            let writers = holders.iter().filter(|(_, m)| *m == Mode::Write).count();
            let users = holders.iter().filter(|(_, m)| *m >= Mode::Read).count();
            assert!(
                writers == 0 || users == 1,
                "seed {}: at {} of {id}: {holders:?}",
                self.seed,
                self.now
            );
        }
    }

    /// Checks that the cache of the proxy agrees with the server.
    pub(super) fn check_proxy_states(&self) {
        let Some(proxy) = &self.proxy.proxy else { return };
        let seed = self.seed;
        for id in proxy.known() {
            let key = [&b"r"[..], &id.0.to_be_bytes()].concat();
            let record = weft_ringer::store::Store::get(&self.store, &key).expect("memory");
            let stored: Option<Rnode> =
                record.map(|r| weft_ringer::wire::decode(&r.value).expect("an rnode"));
            if let Some(cached) = proxy.cached(id) {
                assert_eq!(Some(cached), stored.as_ref(), "seed {seed}: the proxy, {id}");
            }
            let Some((names, complete)) = proxy.names(id) else { continue };
            for (name, dirent) in names {
                let key = [&b"d"[..], &id.0.to_be_bytes(), name.bytes()].concat();
                let record = weft_ringer::store::Store::get(&self.store, &key).expect("memory");
                let stored = record.map(|r| weft_ringer::wire::decode(&r.value).expect("a name"));
                assert_eq!(*dirent, stored, "seed {seed}: the proxy, {name:?} in {id}");
            }
            if let (true, Some(Rnode { body: Body::Directory { entries, .. }, .. })) =
                (complete, stored)
            {
                let count = names.values().flatten().count() as u64;
                assert_eq!(count, entries, "seed {seed}: the proxy, all names of {id}");
            }
        }
    }

    /// Checks that the state of each client under leases agrees with the server.
    pub fn check_states(&self) {
        self.check_proxy_states();
        for (i, node) in self.nodes.iter().enumerate() {
            let Some(client) = &node.client else { continue };
            for (id, mode) in client.leases(node.clock.read(self.now)) {
                let key = [&b"r"[..], &id.0.to_be_bytes()].concat();
                let record = weft_ringer::store::Store::get(&self.store, &key).expect("memory");
                let stored = record.map(|r| weft_ringer::wire::decode(&r.value).expect("an rnode"));
                if mode >= Mode::Read {
                    let seed = self.seed;
                    assert_eq!(client.cached(id), stored.as_ref(), "seed {seed}: client {i}, {id}");
                }
            }
        }
    }
}
