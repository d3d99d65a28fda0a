//! Extended attributes, and the three that attach, convert and explain networks.

use weft_vfs::{Error, FileKind, Result, XattrSet};

use super::base::locked;
use super::file::{Attached, again};
use super::nodes::Node;
use super::reach::ACCESS_LIST;
use super::{CONVERT_ATTRIBUTE, EXPLAIN_ATTRIBUTE, LINK, NETWORK_ATTRIBUTE, TransformFs};
use crate::{Need, Write};

impl TransformFs {
    /// Returns the value of an attribute, weft's own included.
    pub(super) fn attribute(&self, node: &Node, name: &[u8]) -> Result<Vec<u8>> {
        if name == EXPLAIN_ATTRIBUTE {
            let json = serde_json::to_vec(&self.explain(node.ino)?);
            return json.map_err(|e| Error::Io { errno: 5, message: e.to_string() });
        }
        let view = locked(&node.file).view().cloned();
        if let Some(view) = view.filter(|_| name == ACCESS_LIST) {
            return view.access_list().ok_or(Error::NoAttribute);
        }
        if node.view.is_none() {
            return self.ground.below.getxattr(node.below(), name);
        }
        match (name, &locked(&node.file).attached) {
            (NETWORK_ATTRIBUTE, Attached::View(view)) => Ok(view.network.to_string().into_bytes()),
            _ => Err(Error::NoAttribute),
        }
    }

    /// Returns the names of the stored attributes.
    pub(super) fn attributes(&self, node: &Node) -> Result<Vec<Vec<u8>>> {
        let view = locked(&node.file).view().cloned();
        let Some(view) = view else { return self.ground.below.listxattr(node.below()) };
        let mut names = match node.view {
            Some(_) => vec![NETWORK_ATTRIBUTE.to_vec()],
            None => self.ground.below.listxattr(node.below())?,
        };
        names.retain(|name| name != ACCESS_LIST);
        names.extend(view.access_list().map(|_| ACCESS_LIST.to_vec()));
        Ok(names)
    }

    /// Sets an attribute, or executes one of weft's own.
    pub(super) fn set_attribute(
        &self,
        node: &Node,
        name: &[u8],
        value: &[u8],
        how: XattrSet,
    ) -> Result<()> {
        if name == NETWORK_ATTRIBUTE {
            return self.set_network(node, value, how);
        }
        if name == CONVERT_ATTRIBUTE {
            return self.convert_network(node, value);
        }
        // A link has the permissions of its base.
        if node.view.is_some() || name == ACCESS_LIST && locked(&node.file).is_view() {
            return Err(Error::ReadOnly);
        }
        if name == ACCESS_LIST {
            Self::permissions_change(node);
        }
        let set = self.ground.below.setxattr(node.below(), name, value, how);
        self.rules_may_differ(node);
        set
    }

    /// Removes an attribute; without the network attribute, the rules apply.
    pub(super) fn remove_attribute(&self, node: &Node, name: &[u8]) -> Result<()> {
        if node.view.is_some() || name == ACCESS_LIST && locked(&node.file).is_view() {
            return Err(Error::ReadOnly);
        }
        if name == ACCESS_LIST {
            Self::permissions_change(node);
        }
        if name != NETWORK_ATTRIBUTE || node.kind != FileKind::Regular {
            let removed = self.ground.below.removexattr(node.below(), name);
            self.rules_may_differ(node);
            return removed;
        }
        Self::check_no_runtime_stages(node)?;
        let path = locked(&node.path).clone();
        let (attached, _) = self.of_rules(&path, Some(node.below()));
        let old = locked(&node.file).attached.clone();
        self.wait_not_past(node.ino);
        self.with(node, |file, around| {
            self.check_not_past(node.ino)?;
            file.attach(around, attached)?;
            let ino = locked(around.place).ino;
            self.ground.below.removexattr(ino, name)
        })?;
        self.let_go(&old);
        self.reattached(node);
        Ok(())
    }

    /// Fails with [`Error::Busy`] while stages are pushed on a file: its network cannot change
    /// then.
    fn check_no_runtime_stages(node: &Node) -> Result<()> {
        if locked(&node.runtime_stages).is_empty() { Ok(()) } else { Err(Error::Busy) }
    }

    /// Parses a network for the inode of `node`, and returns it with the text that is stored.
    fn checked_network(&self, node: &Node, value: &[u8]) -> Result<(Attached, String)> {
        if node.kind != FileKind::Regular {
            return Err(Error::Invalid("only regular files carry networks"));
        }
        if node.view.is_some() {
            return Err(Error::ReadOnly);
        }
        Self::check_no_runtime_stages(node)?;
        let attached = if value == LINK {
            self.of_link(node.below(), &locked(&node.path).clone())
        } else {
            self.of_attribute(value)
        };
        // The canonical text is stored.
        let text = match &attached {
            Attached::Plain => String::new(),
            Attached::Network(network) => network.to_string(),
            Attached::View(_) => String::from_utf8_lossy(LINK).into_owned(),
            Attached::Unusable(why) => return Err(again(why)),
        };
        self.check_rules_of_mount(&locked(&node.path).clone(), &text)?;
        Ok((attached, text))
    }

    /// Attaches a network; the stored content must be valid for it.
    fn set_network(&self, node: &Node, value: &[u8], how: XattrSet) -> Result<()> {
        let (attached, text) = self.checked_network(node, value)?;
        let old = locked(&node.file).attached.clone();
        let stays_plain = matches!((&old, &attached), (Attached::Plain, Attached::Plain));
        if !stays_plain {
            self.wait_not_past(node.ino);
        }
        let linking = locked(&self.linking);
        let result = self.check_circle(node, &attached).and_then(|()| {
            self.with(node, |file, around| {
                if !stays_plain {
                    self.check_not_past(node.ino)?;
                }
                file.attach(around, attached.clone())?;
                let ino = locked(around.place).ino;
                self.ground.below.setxattr(ino, NETWORK_ATTRIBUTE, text.as_bytes(), how)
            })
        });
        drop(linking);
        self.let_go(if result.is_ok() { &old } else { &attached });
        self.reattached(node);
        result
    }

    /// Attaches a network and keeps the content: the stored file is rewritten.
    fn convert_network(&self, node: &Node, value: &[u8]) -> Result<()> {
        if value == LINK {
            return Err(Error::Invalid("a link is attached, not written anew"));
        }
        let (attached, text) = self.checked_network(node, value)?;
        if let Attached::Network(network) = &attached {
            let need = Need { exact_size: true, random_read: true, write: Write::Rewrite };
            network.check(&need).map_err(crate::Error::Refused)?;
        }
        self.wait_not_past(node.ino);
        self.with(node, |file, around| {
            self.check_not_past(node.ino)?;
            file.convert(around, attached)?;
            let ino = locked(around.place).ino;
            let how = XattrSet::Any;
            self.ground.below.setxattr(ino, NETWORK_ATTRIBUTE, text.as_bytes(), how)
        })?;
        self.reattached(node);
        Ok(())
    }

    /// Announces that readers see other content from now on.
    pub(super) fn reattached(&self, node: &Node) {
        self.changed(node);
        if let Some(sink) = &*locked(&self.sink) {
            sink.inode(node.ino, true);
        }
    }
}
