//! Guests that share one memory: the output of one is the input of the next, without copies in
//! between.
//!
//! A module that imports `weft.memory` instead of defining a memory declares that it can share it:
//! it has no data segments (it may be loaded several times, and has no address range of its own)
//! and keeps nothing there between two calls. Neighbouring guests in a network that declare this
//! trust each other, and share a memory; the block lies behind the largest memory that any of them
//! requested. If one fails, the memory is discarded.

use std::sync::Arc;

use wasmtime::{
    Extern, ExternType, Instance, Memory, MemoryType, Module, Store, StoreLimits,
    StoreLimitsBuilder,
};

use super::instance::{Bytes, arm, failed, ticks, wrong};
use super::pool::Measured;
use super::{GUEST_BUFFER_BYTES, Guest, GuestLimits, refused};
use crate::{Direction, Result};

/// Bytes of a page of WebAssembly.
const PAGE_BYTES: u64 = 64 << 10;

/// The module and the name that a guest imports its memory by.
const IMPORT: (&str, &str) = ("weft", "memory");

/// A guest that can share its memory, with its argument.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) guest: Arc<Guest>,
    pub(crate) argument: String,
}

/// Returns the number of pages that a module with an imported memory requests; `None` if it defines
/// its own memory.
///
/// # Errors
/// [`crate::Error::Parameter`] if it imports anything else, or has data.
pub(super) fn pages_of(module: &Module, binary: &[u8]) -> Result<Option<u64>> {
    let mut pages = None;
    for import in module.imports() {
        let name = (import.module(), import.name());
        match import.ty() {
            ExternType::Memory(memory) if name == IMPORT && !memory.is_shared() => {
                pages = Some(memory.minimum());
            }
            _ => {
                let (from, name) = name;
                let why = format!("the module wants {from}.{name} from outside, and gets nothing");
                return Err(refused(why));
            }
        }
    }
    if pages.is_some() && has_data(binary) {
        let why = "a module that imports its memory has no data in it: others may have that place";
        return Err(refused(why));
    }
    Ok(pages)
}

/// Returns true if a well-formed module has a data section (number 11).
fn has_data(binary: &[u8]) -> bool {
    /// Magic and version.
    const HEAD_BYTES: usize = 8;
    const DATA: u8 = 11;
    let mut rest = binary.get(HEAD_BYTES..).unwrap_or_default();
    while let Some((id, after)) = rest.split_first() {
        let Some((len, after)) = leb128(after) else { return true };
        let Some(after) = after.get(len..) else { return true };
        if *id == DATA && len > 1 {
            return true;
        }
        rest = after;
    }
    false
}

/// Decodes a LEB128 number of up to 32 bits; returns it with the remaining bytes.
fn leb128(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let mut number = 0_u64;
    for (at, byte) in bytes.iter().take(5).enumerate() {
        number |= u64::from(byte & 0x7F) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((usize::try_from(number).ok()?, &bytes[at + 1..]));
        }
    }
    None
}

/// Guests that share one memory, used by one thread at a time.
pub(crate) struct Joint {
    store: Store<StoreLimits>,
    memory: Memory,
    /// The address of the block.
    at: u32,
    functions: Vec<Bytes>,
    limits: GuestLimits,
    /// The deadline of a call, in ticks.
    ticks: u64,
}

impl Measured for Joint {
    fn memory_bytes(&self) -> usize {
        self.memory.data_size(&self.store)
    }
}

impl Joint {
    /// Creates an instance of each member, in execution order.
    pub(crate) fn new(members: &[(Member, Direction)], limits: GuestLimits) -> Result<Self> {
        let first = members.first().ok_or_else(|| refused("no guest"))?;
        let allowed = StoreLimitsBuilder::new()
            .memory_size(limits.memory_bytes)
            .table_elements(100_000)
            .instances(members.len())
            .memories(1)
            .tables(8 * members.len())
            .build();
        let mut store = Store::new(&first.0.guest.engine, allowed);
        store.limiter(|allowed| allowed);
        let failed = |e: wasmtime::Error| failed(&e, 0, &limits);
        let own = members.iter().filter_map(|(member, _)| member.guest.pages).max().unwrap_or(0);
        let all = own.saturating_add(u64::from(GUEST_BUFFER_BYTES) / PAGE_BYTES);
        let pages = u32::try_from(all).map_err(|_| refused("a memory of more than 4 GiB"))?;
        let memory = Memory::new(&mut store, MemoryType::new(pages, None)).map_err(failed)?;
        let at = u32::try_from(own * PAGE_BYTES).map_err(|_| refused("no room for a block"))?;
        let functions = Vec::new();
        let mut this = Self { store, memory, at, functions, limits, ticks: ticks(&limits) };
        for (member, direction) in members {
            arm(&mut this.store, &limits);
            let imports = [Extern::Memory(memory)];
            let instance = Instance::new(&mut this.store, &member.guest.module, &imports);
            let instance = instance.map_err(failed)?;
            this.configure(&instance, &member.argument)?;
            let name = member.guest.function(*direction);
            let function = instance.get_typed_func(&mut this.store, name);
            let misfit = |e: wasmtime::Error| refused(format!("a function of the module: {e:#}"));
            this.functions.push(function.map_err(misfit)?);
        }
        Ok(this)
    }

    fn configure(&mut self, instance: &Instance, argument: &str) -> Result<()> {
        if argument.is_empty() {
            return Ok(());
        }
        let function =
            instance.get_typed_func::<(u32, u32), u32>(&mut self.store, "weft_configure");
        let function = function.map_err(|_| refused("the module takes no argument"))?;
        self.block(argument.len())?.copy_from_slice(argument.as_bytes());
        arm(&mut self.store, &self.limits);
        // The argument is shorter than a buffer, or `block` would have failed.
        let answer = function.call(&mut self.store, (self.at, argument.len() as u32));
        match answer.map_err(|e| failed(&e, 0, &self.limits))? {
            0 => Ok(()),
            code => Err(refused(format!("the guest refuses argument=\"{argument}\" ({code})"))),
        }
    }

    /// Returns the memory of a block of `len` bytes.
    fn block(&mut self, len: usize) -> Result<&mut [u8]> {
        let at = self.at as usize;
        let room = self.memory.data_mut(&mut self.store).get_mut(at..at + len);
        let room = room.filter(|room| room.len() <= GUEST_BUFFER_BYTES as usize);
        room.ok_or_else(|| wrong(0, "more than a buffer"))
    }

    /// Runs all guests on `block`, at most a buffer long, which is copied in once and out once.
    pub(crate) fn run(&mut self, offset: u64, block: &mut [u8]) -> Result<()> {
        self.block(block.len())?.copy_from_slice(block);
        for function in &self.functions {
            self.store.set_epoch_deadline(self.ticks);
            let answer = function.call(&mut self.store, (self.at, block.len() as u32, offset));
            match answer.map_err(|e| failed(&e, offset, &self.limits))? {
                0 => {}
                code => return Err(wrong(offset, format!("it returned error {code}"))),
            }
        }
        let made = self.block(block.len())?;
        block.copy_from_slice(made);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_told_apart() {
        let module = |text: &str| wat::parse_str(text).expect("text of a module");
        let import = "(import \"weft\" \"memory\" (memory 1))";
        assert!(!has_data(&module(&format!("(module {import})"))));
        assert!(has_data(&module(&format!("(module {import} (data (i32.const 0) \"x\"))"))));
        assert!(has_data(&module(&format!("(module {import} (data \"passive\"))"))));
        // A truncated module is not trusted.
        assert!(has_data(b"\0asm\x01\0\0\0\x01\xFF"));
        assert_eq!(leb128(&[0xE5, 0x8E, 0x26, 9]), Some((624_485, &[9][..])));
    }
}
