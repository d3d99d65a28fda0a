//! The time for which a front may cache attributes and names: as the file system below allows, and
//! no longer than the attributes and names of this file system stay the same.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use weft_vfs::Ino;

use super::TransformFs;
use super::base::locked;
use super::shown::is_shown;

/// Returns the shorter of two cache times; `None` is for ever.
fn shorter(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    [one, other].into_iter().flatten().min()
}

impl TransformFs {
    pub(super) fn lifetime_of_attr(&self, ino: Ino) -> Option<Duration> {
        let below = |ino| self.ground.below.attr_lifetime(ino);
        shorter(self.own_lifetime_of_attr(ino), self.inode_below(ino).and_then(below))
    }

    pub(super) fn lifetime_of_name(&self, ino: Ino) -> Option<Duration> {
        let below = |ino| self.ground.below.name_lifetime(ino);
        shorter(self.own_lifetime_of_name(ino), self.inode_below(ino).and_then(below))
    }

    /// Returns the time for which this file system allows attributes to be cached.
    fn own_lifetime_of_attr(&self, ino: Ino) -> Option<Duration> {
        let not_at_all = Some(Duration::ZERO);
        if is_shown(ino) {
            return not_at_all;
        }
        let Ok(node) = self.node(ino) else { return not_at_all };
        if self.snapshot_entry(&node).is_some() {
            return not_at_all;
        }
        if Self::is_plain(&node) {
            return None;
        }
        let through_link = Self::is_through_link(&node);
        let mut file = locked(&node.file);
        if let Some(view) = file.view()
            && view.base.written_past.load(Ordering::Relaxed) > 0
        {
            return not_at_all;
        }
        let is_settled = match file.view().cloned() {
            // That a reader has opened it is hidden from other users, too.
            Some(view)
                if node.cached_opens.load(Ordering::Acquire) == 0
                    && !view.all_may_read().unwrap_or(false) =>
            {
                view.len_by_base().is_ok_and(|len| len.is_some())
            }
            _ => file.is_settled(),
        };
        match (is_settled, file.is_view(), &node.view) {
            (false, ..) => not_at_all,
            (true, false, _) => None,
            // A view changes with its base.
            (true, true, Some(_)) if !through_link => {
                Some(locked(&node.vouched).vouch(Instant::now()))
            }
            // Changes of the target of a link are not announced.
            (true, true, _) => not_at_all,
        }
    }

    /// Returns the time for which this file system allows a name to be cached.
    fn own_lifetime_of_name(&self, ino: Ino) -> Option<Duration> {
        // A tree is another once its archive has changed.
        let may_lead_elsewhere = self.is_tree_root(ino)
            || self.options.snapshot_views && self.node(ino).is_ok_and(|node| node.view.is_some());
        may_lead_elsewhere.then_some(Duration::ZERO)
    }
}
