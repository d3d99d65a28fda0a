//! Stages by name, with typed parameters.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;

use crate::keys::KeyRing;
use crate::stages::{self, LogSink, Program};
use crate::text::{Element, Side, StageText, Text};
use crate::{Direction, Error, Layer, Meters, Network, Result, Transform};

/// The resources that stages use, supplied by the caller: the library itself reads no environment
/// variable and opens no file.
#[derive(Clone, Default)]
pub struct Context {
    /// Keys by name.
    pub keys: KeyRing,
    /// The sinks that `log to=NAME` writes to, by name.
    pub logs: BTreeMap<String, Arc<dyn LogSink>>,
    /// The programs that `exec program=NAME` runs, by name.
    pub programs: BTreeMap<String, Program>,
    /// The modules that `wasm module=NAME` runs, by name.
    #[cfg(feature = "wasm")]
    pub modules: BTreeMap<String, Arc<crate::wasm::Guest>>,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let logs: Vec<&String> = self.logs.keys().collect();
        f.debug_struct("Context").field("keys", &self.keys).field("logs", &logs).finish()
    }
}

/// A function that builds a stage from its parameters.
pub type Make = fn(&mut Parameters<'_>, &Context) -> Result<Arc<dyn Transform>>;

/// A stage that can be named in a network text.
#[derive(Debug, Clone, Copy)]
pub struct StageInfo {
    /// Its name.
    pub name: &'static str,
    /// Its function, in one line.
    pub summary: &'static str,
    /// Its parameters: each a name, and a description with the default.
    pub parameters: &'static [(&'static str, &'static str)],
    /// Its constructor.
    pub make: Make,
}

/// All stages that a network text may name.
#[derive(Debug, Clone)]
pub struct Registry {
    stages: BTreeMap<&'static str, StageInfo>,
    context: Context,
    /// The counters of the networks that this registry builds.
    meters: Option<Arc<Meters>>,
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

    /// Builds the network that a text describes.
    ///
    /// # Errors
    /// [`Error::Text`], [`Error::UnknownStage`], [`Error::Parameter`], [`Error::MissingKey`].
    pub fn parse(&self, text: &str) -> Result<Network> {
        self.network(&text.parse()?)
    }

    /// Builds the network of a parsed text.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn network(&self, text: &Text) -> Result<Network> {
        let mut layers = match text.side {
            Side::View => crate::graph::layers(self, &text.pipe)?,
            Side::Store => self.layers(Side::Store, &text.pipe)?,
        };
        if text.side == Side::Store {
            layers.reverse();
        }
        let meter = self.meters.as_ref().and_then(|m| m.count(&text.to_string(), &mut layers));
        Ok(Network::new(text.clone(), layers, meter))
    }

    fn layers(&self, side: Side, pipe: &[Element]) -> Result<Vec<Layer>> {
        pipe.iter().map(|element| self.layer(side, element)).collect()
    }

    /// Builds the layer of an element that is not part of a named branch or a merge.
    pub(crate) fn layer(&self, side: Side, element: &Element) -> Result<Layer> {
        match element {
            Element::Stage(stage) => {
                let inverse = (side == Side::Store) != stage.inverted;
                let on_read = if inverse { Direction::Inverse } else { Direction::Forward };
                let made = self.stage(stage)?;
                // In a store network only writing needs the inverse, and a network may be
                // read-only.
                if stage.inverted && side == Side::View && !made.invertible() {
                    return Err(crate::model::no_inverse(made.name()));
                }
                Ok(Layer { stage: made, on_read })
            }
            Element::Tee { name: Some(name), .. } => Err(Error::Parameter {
                stage: "tee".to_owned(),
                message: format!("the branch \"{name}\" can be merged in a view only"),
            }),
            // A branch gets the data that passes to its right, in either direction.
            Element::Tee { name: None, branch } => {
                let branch = self.layers(Side::View, branch)?;
                let tee: Arc<dyn Transform> = Arc::new(stages::Tee::new(branch)?);
                Ok(Layer { stage: tee, on_read: Direction::Forward })
            }
        }
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
    /// As [`parse`](Self::parse).
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

/// Parses a number of bytes with an optional unit, `64K` or `2 MiB` (powers of 1024).
pub(crate) fn parse_bytes(text: &str) -> Option<u64> {
    parse_size::Config::new().with_binary().parse_size(text).ok()
}

/// The parameters of a stage under construction: those that it does not take are unknown.
#[derive(Debug)]
pub struct Parameters<'a> {
    info: &'a StageInfo,
    left: Vec<(String, String)>,
}

impl Parameters<'_> {
    /// Returns an error about these parameters.
    #[must_use]
    pub fn error(&self, message: impl Into<String>) -> Error {
        Error::Parameter { stage: self.info.name.to_owned(), message: message.into() }
    }

    /// Takes the text of a parameter.
    pub fn text(&mut self, name: &str) -> Option<String> {
        let at = self.left.iter().position(|(given, _)| given == name)?;
        Some(self.left.remove(at).1)
    }

    /// Takes the text of a required parameter.
    ///
    /// # Errors
    /// [`Error::Parameter`] if it is missing.
    pub fn required(&mut self, name: &str) -> Result<String> {
        self.text(name).ok_or_else(|| self.error(format!("needs {name}=...")))
    }

    /// Takes a number within a range.
    ///
    /// # Errors
    /// [`Error::Parameter`].
    pub fn number<T>(&mut self, name: &str, range: RangeInclusive<T>, default: T) -> Result<T>
    where
        T: FromStr + PartialOrd + fmt::Display,
    {
        let Some(text) = self.text(name) else { return Ok(default) };
        match text.parse::<T>() {
            Ok(number) if range.contains(&number) => Ok(number),
            _ => {
                let (first, last) = (range.start(), range.end());
                Err(self.error(format!("{name}={text} is not a number from {first} to {last}")))
            }
        }
    }

    /// Takes a number of bytes with an optional unit, `64K` or `2 MiB` (powers of 1024).
    ///
    /// # Errors
    /// [`Error::Parameter`].
    pub fn bytes(&mut self, name: &str, range: RangeInclusive<u64>, default: u64) -> Result<u64> {
        let Some(text) = self.text(name) else { return Ok(default) };
        let number = parse_bytes(&text);
        number.filter(|n| range.contains(n)).ok_or_else(|| {
            let (first, last) = (range.start(), range.end());
            self.error(format!("{name}={text} is not a size from {first} to {last} bytes"))
        })
    }

    /// Takes one of several words.
    ///
    /// # Errors
    /// [`Error::Parameter`].
    pub fn choice<T: Copy>(&mut self, name: &str, of: &[(&str, T)], default: T) -> Result<T> {
        let Some(text) = self.text(name) else { return Ok(default) };
        of.iter().find(|(word, _)| *word == text).map(|(_, value)| *value).ok_or_else(|| {
            let words: Vec<&str> = of.iter().map(|(word, _)| *word).collect();
            self.error(format!("{name}={text} is none of {}", words.join(", ")))
        })
    }

    pub(crate) fn all_taken(&self) -> Result<()> {
        let Some((name, _)) = self.left.first() else { return Ok(()) };
        let known: Vec<&str> = self.info.parameters.iter().map(|(known, _)| *known).collect();
        let has = if known.is_empty() {
            "it has none".to_owned()
        } else {
            format!("it has {}", known.join(", "))
        };
        Err(self.error(format!("has no parameter \"{name}\" ({has})")))
    }
}
