//! Stages attached at run time: a program pushes them on a file that it has open, by `ioctl(2)`.
//!
//! They apply to the file, not to the descriptor: the kernel caches one content for all
//! descriptors, so all readers see it through these stages. They are removed when the descriptor
//! that pushed them is closed, however its program ends, and are not stored. The answer to a failed
//! command describes the error as text.
//!
//! Lock order: the lock of a node's pushed stages is taken before that of its file.

use weft_vfs::{
    Caller, CommandAnswer, Error, FileKind, Handle, Ino, OpenFlags, Result, StaleHandle,
};

use super::base::locked;
use super::file::{Attached, again};
use super::nodes::Node;
use super::shown::is_shown;
use super::{Open, TransformFs};
use crate::text::Text;
use crate::{Need, Write};

/// Bytes of the argument and of the answer of these commands: a text, padded with zeroes.
pub const COMMAND_BYTES: usize = 4096;

/// Pushes the network of the text on the file: `_IOWR('W', 0xE0, char[4096])`. The answer's text is
/// the whole network, or the error.
pub const PUSH_COMMAND: u32 = number(0xE0);

/// Removes the network that this descriptor pushed last: `_IOWR('W', 0xE1, char[4096])`. The answer
/// is as for [`PUSH_COMMAND`].
pub const POP_COMMAND: u32 = number(0xE1);

/// Returns the current network of the file, including pushed stages: `_IOWR('W', 0xE2,
/// char[4096])`.
pub const SHOW_COMMAND: u32 = number(0xE2);

const fn number(nr: u8) -> u32 {
    rustix::ioctl::opcode::read_write::<[u8; COMMAND_BYTES]>(b'W', nr) as u32
}

/// The networks pushed on a file.
#[derive(Default)]
pub(super) struct RuntimeStages {
    /// The file's own network; `None` while nothing is pushed.
    below: Option<Attached>,
    /// The pushed networks, from the stored file up, each with the descriptor that pushed it.
    stack: Vec<(Handle, Text)>,
}

impl RuntimeStages {
    pub(super) fn is_empty(&self) -> bool {
        self.stack.is_empty()
    }
}

/// Encodes a text as an answer, truncated to fit.
fn encode(text: &str) -> Vec<u8> {
    let mut data = text.as_bytes()[..text.len().min(COMMAND_BYTES - 1)].to_vec();
    data.resize(COMMAND_BYTES, 0);
    data
}

/// Decodes the text of an argument.
fn decode(data: &[u8]) -> Result<&str> {
    let end = data.iter().position(|&b| b == 0);
    let text = end.and_then(|end| data.get(..end)).ok_or(Error::Invalid("a text without end"))?;
    std::str::from_utf8(text).map_err(|_| Error::Invalid("the text of a network is UTF-8"))
}

impl TransformFs {
    /// Handles an `ioctl(2)` command on an open file.
    pub(super) fn commanded(
        &self,
        caller: &Caller,
        ino: Ino,
        handle: Handle,
        request: u32,
        data: &[u8],
    ) -> Result<CommandAnswer> {
        if is_shown(ino) {
            return Err(Error::UnknownCommand);
        }
        let node = self.node(ino)?;
        if !matches!(request, PUSH_COMMAND | POP_COMMAND | SHOW_COMMAND) {
            // Other commands may act on the content, so they are passed on only if that is the
            // content below.
            if node.view.is_some() || !Self::is_plain(&node) {
                return Err(Error::UnknownCommand);
            }
            let (below, handle) = (node.below(), self.below_handle(handle));
            return self.ground.below.command(caller, below, handle, request, data);
        }
        if node.kind != FileKind::Regular {
            return Err(Error::UnknownCommand);
        }
        let open = self.open_flags(handle).filter(|open| open.ino == ino);
        let open = open.ok_or(StaleHandle)?;
        let result = match request {
            PUSH_COMMAND => {
                decode(data).and_then(|text| self.push(caller, &node, open, handle, text))
            }
            POP_COMMAND => self.pop(&node, handle),
            _ => Ok(()),
        };
        if result.is_ok() && request != SHOW_COMMAND {
            // The caller must read the new content as soon as it has the answer.
            let sink = locked(&self.sink).clone();
            sink.inspect(|sink| sink.settle());
        }
        let result = result.and_then(|()| match &locked(&node.file).attached {
            Attached::Plain => Ok(String::new()),
            Attached::Network(network) => Ok(network.to_string()),
            Attached::View(view) => Ok(view.network.to_string()),
            Attached::Unusable(why) => Err(again(why)),
        });
        Ok(match result {
            Ok(text) => CommandAnswer { errno: 0, data: encode(&text) },
            Err(e) => CommandAnswer { errno: e.errno(), data: encode(&e.to_string()) },
        })
    }

    fn push(
        &self,
        caller: &Caller,
        node: &Node,
        open: Open,
        handle: Handle,
        text: &str,
    ) -> Result<()> {
        // Pushed stages affect all readers of the file.
        let mounts = rustix::process::geteuid().as_raw();
        if ![0, mounts, self.attr(node)?.uid].contains(&caller.uid) {
            let message = "only the owner of a file pushes stages on it".to_owned();
            return Err(Error::Io { errno: Error::NotPermitted.errno(), message });
        }
        let text: Text = text.parse().map_err(Error::from)?;
        if !open.past {
            self.wait_not_past(node.ino);
        }
        let mut stages = locked(&node.runtime_stages);
        let below = match &stages.below {
            Some(below) => below.clone(),
            None => locked(&node.file).attached.clone(),
        };
        let texts = stages.stack.iter().map(|(_, text)| text).chain([&text]);
        let attached = self.with_on_top(&below, texts)?;
        self.check_for_handles(node.ino, &attached)?;
        self.with(node, |file, around| {
            self.check_not_past(node.ino)?;
            file.attach(around, attached)
        })?;
        stages.below = Some(below);
        stages.stack.push((handle, text));
        drop(stages);
        self.reattached(node);
        Ok(())
    }

    fn pop(&self, node: &Node, handle: Handle) -> Result<()> {
        let mut stages = locked(&node.runtime_stages);
        let at = stages.stack.iter().rposition(|(by, _)| *by == handle);
        let at = at.ok_or_else(|| Error::Io {
            errno: Error::NoAttribute.errno(),
            message: "this descriptor has pushed nothing".to_owned(),
        })?;
        let mut left = Vec::clone(&stages.stack);
        left.remove(at);
        self.leave(node, &mut stages, left)?;
        drop(stages);
        self.reattached(node);
        Ok(())
    }

    /// Removes all networks that a closed descriptor pushed.
    pub(super) fn pop_all(&self, node: &Node, handle: Handle) -> Result<()> {
        let mut stages = locked(&node.runtime_stages);
        let left: Vec<_> = stages.stack.iter().filter(|(by, _)| *by != handle).cloned().collect();
        if left.len() == stages.stack.len() {
            return Ok(());
        }
        self.leave(node, &mut stages, left)?;
        drop(stages);
        self.reattached(node);
        Ok(())
    }

    /// Reduces the pushed networks to `left`.
    fn leave(
        &self,
        node: &Node,
        stages: &mut RuntimeStages,
        left: Vec<(Handle, Text)>,
    ) -> Result<()> {
        let Some(below) = stages.below.clone() else { return Ok(()) };
        let attached = self.with_on_top(&below, left.iter().map(|(_, text)| text))?;
        self.with(node, |file, around| file.attach(around, attached))?;
        stages.below = (!left.is_empty()).then_some(below);
        stages.stack = left;
        Ok(())
    }

    /// Returns `below` with networks stacked on it, each on the one before.
    fn with_on_top<'a>(
        &self,
        below: &Attached,
        texts: impl Iterator<Item = &'a Text>,
    ) -> Result<Attached> {
        let mut texts = texts.peekable();
        if texts.peek().is_none() {
            return Ok(below.clone());
        }
        let base = match below {
            Attached::Plain => None,
            Attached::Network(network) => Some(network.text().clone()),
            Attached::View(_) => {
                return Err(Error::Invalid("a view or link has the network it has"));
            }
            Attached::Unusable(why) => return Err(again(why)),
        };
        let text = base.into_iter().chain(texts.cloned()).reduce(Text::with_on_top);
        let text = text.ok_or(Error::Invalid("no network"))?;
        let network = self.registry.network(&text).map_err(Error::from)?;
        Ok(Attached::Network(std::sync::Arc::new(network)))
    }

    /// Checks that a network supports the access for which the descriptors of a file were opened.
    fn check_for_handles(&self, ino: Ino, attached: &Attached) -> Result<()> {
        let Attached::Network(network) = attached else { return Ok(()) };
        let handles = locked(&self.handles);
        let open = || handles.values().filter(|open| open.ino == ino);
        let writes = open().any(|open| open.flags.contains(OpenFlags::WRITE));
        let need = Need {
            // The kernel relies on the length for cached content.
            exact_size: open().any(|open| !open.direct_io),
            random_read: writes,
            write: if writes { Write::Rewrite } else { Write::None },
        };
        drop(handles);
        network.check(&need).map_err(|refusal| crate::Error::Refused(refusal).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_handed_in_and_back() {
        for text in ["", "zstd | rot13", &"x".repeat(COMMAND_BYTES - 1)] {
            let data = encode(text);
            assert_eq!((data.len(), decode(&data).expect("a text")), (COMMAND_BYTES, text));
        }
        assert_eq!(decode(&encode(&"x".repeat(9999))).expect("cut off").len(), COMMAND_BYTES - 1);
        for bad in [&[b'x'; COMMAND_BYTES][..], b"", b"\xFF\0"] {
            assert!(decode(bad).is_err());
        }
        assert_eq!(PUSH_COMMAND, 0xD000_57E0, "as documented");
    }
}
