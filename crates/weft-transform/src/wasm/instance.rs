//! A running guest: one instance with its memory, used by one thread at a time.

use wasmtime::{
    Memory, Store, StoreLimits, StoreLimitsBuilder, Trap, TypedFunc, WasmParams, WasmResults,
};

use super::pool::Measured;
use super::{GUEST_BUFFER_BYTES, Guest, GuestKind, GuestLimits, TICK, refused};
use crate::{Direction, Error, Result};

/// Buffers in a guest's memory: one for input, one for output.
const BUFFERS: u32 = 2;

pub(super) type Bytes = TypedFunc<(u32, u32, u64), u32>;
type Stream = TypedFunc<(u32, u32, u32, u32, u32), i64>;

pub(crate) struct Instance {
    store: Store<StoreLimits>,
    instance: wasmtime::Instance,
    /// The deadline of a call, in ticks.
    ticks: u64,
    memory: Memory,
    /// The addresses of the buffers: the first is for input and for bytes transformed in place.
    buffers: [u32; BUFFERS as usize],
    limits: GuestLimits,
    bytes: [Option<Bytes>; 2],
    stream: [Option<Stream>; 2],
}

fn nr(direction: Direction) -> usize {
    usize::from(direction == Direction::Inverse)
}

/// Returns the error of a call for the byte `offset` that trapped or exceeded its deadline.
pub(super) fn failed(e: &wasmtime::Error, offset: u64, limits: &GuestLimits) -> Error {
    if e.downcast_ref::<Trap>() == Some(&Trap::Interrupt) {
        let millis = u64::try_from(limits.deadline.as_millis()).unwrap_or(u64::MAX);
        return Error::Deadline { stage: "wasm", millis };
    }
    let what = match e.downcast_ref::<Trap>() {
        Some(trap) => format!("it trapped: {trap}"),
        None => format!("{e:#}"),
    };
    wrong(offset, what)
}

/// Returns the error of a guest that does not keep to the interface, or reports a failure.
pub(crate) fn wrong(offset: u64, what: impl Into<String>) -> Error {
    Error::Guest { offset, what: what.into() }
}

impl Measured for Instance {
    fn memory_bytes(&self) -> usize {
        self.memory.data_size(&self.store)
    }
}

impl Instance {
    /// Creates an instance, configured with `argument` if it is not empty.
    pub(crate) fn new(guest: &Guest, limits: GuestLimits, argument: &str) -> Result<Self> {
        let allowed = StoreLimitsBuilder::new()
            .memory_size(limits.memory_bytes)
            .table_elements(100_000)
            .instances(1)
            .memories(1)
            .tables(8)
            .build();
        let mut store = Store::new(&guest.engine, allowed);
        store.limiter(|allowed| allowed);
        arm(&mut store, &limits);
        let failed = |e: wasmtime::Error| failed(&e, 0, &limits);
        let prepared =
            guest.prepared.as_ref().ok_or_else(|| refused("the module has no memory"))?;
        let instance = prepared.instantiate(&mut store).map_err(failed)?;
        let memory = instance
            .get_memory(&mut store, "memory")
            .ok_or_else(|| refused("the module exports no memory"))?;
        let misfit = |e: wasmtime::Error| refused(format!("a function of the module: {e:#}"));
        let room =
            instance.get_typed_func::<u32, u32>(&mut store, "weft_buffer").map_err(misfit)?;
        let mut buffers = [0; BUFFERS as usize];
        for (buffer, which) in buffers.iter_mut().zip(["first", "second"]) {
            arm(&mut store, &limits);
            *buffer = room.call(&mut store, GUEST_BUFFER_BYTES).map_err(failed)?;
            let end = *buffer as usize + GUEST_BUFFER_BYTES as usize;
            let has = memory.data_size(&store);
            if *buffer == 0 || end > has {
                let what = format!(
                    "the {which} of {BUFFERS} calls weft_buffer({GUEST_BUFFER_BYTES}) returned {buffer}, \
                     and its memory has {has} bytes"
                );
                return Err(wrong(0, what));
            }
        }
        let [first, second] = buffers;
        if guest.kind() == GuestKind::Stream && first.abs_diff(second) < GUEST_BUFFER_BYTES {
            let what = format!(
                "weft_buffer({GUEST_BUFFER_BYTES}) returned {first} and then {second}: its buffers overlap"
            );
            return Err(wrong(0, what));
        }
        let mut this = Self {
            store,
            instance,
            ticks: ticks(&limits),
            memory,
            buffers,
            limits,
            bytes: [None, None],
            stream: [None, None],
        };
        this.configure(argument)?;
        Ok(this)
    }

    fn configure(&mut self, argument: &str) -> Result<()> {
        if argument.is_empty() {
            return Ok(());
        }
        let function =
            self.instance.get_typed_func::<(u32, u32), u32>(&mut self.store, "weft_configure");
        let function = function.map_err(|_| refused("the module takes no argument"))?;
        self.put(argument.as_bytes())?;
        arm(&mut self.store, &self.limits);
        // Shorter than a buffer, or `put` would have failed.
        let call = (self.buffers[0], argument.len() as u32);
        let answer = function.call(&mut self.store, call);
        match answer.map_err(|e| failed(&e, 0, &self.limits))? {
            0 => Ok(()),
            code => Err(refused(format!("the guest refuses argument=\"{argument}\" ({code})"))),
        }
    }

    /// Copies bytes into the first buffer.
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        let at = self.buffers[0] as usize;
        let room = self.memory.data_mut(&mut self.store).get_mut(at..at + bytes.len());
        let room = room.filter(|room| room.len() <= GUEST_BUFFER_BYTES as usize);
        room.ok_or_else(|| wrong(0, "more than a buffer"))?.copy_from_slice(bytes);
        Ok(())
    }

    /// Transforms `block`, at most a buffer long, in place.
    pub(crate) fn bytes(
        &mut self,
        guest: &Guest,
        direction: Direction,
        offset: u64,
        block: &mut [u8],
    ) -> Result<()> {
        self.put(block)?;
        let slot = &mut self.bytes[nr(direction)];
        let function = function(slot, &self.instance, &mut self.store, guest.function(direction))?;
        self.store.set_epoch_deadline(self.ticks);
        let at = self.buffers[0];
        let answer = function.call(&mut self.store, (at, block.len() as u32, offset));
        match answer.map_err(|e| failed(&e, offset, &self.limits))? {
            0 => {}
            code => return Err(wrong(offset, format!("it returned error {code}"))),
        }
        let at = at as usize;
        let made = self.memory.data(&self.store).get(at..at + block.len());
        block.copy_from_slice(made.ok_or_else(|| wrong(offset, "no such memory"))?);
        Ok(())
    }

    /// Passes `input`, or its first part, to the guest, with `last` if no input follows; appends
    /// the guest's output to `out`. Returns the bytes consumed and the bytes produced.
    pub(crate) fn stream(
        &mut self,
        guest: &Guest,
        direction: Direction,
        offset: u64,
        input: &[u8],
        last: bool,
        out: &mut Vec<u8>,
    ) -> Result<(usize, usize)> {
        let input = &input[..input.len().min(GUEST_BUFFER_BYTES as usize)];
        self.put(input)?;
        let slot = &mut self.stream[nr(direction)];
        let function = function(slot, &self.instance, &mut self.store, guest.function(direction))?;
        self.store.set_epoch_deadline(self.ticks);
        let [from, to] = self.buffers;
        let call = (from, input.len() as u32, to, GUEST_BUFFER_BYTES, u32::from(last));
        let answer = function.call(&mut self.store, call);
        let answer = answer.map_err(|e| failed(&e, offset, &self.limits))?;
        let Ok(answer) = u64::try_from(answer) else {
            return Err(wrong(offset, format!("it returned error {answer}")));
        };
        let (taken, made) = ((answer >> 32) as usize, (answer & 0xFFFF_FFFF) as usize);
        if taken > input.len() || made > GUEST_BUFFER_BYTES as usize {
            return Err(wrong(offset, "it took or made more than there was room for"));
        }
        let at = to as usize;
        let bytes = self.memory.data(&self.store).get(at..at + made);
        out.extend_from_slice(bytes.ok_or_else(|| wrong(offset, "no such memory"))?);
        Ok((taken, made))
    }
}

/// Returns a function of the guest, looked up on first use.
fn function<'a, P: WasmParams, R: WasmResults>(
    slot: &'a mut Option<TypedFunc<P, R>>,
    instance: &wasmtime::Instance,
    store: &mut Store<StoreLimits>,
    name: &str,
) -> Result<&'a TypedFunc<P, R>> {
    Ok(match slot {
        Some(function) => function,
        None => {
            let function = instance
                .get_typed_func(store, name)
                .map_err(|e| refused(format!("a function of the module: {e:#}")))?;
            slot.insert(function)
        }
    })
}

/// Converts a deadline to ticks.
pub(super) fn ticks(limits: &GuestLimits) -> u64 {
    let ticks = limits.deadline.as_millis() / TICK.as_millis() + 1;
    u64::try_from(ticks).unwrap_or(u64::MAX)
}

/// Sets the deadline of the next call.
pub(super) fn arm(store: &mut Store<StoreLimits>, limits: &GuestLimits) {
    store.set_epoch_deadline(ticks(limits));
}
