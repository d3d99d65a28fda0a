//! Switching the replacement policy of a cache while it is used.
//!
//! The new policy gets the blocks in the old one's order, the hottest first, and as new ones: what the
//! old policy knew of their frequency is not comparable. *The write of the superblock makes the switch
//! count.* A checkpoint of the old policy stays valid: a policy takes states that are not its own for
//! those of new blocks.

use crate::cache::Cache;
use crate::policy::{BlockKey, PolicyKind, Saving, SlotNr};
use crate::{Error, Result};

impl Cache {
    /// Returns the replacement policy.
    #[must_use]
    pub fn policy(&self) -> PolicyKind {
        PolicyKind::from_code(self.lock().log.sb.policy).unwrap_or_default()
    }

    /// Switches the replacement policy. Requests wait for as long as it takes to list the blocks of
    /// the cache.
    ///
    /// # Errors
    /// [`Error::Invalid`] for the set-associative policy, which decides where blocks lie: only a new
    /// cache can have it. [`Error::ReadOnly`], [`Error::CacheDevice`].
    pub fn set_policy(&self, kind: PolicyKind) -> Result<()> {
        self.lock().check_usable()?;
        if self.options.read_only {
            return Err(Error::ReadOnly);
        }
        if kind == self.policy() {
            return Ok(());
        }
        if matches!(kind, PolicyKind::SetAssociative { .. }) {
            let what = format!("{kind} decides where blocks lie: only a new cache can have it");
            return Err(Error::Invalid(what));
        }
        self.load_all()?;
        let _one = self.resizing.lock();
        // A checkpoint in progress has its place in the old policy's queues.
        let _checkpointing = self.checkpointing.lock();
        {
            let mut st = self.lock();
            let slots = st.residency.policy.slots();
            let mut order = Vec::new();
            let mut saving = Saving::new(slots);
            st.residency.save_some(&mut saving, usize::MAX, |table, slot, _| {
                order.extend(table.key(slot).map(|key| (slot, key)));
            });
            let mut policy = kind.build(slots);
            // No policy has this state.
            order.iter().for_each(|(slot, key): &(u32, BlockKey)| {
                policy.restore(SlotNr(*slot), u8::MAX, *key);
            });
            st.residency.policy = policy;
        }
        self.write_superblock(|sb| sb.policy = kind.to_code())
    }
}
