//! One of several servers of a cell in etcd: a standby until the cell has no owner, then the owner,
//! and a standby again after it has lost the cell.
//!
//! Invariants:
//! - A standby answers only with the address of the owner.
//! - An owner's state in memory is dropped when it becomes a standby: it begins a new server
//!   generation the next time, as after a restart.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use weft_ringer::Bytes;
use weft_ringer::mds::INDEX;
use weft_ringer_net::{Answer, Outbox, Result};

use super::dispatch::Dispatcher;
use super::event::Event;
use super::options::ServeOptions;
use crate::store::{EtcdCell, EtcdOptions, EtcdStore, Taken};

/// The interval at which a standby checks for an owner. A watch would report at once, through a
/// stream that may be silently dead; this is one small read a quarter of a second.
const LOOK: Duration = Duration::from_millis(250);
/// The pause after the loss of a cell, in which others may take it.
const AFTER_LOSS: Duration = Duration::from_secs(1);
/// The time for a redirected client to disconnect.
const LEAVING: Duration = Duration::from_secs(1);

pub(super) struct ClusterMember {
    cell: EtcdCell,
    reached_at: String,
    options: ServeOptions,
}

/// Why standing by has ended.
enum Ended {
    Stopped,
    Owns(Box<EtcdStore>),
}

impl ClusterMember {
    pub(super) fn new(
        etcd: &EtcdOptions,
        reached_at: String,
        options: ServeOptions,
    ) -> Result<Self> {
        let cell = EtcdCell::new(etcd, INDEX)?;
        // Configuration errors are better reported now.
        cell.owner()?;
        Ok(Self { cell, reached_at, options })
    }

    pub(super) fn run(self, events: &Receiver<Event>) -> Result<()> {
        let mut not_before = Instant::now();
        loop {
            let store = match self.stand_by(events, not_before) {
                Ended::Stopped => return Ok(()),
                Ended::Owns(store) => store,
            };
            let served = Dispatcher::open(store, &self.options).and_then(|core| {
                tracing::info!("this server owns the cell");
                core.run(events)
            });
            match served {
                Ok(()) => return Ok(()),
                Err(e) => tracing::warn!("this server is a standby: {e}"),
            }
            not_before = Instant::now() + AFTER_LOSS;
        }
    }

    fn stand_by(&self, events: &Receiver<Event>, not_before: Instant) -> Ended {
        let is_over = AtomicBool::new(false);
        // No connection waits while etcd is asked.
        std::thread::scope(|scope| {
            let (tell, told) = sync_channel(1);
            scope.spawn(|| self.look(not_before, &is_over, tell));
            let mut standby = Standby::default();
            let ended = loop {
                match events.recv_timeout(LOOK / 10) {
                    Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => break Ended::Stopped,
                    Ok(event) => standby.event(event),
                    Err(RecvTimeoutError::Timeout) => {}
                }
                standby.send_off();
                match told.try_recv() {
                    Ok(Ok(store)) => break Ended::Owns(store),
                    Ok(Err(owner)) => {
                        let owner = owner.filter(|at| !at.is_empty());
                        standby.owner = owner.map(|at| Bytes(at.into_bytes()));
                    }
                    Err(_) => {}
                }
            };
            is_over.store(true, Ordering::Release);
            ended
        })
    }

    /// Reports the owner, until this server is the owner.
    #[expect(clippy::needless_pass_by_value, reason = "there is no receiver once this has ended")]
    fn look(&self, not_before: Instant, is_over: &AtomicBool, tell: SyncSender<Look>) {
        while !is_over.load(Ordering::Acquire) {
            let looked = if Instant::now() < not_before {
                self.cell.owner().map(Err)
            } else {
                self.cell.take(&self.reached_at).map(|taken| match taken {
                    Taken::Ours(store) => Ok(store),
                    Taken::Theirs(owner) => Err(Some(owner)),
                })
            };
            let look = looked.unwrap_or_else(|e| {
                tracing::debug!("{e}");
                Err(None)
            });
            let is_ours = look.is_ok();
            if tell.send(look).is_err() || is_ours {
                return;
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// The store, if this server owns the cell now; else the address of the owner, if there is one.
type Look = std::result::Result<Box<EtcdStore>, Option<String>>;

/// The connections of a standby.
#[derive(Default)]
struct Standby {
    owner: Option<Bytes>,
    observers: BTreeMap<u64, Arc<Outbox>>,
    /// Clients that were redirected, and when.
    leaving: Vec<(Instant, Arc<Outbox>)>,
}

impl Standby {
    fn answer(&self) -> Answer {
        Answer::Standby { owner: self.owner.clone() }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Joined { number, client: None, outbox, .. } => {
                outbox.post(&Answer::Welcome {});
                self.observers.retain(|_, o| !o.is_closed());
                self.observers.insert(number, outbox);
            }
            Event::Joined { outbox, .. } | Event::Enroll { outbox, .. } => {
                outbox.post(&self.answer());
                self.leaving.push((Instant::now(), outbox));
            }
            Event::Status { number }
            | Event::Search { number, .. }
            | Event::Run { number, .. }
            | Event::Look { number, .. }
            | Event::Check { number }
            | Event::Ping { number } => {
                if let Some(outbox) = self.observers.get(&number) {
                    outbox.post(&self.answer());
                }
            }
            // A status request is for the owner.
            Event::Introduce { .. }
            | Event::Call { .. }
            | Event::Gone { .. }
            | Event::SawLater { .. }
            | Event::Upstream(_)
            | Event::Left { .. }
            | Event::Message { .. }
            | Event::Describe { .. }
            | Event::Stop => {}
        }
    }

    /// Ends the connections of redirected clients.
    fn send_off(&mut self) {
        self.leaving.retain(|(told, outbox)| {
            let stays = told.elapsed() < LEAVING && !outbox.is_closed();
            if !stays {
                outbox.close();
            }
            stays
        });
    }
}

impl Drop for Standby {
    /// Closes the connections made while this server stood by; the clients connect again.
    fn drop(&mut self) {
        for (_, outbox) in &self.leaving {
            outbox.close();
        }
        for outbox in self.observers.values() {
            outbox.close();
        }
    }
}
