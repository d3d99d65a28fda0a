//! What is done to a cache: generated from a seed, and small enough to be read when it fails.

use super::world::{Discard, FailFlush, Scope};
use std::fmt;
use weft_block::Rng;
use weft_cache::{Mode, PolicyKind};

/// One thing done to the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    Write {
        origin: usize,
        offset: u64,
        len: usize,
    },
    Zero {
        origin: usize,
        offset: u64,
        len: usize,
    },
    Discard {
        origin: usize,
        offset: u64,
        len: usize,
    },
    Read {
        origin: usize,
        offset: u64,
        len: usize,
    },
    Flush {
        origin: usize,
    },
    Mode {
        origin: usize,
        mode: Mode,
    },
    Tick {
        ms: u64,
    },
    Checkpoint,
    WriteBack {
        origin: usize,
    },
    Resize {
        percent: u64,
    },
    /// Closes and opens again.
    Restart,
    /// Detaches an origin and attaches it again.
    Reattach {
        origin: usize,
    },
    /// The next flush of an origin fails, and some of what was written before is lost.
    FailFlush {
        origin: usize,
        how: FailFlush,
    },
    /// The power goes after so many events of the next operation.
    Cut {
        after: usize,
        scope: Scope,
        seed: u64,
    },
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// Which promises a run is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    Only(Mode),
    /// Modes change while it runs.
    Mixed,
    /// Flushes of the origins fail, and lose what was written before them.
    Failing(Mode),
    /// The same, and modes change.
    FailingMixed,
    /// Persistence is off: a cut empties the cache, and that is all it does.
    Forgetful,
    /// A cache of a few thousand blocks, used while most of its checkpoint is not loaded yet.
    Large,
    /// Origins of a few MiB, and requests of every length up to all of an origin: the cache treats
    /// what is longer than 1 MiB in other ways.
    Long(Mode),
    /// The same, and modes change.
    LongMixed,
}

impl Family {
    pub const ALL: [(Self, &'static str); 18] = [
        (Self::Only(Mode::WriteThrough), "write-through"),
        (Self::Only(Mode::WriteBack), "write-back"),
        (Self::Only(Mode::WriteAround), "write-around"),
        (Self::Only(Mode::WriteInvalidate), "write-invalidate"),
        (Self::Only(Mode::WriteOnly), "write-only"),
        (Self::Only(Mode::PassThrough), "pass-through"),
        (Self::Mixed, "mixed"),
        (Self::Failing(Mode::WriteThrough), "failing-write-through"),
        (Self::Failing(Mode::WriteBack), "failing-write-back"),
        (Self::Failing(Mode::WriteAround), "failing-write-around"),
        (Self::Failing(Mode::WriteInvalidate), "failing-write-invalidate"),
        (Self::Failing(Mode::WriteOnly), "failing-write-only"),
        (Self::FailingMixed, "failing-mixed"),
        (Self::Forgetful, "forgetful"),
        (Self::Large, "large"),
        (Self::Long(Mode::WriteBack), "long-write-back"),
        (Self::Long(Mode::WriteThrough), "long-write-through"),
        (Self::LongMixed, "long-mixed"),
    ];

    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|f| f.0 == self).map_or("?", |f| f.1)
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|f| f.1 == name).map(|f| f.0)
    }

    /// The modes that a run of it may use.
    pub fn modes(self) -> &'static [Mode] {
        const ALL: [Mode; 6] = [
            Mode::WriteThrough,
            Mode::WriteBack,
            Mode::WriteAround,
            Mode::WriteInvalidate,
            Mode::WriteOnly,
            Mode::PassThrough,
        ];
        match self {
            Self::Mixed | Self::FailingMixed | Self::Large | Self::LongMixed => &ALL,
            Self::Forgetful => &[Mode::WriteThrough, Mode::WriteAround, Mode::WriteInvalidate],
            Self::Only(mode) | Self::Failing(mode) | Self::Long(mode) => {
                &ALL[ALL.iter().position(|m| *m == mode).unwrap_or(0)..][..1]
            }
        }
    }

    /// Whether flushes of origins fail.
    pub fn fails(self) -> bool {
        matches!(self, Self::Failing(_) | Self::FailingMixed)
    }

    /// Whether requests are of every length.
    pub fn is_long(self) -> bool {
        matches!(self, Self::Long(_) | Self::LongMixed)
    }

    /// Whether the cache may ever hold what the origin does not.
    pub fn may_be_dirty(self) -> bool {
        self.modes().iter().any(|m| matches!(m, Mode::WriteBack | Mode::WriteOnly))
    }
}

/// The shape of the cache and its origins.
#[derive(Debug, Clone)]
pub struct Config {
    pub family: Family,
    pub seed: u64,
    pub block_bytes: u32,
    /// How many blocks the cache device has room for, roughly.
    pub blocks: u64,
    pub origin_bytes: Vec<u64>,
    pub first_mode: Mode,
    pub policy: PolicyKind,
    pub discard: Discard,
    pub dirty_limit_percent: u8,
    pub log_bytes: u64,
}

impl Config {
    pub fn generate(family: Family, seed: u64) -> Self {
        let mut rng = Rng::stream(seed, 1);
        let large = family == Family::Large;
        let block_bytes =
            if large { 4096 } else { *rng.pick(&[4096, 4096, 8192, 16384, 65536]).expect("some") };
        let long = family.is_long();
        let blocks = match block_bytes {
            _ if large => 600 + rng.below(1000),
            // Half of an origin to all of it.
            _ if long => (1 + rng.below(3)) * (1 << 20) / u64::from(block_bytes) + rng.below(8),
            65536 => 6 + rng.below(6),
            _ => 6 + rng.below(26),
        };
        let origins = 1 + rng.index(2);
        let origin_bytes = (0..origins)
            .map(|_| {
                // More than the cache holds, and often with a part of a block at the end.
                let whole = if large {
                    (300 + rng.below(1000)) * u64::from(block_bytes)
                } else if long {
                    ((2 << 20) / u64::from(block_bytes) + rng.below(16)) * u64::from(block_bytes)
                } else {
                    let most = (512 << 10) / u64::from(block_bytes);
                    (blocks + 2 + rng.below(blocks)).min(most) * u64::from(block_bytes)
                };
                whole + rng.below(2) * 512 * (1 + rng.below(u64::from(block_bytes) / 512 - 1))
            })
            .collect();
        Self {
            family,
            seed,
            block_bytes,
            blocks,
            origin_bytes,
            first_mode: *rng.pick(family.modes()).expect("some"),
            policy: *rng.pick(&POLICIES).expect("some"),
            discard: *rng
                .pick(&[Discard::Ignored, Discard::Zeroes, Discard::Garbage])
                .expect("some"),
            dirty_limit_percent: *rng.pick(&[20, 50, 90]).expect("some"),
            log_bytes: (16 + rng.below(24)) * 4096,
        }
    }

    /// Length of the cache device: superblocks, log, checkpoints, and the blocks.
    pub fn cache_bytes(&self) -> u64 {
        (8 << 10) + self.log_bytes + (64 << 10) + self.blocks * u64::from(self.block_bytes)
    }

    /// What a failed flush has lost shows only when the power goes.
    pub fn hides_losses(&self) -> bool {
        self.seed % 2 == 1
    }

    /// How many of its blocks an origin is known by when it is attached. To compare them the cache
    /// loads first: none, where it is to be used while it loads.
    pub fn samples(&self) -> u32 {
        if self.family == Family::Large && self.seed.is_multiple_of(2) { 0 } else { 16 }
    }

    pub fn persistence(&self) -> bool {
        self.family != Family::Forgetful
    }

    /// Fills a large cache, so that its checkpoint has many pages, and opens it again.
    fn fill(&self, rng: &mut Rng) -> Vec<Op> {
        let mut script = Vec::new();
        for (origin, len) in self.origin_bytes.iter().enumerate() {
            for at in (0..*len).step_by(256 << 10) {
                script.push(Op::Read {
                    origin,
                    offset: at,
                    len: (len - at).min(256 << 10) as usize,
                });
            }
            for _ in 0..40 {
                let offset = rng.below(len / 4096) * 4096;
                script.push(Op::Write { origin, offset, len: 4096 });
            }
            script.push(Op::Flush { origin });
        }
        script.push(Op::Tick { ms: 2000 });
        script.push(Op::Checkpoint);
        let cut = Op::Cut { after: 1, scope: Scope::Both, seed: rng.next_u64() };
        script.push(if rng.chance(1, 2) { Op::Restart } else { cut });
        script
    }

    /// Only each so many events of a life are worth a cut: with a large cache, a cut costs more.
    pub fn stride(&self) -> usize {
        match self.family {
            Family::Large => 5,
            // The first of them is the seed's, so that four seeds come to every event.
            family if family.is_long() => 4,
            _ => 1,
        }
    }

    /// A script of about `ops` operations in one to three lives.
    pub fn script(&self, ops: usize) -> Vec<Op> {
        let mut rng = Rng::stream(self.seed, 2);
        let lives = 1 + rng.index(3);
        let mut script =
            if self.family == Family::Large { self.fill(&mut rng) } else { Vec::new() };
        for life in 0..lives {
            let busy = Workload::new(self, &mut rng);
            for _ in 0..ops {
                script.push(busy.op(self, &mut rng));
            }
            if life + 1 < lives {
                let scope = *rng.pick(&Scope::ALL).expect("some");
                let at = script.len() - 1 - rng.index(ops / 2);
                let after = rng.index(6);
                script.truncate(at + 1);
                script.insert(at, Op::Cut { after, scope, seed: rng.next_u64() });
            }
        }
        script
    }
}

const POLICIES: [PolicyKind; 4] = [
    PolicyKind::S3Fifo,
    PolicyKind::WTinyLfu,
    PolicyKind::Lru,
    PolicyKind::SetAssociative { ways: 16 },
];

/// What a life likes to do.
struct Workload {
    /// Where most requests go.
    hot: Vec<(u64, u64)>,
    /// Of a hundred data requests, how many write.
    writes: u64,
    flushes: u64,
    /// Of a hundred operations, how many are the cache's own affairs.
    upkeep: u64,
}

impl Workload {
    fn new(config: &Config, rng: &mut Rng) -> Self {
        let hot = config
            .origin_bytes
            .iter()
            .map(|len| {
                let size = (len / (2 + rng.below(6))).max(4096);
                (rng.below(len - size + 1), size)
            })
            .collect();
        Self {
            hot,
            writes: *rng.pick(&[20, 50, 80]).expect("some"),
            flushes: *rng.pick(&[1, 6, 20]).expect("some"),
            upkeep: *rng.pick(&[0, 0, 30]).expect("some"),
        }
    }

    /// A range, at least a byte long, in units of `unit` bytes.
    fn range(&self, config: &Config, rng: &mut Rng, origin: usize, unit: u64) -> (u64, usize) {
        let len = config.origin_bytes[origin];
        let (from, size) = if rng.chance(2, 3) { self.hot[origin] } else { (0, len) };
        let offset = (from + rng.below(size)).min(len - 1) / unit * unit;
        let longest = if config.family.is_long() {
            *rng.pick(&[unit, 64 << 10, 1 << 20, len]).expect("some")
        } else {
            u64::from(config.block_bytes) * *rng.pick(&[1, 1, 3]).expect("some")
        };
        let want = (1 + rng.below(longest)).div_ceil(unit) * unit;
        (offset, want.min(len - offset) as usize)
    }

    fn op(&self, config: &Config, rng: &mut Rng) -> Op {
        let origin = rng.index(config.origin_bytes.len());
        if config.family.fails() && rng.chance(1, 8) {
            // One kind of disk in a case.
            let how = FailFlush { hidden: config.hides_losses(), seed: rng.next_u64() };
            return Op::FailFlush { origin, how };
        }
        if rng.chance(self.flushes, 100) {
            return Op::Flush { origin };
        }
        if rng.chance(self.upkeep, 100) {
            let own = [Op::Checkpoint, Op::Checkpoint, Op::Restart, Op::Tick { ms: 20_000 }];
            return rng.pick(&own).cloned().expect("some");
        }
        let block = u64::from(config.block_bytes);
        match rng.below(100) {
            0..10 => Op::Tick { ms: *rng.pick(&[10, 200, 2_000, 40_000]).expect("some") },
            10..13 => Op::Checkpoint,
            13..15 => Op::WriteBack { origin },
            15..17 => Op::Restart,
            17..18 => Op::Reattach { origin },
            18..20 => Op::Resize { percent: 50 + rng.below(51) },
            20..25 => {
                let unit = *rng.pick(&[512, 4096, block]).expect("some");
                let (offset, len) = self.range(config, rng, origin, unit);
                Op::Discard { origin, offset, len }
            }
            25..30 => {
                let unit = *rng.pick(&[1, 512, 4096, block]).expect("some");
                let (offset, len) = self.range(config, rng, origin, unit);
                Op::Zero { origin, offset, len }
            }
            30..36 if config.family.modes().len() > 1 => {
                let mode = *rng.pick(config.family.modes()).expect("some");
                Op::Mode { origin, mode }
            }
            _ => {
                let unit = *rng.pick(&[1, 512, 512, 4096, 4096, block]).expect("some");
                let (offset, len) = self.range(config, rng, origin, unit);
                if rng.chance(self.writes, 100) {
                    Op::Write { origin, offset, len }
                } else {
                    Op::Read { origin, offset, len }
                }
            }
        }
    }
}
