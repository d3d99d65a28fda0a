//! A recording under a model: what is searched, by the searcher and by each of its workers alike.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use weft_block::Image;
use weft_vfs::memfs::Snapshot;

use crate::calls::{Action, Call, CallNr, Process};
use crate::image::{EpochImages, Images, sizes};
use crate::model::{Model, Unit, Units};
use crate::states::{Epoch, State, epochs};
use crate::volume::{Built, Volume, VolumeEpoch, VolumeImages};
use crate::{Error, Recording, Result};

/// A change of a recording: what if the program had made other calls to make something durable?
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Edit {
    /// It makes one more.
    Insert {
        /// The call before which it is made.
        before: CallNr,
        /// An `fsync` of a file or a directory.
        action: Action,
    },
    /// It does not make this one.
    Remove(CallNr),
}

impl Edit {
    /// The program does not make this call, nor those that make the same inode durable again before
    /// anything else happens. A write to a file that was opened with `O_DSYNC` is followed by two:
    /// one because of its flags, one that the kernel sends.
    #[must_use]
    pub fn leave_out(calls: &[Call], nr: CallNr) -> Vec<Self> {
        let inode = |call: &Call| match call.action {
            Action::Fsync { node, .. } => Some(node),
            Action::FsyncDir { dir } => Some(dir),
            _ => None,
        };
        let mut from = (0..).map(CallNr).zip(calls).skip(nr.0 as usize);
        let Some((_, first)) = from.next() else { return Vec::new() };
        let again =
            from.take_while(|(_, call)| inode(call).is_some_and(|i| Some(i) == inode(first)));
        std::iter::once(nr).chain(again.map(|(nr, _)| nr)).map(Self::Remove).collect()
    }
}

/// The calls of a recording, and their units under a model.
#[derive(Debug)]
pub struct Subject {
    /// The tree at the beginning.
    pub base: Snapshot,
    /// The calls, as the edits have changed them.
    pub calls: Vec<Call>,
    /// The units of the calls.
    pub units: Units,
    /// The model.
    pub model: Model,
    /// The changes of the recording.
    pub edits: Vec<Edit>,
    /// The volume that the program ran on; states are made of its blocks then.
    pub volume: Option<Volume>,
}

impl Subject {
    /// Derives the units of a recording, as if the program had made other calls.
    #[must_use]
    pub fn new(recording: &Recording, model: Model, edits: &[Edit]) -> Self {
        let mut calls = Vec::with_capacity(recording.calls.len() + edits.len());
        for (nr, call) in (0..).map(CallNr).zip(&recording.calls) {
            let mut call = call.clone();
            for edit in edits {
                match edit {
                    Edit::Insert { before, action } if *before == nr => calls.push(Call {
                        action: action.clone(),
                        process: Process::default(),
                        at_nanos: call.at_nanos,
                        data: bytes::Bytes::new(),
                    }),
                    Edit::Remove(removed) if *removed == nr => call.action = Action::Nothing,
                    _ => {}
                }
            }
            calls.push(call);
        }
        let subject = Self::of_calls(recording.base.clone(), calls, model);
        let volume = recording.volume.clone().filter(|_| model == Model::Volume);
        Self { edits: edits.to_vec(), volume, ..subject }
    }

    /// Derives the units of calls on a tree.
    pub(crate) fn of_calls(base: Snapshot, calls: Vec<Call>, model: Model) -> Self {
        let sizes = sizes(&base);
        let units = Units::new(model, &calls, &|node| sizes.get(&node).copied());
        Self { base, calls, units, model, edits: Vec::new(), volume: None }
    }

    /// The promises that were made before a call.
    #[must_use]
    pub fn promises(&self, epoch: &Epoch) -> Vec<&str> {
        let lines = self.calls.iter().filter_map(|call| call.action.promise());
        lines.take(epoch.promises).collect()
    }

    /// The epochs, in order.
    pub fn epochs(&self) -> impl Iterator<Item = Epoch> + '_ {
        epochs(&self.units, &self.calls)
    }
}

/// The builder of trees: from calls, or from the blocks of a volume.
enum Trees<'a> {
    Calls(Images<'a>),
    Volume(VolumeImages<'a>),
}

/// The trees of one epoch.
enum EpochTrees<'a> {
    Calls(EpochImages<'a>),
    Volume(VolumeEpoch<'a>),
}

impl<'a> Trees<'a> {
    fn new(subject: &'a Subject) -> Self {
        match &subject.volume {
            Some(volume) => Self::Volume(VolumeImages::new(volume, &subject.units)),
            None => Self::Calls(Images::new(&subject.base, &subject.units, &subject.calls)),
        }
    }

    fn epoch(&mut self, epoch: &Epoch) -> Result<EpochTrees<'a>> {
        Ok(match self {
            Self::Calls(images) => EpochTrees::Calls(images.epoch(epoch)?),
            Self::Volume(images) => EpochTrees::Volume(images.epoch(epoch)?),
        })
    }
}

/// The trees of states, built one after the other. States in the order of their epochs are cheap.
/// It holds a copy of all that is durable in the epoch of the last tree, from the first tree on.
pub struct Cursor<'a> {
    subject: &'a Subject,
    epochs: Box<dyn Iterator<Item = Epoch> + 'a>,
    trees: Trees<'a>,
    current: Option<Epoch>,
    /// The trees of the current epoch, once one was built.
    current_trees: Option<EpochTrees<'a>>,
    /// The end of the epoch before the current one.
    former_end: Option<CallNr>,
    former: FormerVolumes,
}

impl std::fmt::Debug for Cursor<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let epoch = self.current.as_ref().map(|epoch| epoch.nr);
        f.debug_struct("Cursor").field("epoch", &epoch).finish_non_exhaustive()
    }
}

impl<'a> Cursor<'a> {
    /// Begins before the first epoch.
    #[must_use]
    pub fn new(subject: &'a Subject) -> Self {
        Self {
            subject,
            epochs: Box::new(subject.epochs()),
            trees: Trees::new(subject),
            current: None,
            current_trees: None,
            former_end: None,
            former: FormerVolumes { last: subject.base.clone(), hashes: HashMap::new() },
        }
    }

    /// Goes back before the first epoch.
    fn restart(&mut self) {
        let former = std::mem::take(&mut self.former);
        *self = Self { former, ..Self::new(self.subject) };
    }

    /// Goes to an epoch.
    ///
    /// # Errors
    /// [`Error::State`] if there is none with this number.
    pub fn epoch(&mut self, nr: u32) -> Result<&Epoch> {
        if self.current.as_ref().is_some_and(|epoch| epoch.nr > nr) {
            self.restart();
        }
        while self.current.as_ref().is_none_or(|epoch| epoch.nr < nr) {
            let epoch = self.epochs.next().ok_or_else(|| Error::State(format!("{nr}:")))?;
            self.former_end = self.current.as_ref().map(|former| former.end);
            self.current = Some(epoch);
            self.current_trees = None;
        }
        self.current.as_ref().ok_or_else(|| Error::State(format!("{nr}:")))
    }

    /// Goes to the epoch of a power cut before a call.
    ///
    /// # Errors
    /// [`Error::State`] if the recording has fewer calls.
    pub fn epoch_at(&mut self, cut: CallNr) -> Result<&Epoch> {
        if self.former_end.is_some_and(|end| end >= cut) {
            self.restart();
        }
        let mut nr = self.current.as_ref().map_or(0, |epoch| epoch.nr);
        while self.epoch(nr)?.end < cut {
            nr += 1;
        }
        self.epoch(nr)
    }

    /// The units, which know their calls.
    pub(crate) fn calls_of_units(&self) -> &'a [Unit] {
        &self.subject.units.units
    }

    /// Builds the tree of a state.
    ///
    /// # Errors
    /// [`Error::State`] if the state is of no epoch; [`Error::Volume`] if it is that of a volume that
    /// weft cannot mount, or that its fsck finds damaged.
    pub fn tree(&mut self, state: &State) -> Result<Snapshot> {
        let Built { tree, damage } = self.built(state)?;
        damage.map_or(Ok(tree), |damage| Err(Error::Volume(damage)))
    }

    /// Builds the tree of a state, or finds its volume damaged.
    pub(crate) fn built(&mut self, state: &State) -> Result<Built> {
        let trees = self.take_trees(state)?;
        let built = match &trees {
            EpochTrees::Calls(images) => images.tree(state).map(Built::whole),
            EpochTrees::Volume(images) => {
                images.image(state).map(|image| self.former.read(images, image))
            }
        };
        self.current_trees = Some(trees);
        built
    }

    /// Finds the hash of a state's tree; builds the tree unless a state with the same volume was built
    /// before.
    pub(crate) fn look(&mut self, state: &State) -> Result<Looked> {
        let trees = self.take_trees(state)?;
        let looked = match &trees {
            EpochTrees::Calls(images) => {
                images.tree(state).map(|tree| Looked::from(Built::whole(tree)))
            }
            EpochTrees::Volume(images) => images.image(state).map(|image| {
                let volume = images.hash(&image, state);
                if let Some(&hash) = self.former.hashes.get(&volume) {
                    return Looked { hash, built: None };
                }
                let looked = Looked::from(self.former.read(images, image));
                self.former.hashes.insert(volume, looked.hash);
                looked
            }),
        };
        self.current_trees = Some(trees);
        looked
    }

    /// Goes to the epoch of a state, and takes its trees, which are to be put back.
    fn take_trees(&mut self, state: &State) -> Result<EpochTrees<'a>> {
        self.epoch(state.epoch)?;
        match (self.current_trees.take(), &self.current) {
            (Some(trees), _) => Ok(trees),
            (None, Some(epoch)) => self.trees.epoch(epoch),
            (None, None) => Err(Error::State(state.to_string())),
        }
    }
}

/// Findings in the volumes of earlier states, which make reading the next volume faster.
#[derive(Default)]
struct FormerVolumes {
    /// The tree that was read last.
    last: Snapshot,
    /// The hash of what was found in each volume, by the hash of the volume.
    hashes: HashMap<u128, u128>,
}

impl FormerVolumes {
    fn read(&mut self, images: &VolumeEpoch<'_>, image: Image) -> Built {
        let built = images.built(image, &self.last);
        if built.damage.is_none() {
            self.last = built.tree.clone();
        }
        built
    }
}

/// The hash of a state's tree, and the tree if it had to be built.
pub(crate) struct Looked {
    pub(crate) hash: u128,
    built: Option<Built>,
}

impl Looked {
    /// The tree of the state; builds it if it was not built before.
    pub(crate) fn into_built(self, cursor: &mut Cursor<'_>, state: &State) -> Result<Built> {
        self.built.map_or_else(|| cursor.built(state), Ok)
    }
}

impl From<Built> for Looked {
    fn from(built: Built) -> Self {
        Self { hash: built.hash(), built: Some(built) }
    }
}
