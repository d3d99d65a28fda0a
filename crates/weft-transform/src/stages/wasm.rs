//! The stage that runs a WebAssembly module. See [`crate::wasm`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::parameters::StageInfo;
use crate::wasm::{Guest, GuestKind, GuestLimits, Idle, Instance, Joint, Member};
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
            this.idle.put(this.fresh().map_err(|e| p.error(e.to_string()))?);
            return Ok(Arc::new(this));
        }
        let first = Instance::new(guest, limits, &argument).map_err(|e| p.error(e.to_string()))?;
        let idle = Arc::new(Idle::default());
        idle.put(first);
        Ok(Arc::new(Wasm { guest: guest.clone(), limits, argument, idle }))
    },
}];

/// Bytes that are passed at a time to a guest that works in place. They are copied into its memory
/// and back: this few, and their copy, stay in the first-level cache meanwhile, and a call costs
/// tens of nanoseconds.
const PIECE_BYTES: usize = 8 << 10;

struct Wasm {
    guest: Arc<Guest>,
    limits: GuestLimits,
    argument: String,
    idle: Arc<Idle<Instance>>,
}

impl fmt::Debug for Wasm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wasm").field("guest", &self.guest).finish_non_exhaustive()
    }
}

impl Wasm {
    fn fresh(&self) -> Result<Instance> {
        Instance::new(&self.guest, self.limits, &self.argument)
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
        let mut instance = match self.idle.take() {
            Some(instance) => instance,
            None => self.fresh()?,
        };
        for piece in block.chunks_mut(PIECE_BYTES) {
            instance.bytes(&self.guest, direction, offset, piece)?;
            offset += piece.len() as u64;
        }
        self.idle.put(instance);
        Ok(())
    }
}

/// Guests that run one after the other in one memory: the guest of one stage, or those of joined
/// neighbours.
pub(crate) struct Shared {
    /// The guests, in forward order.
    members: Vec<(Member, Direction)>,
    limits: GuestLimits,
    idle: Idle<Joint>,
    idle_inverse: Idle<Joint>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("members", &self.members.len()).finish_non_exhaustive()
    }
}

impl Shared {
    fn of(members: Vec<(Member, Direction)>, limits: GuestLimits) -> Self {
        Self { members, limits, idle: Idle::default(), idle_inverse: Idle::default() }
    }

    fn fresh(&self) -> Result<Joint> {
        Joint::new(&self.members, self.limits)
    }

    /// Returns the guests in the order in which they run in a direction.
    fn running(&self, direction: Direction) -> Vec<(Member, Direction)> {
        match direction {
            Direction::Forward => self.members.clone(),
            Direction::Inverse => {
                let turned = |(member, direction): &(Member, Direction)| {
                    (member.clone(), direction.opposite())
                };
                self.members.iter().rev().map(turned).collect()
            }
        }
    }

    /// Joins the guests of this stage and of the one that runs after it in one memory, if both have
    /// the same limits.
    fn with(&self, direction: Direction, next: &Self, next_direction: Direction) -> Option<Self> {
        if self.limits != next.limits {
            return None;
        }
        let mut members = self.running(direction);
        members.append(&mut next.running(next_direction));
        Some(Self::of(members, self.limits))
    }
}

impl Transform for Shared {
    fn name(&self) -> &'static str {
        "wasm"
    }

    fn kept_as(&self) -> Option<Vec<u8>> {
        let hashes = self.members.iter().map(|(member, _)| member.guest.hash());
        Some(hashes.flat_map(|hash| *hash.as_bytes()).collect())
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Bytes(self)
    }

    fn invertible(&self) -> bool {
        self.members.iter().all(|(member, _)| member.guest.is_invertible())
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
        let idle = match direction {
            Direction::Forward => &self.idle,
            Direction::Inverse if !self.invertible() => {
                return Err(crate::model::no_inverse("wasm"));
            }
            Direction::Inverse => &self.idle_inverse,
        };
        let mut joint = match idle.take() {
            Some(joint) => joint,
            None => Joint::new(&self.running(direction), self.limits)?,
        };
        for piece in block.chunks_mut(PIECE_BYTES) {
            joint.run(offset, piece)?;
            offset += piece.len() as u64;
        }
        idle.put(joint);
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
                let what = "the guest makes no progress".to_owned();
                return Err(Error::Corrupt { stage: "wasm", offset: self.made, what });
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
