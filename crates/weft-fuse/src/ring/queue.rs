//! One of the kernel's queues: the ring over which requests come, and the slots that they are in.
//!
//! See the kernel's document "FUSE-over-io-uring design documentation": each slot is registered
//! once; the kernel completes that command when it has put a request there. Committing the reply is
//! a command, too, which completes with the next request.
//!
//! All commands are submitted by the thread that made the queue, as the kernel copies requests in
//! the context of the thread that submitted their command, and cancels the commands of a thread that
//! ends. Other threads give slots back by [`Returns`].
//!
//! Submitting commands is `unsafe`, as the kernel uses the memory that they point to until they
//! complete.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::slot::{Area, Slot};

/// `enum fuse_uring_cmd`
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;

/// The offset of `len` in a submission, which the kernel requires to be the number of areas.
const SUBMISSION_LEN_AT: usize = 24;

/// The completion that says that slots were given back.
const RETURNED: u64 = u64::MAX;

/// At the end the kernel completes all commands. If it does not, their memory is never freed.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// Slots that other threads give back, with complete replies.
#[derive(Default)]
struct Returned {
    slots: Vec<(usize, Slot)>,
}

/// The way by which other threads give slots back to their queue.
pub(super) struct Returns {
    returned: Mutex<Returned>,
    event: OwnedFd,
}

impl Returns {
    fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(Self { returned: Mutex::default(), event })
    }

    /// Gives back a slot with a complete reply.
    pub(super) fn give_back(&self, nr: usize, slot: Slot) {
        let is_first = {
            let mut returned = self.returned.lock().unwrap_or_else(PoisonError::into_inner);
            returned.slots.push((nr, slot));
            returned.slots.len() == 1
        };
        if is_first {
            self.wake();
        }
    }

    fn take(&self) -> Vec<(usize, Slot)> {
        let mut returned = self.returned.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut returned.slots)
    }

    fn wake(&self) {
        // It fails only if it was written 2^64 times.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }
}

/// What a queue has to say.
pub(super) enum Event {
    /// A request is in this slot.
    Request(usize, Slot),
    /// Another thread has given back this slot with a complete reply.
    Reply(usize, Slot),
}

/// One queue, see the module page.
pub(super) struct Queue {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    id: u16,
    /// The descriptor of the mount, from [`start`](Self::start) on.
    device: Option<OwnedFd>,
    /// Slots that are not in use by this process; after the start the kernel has them.
    slots: Vec<Option<Slot>>,
    /// Where the slots are.
    areas: Vec<[Area; 2]>,
    with_kernel: usize,
    returns: Arc<Returns>,
    /// Where the kernel puts the count of the event.
    count: Box<u64>,
    ended: bool,
}

impl Queue {
    /// Makes queue number `id` with `depth` slots for payloads of up to `payload_bytes`.
    pub(super) fn new(id: u16, depth: usize, payload_bytes: usize) -> io::Result<Self> {
        // One more for the event.
        let entries = u32::try_from(depth + 1).unwrap_or(u32::MAX);
        let ring = IoUring::<squeue::Entry128, cqueue::Entry>::builder()
            .setup_submit_all()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_cqsize(entries.saturating_mul(2).next_power_of_two())
            .build(entries)?;
        let slots: Vec<Slot> =
            (0..depth).map(|_| Slot::new(payload_bytes)).collect::<io::Result<_>>()?;
        Ok(Self {
            ring,
            id,
            device: None,
            areas: slots.iter().map(Slot::areas).collect(),
            slots: slots.into_iter().map(Some).collect(),
            with_kernel: 0,
            returns: Arc::new(Returns::new()?),
            count: Box::new(0),
            ended: false,
        })
    }

    /// Returns the way to give back slots.
    pub(super) fn returns(&self) -> Arc<Returns> {
        Arc::clone(&self.returns)
    }

    /// Gives all slots to the kernel, for the mount with this descriptor. Requests come when all
    /// queues have done so.
    pub(super) fn start(&mut self, device: OwnedFd) -> io::Result<()> {
        self.device = Some(device);
        for nr in 0..self.slots.len() {
            self.push_command(nr)?;
        }
        self.watch_event()?;
        self.ring.submit()?;
        Ok(())
    }

    /// Submits what was pushed. The kernel has the replies when this returns.
    pub(super) fn submit(&mut self) -> io::Result<()> {
        match self.ring.submit() {
            Ok(_) => Ok(()),
            Err(e) if e.raw_os_error() == Some(Errno::INTR.raw_os_error()) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Waits for events and adds them to `events`. Returns false when the mount has ended.
    pub(super) fn wait(&mut self, events: &mut Vec<Event>) -> io::Result<bool> {
        match self.ring.submit_and_wait(1) {
            Ok(_) => {}
            Err(e) if e.raw_os_error() == Some(Errno::INTR.raw_os_error()) => return Ok(true),
            Err(e) => return Err(e),
        }
        self.collect(events)?;
        Ok(!self.ended)
    }

    fn collect(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        let mut failed = Ok(());
        let mut is_woken = false;
        let mut again = Vec::new();
        for completion in self.ring.completion() {
            if completion.user_data() == RETURNED {
                is_woken = true;
                continue;
            }
            let nr = completion.user_data() as usize;
            match completion.result() {
                0 => {
                    self.with_kernel -= 1;
                    let slot = self.slots.get_mut(nr).and_then(Option::take);
                    if let Some(slot) = slot {
                        events.push(Event::Request(nr, slot));
                    }
                }
                error => {
                    self.with_kernel -= 1;
                    let error = Errno::from_raw_os_error(-error);
                    match error {
                        Errno::INTR | Errno::AGAIN => again.push(nr),
                        Errno::NOTCONN | Errno::CONNABORTED | Errno::NODEV | Errno::CANCELED => {
                            self.ended = true;
                        }
                        e => {
                            self.ended = true;
                            failed = Err(e.into());
                        }
                    }
                }
            }
        }
        for nr in again {
            // The command was not begun.
            if !self.ended {
                self.push_command(nr)?;
            }
        }
        if is_woken {
            events.extend(self.returns.take().into_iter().map(|(nr, slot)| Event::Reply(nr, slot)));
            self.watch_event()?;
        }
        failed
    }

    /// Commits the reply that is complete in a slot, with the next [`submit`](Self::submit) or
    /// [`wait`](Self::wait).
    pub(super) fn commit(&mut self, nr: usize, slot: Slot) -> io::Result<()> {
        self.slots[nr] = Some(slot);
        if self.ended { Ok(()) } else { self.push_command(nr) }
    }

    /// Gives a slot to the kernel: for the first time, or with a reply.
    fn push_command(&mut self, nr: usize) -> io::Result<()> {
        let (Some(device), Some(slot)) = (&self.device, &mut self.slots[nr]) else { return Ok(()) };
        let fd = Fd(device.as_raw_fd());
        let commit_id = slot.commit_id();
        // `struct fuse_uring_cmd_req`
        let mut request = [0; 80];
        request[8..16].copy_from_slice(&commit_id.to_ne_bytes());
        request[16..18].copy_from_slice(&self.id.to_ne_bytes());
        let mut command = if commit_id == 0 {
            let areas = &self.areas[nr];
            let register = opcode::UringCmd80::new(fd, REGISTER).addr(Some(areas.as_ptr() as u64));
            let mut command = register.cmd(request).build();
            set_len(&mut command, areas.len() as u32);
            command
        } else {
            opcode::UringCmd80::new(fd, COMMIT_AND_FETCH).cmd(request).build()
        };
        command = command.user_data(nr as u64);
        self.with_kernel += 1;
        self.push(&command)
    }

    fn watch_event(&mut self) -> io::Result<()> {
        let fd = Fd(self.returns.event.as_raw_fd());
        let at: *mut u64 = &mut *self.count;
        let command = opcode::Read::new(fd, at.cast(), 8).build().user_data(RETURNED);
        self.push(&command.into())
    }

    fn push(&mut self, command: &squeue::Entry128) -> io::Result<()> {
        // SAFETY: what a command points to lives until it completes: slots, areas and the count in
        // this queue (see `Drop`).
        unsafe { self.ring.submission().push(command) }
            // Each slot has one command at most, and so has the event.
            .map_err(|full| io::Error::other(full.to_string()))
    }

    /// Waits for a completion, for a second at most.
    fn wait_a_second(&self) -> io::Result<()> {
        let second = Timespec::new().sec(1);
        let limit = SubmitArgs::new().timespec(&second);
        self.ring.submitter().submit_with_args(1, &limit).map(|_| ())
    }

    /// Waits until the kernel has given back all slots.
    fn drain(&mut self) -> io::Result<()> {
        let mut left = END_PATIENCE.as_secs();
        self.ended = true;
        while self.with_kernel > 0 && left > 0 {
            match self.wait_a_second() {
                Ok(()) => {}
                Err(e) if e.raw_os_error() == Some(Errno::TIME.raw_os_error()) => left -= 1,
                Err(e) if e.raw_os_error() == Some(Errno::INTR.raw_os_error()) => {}
                Err(e) => return Err(e),
            }
            let mut events = Vec::new();
            // What failed was reported before.
            let _ = self.collect(&mut events);
        }
        Ok(())
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.device.is_none() {
            return;
        }
        let drained = self.drain();
        if self.with_kernel > 0 {
            tracing::error!(slots = self.with_kernel, "the kernel kept requests: {drained:?}");
            self.slots.drain(..).for_each(std::mem::forget);
        }
        // The read of the event is still in progress, and ends with the ring.
        self.returns.wake();
        let _ = self.wait_a_second();
    }
}

/// Sets `len` of a submission, for which the builder of the command has no setter.
fn set_len(command: &mut squeue::Entry128, len: u32) {
    let at: *mut squeue::Entry128 = command;
    // SAFETY: an entry is `struct io_uring_sqe` (`repr(C)`), which has `len` here, aligned.
    unsafe { at.cast::<u8>().add(SUBMISSION_LEN_AT).cast::<u32>().write(len) };
}
