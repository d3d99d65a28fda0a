//! The judgement of one crash image: its consistency, the promises, its repair, and its use.

use crate::e2fsck::{E2fsck, find_e2fsck};
use crate::model::Body;
use crate::observe::{Identities, Observed, observe};
use crate::record::Recording;
use crate::states::CrashState;
use crate::target::{Findings, Severity, Target};
use crate::{Error, Result};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use weft_block::{BlockDevice, Image, MemoryDevice};
use weft_vfs::Walker;

/// The kind of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// The file system failed an operation, before any crash.
    Operation,
    /// A checker finds a defect that must never occur.
    Damage,
    /// The volume cannot be mounted.
    Mount,
    /// A durable item is missing, or an item exists that never did.
    Promise,
    /// Repair fails or leaves defects.
    Repair,
    /// The background repair of a mount does harm.
    Healing,
    /// Using the volume after the crash, without a repair, damages it.
    Aftermath,
    /// weft's checker and e2fsck disagree.
    Disagreement,
    /// The code under test panicked.
    Panic,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Operation => "operation failed",
            Self::Damage => "damage",
            Self::Mount => "mount failed",
            Self::Promise => "broken promise",
            Self::Repair => "repair failed",
            Self::Healing => "harm by the repair in the background",
            Self::Aftermath => "damage by use after the crash",
            Self::Disagreement => "the checkers disagree",
            Self::Panic => "panic",
        })
    }
}

/// A defect of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Its kind.
    pub kind: Kind,
    /// A description.
    pub what: String,
}

/// The depth of an image's examination. The volume's own checker and the walk always run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Depth {
    /// Whether e2fsck checks it as well (if the target is ext2 and e2fsck is installed).
    pub e2fsck: bool,
    /// Whether it is repaired, and must then be clean.
    pub repair: bool,
    /// Whether it is used without a repair, which must not damage it.
    pub aftermath: bool,
}

impl Depth {
    /// All examinations.
    pub const FULL: Self = Self { e2fsck: true, repair: true, aftermath: true };
}

/// Numbers of examinations, for the report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of runs of e2fsck.
    pub e2fsck: u64,
    /// Number of attempted repairs.
    pub repairs: u64,
    /// Number of images that the background repair of a mount made clean.
    pub healed: u64,
    /// Number of images used after the crash.
    pub aftermaths: u64,
    /// Number of images with leaks, which soft updates allow.
    pub leaky: u64,
}

/// Judges images of one target.
pub struct Judge<'a> {
    target: &'a dyn Target,
    e2fsck: Option<E2fsck>,
    /// Numbers of examinations so far.
    pub counts: Counts,
}

impl fmt::Debug for Judge<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Judge").field("counts", &self.counts).finish_non_exhaustive()
    }
}

fn device(image: &Image) -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::from_image(image.clone()))
}

/// The image after the file system has recovered it, and the observed tree.
struct Walked {
    /// After recovery and a clean unmount.
    after: Image,
    observed: Observed,
}

impl<'a> Judge<'a> {
    /// Creates a judge for images of `target`.
    ///
    /// # Errors
    /// If there is no room for e2fsck's image.
    pub fn new(target: &'a dyn Target) -> Result<Self> {
        let program = if target.is_ext2() { find_e2fsck() } else { None };
        let e2fsck = program.map(E2fsck::new).transpose()?;
        Ok(Self { target, e2fsck, counts: Counts::default() })
    }

    /// Returns the faults of an image, except broken promises, and its observed tree.
    ///
    /// # Errors
    /// If a tool cannot be run.
    pub fn image(
        &mut self,
        image: &Image,
        recording: &Recording,
        depth: Depth,
    ) -> Result<(Vec<Fault>, Observed)> {
        let mut faults = Vec::new();
        let ids = &recording.ids;
        let walked = self.walk(image, ids, &mut faults);
        let clean = self.target.promises().clean_after_recovery;
        let renames = recording.renames_dirs();
        if clean {
            if let Some(walked) = &walked {
                let found = self.check(&walked.after, renames, depth, &mut faults)?;
                demand(&found, Severity::Clean, Kind::Damage, "after recovery", &mut faults);
            }
            if depth.e2fsck {
                self.foreign_recovery(image, ids, walked.as_ref(), &mut faults)?;
            }
        } else {
            let found = self.check(image, renames, depth, &mut faults)?;
            self.counts.leaky +=
                u64::from(matches!(found.severity, Severity::SecondNames | Severity::Leaks));
            demand(&found, Severity::Leaks, Kind::Damage, "after the crash", &mut faults);
        }
        if depth.repair && faults.is_empty() {
            self.repair(image, ids, walked.as_ref().map(|w| &w.observed), &mut faults)?;
        }
        if depth.repair && faults.is_empty() {
            self.heal(image, renames, ids, walked.as_ref().map(|w| &w.observed), &mut faults)?;
        }
        if depth.aftermath && faults.is_empty() {
            self.aftermath(image, renames, &mut faults)?;
        }
        Ok((faults, walked.map(|w| w.observed).unwrap_or_default()))
    }

    /// Returns the promises that the observed tree breaks.
    #[must_use]
    pub fn promises(
        &self,
        observed: &Observed,
        recording: &Recording,
        state: &CrashState,
    ) -> Vec<Fault> {
        let progress = recording.progress_at(state.at);
        let wrong = recording.history.judge(observed, progress, self.target.promises());
        wrong.into_iter().map(|what| Fault { kind: Kind::Promise, what }).collect()
    }

    /// Runs code under test; a panic is a fault.
    fn guarded<T>(faults: &mut Vec<Fault>, run: impl FnOnce() -> Result<T>) -> Option<Result<T>> {
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(result) => Some(result),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
                let what = text.unwrap_or("a panic without words").to_owned();
                faults.push(Fault { kind: Kind::Panic, what });
                None
            }
        }
    }

    fn walk(&self, image: &Image, ids: &Identities, faults: &mut Vec<Fault>) -> Option<Walked> {
        let device = device(image);
        let result = Self::guarded(faults, || {
            let fs = self.target.mount(Arc::clone(&device) as Arc<dyn BlockDevice>)?.fs;
            let observed = observe(fs.as_ref(), ids)?;
            fs.unmount().map_err(Error::fs("unmounting"))?;
            Ok(observed)
        })?;
        match result {
            Ok(observed) => Some(Walked { after: device.snapshot(), observed }),
            Err(e) => {
                faults.push(Fault { kind: Kind::Mount, what: e.to_string() });
                None
            }
        }
    }

    /// Runs both checkers, which must agree on whether there is damage.
    fn check(
        &mut self,
        image: &Image,
        renames_dirs: bool,
        depth: Depth,
        faults: &mut Vec<Fault>,
    ) -> Result<Findings> {
        let own = match Self::guarded(faults, || self.target.check(device(image), renames_dirs)) {
            Some(Ok(found)) => found,
            Some(Err(e)) => {
                let damage = vec![format!("check: {e}")];
                Some(Findings { severity: Severity::Damage, damage, leaks: Vec::new() })
            }
            None => None,
        };
        let unknown = own.clone().unwrap_or(Findings::CLEAN);
        let Some(e2fsck) = self.e2fsck.as_mut().filter(|_| depth.e2fsck) else {
            return Ok(unknown);
        };
        self.counts.e2fsck += 1;
        let theirs = e2fsck.check(image, renames_dirs)?;
        let damage = |f: &Findings| f.severity == Severity::Damage;
        let Some(own) = own else { return Ok(theirs) };
        if damage(&own) != damage(&theirs) {
            faults.push(Fault {
                kind: Kind::Disagreement,
                what: format!("weft finds {}, e2fsck {}", say(&own), say(&theirs)),
            });
        }
        Ok(if theirs.severity > own.severity { theirs } else { own })
    }

    /// Checks that a replay of the journal by e2fsck leaves a clean volume with the same content.
    fn foreign_recovery(
        &mut self,
        image: &Image,
        ids: &Identities,
        walked: Option<&Walked>,
        faults: &mut Vec<Fault>,
    ) -> Result<()> {
        let Some(e2fsck) = &mut self.e2fsck else { return Ok(()) };
        self.counts.e2fsck += 2;
        let replayed = match e2fsck.replay_journal(image) {
            Ok(replayed) => replayed,
            Err(Error::Target(what)) => {
                faults.push(Fault { kind: Kind::Damage, what });
                return Ok(());
            }
            Err(e) => return Err(e),
        };
        let found = e2fsck.check(&replayed, false)?;
        demand(&found, Severity::Clean, Kind::Damage, "after e2fsck's recovery", faults);
        if let (Some(ours), Some(theirs)) = (walked, self.walk(&replayed, ids, faults))
            && ours.observed != theirs.observed
        {
            let what = "e2fsck's recovery leaves another tree than weft's".into();
            faults.push(Fault { kind: Kind::Disagreement, what });
        }
        Ok(())
    }

    fn repair(
        &mut self,
        image: &Image,
        ids: &Identities,
        before: Option<&Observed>,
        faults: &mut Vec<Fault>,
    ) -> Result<()> {
        self.counts.repairs += 1;
        let device = device(image);
        let repaired = Self::guarded(faults, || {
            self.target.repair(Arc::clone(&device) as Arc<dyn BlockDevice>)
        });
        match repaired {
            Some(Ok(true)) => {}
            Some(Ok(false)) => {
                self.counts.repairs -= 1;
                return Ok(());
            }
            Some(Err(e)) => {
                faults.push(Fault { kind: Kind::Repair, what: e.to_string() });
                return Ok(());
            }
            None => return Ok(()),
        }
        let image = device.snapshot();
        let found = self.check(&image, false, Depth::FULL, faults)?;
        demand(&found, Severity::Clean, Kind::Repair, "after repair", faults);
        self.keeps(&image, ids, before, Kind::Repair, faults);
        Ok(())
    }

    /// Runs the background repair of a mount, which may leave directories with two names and nothing
    /// else.
    fn heal(
        &mut self,
        image: &Image,
        renames_dirs: bool,
        ids: &Identities,
        before: Option<&Observed>,
        faults: &mut Vec<Fault>,
    ) -> Result<()> {
        let device = device(image);
        let healed =
            Self::guarded(faults, || self.target.heal(Arc::clone(&device) as Arc<dyn BlockDevice>));
        match healed {
            Some(Ok(true)) => {}
            Some(Ok(false)) | None => return Ok(()),
            Some(Err(e)) => {
                faults.push(Fault { kind: Kind::Healing, what: e.to_string() });
                return Ok(());
            }
        }
        let image = device.snapshot();
        let found = self.check(&image, renames_dirs, Depth::FULL, faults)?;
        self.counts.healed += u64::from(found.severity == Severity::Clean);
        demand(&found, Severity::SecondNames, Kind::Healing, "after healing", faults);
        self.keeps(&image, ids, before, Kind::Healing, faults);
        Ok(())
    }

    /// Checks that a change of a volume after a crash has kept the observed tree.
    fn keeps(
        &self,
        image: &Image,
        ids: &Identities,
        before: Option<&Observed>,
        kind: Kind,
        faults: &mut Vec<Fault>,
    ) {
        let (Some(before), Some(after)) = (before, self.walk(image, ids, faults)) else {
            return;
        };
        for (id, seen) in &before.nodes {
            let kept = match (&seen.body, after.observed.nodes.get(id).map(|n| &n.body)) {
                // A size that lags behind the blocks may be extended to cover them, as e2fsck does;
                // the former content may not change.
                (Body::File(old), Some(Body::File(new))) => new.starts_with(old),
                (_, now) => now.is_some(),
            };
            if !kept {
                faults.push(Fault { kind, what: format!("it removes or changes node {}", id.0) });
            }
        }
    }

    /// Mounts without a repair, allocates, frees and renames, and unmounts.
    fn aftermath(
        &mut self,
        image: &Image,
        renames_dirs: bool,
        faults: &mut Vec<Fault>,
    ) -> Result<()> {
        self.counts.aftermaths += 1;
        let device = device(image);
        let used = Self::guarded(faults, || {
            let fs = self.target.mount(Arc::clone(&device) as Arc<dyn BlockDevice>)?.fs;
            use_volume(fs.as_ref()).map_err(Error::fs("using the volume after the crash"))?;
            fs.unmount().map_err(Error::fs("unmounting"))
        });
        match used {
            Some(Ok(())) => {}
            Some(Err(e)) => {
                faults.push(Fault { kind: Kind::Aftermath, what: e.to_string() });
                return Ok(());
            }
            None => return Ok(()),
        }
        let found = self.check(&device.snapshot(), renames_dirs, Depth::FULL, faults)?;
        let clean = self.target.promises().clean_after_recovery;
        let worst = if clean { Severity::Clean } else { Severity::Leaks };
        demand(&found, worst, Kind::Aftermath, "after use", faults);
        Ok(())
    }
}

/// Uses a volume as after a crash: creates files and directories, then removes all old ones.
fn use_volume(fs: &dyn weft_vfs::FileSystem) -> weft_vfs::Result<()> {
    let walker = Walker::new(fs);
    let old = walker.root()?.list()?;
    for i in 0..3 {
        walker.mkdir(format!("/after-{i}").as_bytes(), 0o755)?;
        let path = format!("/after-{i}/file");
        walker.write_file(path.as_bytes(), &vec![i + 1; 20_000], 0o644)?;
    }
    for name in old.iter().filter(|l| l.name != b"lost+found") {
        walker.remove_tree(&[b"/", &name.name[..]].concat(), &mut |_| {})?;
    }
    walker.remove_tree(b"/after-1", &mut |_| {})?;
    for i in [0, 2] {
        let content = walker.read_file(format!("/after-{i}/file").as_bytes())?;
        if content != vec![i + 1; 20_000] {
            return Err(weft_vfs::Error::Corrupt("a new file reads back changed".into()));
        }
    }
    Ok(())
}

fn say(found: &Findings) -> String {
    match (&found.severity, found.damage.first()) {
        (Severity::Damage, Some(first)) => format!("damage ({first})"),
        (severity, _) => format!("{severity:?}").to_lowercase(),
    }
}

fn demand(found: &Findings, worst: Severity, kind: Kind, when: &str, faults: &mut Vec<Fault>) {
    if found.severity <= worst {
        return;
    }
    if found.damage.is_empty() {
        let some: Vec<&str> = found.leaks.iter().take(8).map(String::as_str).collect();
        let what = format!("{when}: leaks, where there must be none: {}", some.join("; "));
        faults.push(Fault { kind, what });
    }
    faults.extend(found.damage.iter().map(|d| Fault { kind, what: format!("{when}: {d}") }));
}
