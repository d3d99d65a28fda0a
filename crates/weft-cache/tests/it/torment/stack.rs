//! The cache, driven by hand: no threads, and time passes when the script says so.

use super::script::Config;
use super::subject::Subject;
use super::world::{Disk, World};
use std::sync::Arc;
use weft_block::{BlockDevice, MemoryDevice, Rng};
use weft_cache::admission::{AdmissionOptions, SequentialBypass};
use weft_cache::{
    AttachOptions, Cache, CachedDevice, CreateOptions, Error, Mode, OpenOptions, OriginId, check,
};

pub struct Stack {
    cache: Arc<Cache>,
    devices: Vec<Option<Arc<CachedDevice>>>,
    modes: Vec<Mode>,
    world: Arc<World>,
    config: Config,
    now_ms: u64,
}

fn text(e: impl std::error::Error) -> String {
    e.to_string()
}

fn options(config: &Config) -> OpenOptions {
    let mut rng = Rng::stream(config.seed, 3);
    let data_bytes = config.blocks * u64::from(config.block_bytes);
    OpenOptions {
        background: false,
        persistence: config.persistence(),
        lazy_load: rng.chance(1, 2),
        commit_interval_ms: *rng.pick(&[50, 1000]).expect("some"),
        commit_records: *rng.pick(&[4, 64, 4096]).expect("some"),
        dirty_limit_bytes: Some(data_bytes * u64::from(config.dirty_limit_percent) / 100),
        max_dirty_age_ms: *rng.pick(&[100, 30_000]).expect("some"),
        intent_idle_ms: *rng.pick(&[100, 5000]).expect("some"),
        fill_queue_bytes: *rng.pick(&[0, 32 << 10, 32 << 20]).expect("some"),
        verify_always: rng.chance(1, 4),
        admission: admission(&mut rng),
        ..OpenOptions::default()
    }
}

fn admission(rng: &mut Rng) -> AdmissionOptions {
    AdmissionOptions {
        sequential: *rng.pick(&SequentialBypass::ALL).expect("some"),
        sequential_bytes: *rng.pick(&[8 << 10, 4 << 20]).expect("some"),
        by_reuse: rng.chance(1, 4),
        flash_bytes_per_day: *rng.pick(&[None, None, None, Some(0), Some(1 << 30)]).expect("some"),
    }
}

impl Stack {
    fn attach(&mut self, origin: usize) -> Result<(), String> {
        let id = OriginId {
            len_bytes: self.config.origin_bytes[origin],
            uuid: Some([origin as u8 + 1; 16]),
            label: format!("origin {origin}"),
            generation: 0,
        };
        let options = AttachOptions {
            mode: self.modes[origin],
            add: true,
            samples: self.config.samples(),
            ..AttachOptions::default()
        };
        let device = self.world.device(origin + 1);
        let attached = self.cache.attach(device, &id, &options);
        self.devices[origin] = Some(attached.map_err(|e| format!("attaching {origin}: {e}"))?);
        Ok(())
    }

    fn cached(&self, origin: usize) -> &Arc<CachedDevice> {
        self.devices[origin].as_ref().expect("attached")
    }
}

impl Subject for Stack {
    fn format(config: &Config) -> Result<Vec<Disk>, String> {
        let create = CreateOptions {
            block_bytes: config.block_bytes,
            policy: config.policy,
            log_bytes: Some(config.log_bytes),
            uuid: Some([9; 16]),
            ..CreateOptions::default()
        };
        let mut disks = vec![Disk::new(config.cache_bytes(), config.discard)];
        disks.extend(config.origin_bytes.iter().map(|len| Disk::new(*len, config.discard)));
        let world = World::new(disks);
        Cache::create(&*world.device(0), &create).map_err(text)?;
        world.device(0).flush().map_err(text)?;
        Ok(world.at(world.events()))
    }

    fn open(config: &Config, world: &Arc<World>) -> Result<Self, String> {
        let cache = Cache::open(world.device(0), options(config)).map_err(text)?;
        let origins = config.origin_bytes.len();
        let mut stack = Self {
            cache,
            devices: vec![None; origins],
            modes: vec![config.first_mode; origins],
            world: Arc::clone(world),
            config: config.clone(),
            now_ms: 0,
        };
        for origin in 0..origins {
            stack.attach(origin)?;
        }
        Ok(stack)
    }

    fn inspect(_config: &Config, disks: &[Disk]) -> Result<(), String> {
        let device = MemoryDevice::from_image(disks[0].visible());
        let report = check(&device, false).map_err(text)?;
        // A copy of the superblock or a clean block may have been under way.
        let bad = report.needs_repair();
        if bad { Err(format!("{:?}", report.findings)) } else { Ok(()) }
    }

    fn device(&self, origin: usize) -> &dyn BlockDevice {
        &**self.cached(origin)
    }

    fn invariants(&self) {
        #[cfg(debug_assertions)]
        self.cache.check_invariants();
    }

    fn set_mode(&mut self, origin: usize, mode: Mode) -> Result<(), String> {
        self.modes[origin] = mode;
        self.cached(origin).set_mode(mode).map_err(text)
    }

    fn tick(&mut self, ms: u64) -> Result<(), String> {
        self.now_ms += ms;
        self.cache.tick(self.now_ms).map_err(text)
    }

    fn checkpoint(&mut self) -> Result<(), String> {
        self.cache.checkpoint_always().map_err(text)
    }

    fn write_back(&mut self, origin: usize) -> Result<(), String> {
        self.cached(origin).write_back_all().map_err(text)
    }

    fn resize(&mut self, percent: u64) -> Result<(), String> {
        let len_bytes = self.config.cache_bytes() * percent / 100 / 4096 * 4096;
        match self.cache.resize(len_bytes) {
            // Too small, too little of a change, or nowhere to keep what must stay.
            Ok(()) | Err(Error::Invalid(_) | Error::ReadOnly) => Ok(()),
            Err(e) => Err(text(e)),
        }
    }

    fn reattach(&mut self, origin: usize) -> Result<(), String> {
        let device = self.devices[origin].take().expect("attached");
        if let Err(e) = self.cache.detach(&device) {
            self.devices[origin] = Some(device);
            return Err(text(e));
        }
        drop(device);
        self.world.reopen(origin + 1);
        self.attach(origin)
    }

    fn detach_all(&mut self) -> Result<(), String> {
        for origin in 0..self.devices.len() {
            let device = self.devices[origin].take().expect("attached");
            self.cache.detach(&device).map_err(text)?;
        }
        Ok(())
    }

    fn close(mut self) -> Result<(), String> {
        self.devices.clear();
        self.cache.close().map_err(text)
    }
}
