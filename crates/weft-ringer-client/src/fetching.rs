//! Fetching of a block from any client that has it, with hedged requests against slow ones.
//!
//! The peers are asked in an order: those that are known to have the block first, those that failed
//! or stalled lately last. If one has sent nothing for [`HEDGE`], the next is asked in parallel,
//! and it goes to the end of the order for a while; an answer that has begun to arrive is waited
//! for. The first block with the right hash counts. So a stopped peer costs [`HEDGE`] once, if
//! another has the block.
//!
//! Each conversation is a job of a small pool of threads, which end when idle: the caller returns
//! with the first answer, and the other conversations end by themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use weft_ringer::{BlockHash, ClientId, Holders, RnodeId};
use weft_ringer_net::{Error, FromPeer, Result, ToPeer};

use super::blocks;
use super::peers::{FETCH_LIMIT, Peers, count};

/// The silence of a peer after which the next is asked in parallel.
const HEDGE: Duration = Duration::from_millis(500);
/// The interval at which a thread checks whether an answer has begun to arrive.
const LOOK: Duration = Duration::from_millis(100);

/// The answer of one peer.
struct Answered {
    client: ClientId,
    got: Result<Option<Vec<u8>>>,
}

impl Peers {
    /// Fetches a block from any peer that has it, within `limit`.
    ///
    /// # Errors
    /// [`Error::Refused`] names the peers that were asked.
    pub(super) fn fetch(
        self: &Arc<Self>,
        rnode: RnodeId,
        hash: &BlockHash,
        holders: &Holders,
        limit: Duration,
    ) -> Result<Vec<u8>> {
        let end = Instant::now() + limit;
        let mut order = self.order(holders);
        let (tell, told) = channel();
        let mut tried = String::new();
        // Peers that were asked and have not answered, the last one at the end.
        let mut asked: Vec<(ClientId, Arc<AtomicBool>)> = Vec::new();
        loop {
            let is_silent =
                |(_, begun): &(ClientId, Arc<AtomicBool>)| !begun.load(Ordering::Acquire);
            if asked.iter().all(is_silent)
                && let Some(client) = order.pop_front()
            {
                let begun = Arc::<AtomicBool>::default();
                asked.push((client, Arc::clone(&begun)));
                let (peers, tell, hash) = (Arc::clone(self), tell.clone(), *hash);
                self.pool.submit(Box::new(move || {
                    let got = peers.fetch_from(client, rnode, &hash, &begun);
                    // Another peer may have been quicker.
                    let _ = tell.send(Answered { client, got });
                }));
            }
            if asked.is_empty() {
                break;
            }
            let left = end.saturating_duration_since(Instant::now());
            let wait = if order.is_empty() { left } else { left.min(HEDGE) };
            let Answered { client, got } = match told.recv_timeout(wait) {
                Ok(answered) => answered,
                Err(RecvTimeoutError::Timeout) if Instant::now() < end => {
                    asked.iter().filter(|one| is_silent(one)).for_each(|(c, _)| self.bench(*c));
                    continue;
                }
                Err(_) => {
                    for (client, _) in &asked {
                        tried.push_str(&format!("; client {:016x}: timed out", client.0));
                    }
                    break;
                }
            };
            asked.retain(|(one, _)| *one != client);
            let why = match got {
                Ok(Some(bytes)) => {
                    let transfers = &self.transfers;
                    count(&transfers.blocks_read, &transfers.bytes_read, &bytes);
                    return Ok(bytes);
                }
                Ok(None) => "does not have it".to_owned(),
                Err(e) => {
                    self.bench(client);
                    e.to_string()
                }
            };
            tracing::debug!("block {hash:?} of inode {rnode}: client {:016x}: {why}", client.0);
            tried.push_str(&format!("; client {:016x}: {why}", client.0));
        }
        for client in holders.clients.keys().filter(|client| !self.knows(**client)) {
            tried.push_str(&format!("; client {:016x}: not connected", client.0));
        }
        Err(Error::Refused(format!(
            "block {hash:?} of inode {rnode} is unavailable: no client delivered it{tried}"
        )))
    }

    /// Fetches a block from one client; sets `begun` when part of its answer has arrived.
    fn fetch_from(
        &self,
        client: ClientId,
        rnode: RnodeId,
        hash: &BlockHash,
        begun: &AtomicBool,
    ) -> Result<Option<Vec<u8>>> {
        let deadline = Instant::now() + FETCH_LIMIT;
        self.converse(client, deadline, |connection| {
            connection.send(&ToPeer::Fetch { rnode, hash: *hash })?;
            let answer = loop {
                let soon = deadline.min(Instant::now() + LOOK);
                match connection.receive::<FromPeer>(Some(soon)) {
                    Err(e) if e.is_timeout() && soon < deadline => {
                        begun.fetch_or(connection.has_begun(), Ordering::AcqRel);
                    }
                    answer => break answer?,
                }
            };
            match answer {
                FromPeer::Block { bytes } if blocks::hash(&bytes.0) == *hash => Ok(Some(bytes.0)),
                FromPeer::Block { .. } => {
                    Err(Error::Refused("sent bytes with another hash".into()))
                }
                FromPeer::Absent {} => Ok(None),
                _ => Err(Error::Refused("protocol error: unexpected reply".into())),
            }
        })
    }
}
