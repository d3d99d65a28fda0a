//! The rendezvous of clients that wait for each other, to be connected through the server.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};

use weft_ringer_net::{Conversation, Error, Rendezvous, Result, fill_random};

/// The rendezvous of a server.
#[derive(Debug, Default)]
pub(super) struct Relays {
    /// Those that are waited for, and those that have begun, which have no channel any more.
    waiting: Mutex<HashMap<Rendezvous, Option<SyncSender<Conversation>>>>,
}

/// A rendezvous, removed when dropped.
pub(super) struct Held<'a> {
    relays: &'a Relays,
    pub(super) rendezvous: Rendezvous,
    /// Receives the connection of the called client.
    pub(super) come: Receiver<Conversation>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.relays.lock().remove(&self.rendezvous);
    }
}

impl Relays {
    fn lock(&self) -> MutexGuard<'_, HashMap<Rendezvous, Option<SyncSender<Conversation>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a rendezvous; `None` if there are `max` already.
    pub(super) fn hold(&self, max: usize) -> Result<Option<Held<'_>>> {
        let mut rendezvous = Rendezvous([0; 16]);
        fill_random(&mut rendezvous.0).map_err(|e| Error::io("random numbers", e))?;
        let (tell, come) = sync_channel(1);
        let mut waiting = self.lock();
        if waiting.len() >= max {
            return Ok(None);
        }
        waiting.insert(rendezvous, Some(tell));
        Ok(Some(Held { relays: self, rendezvous, come }))
    }

    /// Hands the connection of a called client to the waiting one; gives it back if there is none.
    pub(super) fn come(&self, rendezvous: &Rendezvous, link: Conversation) -> Option<Conversation> {
        let Some(tell) = self.lock().get_mut(rendezvous).and_then(Option::take) else {
            return Some(link);
        };
        tell.send(link).err().map(|unsent| unsent.0)
    }
}
