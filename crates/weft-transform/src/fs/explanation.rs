//! The explanation of a file's network: the rule that applied, and the capabilities of each stage.

use serde::{Deserialize, Serialize};

use crate::{Layer, Network};

/// The source that determines the network of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Source {
    /// None: the file has no network.
    Nothing,
    /// The extended attribute.
    Attribute,
    /// A rules file of the tree.
    RulesFile {
        /// The directory of the rules file, relative to the root.
        directory: String,
        /// The line, from 1 on.
        line: usize,
    },
    /// The rules of the mount.
    MountRules {
        /// The line, from 1 on.
        line: usize,
    },
    /// The file's name: it is a view.
    Name,
    /// The file's content: it is a link.
    Link,
}

/// The network of a file, its source and its capabilities.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The path in the tree.
    pub path: String,
    /// The canonical text of the network, if the file has a usable one.
    pub network: Option<String>,
    /// The source that determines the network.
    pub source: Source,
    /// The reason why the network cannot be used.
    pub error: Option<String>,
    /// The path of the base of a view or link.
    pub base: Option<String>,
    /// Whether the length is known before all of the file was read.
    pub exact_size: bool,
    /// Whether any block can be read independently.
    pub random_read: bool,
    /// `none`, `rewrite` (the stored file is rewritten) or `in-place`.
    pub write: String,
    /// Whether repeated reads return the same bytes while the stored file does not change.
    pub deterministic: bool,
    /// The stages, from the stored file to the reader.
    pub stages: Vec<StageExplanation>,
}

/// The capabilities that a stage declares for reading.
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
    /// Whether it has an inverse.
    pub invertible: bool,
    /// Whether the same input always gives the same output.
    pub deterministic: bool,
    /// Whether it detects every change of the stored data.
    pub guards: bool,
    /// `fail` or `replace`.
    pub on_error: String,
}

/// Formats a value whose `Debug` output is a bare word, in lower case with hyphens.
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
    /// Returns the capabilities that a layer declares.
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
    /// Returns the explanation of a network, without path and source.
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

    pub(super) fn plain() -> Self {
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
