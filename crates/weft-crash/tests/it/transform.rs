//! Power cuts during commits of files that carry networks, on ext2 and ext3: a file is old or new.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weft::transform::{Context, Key, KeyRing, Registry, Rules, TransformFs, TransformOptions};
use weft_block::{BlockDevice, MemoryDevice, Recorder, Rng};
use weft_crash::states::epochs;
use weft_crash::{Bounds, Ext2Target, Target};
use weft_patch::{JournalMode, Policy};
use weft_vfs::{Caller, Error, FileSystem, Node, SetAttr, Walker};

const RULES: &[u8] =
    b"*.log zstd level=1 frame=4K\nvault/ aead key=k\nboth/ lz4 frame=4K | aead key=k\n";

/// A file of each network.
const FILES: [&[u8]; 3] = [b"/x.log", b"/vault/x", b"/both/x"];

fn over(below: Arc<dyn FileSystem>) -> TransformFs {
    let mut keys = KeyRing::default();
    keys.add("k", Key::new([7; 32]));
    let registry = Registry::new(Context { keys, ..Context::default() });
    let options = TransformOptions {
        rules: Rules::parse(RULES).expect("rules"),
        ..TransformOptions::default()
    };
    TransformFs::new(below, registry, options).expect("a root")
}

fn noise(rng: &mut Rng, len: usize) -> Vec<u8> {
    // A mixture, so that frames come out long and short.
    (0..len).map(|at| if at % 3 == 0 { rng.next_u64() as u8 } else { b'a' }).collect()
}

/// What one file was, when its commits began and ended (in events of the device).
struct History {
    path: &'static [u8],
    /// Events before the commit began, events when it had returned, the content.
    versions: Vec<(usize, usize, Vec<u8>)>,
}

/// One random change of a file, and of what it must be.
fn change(
    fs: &TransformFs,
    node: &Node<'_>,
    model: &mut Vec<u8>,
    rng: &mut Rng,
) -> Result<(), Error> {
    let at = rng.below(model.len() as u64 + 3000);
    if rng.below(5) == 0 {
        let set = SetAttr { size_bytes: Some(at), ..SetAttr::default() };
        fs.setattr(&Caller::ROOT, node.ino(), &set)?;
        model.resize(at as usize, 0);
        return Ok(());
    }
    let len = 1 + rng.below(9000) as usize;
    let data = noise(rng, len);
    node.write_at(&Caller::ROOT, at, &data)?;
    let end = at as usize + data.len();
    model.resize(model.len().max(end), 0);
    model[at as usize..end].copy_from_slice(&data);
    Ok(())
}

/// Commits under a recorder, and every kind of image that a power cut leaves; how many there were.
fn cut(policy: Policy, seed: u64, commits: usize, bounds: Bounds) -> usize {
    let target = Ext2Target::new(policy).len_blocks(4096);
    let what = || format!("{}, seed {seed}", target.options());
    let mut rng = Rng::new(seed);
    let device = Arc::new(MemoryDevice::from_image(target.fresh().expect("a volume")));
    let mut histories: Vec<History> = Vec::new();
    {
        let fs = over(target.mount(device.clone()).expect("mounts").fs);
        let walker = Walker::new(&fs);
        for directory in [&b"/vault"[..], b"/both"] {
            walker.mkdir(directory, 0o755).expect("a directory");
        }
        for path in FILES {
            let first = noise(&mut rng, 10_000);
            walker.write_file(path, &first, 0o644).expect("a file");
            histories.push(History { path, versions: vec![(0, 0, first)] });
        }
        fs.unmount().expect("unmounts");
    }
    let base = device.snapshot();
    let recorder = Arc::new(Recorder::new(MemoryDevice::from_image(base.clone())));
    {
        let device: Arc<dyn BlockDevice> = recorder.clone();
        let fs = over(target.mount(device).expect("mounts").fs);
        for _ in 0..commits {
            let file = rng.below(FILES.len() as u64) as usize;
            let history = &mut histories[file];
            let mut model = history.versions.last().expect("the first").2.clone();
            // Held, as the last reference commits when it goes.
            let node = Walker::new(&fs).resolve(history.path).expect("there");
            for _ in 0..=rng.below(3) {
                change(&fs, &node, &mut model, &mut rng).expect("a change");
            }
            let before = recorder.event_count();
            fs.fsync(&Caller::ROOT, node.ino(), false).expect("commits");
            history.versions.push((before, recorder.event_count(), model));
        }
        // As a power cut would: nothing more is written.
    }
    let events = recorder.events();
    let mut images = 0;
    let epochs = epochs(&base, &events, Target::block_bytes(&target)).expect("epochs");
    for (number, epoch) in epochs.iter().enumerate() {
        for state in epoch.states(number, bounds, &mut rng) {
            images += 1;
            let image = epoch.image(&state).expect("an image");
            let device = Arc::new(MemoryDevice::from_image(image));
            let below = target.mount(device).unwrap_or_else(|e| panic!("{}: {state}: {e}", what()));
            let fs = over(below.fs);
            for History { path, versions } in &histories {
                let shown = String::from_utf8_lossy(path);
                let content = Walker::new(&fs)
                    .read_file(path)
                    .unwrap_or_else(|e| panic!("{}: {state}: {shown}: {e}", what()));
                // What was committed before the flush that began this epoch must be there.
                let old = versions
                    .iter()
                    .rposition(|(_, after, _)| *after <= epoch.first_event)
                    .unwrap_or(0);
                let may_be =
                    versions[old..].iter().take_while(|(before, _, _)| *before <= state.at);
                let fits = may_be.clone().any(|(_, _, version)| *version == content);
                assert!(fits, "{}: {state}: {shown} is neither old nor new", what());
            }
        }
    }
    images
}

const QUICK: Bounds = Bounds { all_subsets_of: 3, samples: 6, tears: 1, states: 24 };

#[test]
fn files_with_networks_are_old_or_new() {
    let mut images = 0;
    for (seed, policy) in
        [(1, Policy::Soft), (2, Policy::Soft), (3, Policy::Journal(JournalMode::Ordered))]
    {
        images += cut(policy, seed, 6, QUICK);
    }
    assert!(images > 300, "{images} images are not many");
    println!("{images} images");
}

/// A sixteenth of `WEFT_LONG_SECONDS`.
#[test]
#[ignore = "a campaign: make test-long"]
fn long_files_with_networks_are_old_or_new() {
    let seconds = std::env::var("WEFT_LONG_SECONDS").ok().and_then(|s| s.parse().ok());
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(60) / 16);
    let (mut seed, mut images) = (1000, 0);
    while Instant::now() < end {
        let policies = [Policy::Soft, Policy::Soft, Policy::Journal(JournalMode::Ordered)];
        let bounds = Bounds { samples: 20, tears: 3, states: 120, ..QUICK };
        images += cut(policies[seed as usize % 3], seed, 12, bounds);
        seed += 1;
    }
    println!("{images} images of {} workloads", seed - 1000);
}
