//! Ownership of a cell: a lease of etcd, and a key that lives as long as the lease does.
//!
//! Leases and renewals of clients are not in the store: the owner grants them only while its own
//! timer runs. To a client, a change of owners is a restart of the server at another address.
//!
//! Invariants:
//! - One server owns a cell: the key is made only if it is not there. Its create revision
//!   identifies this term of ownership, and every transaction compares it.
//! - The owner's own timer ends before etcd's: it begins when the request is *sent*, and is shorter
//!   by a sixteenth. So an owner that etcd does not hear of has stopped before another can begin.
//! - A term ends for good: a server that lost a cell takes it anew, with nothing left in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weft_ringer::Moment;
use weft_ringer_net::now;

use super::gateway::{
    B64, CallError, Compare, Gateway, Int, Op, Put, Range, RangeAsk, Txn, TxnAsk,
};
use weft_ringer::store::{StoreError, StoreResult};

/// The number of renewals in the lifetime of a lease: two may be lost.
const RENEWALS: u32 = 4;
/// The share of the lease by which the owner stops sooner than etcd.
const MARGIN: u64 = 16;
/// The time limit for giving up a cell explicitly. If it takes longer the lease expires.
const FAREWELL: Duration = Duration::from_millis(500);

/// The time limit of a query for a cell's owner, in microseconds.
const LOOK_MICROS: u64 = 1_500_000;

#[derive(Serialize)]
struct Grant {
    #[serde(rename = "TTL")]
    ttl: Int,
}

#[derive(Serialize)]
struct LeaseAsk {
    #[serde(rename = "ID")]
    id: Int,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Lease {
    #[serde(rename = "ID")]
    id: Int,
    #[serde(rename = "TTL")]
    ttl: Int,
}

/// The gateway wraps messages of a stream in a result.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Renewed {
    result: Lease,
}

/// The result of an attempt to own a cell.
pub(super) enum Election {
    Won(Session),
    /// Another server owns it; its address.
    Lost(Vec<u8>),
}

#[derive(Debug)]
struct State {
    /// In microseconds of the monotonic clock.
    ends: AtomicU64,
    over: AtomicBool,
}

impl State {
    /// Checks the clock. A term that has ended stays ended.
    fn is_owner(&self) -> bool {
        if now().0 >= self.ends.load(Ordering::Acquire) {
            self.over.store(true, Ordering::Release);
        }
        !self.over.load(Ordering::Acquire)
    }

    fn renewed(&self, sent: Moment, ttl: Int) {
        let lasts = u64::try_from(ttl.0).unwrap_or(0).saturating_mul(1_000_000);
        let ends = sent.0.saturating_add(lasts - lasts / MARGIN);
        self.ends.fetch_max(ends, Ordering::AcqRel);
    }
}

/// A term of ownership of a cell. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Session {
    gateway: Arc<Gateway>,
    lease: Int,
    key: Vec<u8>,
    /// The create revision of the key.
    created: Int,
    state: Arc<State>,
    /// Ends the thread when it is dropped.
    _ends_thread: SyncSender<()>,
}

/// Returns the address of the owner of a cell.
pub(super) fn owner(gateway: &Gateway, key: &[u8]) -> StoreResult<Option<Vec<u8>>> {
    let until = now().after(LOOK_MICROS);
    let ask = RangeAsk { key: B64(key.to_vec()), ..RangeAsk::default() };
    let found: Range = gateway.call("/v3/kv/range", &ask, until)?;
    Ok(found.kvs.into_iter().next().map(|kv| kv.value.0))
}

/// Takes the cell if it has no owner.
pub(super) fn elect(
    gateway: &Arc<Gateway>,
    key: Vec<u8>,
    reached_at: &str,
    session: Duration,
) -> StoreResult<Election> {
    if let Some(owner) = owner(gateway, &key)? {
        return Ok(Election::Lost(owner));
    }
    let until = now().after(u64::try_from(session.as_micros()).unwrap_or(u64::MAX));
    let ttl = Int(i64::try_from(session.as_secs()).unwrap_or(i64::MAX).max(1));
    let mut sent = now();
    // A lease that was granted twice, since an answer was lost, expires by itself.
    let lease: Lease = gateway.call("/v3/lease/grant", &Grant { ttl }, until)?;
    let put = Put {
        key: B64(key.clone()),
        value: B64(reached_at.as_bytes().to_vec()),
        lease: Some(lease.id),
    };
    let ask = TxnAsk {
        compare: vec![Compare::created(key.clone(), Int(0))],
        success: vec![Op::Put(put)],
        failure: vec![Op::get(key.clone())],
    };
    let answer: Txn = gateway.call("/v3/kv/txn", &ask, until)?;
    let created = if answer.succeeded {
        answer.header.revision
    } else {
        match answer.ranges().flatten().next() {
            // This very transaction, whose first answer was lost.
            Some(kv) if kv.lease == lease.id => kv.create_revision,
            Some(kv) => return Ok(Election::Lost(kv.value.0)),
            None => return Ok(Election::Lost(Vec::new())),
        }
    };
    let state = Arc::new(State { ends: AtomicU64::new(0), over: AtomicBool::new(false) });
    if lease.ttl == Int(0) {
        sent = Moment(0);
    }
    state.renewed(sent, lease.ttl);
    let (ends_thread, stopped) = sync_channel(1);
    let renewer = Renewer {
        gateway: Arc::clone(gateway),
        lease: lease.id,
        state: Arc::clone(&state),
        every: Duration::from_secs(u64::try_from(lease.ttl.0).unwrap_or(0)) / RENEWALS,
    };
    let thread = std::thread::Builder::new().name("ringer-owner".into());
    let renewing = thread.spawn(move || renewer.run(&stopped));
    renewing.map_err(|e| StoreError::Failed(format!("cannot start a thread: {e}")))?;
    Ok(Election::Won(Session {
        gateway: Arc::clone(gateway),
        lease: lease.id,
        key,
        created,
        state,
        _ends_thread: ends_thread,
    }))
}

struct Renewer {
    gateway: Arc<Gateway>,
    lease: Int,
    state: Arc<State>,
    every: Duration,
}

impl Renewer {
    fn run(&self, stopped: &Receiver<()>) {
        while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(self.every) {
            if !self.state.is_owner() {
                return;
            }
            let sent = now();
            let ends = Moment(self.state.ends.load(Ordering::Acquire));
            let ask = LeaseAsk { id: self.lease };
            match self.gateway.call::<_, Renewed>("/v3/lease/keepalive", &ask, ends) {
                Ok(Renewed { result }) if result.ttl > Int(0) => {
                    if self.state.is_owner() {
                        self.state.renewed(sent, result.ttl);
                    }
                }
                Ok(_) => self.state.over.store(true, Ordering::Release),
                Err(CallError::Refused(why)) => {
                    tracing::warn!("etcd does not renew the lease: {why}");
                    self.state.over.store(true, Ordering::Release);
                }
                Err(e) => tracing::warn!("{e}"),
            }
        }
    }
}

impl Session {
    /// The moment at which this server's ownership ends, if etcd does not answer.
    pub(super) fn ends(&self) -> Moment {
        Moment(self.state.ends.load(Ordering::Acquire))
    }

    pub(super) fn is_owner(&self) -> bool {
        self.state.is_owner()
    }

    /// Ends the term, after etcd said that it is over.
    pub(super) fn lose(&self) {
        self.state.over.store(true, Ordering::Release);
    }

    /// The comparison of every transaction.
    pub(super) fn compare(&self) -> Compare {
        Compare::created(self.key.clone(), self.created)
    }

    /// Reads the key, for [`is_ours`](Self::is_ours).
    pub(super) fn look(&self) -> Op {
        Op::get(self.key.clone())
    }

    /// Returns true if the key that was read is that of this term.
    pub(super) fn is_ours(&self, found: &[super::gateway::KeyValue]) -> bool {
        found.first().is_some_and(|kv| kv.create_revision == self.created)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let was_owner = self.is_owner();
        self.lose();
        if was_owner {
            // So that another server need not wait.
            let until = now().after(u64::try_from(FAREWELL.as_micros()).unwrap_or(0));
            let ask = LeaseAsk { id: self.lease };
            let gone: Result<serde_json::Value, _> =
                self.gateway.call("/v3/lease/revoke", &ask, until);
            if let Err(e) = gone {
                tracing::debug!("cannot revoke the etcd lease, it expires by itself: {e}");
            }
        }
    }
}
