//! The state that the threads of a server share, and the queue to the state machine.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::Duration;

use weft_net::{Address, ClientTls};
use weft_ringer_net::{Error, Result};

use super::event::Event;
use super::options::ServeOptions;
use super::rendezvous::Relays;

/// The servers behind a proxy.
#[derive(Debug, Default)]
pub(super) struct Parents {
    pub(super) servers: Vec<Address>,
    pub(super) tls: Option<ClientTls>,
}

/// The state that the threads of a server share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) stop: AtomicBool,
    pub(super) events: SyncSender<Event>,
    pub(super) options: ServeOptions,
    pub(super) relays: Relays,
    /// The servers behind a proxy.
    pub(super) parents: Parents,
}

impl Shared {
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Queues an event for the state machine, and waits while the queue is full.
    pub(super) fn post(&self, mut event: Event) -> Result<()> {
        loop {
            match self.events.try_send(event) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Full(back)) if !self.is_stopped() => {
                    event = back;
                    std::thread::sleep(Duration::from_micros(200));
                }
                Err(_) => return Err(Error::Closed),
            }
        }
    }
}
