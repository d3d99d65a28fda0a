//! `tee name=NAME ( ... )` begins a branch, and `merge with=NAME` merges the output of the branch
//! with the main data. The two turn a pipe into a graph.
//!
//! A graph is resolved when it is built: a merge becomes one stage with all the paths that lead to
//! it, from the point where they diverge. So the limitations of its branches are known before
//! anything is read.

use std::sync::Arc;

use crate::meter::StageMeter;
use crate::model::{Merge, kept_as};
use crate::parameters::{Parameters, StageInfo, parse_bytes};
use crate::{
    Access, Declares, Direction, Error, Layer, MergeBy, OnError, Result, Shape, SizeRule,
    Transform, Write,
};

/// The name of the stage.
pub(crate) const NAME: &str = "merge";

pub(super) const STAGES: &[StageInfo] = &[StageInfo {
    name: NAME,
    summary: "joins the main data and named branches, tee name=... ( ... ), into one",
    parameters: &[
        ("with", "names of branches, with commas between them"),
        ("by", "concat: one behind the other (default); turns: some bytes of each in turn"),
        ("unit", "bytes of a turn, 1 to 1M (1)"),
    ],
    make: |p, _| Err(p.error("works in a view only: what it does cannot be undone")),
}];

/// Maximum number of stages of a graph after its branches are expanded: without a limit, nested
/// merges could double the number each time.
const STAGES_MAX: usize = 1024;

/// The parameters of a merge.
pub(crate) struct Told {
    pub(crate) with: Vec<String>,
    pub(crate) by: MergeBy,
}

impl Told {
    pub(crate) fn take(p: &mut Parameters<'_>) -> Result<Self> {
        let with: Vec<String> = p.required("with")?.split(',').map(str::to_owned).collect();
        let unit = p.text("unit");
        let turns = p.choice("by", &[("concat", false), ("turns", true)], false)?;
        if !turns && unit.is_some() {
            return Err(p.error("unit= is for by=turns"));
        }
        let by = if turns {
            let unit = parse_bytes(unit.as_deref().unwrap_or("1"));
            let unit_bytes = unit.filter(|unit| (1..=1 << 20).contains(unit));
            let unit_bytes = unit_bytes.ok_or_else(|| p.error("unit= is a size from 1 to 1M"))?;
            MergeBy::Turns { unit_bytes }
        } else {
            MergeBy::Concatenation
        };
        Ok(Self { with, by })
    }
}

impl Merge {
    /// Creates a merge of `paths` from the point where they diverge, each from the stored file up.
    ///
    /// # Errors
    /// [`Error::Parameter`] if branches of unknown length are to be interleaved, or there are too
    /// many stages.
    pub(crate) fn new(paths: Vec<Vec<Layer>>, by: MergeBy) -> Result<Self> {
        let error = |message: String| Error::Parameter { stage: NAME.to_owned(), message };
        let layers = || paths.iter().flatten();
        let unknown = layers().find(|layer| !layer.declares().size.is_exact());
        if let (MergeBy::Turns { .. }, Some(layer)) = (by, unknown) {
            let name = layer.stage.name();
            return Err(error(format!(
                "a branch can take turns only if its length is known, and that of \"{name}\" is not \
                 before all was read (by=concat would do)"
            )));
        }
        let within = |layer: &Layer| match layer.stage.shape() {
            Shape::Merged(merge) => merge.stages,
            _ => 1,
        };
        let stages = layers().map(within).fold(1, usize::saturating_add);
        if stages > STAGES_MAX {
            return Err(error(format!(
                "more than {STAGES_MAX} stages once branches are laid apart"
            )));
        }
        let declares = together(&paths);
        Ok(Self { paths, by, stages, declares, meter: None })
    }

    /// Creates a merge of paths whose stages are counted.
    pub(crate) fn counted(paths: Vec<Vec<Layer>>, by: MergeBy, meter: Arc<StageMeter>) -> Self {
        // The number of stages is needed only while a graph is built, before its stages are
        // counted.
        let declares = together(&paths);
        Self { paths, by, stages: 1, declares, meter: Some(meter) }
    }

    pub(crate) fn meter(&self) -> Option<Arc<StageMeter>> {
        self.meter.clone()
    }

    /// The paths.
    #[must_use]
    pub fn paths(&self) -> &[Vec<Layer>] {
        &self.paths
    }

    /// The way the paths are merged.
    #[must_use]
    pub fn by(&self) -> MergeBy {
        self.by
    }
}

/// Returns the number of leading layers common to all paths.
pub(crate) fn common(paths: &[&[Layer]]) -> usize {
    let Some((first, rest)) = paths.split_first() else { return 0 };
    let same = |a: &Layer, b: &Layer| Arc::ptr_eq(&a.stage, &b.stage) && a.on_read == b.on_read;
    let all_have = |(at, layer): &(usize, &Layer)| {
        rest.iter().all(|path| path.get(*at).is_some_and(|other| same(layer, other)))
    };
    first.iter().enumerate().take_while(all_have).count()
}

impl Transform for Merge {
    fn name(&self) -> &'static str {
        NAME
    }

    fn kept_as(&self) -> Option<Vec<u8>> {
        kept_as(self.paths.iter().flatten())
    }

    fn acts_outside(&self) -> bool {
        self.paths.iter().flatten().any(|layer| layer.stage.acts_outside())
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Merged(self)
    }

    fn invertible(&self) -> bool {
        false
    }

    fn declares(&self, _: Direction) -> Declares {
        self.declares
    }
}

/// Returns the combined capabilities of paths.
fn together(paths: &[Vec<Layer>]) -> Declares {
    let declares = || paths.iter().flatten().map(Layer::declares);
    let exact = declares().all(|d| d.size.is_exact());
    Declares {
        size: if exact { SizeRule::Indexed } else { SizeRule::Unknown },
        access: declares().map(|d| d.access).min().unwrap_or(Access::Random),
        write: Write::None,
        invertible: false,
        deterministic: paths.iter().flatten().all(Layer::reads_the_same_again),
        guards: declares().all(|d| d.guards),
        on_error: declares()
            .map(|d| d.on_error)
            .find(|e| *e != OnError::Fail)
            .unwrap_or(OnError::Fail),
    }
}
