//! Stages by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::text::StageText;
use crate::{Error, Meters, Result, Transform, stages};

pub use crate::parameters::{Context, Make, Parameters, StageInfo};

/// All stages that a network text may name.
#[derive(Debug, Clone)]
pub struct Registry {
    stages: BTreeMap<&'static str, StageInfo>,
    context: Context,
    /// The counters of the networks that this registry builds.
    pub(crate) meters: Option<Arc<Meters>>,
}

impl Registry {
    /// Returns a registry of the stages that weft supplies.
    #[must_use]
    pub fn new(context: Context) -> Self {
        let stages = stages::SUPPLIED.iter().flat_map(|list| list.iter());
        let stages = stages.map(|info| (info.name, *info)).collect();
        Self { stages, context, meters: None }
    }

    /// Counts the activity of the networks that are built from now on.
    #[must_use]
    pub fn counting(self, meters: Arc<Meters>) -> Self {
        Self { meters: Some(meters), ..self }
    }

    /// Adds a stage, or replaces the one with the same name.
    pub fn add(&mut self, info: StageInfo) {
        self.stages.insert(info.name, info);
    }

    /// All stages, by name.
    pub fn stages(&self) -> impl Iterator<Item = &StageInfo> {
        self.stages.values()
    }

    /// The parameters of a stage.
    pub(crate) fn parameters(&self, text: &StageText) -> Result<Parameters<'_>> {
        let info = self.stages.get(text.name.as_str()).ok_or_else(|| Error::UnknownStage {
            name: text.name.clone(),
            nearest: self.nearest(&text.name),
        })?;
        Ok(Parameters { info, left: text.parameters.clone() })
    }

    /// Builds one stage.
    ///
    /// # Errors
    /// [`Error::UnknownStage`], [`Error::Parameter`], [`Error::MissingKey`].
    pub fn stage(&self, text: &StageText) -> Result<Arc<dyn Transform>> {
        let mut parameters = self.parameters(text)?;
        let stage = (parameters.info.make)(&mut parameters, &self.context)?;
        parameters.all_taken()?;
        Ok(stage)
    }

    /// Returns the known stage whose name is closest, at an edit distance of at most two.
    fn nearest(&self, name: &str) -> Option<String> {
        let distances = self.stages.keys().map(|known| (strsim::levenshtein(known, name), known));
        let (distance, known) = distances.min()?;
        (distance <= 2).then(|| (*known).to_owned())
    }
}
