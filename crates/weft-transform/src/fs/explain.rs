//! Why a file is as it is: which rule applied, and what each stage declares.

use serde::{Deserialize, Serialize};
use weft_vfs::{Error, FileKind, Ino, Result};

use super::base::locked;
use super::file::Attached;
use super::{LINK, NETWORK_ATTRIBUTE, TransformFs};
use crate::{Layer, Network};

/// Where it is said which network a file carries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Source {
    /// Nowhere.
    Nothing,
    /// In its extended attribute.
    Attribute,
    /// In a rules file of the tree.
    RulesFile {
        /// The directory that it is in, relative to the root.
        directory: String,
        /// The line, from 1 on.
        line: usize,
    },
    /// In the rules of the mount.
    MountRules {
        /// The line, from 1 on.
        line: usize,
    },
    /// In its name: it is a view.
    Name,
    /// In its content: it is a link.
    Link,
}

/// All that is known of what a file carries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The path in the tree.
    pub path: String,
    /// The canonical text of the network, if it carries one that can be used.
    pub network: Option<String>,
    /// Where that is said.
    pub source: Source,
    /// Why it cannot be used.
    pub error: Option<String>,
    /// The path of the base of a view or link.
    pub base: Option<String>,
    /// Whether the length is known before everything was read.
    pub exact_size: bool,
    /// Whether any block can be read by itself.
    pub random_read: bool,
    /// `none`, `rewrite` (the stored file is written anew) or `in-place`.
    pub write: String,
    /// Whether each read gives the same bytes while what is stored does not change.
    pub deterministic: bool,
    /// The stages, from the stored file to the reader.
    pub stages: Vec<StageExplanation>,
}

/// What a stage declares for reading.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageExplanation {
    /// Its name.
    pub stage: String,
    /// `forward` or `inverse`.
    pub direction: String,
    /// `preserved`, `ratio`, `indexed` or `unknown`.
    pub size: String,
    /// `random` or `sequential`.
    pub access: String,
    /// `none`, `rewrite` or `in-place`.
    pub write: String,
    /// Whether it can be undone.
    pub invertible: bool,
    /// Whether the same input always gives the same output.
    pub deterministic: bool,
    /// Whether it notices every change of what is stored.
    pub guards: bool,
    /// `fail` or `replace`.
    pub on_error: String,
}

/// A name in lower case with hyphens, of a type whose `Debug` is a bare word.
fn word(value: impl std::fmt::Debug) -> String {
    let mut word = String::new();
    for c in format!("{value:?}").chars().take_while(char::is_ascii_alphanumeric) {
        if c.is_ascii_uppercase() && !word.is_empty() {
            word.push('-');
        }
        word.push(c.to_ascii_lowercase());
    }
    word
}

impl StageExplanation {
    /// What a layer declares.
    #[must_use]
    pub fn of(layer: &Layer) -> Self {
        let declares = layer.declares();
        Self {
            stage: layer.stage.name().to_owned(),
            direction: word(layer.on_read),
            size: word(declares.size),
            access: word(declares.access),
            write: word(declares.write),
            invertible: declares.invertible,
            deterministic: declares.deterministic,
            guards: declares.guards,
            on_error: word(declares.on_error),
        }
    }
}

impl Explanation {
    /// What there is to say of a network.
    #[must_use]
    pub fn of(network: &Network) -> Self {
        let can = network.can();
        Self {
            network: Some(network.to_string()),
            exact_size: can.exact_size,
            random_read: can.random_read,
            write: word(can.write),
            deterministic: network.is_deterministic(),
            stages: network.layers().iter().map(StageExplanation::of).collect(),
            ..Self::plain()
        }
    }

    fn plain() -> Self {
        Self {
            path: String::new(),
            network: None,
            source: Source::Nothing,
            error: None,
            base: None,
            exact_size: true,
            random_read: true,
            write: "in-place".to_owned(),
            deterministic: true,
            stages: Vec::new(),
        }
    }
}

impl TransformFs {
    /// Says which network a file carries, why, and what its stages can do.
    ///
    /// # Errors
    /// [`Error::Invalid`] of what is no regular file.
    pub fn explain(&self, ino: Ino) -> Result<Explanation> {
        let node = self.node(ino)?;
        if node.kind != FileKind::Regular {
            return Err(Error::Invalid("only regular files carry networks"));
        }
        let path = locked(&node.path).clone();
        let source = if node.view.is_some() {
            Source::Name
        } else {
            let ruled = self.of_mount(&path).is_some();
            match self.ground.below.getxattr(node.below(), NETWORK_ATTRIBUTE) {
                Ok(text) if text == LINK && !ruled => Source::Link,
                Ok(_) if !ruled => Source::Attribute,
                _ => match self.find_rule(&path, false) {
                    Ok(Some(found)) => found.source,
                    Ok(None) | Err(_) => Source::Nothing,
                },
            }
        };
        let file = locked(&node.file);
        let mut explanation = match &file.attached {
            Attached::Plain => Explanation::plain(),
            Attached::Network(network) => Explanation::of(network),
            Attached::View(view) => {
                let base = String::from_utf8_lossy(&locked(&view.base.path)).into_owned();
                let write = "none".to_owned();
                Explanation { base: Some(base), write, ..Explanation::of(&view.network) }
            }
            Attached::Unusable(why) => {
                let write = "none".to_owned();
                Explanation { error: Some(why.to_string()), write, ..Explanation::plain() }
            }
        };
        drop(file);
        explanation.path = String::from_utf8_lossy(&path).into_owned();
        explanation.source = source;
        Ok(explanation)
    }
}
