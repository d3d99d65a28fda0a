//! The time for which a front may cache attributes and names: as the file system below allows, and
//! no longer than the attributes and names of this file system stay the same.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use weft_vfs::Ino;

use super::inodes::is_synthetic;
use super::locks::locked;
use super::transform_fs::TransformFs;

/// Returns the shorter of two cache times; `None` is for ever.
fn shorter(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    [one, other].into_iter().flatten().min()
}

impl TransformFs {
    pub(super) fn lifetime_of_attr(&self, ino: Ino) -> Option<Duration> {
        let below = |ino| self.mount.below.attr_lifetime(ino);
        shorter(self.granted_lifetime_of_attr(ino), self.inode_below(ino).and_then(below))
    }

    pub(super) fn lifetime_of_name(&self, ino: Ino) -> Option<Duration> {
        let below = |ino| self.mount.below.name_lifetime(ino);
        shorter(self.granted_lifetime_of_name(ino), self.inode_below(ino).and_then(below))
    }

    /// Returns the time for which this file system allows attributes to be cached.
    fn granted_lifetime_of_attr(&self, ino: Ino) -> Option<Duration> {
        let not_at_all = Some(Duration::ZERO);
        if is_synthetic(ino) {
            return not_at_all;
        }
        let Ok(inode) = self.inode(ino) else { return not_at_all };
        if self.snapshot_entry(&inode).is_some() {
            return not_at_all;
        }
        if inode.is_plain() {
            return None;
        }
        let through_link = Self::is_through_link(&inode);
        let mut file = locked(&inode.file);
        if let Some(view) = file.view()
            && view.base.passthrough_writers.load(Ordering::Relaxed) > 0
        {
            return not_at_all;
        }
        let is_settled = match file.view().cloned() {
            // That a reader has opened it is hidden from other users, too.
            Some(view)
                if inode.cached_opens.load(Ordering::Acquire) == 0
                    && !self.mount.all_may_read_view(&view).unwrap_or(false) =>
            {
                self.mount.len_by_base(&view).is_ok_and(|len| len.is_some())
            }
            _ => file.is_settled(),
        };
        match (is_settled, file.is_view(), &inode.view_name) {
            (false, ..) => not_at_all,
            (true, false, _) => None,
            // A view changes with its base.
            (true, true, Some(_)) if !through_link => {
                Some(locked(&inode.attr_lifetime).grant(Instant::now()))
            }
            // Changes of the target of a link are not announced.
            (true, true, _) => not_at_all,
        }
    }

    /// Returns the time for which this file system allows a name to be cached.
    fn granted_lifetime_of_name(&self, ino: Ino) -> Option<Duration> {
        // A tree is another once its archive has changed.
        let may_lead_elsewhere = self.in_tree(ino).is_ok_and(|(_, nr)| nr == 0)
            || self.options.snapshot_views
                && self.inode(ino).is_ok_and(|inode| inode.view_name.is_some());
        may_lead_elsewhere.then_some(Duration::ZERO)
    }
}
