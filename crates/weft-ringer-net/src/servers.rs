//! A cell's server list, and failover along it.

use weft_net::Address;

use crate::PORT;

/// The servers, tried one after the other, and before the next of them the owner that a server has
/// named.
#[derive(Debug)]
pub struct ServerList {
    servers: Vec<Address>,
    at: usize,
    /// The owner's address that a server has named.
    hint: Option<Address>,
    /// The number of failed attempts since the last pause.
    tried: usize,
}

impl ServerList {
    /// Begins with the first of `servers`.
    #[must_use]
    pub fn new(servers: &[Address]) -> Self {
        Self { servers: servers.to_vec(), at: 0, hint: None, tried: 0 }
    }

    /// Returns the server to call now.
    pub fn server(&self) -> Address {
        let own = self.servers.get(self.at).or(self.servers.first());
        let server = self.hint.as_ref().or(own);
        server.cloned().unwrap_or_else(|| Address::Tcp("localhost".into(), PORT))
    }

    /// Moves on from a server that does not or no longer serve the cell, to the `owner` if it named
    /// one. Returns true if the caller should try the next one at once: until as many attempts have
    /// failed as there are servers.
    pub fn advance(&mut self, owner: Option<&str>) -> bool {
        let called = self.server();
        self.tried += 1;
        if self.hint.take().is_none() {
            self.at = (self.at + 1) % self.servers.len().max(1);
        }
        let owner = owner.and_then(|text| Address::parse(text, PORT).ok());
        if let Some(owner) = owner.filter(|owner| *owner != called) {
            match self.servers.iter().position(|server| *server == owner) {
                Some(at) => self.at = at,
                None => self.hint = Some(owner),
            }
        }
        if self.tried < self.servers.len() {
            return true;
        }
        self.tried = 0;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(name: &str) -> Address {
        Address::Tcp(name.into(), PORT)
    }

    #[test]
    fn all_are_called_before_a_pause() {
        let mut servers = ServerList::new(&["a", "b", "c"].map(address));
        let mut called = Vec::new();
        for _ in 0..6 {
            called.push((servers.server().host().to_owned(), servers.advance(None)));
        }
        let told: Vec<_> = called.iter().map(|(name, at_once)| (name.as_str(), *at_once)).collect();
        let round = [("a", true), ("b", true), ("c", false)];
        assert_eq!(told, [round, round].concat());
        let mut alone = ServerList::new(&[address("a")]);
        assert!(!alone.advance(None));
        assert_eq!(alone.server(), address("a"));
    }

    #[test]
    fn who_knows_the_owner_is_believed_once() {
        let mut servers = ServerList::new(&["a", "b", "c"].map(address));
        assert!(servers.advance(Some("c")));
        assert_eq!(servers.server(), address("c"));
        // Two that name each other do not loop for ever.
        assert!(servers.advance(Some("a")));
        assert!(!servers.advance(Some("c")));
        // One that is not in the list.
        servers.advance(Some("elsewhere:9"));
        assert_eq!(servers.server(), Address::Tcp("elsewhere".into(), 9));
        servers.advance(None);
        assert_ne!(servers.server().host(), "elsewhere");
        // An invalid address is passed over, and so is a server that names itself.
        let next = servers.server();
        servers.advance(Some("unix:"));
        servers.advance(Some(&servers.server().to_string()));
        assert_ne!(servers.server(), next);
    }
}
