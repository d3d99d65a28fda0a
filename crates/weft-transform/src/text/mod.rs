//! The canonical text of a network.
//!
//! ```text
//! network  = [ "view:" | "store:" ] pipe
//! pipe     = element { "|" element }
//! element  = [ "~" ] name { name "=" value }
//!          | "tee" [ "name" "=" name ] "(" pipe ")"
//! name     = letter { letter | digit | "-" | "_" }
//! value    = bare | quoted
//! bare     = one or more of letters, digits and - _ . , : / + @ % ^ *
//! quoted   = '"' { any but '"' and '\' | "\\" | "\"" | "\n" | "\t" | "\xHH" } '"'
//! ```
//!
//! Data passes from left to right: in a *store* network (the default) from the program that
//! writes to the file, so that `zstd | aead key=work` compresses and then encrypts, and reading
//! runs the inverses from right to left; in a *view* from the file to the program that reads.
//! `~` takes the inverse of a stage. `tee ( ... )` passes a copy of the data to a branch; the
//! output of a named branch is taken by `merge with=NAME` further on.
//!
//! The printed form is canonical, and parses to the same network: single spaces, parameters in the
//! order of their names, quotes only where needed.

mod parse;
mod print;

use std::fmt;

/// The direction in which the data of a network passes from left to right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Side {
    /// From the program that writes to the stored file.
    #[default]
    Store,
    /// From the stored file to the program that reads.
    View,
}

/// A network as written: names and parameters, not yet looked up.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Text {
    /// The direction of the data.
    pub side: Side,
    /// The elements from left to right; at least one.
    pub pipe: Vec<Element>,
}

/// One element of a pipe.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Element {
    /// A stage by name.
    Stage(StageText),
    /// A branch that gets a copy of the data.
    Tee {
        /// The name by which a merge refers to the branch.
        name: Option<String>,
        /// The elements of the branch.
        branch: Vec<Element>,
    },
}

/// A stage as written.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StageText {
    /// Its name.
    pub name: String,
    /// Whether the inverse of the stage is used.
    pub inverted: bool,
    /// Its parameters, sorted by name, each at most once.
    pub parameters: Vec<(String, String)>,
}

/// Maximum length of a text, in bytes: it fits into an extended attribute on every file system.
pub const TEXT_MAX_BYTES: usize = 4000;
/// Maximum number of elements of a network, branches included.
pub const ELEMENTS_MAX: usize = 256;
/// Maximum nesting depth of branches.
pub const DEPTH_MAX: usize = 8;

impl std::str::FromStr for Text {
    type Err = crate::Error;

    fn from_str(text: &str) -> Result<Self, crate::Error> {
        parse::parse(text)
    }
}

impl Text {
    /// Returns this network with `top` stacked on it, at the reader's end. If `top` was written for
    /// the opposite side, its elements are reversed and its stages inverted.
    #[must_use]
    pub fn with_on_top(mut self, top: Self) -> Self {
        let mut pipe = top.pipe;
        if top.side != self.side {
            pipe.reverse();
            for element in &mut pipe {
                if let Element::Stage(stage) = element {
                    stage.inverted = !stage.inverted;
                }
            }
        }
        match self.side {
            Side::View => self.pipe.append(&mut pipe),
            Side::Store => {
                pipe.append(&mut self.pipe);
                self.pipe = pipe;
            }
        }
        self
    }

    /// Returns this network without its element at the reader's end; `None` if it was the only one.
    #[must_use]
    pub fn without_top(mut self) -> Option<Self> {
        match self.side {
            Side::View => drop(self.pipe.pop()),
            Side::Store if self.pipe.is_empty() => {}
            Side::Store => drop(self.pipe.remove(0)),
        }
        (!self.pipe.is_empty()).then_some(self)
    }

    /// Returns the identity network of the same side.
    pub(crate) fn identity(&self) -> Self {
        Self { side: self.side, pipe: vec![Element::identity()] }
    }

    /// Returns all stages, including those of branches.
    #[must_use]
    pub fn stages(&self) -> Vec<&StageText> {
        let mut stages = Vec::new();
        let mut left: Vec<&Element> = self.pipe.iter().collect();
        while let Some(element) = left.pop() {
            match element {
                Element::Stage(stage) => stages.push(stage),
                Element::Tee { branch, .. } => left.extend(branch),
            }
        }
        stages
    }

    /// Returns the names of the keys that the stages use.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        let parameters = self.stages().into_iter().flat_map(|stage| &stage.parameters);
        parameters.filter(|(name, _)| name == "key").map(|(_, key)| &key[..])
    }

    /// Returns true if one of the stages writes to a log.
    pub(crate) fn records(&self) -> bool {
        self.stages().iter().any(|stage| stage.name == "log")
    }

    /// Returns this network without the stages of a name, or `identity` if none is left.
    pub(crate) fn without(&self, name: &str) -> Self {
        let other = |e: &&Element| !matches!(e, Element::Stage(stage) if stage.name == name);
        let mut pipe: Vec<Element> = self.pipe.iter().filter(other).cloned().collect();
        if pipe.is_empty() {
            pipe.push(Element::identity());
        }
        Self { side: self.side, pipe }
    }
}

impl Element {
    /// Returns the stage that passes data unchanged.
    pub(crate) fn identity() -> Self {
        let name = "identity".to_owned();
        Self::Stage(StageText { name, inverted: false, parameters: Vec::new() })
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print::print(self, f)
    }
}

/// Returns true if a character needs no quotes in a value.
fn is_bare(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_.,:/+@%^*".contains(c)
}
