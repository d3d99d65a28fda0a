//! Extended attributes, and the three that attach, convert and explain networks.

use weft_vfs::{Caller, Error, FileKind, Ino, Result, XattrSet};

use super::access::ACCESS_LIST;
use super::explanation::{Explanation, Source};
use super::inode::{Attached, Inode, again};
use super::link::LINK;
use super::locks::locked;
use super::options::{CONVERT_ATTRIBUTE, EXPLAIN_ATTRIBUTE, NETWORK_ATTRIBUTE, STORED_ATTRIBUTE};
use super::stored_file::{NewAttribute, Replacement};
use super::transform_fs::TransformFs;
use crate::{Need, Write};

impl TransformFs {
    /// Returns the value of an attribute, weft's own included.
    pub(super) fn attribute(&self, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
        if name == EXPLAIN_ATTRIBUTE {
            let json = serde_json::to_vec(&self.explain(inode.ino)?);
            return json.map_err(|e| Error::Io { errno: 5, message: e.to_string() });
        }
        if name == ACCESS_LIST && inode.view().is_some() {
            return self.mount.list_of(inode).ok_or(Error::NoAttribute);
        }
        if name == NETWORK_ATTRIBUTE
            && let Some((_, text)) = &locked(&inode.file).pending
        {
            return Ok(text.clone().into_bytes());
        }
        if inode.view_name.is_none() {
            return self.mount.below.getxattr(inode.below(), name);
        }
        match (name, &locked(&inode.file).attached) {
            (NETWORK_ATTRIBUTE, Attached::View(view)) => Ok(view.network.to_string().into_bytes()),
            _ => Err(Error::NoAttribute),
        }
    }

    /// Explains the network of a file: its source, and the capabilities of its stages.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the inode is not a regular file.
    pub fn explain(&self, ino: Ino) -> Result<Explanation> {
        let inode = self.inode(ino)?;
        if inode.kind != FileKind::Regular {
            return Err(Error::Invalid("only regular files carry networks"));
        }
        let path = inode.path();
        let source = if inode.view_name.is_some() {
            Source::Name
        } else {
            let ruled = self.of_mount(&path).is_some();
            match self.mount.below.getxattr(inode.below(), NETWORK_ATTRIBUTE) {
                Ok(text) if text == LINK && !ruled => Source::Link,
                Ok(_) if !ruled => Source::Attribute,
                _ => match self.find_rule(&path, false) {
                    Ok(Some(found)) => found.source,
                    Ok(None) | Err(_) => Source::Nothing,
                },
            }
        };
        let file = locked(&inode.file);
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

    /// Returns the names of the stored attributes.
    pub(super) fn attributes(&self, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        if inode.view().is_none() {
            return self.mount.below.listxattr(inode.below());
        }
        let mut names = match inode.view_name {
            Some(_) => vec![NETWORK_ATTRIBUTE.to_vec()],
            None => self.mount.below.listxattr(inode.below())?,
        };
        names.retain(|name| name != ACCESS_LIST);
        names.extend(self.mount.list_of(inode).map(|_| ACCESS_LIST.to_vec()));
        Ok(names)
    }

    /// Sets an attribute, or executes one of weft's own.
    pub(super) fn set_attribute(
        &self,
        caller: &Caller,
        inode: &Inode,
        name: &[u8],
        value: &[u8],
        how: XattrSet,
    ) -> Result<()> {
        if name == NETWORK_ATTRIBUTE || name == STORED_ATTRIBUTE {
            let keeps_bytes = name == STORED_ATTRIBUTE;
            return self.set_network(caller, inode, value, how, keeps_bytes);
        }
        if name == CONVERT_ATTRIBUTE {
            return self.convert_network(caller, inode, value);
        }
        // A link has the permissions of its base.
        if inode.view_name.is_some() || name == ACCESS_LIST && locked(&inode.file).is_view() {
            return Err(Error::ReadOnly);
        }
        if name == ACCESS_LIST {
            Self::permissions_change(inode);
        }
        let set = self.mount.below.setxattr(caller, inode.below(), name, value, how);
        self.rules_may_differ(inode);
        set
    }

    /// Removes an attribute; without the network attribute, the rules apply.
    pub(super) fn remove_attribute(
        &self,
        caller: &Caller,
        inode: &Inode,
        name: &[u8],
    ) -> Result<()> {
        if inode.view_name.is_some() || name == ACCESS_LIST && locked(&inode.file).is_view() {
            return Err(Error::ReadOnly);
        }
        if name == ACCESS_LIST {
            Self::permissions_change(inode);
        }
        if name != NETWORK_ATTRIBUTE || inode.kind != FileKind::Regular {
            let removed = self.mount.below.removexattr(caller, inode.below(), name);
            self.rules_may_differ(inode);
            return removed;
        }
        Self::check_no_runtime_stages(inode)?;
        let (attached, _) = self.of_rules(&inode.path(), Some(inode.below()));
        let old = locked(&inode.file).attached.clone();
        self.wait_no_passthrough(inode.ino);
        let mut file = self.mount.file(inode);
        self.check_no_passthrough(inode.ino)?;
        if file.lacks_header(&attached)? || file.would_change(&attached)? {
            let how = Replacement { attribute: NewAttribute::Removed, to: None };
            file.convert(attached, &how)?;
        } else {
            file.attach(attached)?;
            self.durably(file.below(), || {
                self.mount.below.removexattr(caller, file.below(), name)
            })?;
        }
        drop(file);
        self.mount.release_base(&old);
        self.reattached(inode);
        Ok(())
    }

    /// Changes the attribute that tells how to read a file whose stored bytes stay: these are
    /// durable before it, and it before any that are written through it.
    fn durably(&self, below: Ino, change: impl FnOnce() -> Result<()>) -> Result<()> {
        self.mount.below.fsync(&Caller::ROOT, below, false)?;
        change()?;
        self.mount.below.fsync(&Caller::ROOT, below, false)
    }

    /// Fails with [`Error::Busy`] while stages are pushed on a file: its network cannot change
    /// then.
    fn check_no_runtime_stages(inode: &Inode) -> Result<()> {
        if locked(&inode.runtime_stages).stack.is_empty() { Ok(()) } else { Err(Error::Busy) }
    }

    /// Parses a network for `inode`, and returns it with the text that is stored.
    fn checked_network(&self, inode: &Inode, value: &[u8]) -> Result<(Attached, String)> {
        if inode.kind != FileKind::Regular {
            return Err(Error::Invalid("only regular files carry networks"));
        }
        if inode.view_name.is_some() {
            return Err(Error::ReadOnly);
        }
        Self::check_no_runtime_stages(inode)?;
        let attached = if value == LINK {
            self.of_link(inode.below(), &inode.path())
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
        self.check_rules_of_mount(&inode.path(), &text)?;
        Ok((attached, text))
    }

    /// Attaches a network. With `keeps_bytes` the stored bytes stay, and must be valid for it; else the
    /// content stays that readers see, unless one of the networks only shows other content.
    fn set_network(
        &self,
        caller: &Caller,
        inode: &Inode,
        value: &[u8],
        how: XattrSet,
        keeps_bytes: bool,
    ) -> Result<()> {
        let (attached, text) = self.checked_network(inode, value)?;
        let same = |text: &str| {
            let file = locked(&inode.file);
            let there = self.mount.below.getxattr(inode.below(), NETWORK_ATTRIBUTE);
            matches!(&file.attached, Attached::Network(now) if now.to_string() == text)
                && there.is_ok_and(|there| there == text.as_bytes())
        };
        if !keeps_bytes && how != XattrSet::Create && same(&text) {
            return Ok(());
        }
        if !keeps_bytes && value != LINK && self.mount.file(inode).would_change(&attached)? {
            return self.set_network_of_content(inode, (attached, text), how);
        }
        let old = locked(&inode.file).attached.clone();
        let stays_plain = matches!((&old, &attached), (Attached::Plain, Attached::Plain));
        if !stays_plain {
            self.wait_no_passthrough(inode.ino);
        }
        let linking = locked(&self.linking);
        let result = self.check_circle(inode, &attached).and_then(|()| {
            let mut file = self.mount.file(inode);
            if !stays_plain {
                self.check_no_passthrough(inode.ino)?;
            }
            if file.lacks_header(&attached)? {
                self.check_how(file.below(), how)?;
                let attribute = NewAttribute::Text { text, required: true };
                return file.convert(attached.clone(), &Replacement { attribute, to: None });
            }
            file.attach(attached.clone())?;
            let below = file.below();
            let set = || {
                self.mount.below.setxattr(caller, below, NETWORK_ATTRIBUTE, text.as_bytes(), how)
            };
            let set = if stays_plain { set() } else { self.durably(below, set) };
            set.inspect_err(|_| drop(file.replace(old.clone())))
        });
        drop(linking);
        self.mount.release_base(if result.is_ok() { &old } else { &attached });
        self.reattached(inode);
        result
    }

    /// Attaches a network to the content. Programs that copy attributes set them on a file that they
    /// are still writing: while the kernel writes it past this file system, that waits until it is
    /// closed.
    fn set_network_of_content(
        &self,
        inode: &Inode,
        (attached, text): (Attached, String),
        how: XattrSet,
    ) -> Result<()> {
        if let Attached::Network(network) = &attached {
            let need = Need { exact_size: true, random_read: true, write: Write::Rewrite };
            network.check(&need).map_err(crate::Error::Refused)?;
        }
        if !self.is_written_past(inode.ino) {
            self.wait_no_passthrough(inode.ino);
        }
        let mut file = self.mount.file(inode);
        self.check_how(file.below(), how)?;
        if self.is_written_past(inode.ino) && !file.has_other_names()? {
            file.pending = Some((attached, text));
            return Ok(());
        }
        self.check_no_passthrough(inode.ino)?;
        let attribute = NewAttribute::Text { text, required: true };
        file.convert(attached, &Replacement { attribute, to: None })?;
        drop(file);
        self.reattached(inode);
        Ok(())
    }

    /// Attaches the network that a file got while the kernel wrote it past this file system.
    pub(super) fn settle_pending(&self, inode: &Inode) {
        let mut file = self.mount.file(inode);
        if file.pending.is_none() || self.check_no_passthrough(inode.ino).is_err() {
            return;
        }
        let Some((attached, text)) = file.pending.take() else { return };
        if locked(&inode.location).unlinked {
            return;
        }
        let attribute = NewAttribute::Text { text, required: true };
        let converted = file.convert(attached, &Replacement { attribute, to: None });
        drop(file);
        self.reattached(inode);
        if let Err(e) = converted {
            let path = String::from_utf8_lossy(&inode.path()).into_owned();
            tracing::error!(
                "/{path} stays as it is stored, without the network that it was given: {e}"
            );
        }
    }

    /// Checks the flags of setting the network of a file that is replaced by another.
    fn check_how(&self, below: Ino, how: XattrSet) -> Result<()> {
        let there = self.mount.below.getxattr(below, NETWORK_ATTRIBUTE).is_ok();
        match how {
            XattrSet::Create if there => Err(Error::Exists),
            XattrSet::Replace if !there => Err(Error::NoAttribute),
            _ => Ok(()),
        }
    }

    /// Attaches a network and keeps the content: the stored file is rewritten.
    fn convert_network(&self, caller: &Caller, inode: &Inode, value: &[u8]) -> Result<()> {
        if value == LINK {
            return Err(Error::Invalid("a link is attached, not written anew"));
        }
        let (attached, text) = self.checked_network(inode, value)?;
        if let Attached::Network(network) = &attached {
            let need = Need { exact_size: true, random_read: true, write: Write::Rewrite };
            network.check(&need).map_err(crate::Error::Refused)?;
        }
        self.wait_no_passthrough(inode.ino);
        let mut file = self.mount.file(inode);
        self.check_no_passthrough(inode.ino)?;
        let same = matches!(&file.attached, Attached::Network(now) if now.to_string() == text);
        if same && file.has_other_names()? {
            // All names are to lead to what is sealed with the new key.
            file.seal_again()?;
            let (below, text, how) = (file.below(), text.as_bytes(), XattrSet::Any);
            let set = || self.mount.below.setxattr(caller, below, NETWORK_ATTRIBUTE, text, how);
            self.durably(below, set)?;
        } else {
            let attribute = NewAttribute::Text { text, required: true };
            file.convert(attached, &Replacement { attribute, to: None })?;
        }
        drop(file);
        self.reattached(inode);
        Ok(())
    }

    /// Announces that readers see other content from now on.
    pub(super) fn reattached(&self, inode: &Inode) {
        self.changed(inode);
        self.announce(inode.ino);
    }
}
