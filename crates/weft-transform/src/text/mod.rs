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
//! `~` takes the inverse of a stage. `tee ( ... )` hands a copy of what passes to a branch; what comes
//! out of one with a name is taken by `merge with=NAME` further on.
//!
//! What is printed parses to the same, and has one form: single spaces, parameters in the order of
//! their names, quotes only where needed.

mod parse;
mod print;

use std::fmt;

/// Which way the data of a network passes from left to right.
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
    /// Which way it passes.
    pub side: Side,
    /// The elements from left to right; at least one.
    pub pipe: Vec<Element>,
}

/// One element of a pipe.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Element {
    /// A stage by name.
    Stage(StageText),
    /// A branch that gets a copy.
    Tee {
        /// What a merge calls it.
        name: Option<String>,
        /// What it is made of.
        branch: Vec<Element>,
    },
}

/// A stage as written.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StageText {
    /// Its name.
    pub name: String,
    /// Whether its inverse is meant.
    pub inverted: bool,
    /// Its parameters, sorted by name, each at most once.
    pub parameters: Vec<(String, String)>,
}

/// The longest text, in bytes: what fits into an extended attribute anywhere.
pub const TEXT_MAX_BYTES: usize = 4000;
/// The most elements of a network, branches included.
pub const ELEMENTS_MAX: usize = 256;
/// How deep branches may lie within branches.
pub const DEPTH_MAX: usize = 8;

impl std::str::FromStr for Text {
    type Err = crate::Error;

    fn from_str(text: &str) -> Result<Self, crate::Error> {
        parse::parse(text)
    }
}

impl Text {
    /// This network with another on top of it, at the reader's end. What of the other was written
    /// for the other side is turned around.
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

    /// This network without its element at the reader's end; `None` if it was the only one.
    #[must_use]
    pub fn without_top(mut self) -> Option<Self> {
        match self.side {
            Side::View => drop(self.pipe.pop()),
            Side::Store if self.pipe.is_empty() => {}
            Side::Store => drop(self.pipe.remove(0)),
        }
        (!self.pipe.is_empty()).then_some(self)
    }

    /// A network of the same side that does nothing.
    pub(crate) fn identity(&self) -> Self {
        Self { side: self.side, pipe: vec![Element::identity()] }
    }

    /// All stages that are named, those of branches too.
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

    /// The names of the keys that its stages take.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        let parameters = self.stages().into_iter().flat_map(|stage| &stage.parameters);
        parameters.filter(|(name, _)| name == "key").map(|(_, key)| &key[..])
    }

    /// True if one of the stages writes to a log.
    pub(crate) fn records(&self) -> bool {
        self.stages().iter().any(|stage| stage.name == "log")
    }

    /// This network without the stages of a name, `identity` if none is left.
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
    /// The stage that does nothing.
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

/// Whether a value needs no quotes.
fn is_bare(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_.,:/+@%^*".contains(c)
}
