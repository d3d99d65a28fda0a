//! The stage that runs a WebAssembly module. See [`crate::wasm`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::parameters::{Parameters, StageInfo};
use crate::wasm::{Guest, GuestKind, GuestLimits, Instance, Joint, Key, Member, Pool, wrong};
use crate::{ByteMap, Direction, Error, Result, STEP_BYTES, Shape, Stream, StreamCodec, Transform};

pub(super) const STAGES: &[StageInfo] = &[StageInfo {
    name: "wasm",
    summary: "runs a WebAssembly module that --module names, in a sandbox",
    parameters: &[
        ("module", "the name of the module"),
        ("argument", "text for the module"),
        ("deadline", "milliseconds for a call, 1 to 60000 (1000)"),
        ("memory", "the most memory of an instance, 1M to 1G (64M)"),
    ],
    make: |p, context| {
        let name = p.required("module")?;
        let argument = p.text("argument").unwrap_or_default();
        let deadline = Duration::from_millis(p.number("deadline", 1..=60_000, 1000)?);
        let memory_bytes = p.bytes("memory", 1 << 20..=1 << 30, 64 << 20)? as usize;
        let Some(guest) = context.modules.get(&name) else {
            return Err(p.error(format!("no module named \"{name}\"")));
        };
        let limits = GuestLimits { memory_bytes, deadline };
        // Instantiating now reports errors before the first read.
        if guest.shares_memory() {
            let member = Member { guest: guest.clone(), argument };
            let this = Shared::of(vec![(member, Direction::Forward)], limits);
            this.forward.try_out().map_err(|e| unusable(p, e))?;
            return Ok(Arc::new(this));
        }
        let members = vec![(guest.hash(), argument.clone(), Direction::Forward)];
        let key = Key { members, limits };
        let this = Wasm { guest: guest.clone(), argument, key };
        let first = this.idle().map_err(|e| unusable(p, e))?;
        this.guest.idle.put(&this.key, first);
        Ok(Arc::new(this))
    },
}];

/// Returns the error of a module of which no instance can be made.
fn unusable(p: &Parameters<'_>, e: Error) -> Error {
    match e {
        Error::Guest { what, .. } | Error::Parameter { message: what, .. } => p.error(what),
        other => other,
    }
}

/// Bytes that are passed at a time to a guest that works in place. They are copied into its memory
/// and back: this few, and their copy, stay in the first-level cache meanwhile, and a call costs
/// tens of nanoseconds.
const PIECE_BYTES: usize = 8 << 10;

struct Wasm {
    guest: Arc<Guest>,
    argument: String,
    /// An instance serves both directions.
    key: Key,
}

impl fmt::Debug for Wasm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wasm").field("guest", &self.guest).finish_non_exhaustive()
    }
}

impl Wasm {
    fn fresh(&self) -> Result<Instance> {
        Instance::new(&self.guest, self.key.limits, &self.argument)
    }

    /// Returns an instance that is used by nobody.
    fn idle(&self) -> Result<Instance> {
        self.guest.idle.take(&self.key).map_or_else(|| self.fresh(), Ok)
    }

    fn check(&self, direction: Direction) -> Result<()> {
        if direction == Direction::Inverse && !self.guest.is_invertible() {
            return Err(crate::model::no_inverse("wasm"));
        }
        Ok(())
    }
}

impl Transform for Wasm {
    fn name(&self) -> &'static str {
        "wasm"
    }

    fn kept_as(&self) -> Option<Vec<u8>> {
        Some(self.guest.hash().as_bytes().to_vec())
    }

    fn shape(&self) -> Shape<'_> {
        match self.guest.kind() {
            GuestKind::Bytes => Shape::Bytes(self),
            GuestKind::Stream => Shape::Stream(self),
        }
    }

    fn invertible(&self) -> bool {
        self.guest.is_invertible()
    }
}

impl ByteMap for Wasm {
    fn apply(&self, direction: Direction, mut offset: u64, block: &mut [u8]) -> Result<()> {
        self.check(direction)?;
        let mut instance = self.idle()?;
        for piece in block.chunks_mut(PIECE_BYTES) {
            instance.bytes(&self.guest, direction, offset, piece)?;
            offset += piece.len() as u64;
        }
        self.guest.idle.put(&self.key, instance);
        Ok(())
    }
}

/// Guests in the order in which they run, and what their instances have in common.
struct Row {
    members: Vec<(Member, Direction)>,
    key: Key,
}

impl Row {
    fn new(members: Vec<(Member, Direction)>, limits: GuestLimits) -> Self {
        let named = |(member, direction): &(Member, Direction)| {
            (member.guest.hash(), member.argument.clone(), *direction)
        };
        let key = Key { members: members.iter().map(named).collect(), limits };
        Self { members, key }
    }

    /// The idle instances are kept by the first guest.
    fn pool(&self) -> Option<&Pool<Joint>> {
        self.members.first().map(|(member, _)| &member.guest.idle_joints)
    }

    /// Returns an instance that is used by nobody.
    fn idle(&self) -> Result<Joint> {
        let idle = self.pool().and_then(|pool| pool.take(&self.key));
        idle.map_or_else(|| Joint::new(&self.members, self.key.limits), Ok)
    }

    fn put(&self, joint: Joint) {
        if let Some(pool) = self.pool() {
            pool.put(&self.key, joint);
        }
    }

    /// Makes an instance, unless there is one.
    fn try_out(&self) -> Result<()> {
        self.idle().map(|joint| self.put(joint))
    }
}

/// Guests that run one after the other in one memory: the guest of one stage, or those of joined
/// neighbours.
pub(crate) struct Shared {
    forward: Row,
    inverse: Row,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let members = self.forward.members.len();
        f.debug_struct("Shared").field("members", &members).finish_non_exhaustive()
    }
}

impl Shared {
    /// `members`: the guests, in forward order.
    fn of(members: Vec<(Member, Direction)>, limits: GuestLimits) -> Self {
        let turned =
            |(member, direction): &(Member, Direction)| (member.clone(), direction.opposite());
        let inverse = Row::new(members.iter().rev().map(turned).collect(), limits);
        Self { forward: Row::new(members, limits), inverse }
    }

    /// Returns the guests in the order in which they run in a direction.
    fn running(&self, direction: Direction) -> &Row {
        match direction {
            Direction::Forward => &self.forward,
            Direction::Inverse => &self.inverse,
        }
    }

    /// Joins the guests of this stage and of the one that runs after it in one memory, if both have
    /// the same limits.
    fn with(&self, direction: Direction, next: &Self, next_direction: Direction) -> Option<Self> {
        let limits = self.forward.key.limits;
        if limits != next.forward.key.limits {
            return None;
        }
        let mut members = self.running(direction).members.clone();
        members.extend_from_slice(&next.running(next_direction).members);
        Some(Self::of(members, limits))
    }
}

impl Transform for Shared {
    fn name(&self) -> &'static str {
        "wasm"
    }

    fn kept_as(&self) -> Option<Vec<u8>> {
        let hashes = self.forward.members.iter().map(|(member, _)| member.guest.hash());
        Some(hashes.flat_map(|hash| *hash.as_bytes()).collect())
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Bytes(self)
    }

    fn invertible(&self) -> bool {
        self.forward.members.iter().all(|(member, _)| member.guest.is_invertible())
    }

    fn as_neighbour(&self) -> Option<&dyn std::any::Any> {
        Some(self)
    }

    fn joined(
        &self,
        direction: Direction,
        next: &dyn Transform,
        next_direction: Direction,
    ) -> Option<Arc<dyn Transform>> {
        let next = next.as_neighbour()?.downcast_ref()?;
        let joined = self.with(direction, next, next_direction)?;
        Some(Arc::new(joined))
    }
}

impl ByteMap for Shared {
    fn apply(&self, direction: Direction, mut offset: u64, block: &mut [u8]) -> Result<()> {
        if direction == Direction::Inverse && !self.invertible() {
            return Err(crate::model::no_inverse("wasm"));
        }
        let row = self.running(direction);
        let mut joint = row.idle()?;
        for piece in block.chunks_mut(PIECE_BYTES) {
            joint.run(offset, piece)?;
            offset += piece.len() as u64;
        }
        row.put(joint);
        Ok(())
    }
}

impl StreamCodec for Wasm {
    fn start(&self, direction: Direction) -> Result<Box<dyn Stream>> {
        self.check(direction)?;
        // Each pass gets a fresh instance: a streaming guest keeps state.
        let instance = self.fresh()?;
        Ok(Box::new(Pass { guest: self.guest.clone(), instance, direction, made: 0 }))
    }
}

/// One pass of a streaming guest.
struct Pass {
    guest: Arc<Guest>,
    instance: Instance,
    direction: Direction,
    made: u64,
}

impl Pass {
    fn step(&mut self, input: &[u8], last: bool, out: &mut Vec<u8>) -> Result<(usize, usize)> {
        let (taken, made) =
            self.instance.stream(&self.guest, self.direction, self.made, input, last, out)?;
        self.made += made as u64;
        Ok((taken, made))
    }
}

impl Stream for Pass {
    fn push(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize> {
        let mut used = 0;
        while used < input.len() && out.len() < STEP_BYTES {
            let (taken, made) = self.step(&input[used..], false, out)?;
            if taken == 0 && made == 0 {
                return Err(wrong(self.made, "it makes no progress"));
            }
            used += taken;
        }
        Ok(used)
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        while out.len() < STEP_BYTES {
            if self.step(&[], true, out)?.1 == 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
