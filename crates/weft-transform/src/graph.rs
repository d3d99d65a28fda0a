//! Building of networks from their texts.
//!
//! The tees of a view may have names, which make its pipe a graph. The pipe is walked from left to right. The path of a position is the list of layers from the
//! stored file up to it; a branch keeps the path of its end. A merge finds the point where the
//! paths that lead to it diverge, and makes one layer of their parts from there on. Their common
//! part stays a single path.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::model::{Merge, no_inverse};
use crate::registry::Registry;
use crate::stages::Tee;
use crate::stages::merge::{self, Told};
use crate::text::{Element, Side, StageText, Text};
use crate::{Direction, Error, Layer, Network, Result, Transform};

impl Registry {
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
            Side::View => layers(self, &text.pipe)?,
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
    fn layer(&self, side: Side, element: &Element) -> Result<Layer> {
        match element {
            Element::Stage(stage) => {
                let inverse = (side == Side::Store) != stage.inverted;
                let on_read = if inverse { Direction::Inverse } else { Direction::Forward };
                let made = self.stage(stage)?;
                // In a store network only writing needs the inverse, and a network may be
                // read-only.
                if stage.inverted && side == Side::View && !made.invertible() {
                    return Err(no_inverse(made.name()));
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
                let tee: Arc<dyn Transform> = Arc::new(Tee::new(branch)?);
                Ok(Layer { stage: tee, on_read: Direction::Forward })
            }
        }
    }
}

/// Returns the layers of the pipe of a view.
fn layers(registry: &Registry, pipe: &[Element]) -> Result<Vec<Layer>> {
    let mut graph = Graph { registry, names: BTreeSet::new(), branches: BTreeMap::new() };
    graph.collect(pipe)?;
    let path = graph.walk(pipe, Vec::new())?;
    match graph.branches.iter().find(|(_, branch)| !branch.merged) {
        None => Ok(path),
        Some((name, _)) => Err(wrong("tee", format!("the branch \"{name}\" is merged nowhere"))),
    }
}

fn wrong(stage: &str, message: String) -> Error {
    Error::Parameter { stage: stage.to_owned(), message }
}

struct Graph<'a> {
    registry: &'a Registry,
    /// All branches that the text names.
    names: BTreeSet<&'a str>,
    /// The branches that have been walked.
    branches: BTreeMap<&'a str, Branch>,
}

struct Branch {
    /// The layers from the stored file to the end of the branch.
    path: Vec<Layer>,
    merged: bool,
}

impl<'a> Graph<'a> {
    fn collect(&mut self, pipe: &'a [Element]) -> Result<()> {
        for element in pipe {
            let Element::Tee { name, branch } = element else { continue };
            if let Some(name) = name
                && !self.names.insert(name)
            {
                return Err(wrong("tee", format!("two branches are named \"{name}\"")));
            }
            self.collect(branch)?;
        }
        Ok(())
    }

    /// Returns `path` extended by the layers of `pipe`, which begins where `path` ends.
    fn walk(&mut self, pipe: &'a [Element], mut path: Vec<Layer>) -> Result<Vec<Layer>> {
        for element in pipe {
            match element {
                Element::Stage(stage) if stage.name == merge::NAME => {
                    path = self.merge(stage, &path)?;
                }
                Element::Tee { name: Some(name), branch } => {
                    let path = self.walk(branch, path.clone())?;
                    self.branches.insert(name, Branch { path, merged: false });
                }
                element => path.push(self.registry.layer(Side::View, element)?),
            }
        }
        Ok(path)
    }

    fn merge(&mut self, stage: &StageText, path: &[Layer]) -> Result<Vec<Layer>> {
        let mut parameters = self.registry.parameters(stage)?;
        let told = Told::take(&mut parameters)?;
        parameters.all_taken()?;
        if stage.inverted {
            return Err(no_inverse(merge::NAME));
        }
        for name in &told.with {
            if let Some(branch) = self.branches.get_mut(name.as_str()) {
                branch.merged = true;
                continue;
            }
            return Err(wrong(
                merge::NAME,
                if self.names.contains(name.as_str()) {
                    format!("the graph has a cycle: \"{name}\" takes what this merge makes")
                } else {
                    format!("no branch is named \"{name}\"")
                },
            ));
        }
        let branches = told.with.iter().filter_map(|name| self.branches.get(name.as_str()));
        let mut paths: Vec<&[Layer]> = vec![path];
        paths.extend(branches.map(|branch| &branch.path[..]));
        let common = merge::common(&paths);
        let parted = paths.iter().map(|path| path[common..].to_vec()).collect();
        let stage = Arc::new(Merge::new(parted, told.by)?);
        let mut path = path[..common].to_vec();
        path.push(Layer { stage, on_read: Direction::Forward });
        Ok(path)
    }
}
