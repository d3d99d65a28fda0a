//! Requests over io_uring (FUSE over io_uring, Linux 6.14): a queue for each CPU.
//!
//! The kernel puts a request into the queue of the CPU on which it was made. Each queue has a thread
//! on that CPU, which answers there: no other CPU is woken, and the reply is committed by the same
//! system call that waits for the next request. This is most of what a round trip costs.
//!
//! While that thread answers, the other requests of its CPU wait. So it only tries (`attempt`), and
//! gives a request that would wait, for a cold block, a full memory, a sync, to another thread
//! ([`Workers`]), which gives the reply back. A file system that cannot be tried like that is served
//! over `/dev/fuse`.
//!
//! The negotiation, forgotten inodes and interrupts come over `/dev/fuse` in any case.

mod queue;
mod slot;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use self::queue::{Event, Queue, Returns};
use self::slot::{Scratch, Slot};
use crate::attempt::{is_command, only_reads, outcome, tried, tried_here};
use crate::front::{Front, Outcome};
use crate::policy::{self, Cpus, Policy, Watched};
use crate::wire::errno;
use crate::workers::Workers;

/// The switch of the kernel's module.
pub(crate) const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// The CPUs that the kernel may ever have: each has a queue.
const POSSIBLE_CPUS: &str = "/sys/devices/system/cpu/possible";

/// The most and the fewest slots of one queue: that many requests of a CPU can wait at a time.
const DEPTH_MAX: usize = 32;
const DEPTH_MIN: usize = 4;
/// The slots of all queues, which many CPUs share: each may take as much memory as a payload.
const SLOTS: usize = 256;

/// The number of times that [`Service::wait_for_forgotten`] polls `/dev/fuse`, and the pause between
/// two polls.
const FORGOTTEN_TRIES: u32 = 1000;
const FORGOTTEN_PAUSE: Duration = Duration::from_millis(1);

/// The kernel demands room for as many pages as it sends at least (`FUSE_DEFAULT_MAX_PAGES_PER_REQ`).
const PAGE_BYTES: usize = 4096;
const PAYLOAD_MIN_BYTES: usize = 32 * PAGE_BYTES;

/// Returns true if the kernel offers requests over io_uring.
pub(crate) fn is_enabled() -> bool {
    std::fs::read_to_string(PARAMETER).is_ok_and(|value| value.trim() == "Y")
}

/// A request that another thread answers.
struct Job {
    nr: usize,
    slot: Slot,
    returns: Arc<Returns>,
    /// The request must see the space of files that were removed before it: the volume was full when
    /// it was tried, or it is a command such as `FITRIM`.
    after_forgotten: bool,
}

/// The state shared by all queues of a mount.
struct Service {
    front: Arc<Front>,
    workers: Arc<Workers<Job>>,
    /// Sets the scheduling policy of the queues' threads; `None` if this process may not.
    policy: Option<Policy>,
    device: OwnedFd,
    /// Something that came over `/dev/fuse` is being answered.
    busy: Arc<AtomicBool>,
}

/// The message that makes the thread of a queue start to serve a mount.
struct Start {
    device: OwnedFd,
    service: Arc<Service>,
}

/// The queues of a mount that does not exist yet: their threads wait.
pub(crate) struct Queues {
    starts: Vec<SyncSender<Start>>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Queues {
    /// Makes the queues for writes of up to `max_write_bytes`, each in its thread. What can fail
    /// does so here: once the kernel has agreed to rings, the mount waits for them.
    pub(crate) fn new(max_write_bytes: usize) -> io::Result<Self> {
        let payload_bytes = max_write_bytes.next_multiple_of(PAGE_BYTES).max(PAYLOAD_MIN_BYTES);
        let cpus = possible_cpus()?;
        let depth = (SLOTS / cpus).clamp(DEPTH_MIN, DEPTH_MAX);
        let mut queues = Self { starts: Vec::new(), threads: Vec::new() };
        for cpu in 0..cpus {
            let id = u16::try_from(cpu).map_err(io::Error::other)?;
            let (start, started) = sync_channel::<Start>(1);
            let (ready, is_ready) = sync_channel(1);
            let thread = std::thread::Builder::new().name(format!("weft-fuse-cpu{cpu}"));
            let thread = thread.spawn(move || {
                // If the process may not run there, the thread runs elsewhere.
                Cpus::of_this().bind(cpu);
                let queue = Queue::new(id, depth, payload_bytes);
                let (queue, result) = match queue {
                    Ok(queue) => (Some(queue), Ok(())),
                    Err(e) => (None, Err(e)),
                };
                let _ = ready.send(result);
                match (queue, started.recv()) {
                    (Some(queue), Ok(start)) => serve(queue, start),
                    // The mount was not made, or without rings.
                    _ => Ok(()),
                }
            })?;
            queues.starts.push(start);
            queues.threads.push(thread);
            is_ready.recv().map_err(io::Error::other)??;
        }
        Ok(queues)
    }

    /// Starts to serve a mount that has agreed to rings. `busy` tells whether a request that came
    /// over `/dev/fuse` is being answered; `device` returns another descriptor of the mount. The
    /// returned threads end with the mount, and with them the workers that they started.
    pub(crate) fn start(
        self,
        front: &Arc<Front>,
        busy: Arc<AtomicBool>,
        mut device: impl FnMut() -> io::Result<OwnedFd>,
    ) -> io::Result<Vec<JoinHandle<io::Result<()>>>> {
        let workers = Arc::new(Workers::new());
        let policy = policy::is_permitted().then(Policy::default);
        let front = Arc::clone(front);
        let service = Arc::new(Service { front, workers, policy, device: device()?, busy });
        let mut threads = self.threads;
        if service.policy.is_some() {
            let service = Arc::clone(&service);
            let watch = move || {
                service.policy.iter().for_each(Policy::watch);
                Ok(())
            };
            threads.push(std::thread::Builder::new().name("weft-fuse-watch".into()).spawn(watch)?);
        }
        for start in self.starts {
            // A thread that has ended says why when it is joined.
            let _ = start.send(Start { device: device()?, service: Arc::clone(&service) });
        }
        Ok(threads)
    }
}

/// Returns the number of CPUs from a list like "0-3" or "0,2-5": one more than the last.
fn possible_cpus() -> io::Result<usize> {
    let list = std::fs::read_to_string(POSSIBLE_CPUS)?;
    let last = list.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<usize>().ok());
    last.map(|last| last + 1).ok_or_else(|| io::Error::other(format!("{POSSIBLE_CPUS}: {list}")))
}

/// Serves one queue until the mount ends.
fn serve(mut queue: Queue, Start { device, service }: Start) -> io::Result<()> {
    let result = serve_until_end(&mut queue, device, &service);
    if let Err(e) = &result {
        tracing::error!("cannot serve the requests of a CPU any more: {e}");
    }
    drop(queue);
    service.front.waits.end_all();
    // What other threads still answer has lost its kernel, and must be done before the volume is
    // closed.
    service.workers.end();
    service.policy.iter().for_each(Policy::end);
    result
}

fn serve_until_end(queue: &mut Queue, device: OwnedFd, service: &Arc<Service>) -> io::Result<()> {
    queue.start(device)?;
    let replies = &service.front.attribute_replies;
    let returns = queue.returns();
    let this = service.policy.as_ref().map(Policy::add_this);
    let mut scratch = Scratch::default();
    let mut events = Vec::new();
    while queue.wait(&mut events)? {
        let mut counted = 0;
        for event in events.drain(..) {
            let reply = match event {
                Event::Reply(nr, slot) => Some((nr, slot)),
                Event::Request(nr, slot) => service.try_answer(nr, slot, &mut scratch, &returns),
            };
            this.iter().for_each(Watched::count);
            if let Some((nr, mut slot)) = reply {
                counted += usize::from(std::mem::take(&mut slot.counted));
                queue.commit(nr, slot)?;
            }
        }
        if counted > 0 {
            queue.submit()?;
            replies.remove(counted);
        }
    }
    Ok(())
}

impl Service {
    /// Answers a request if that needs no wait, and returns its slot; else gives it to another
    /// thread.
    fn try_answer(
        self: &Arc<Self>,
        nr: usize,
        mut slot: Slot,
        scratch: &mut Scratch,
        returns: &Arc<Returns>,
    ) -> Option<(usize, Slot)> {
        slot.counted = self.front.attribute_replies.add(slot.request());
        let mut after_forgotten = is_command(slot.request());
        let answered = slot.serve(scratch, |request, reply| {
            let answered = tried(&self.front, request, reply);
            after_forgotten |= answered == Outcome::Answer && reply.errno() == errno::ENOSPC;
            if after_forgotten { Outcome::WouldWait } else { answered }
        });
        if answered != Outcome::WouldWait {
            return Some((nr, slot));
        }
        let job = Job { nr, slot, returns: Arc::clone(returns), after_forgotten };
        if let Some(job) = self.workers.run(job, || self.worker()) {
            self.answer(job, scratch, false);
        }
        None
    }

    /// Returns the work of a worker.
    fn worker(self: &Arc<Self>) -> impl FnMut(Job) + Send + 'static {
        let service = Arc::clone(self);
        let mut scratch = Scratch::default();
        move |job| service.answer(job, &mut scratch, true)
    }

    /// Waits until the file system has dropped the inodes that the kernel had forgotten before this
    /// call, and so deleted those without a name. Their FORGET requests come over `/dev/fuse`; without
    /// this wait a later request could find the volume full that is not.
    fn wait_for_forgotten(&self) {
        for _ in 0..FORGOTTEN_TRIES {
            let mut device = [PollFd::new(&self.device, PollFlags::IN)];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            // In this order: `busy` is set before a request is read from the device.
            let none = poll(&mut device, Some(&now)) == Ok(0) && !self.busy.load(Ordering::SeqCst);
            if none {
                return;
            }
            std::thread::sleep(FORGOTTEN_PAUSE);
        }
    }

    /// Answers a request, however long it takes, unless it is interrupted. `by_worker`: another thread
    /// may then take the place of this one.
    fn answer(self: &Arc<Self>, job: Job, scratch: &mut Scratch, by_worker: bool) {
        let Job { nr, mut slot, returns, after_forgotten } = job;
        if after_forgotten {
            self.wait_for_forgotten();
        }
        if by_worker && only_reads(slot.request()) {
            // A long read was not tried yet.
            let answered =
                slot.serve(scratch, |request, reply| tried_here(&self.front, request, reply));
            if answered == Outcome::WouldWait {
                return self.answer_elsewhere(nr, slot, &returns, scratch);
            }
        } else {
            slot.serve(scratch, |request, reply| {
                let process = || outcome(&self.front, request, reply);
                let never = || |_| false;
                // Not answered early, so that it has an outcome.
                match self.front.waits.during(request, never, process) {
                    // For a call that may wait that is an answer.
                    Some(Outcome::WouldWait) | None => Outcome::Answer,
                    Some(other) => other,
                }
            });
        }
        returns.give_back(nr, slot);
    }

    /// Answers a request that only reads, whose reply is built elsewhere than in its slot: if it is
    /// interrupted, the kernel gets the slot back with an error meanwhile.
    fn answer_elsewhere(
        self: &Arc<Self>,
        nr: usize,
        mut slot: Slot,
        returns: &Arc<Returns>,
        scratch: &mut Scratch,
    ) {
        let Scratch { request, reply } = scratch;
        request.clear();
        request.extend_from_slice(slot.request());
        let slot = Arc::new(Mutex::new(Some(slot)));
        let take =
            |slot: &Mutex<Option<Slot>>| slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        let early = || {
            let (service, slot, returns) =
                (Arc::clone(self), Arc::clone(&slot), Arc::clone(returns));
            move |errno| {
                let may = service.workers.excuse(|| service.worker());
                if may && let Some(mut slot) = take(&slot) {
                    slot.fail(errno);
                    returns.give_back(nr, slot);
                }
                may
            }
        };
        let process = || outcome(&self.front, request, reply);
        if self.front.waits.during(request, early, process).is_none() {
            self.front.take_back(request, reply);
            return self.workers.is_back();
        }
        if let Some(mut slot) = take(&slot) {
            slot.reply(reply.finish());
            returns.give_back(nr, slot);
        }
    }
}
