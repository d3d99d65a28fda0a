//! Owners and groups as a mount shows them.
//!
//! A cell stores numbers. A mount shows them as they are, or all as one ([`OwnerOptions::uid`]), or
//! by the names that the cell has beside them ([`OwnerNames`]): the number that a name has in the
//! cell is shown as the number that it has on this machine. Root is number 0 everywhere.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use weft_ringer::client::{Call, Outcome};
use weft_ringer::op::Op;
use weft_ringer::{Bytes, NOBODY, OWNERS_XATTR, OwnerKind, OwnerNames, Refusal, Rnode, RnodeId};
use weft_vfs::{Attr, Error, Result};

use super::accounts::Account;
use super::client_fs::ClientFs;
use super::mutex::locked;

/// The time for which the mount remembers that this machine has no user or group of a name or number.
const UNKNOWN_FOR: Duration = Duration::from_secs(60);

/// The owners and groups that a mount shows.
#[derive(Debug, Clone, Default)]
pub struct OwnerOptions {
    /// The owner shown for every file; with `by_name`, for files whose owner has no name here.
    pub uid: Option<u32>,
    /// The group, likewise.
    pub gid: Option<u32>,
    /// Whether users and groups are those of the same name. Otherwise of the same number.
    pub by_name: bool,
}

impl OwnerOptions {
    fn fixed(&self, kind: OwnerKind) -> Option<u32> {
        match kind {
            OwnerKind::User => self.uid,
            OwnerKind::Group => self.gid,
        }
    }
}

/// What was found out about the names.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// The names that the cell had when they were last read. None of them ever changes.
    names: Mutex<OwnerNames>,
    by_name: Mutex<HashMap<(OwnerKind, String), Known<u32>>>,
    by_number: Mutex<HashMap<(OwnerKind, u32), Known<String>>>,
}

/// An answer of this machine's databases, or when there was none.
#[derive(Debug)]
enum Known<T> {
    Is(T),
    None(Instant),
}

impl<T: Clone> Known<T> {
    fn new(found: Option<T>) -> Self {
        found.map_or_else(|| Self::None(Instant::now()), Self::Is)
    }

    /// `None` if it has to be asked again.
    fn answer(&self) -> Option<Option<T>> {
        match self {
            Self::Is(found) => Some(Some(found.clone())),
            Self::None(at) => (at.elapsed() < UNKNOWN_FOR).then_some(None),
        }
    }
}

impl Owners {
    /// Returns the number of a name on this machine.
    fn here(&self, kind: OwnerKind, name: &str) -> Option<u32> {
        let key = (kind, name.to_owned());
        if let Some(answer) = locked(&self.by_name).get(&key).and_then(Known::answer) {
            return answer;
        }
        let found = Account::of_name(kind, name).map(|account| account.id);
        locked(&self.by_name).insert(key, Known::new(found));
        found
    }

    /// Returns the name of a number of this machine.
    fn name_here(&self, kind: OwnerKind, number: u32) -> Option<String> {
        let key = (kind, number);
        if let Some(answer) = locked(&self.by_number).get(&key).and_then(Known::answer) {
            return answer;
        }
        let found = Account::of_number(kind, number).map(|account| account.name);
        locked(&self.by_number).insert(key, Known::new(found.clone()));
        found
    }

    fn name_in_cell(&self, kind: OwnerKind, number: u32) -> Option<String> {
        locked(&self.names).name(kind, number).map(str::to_owned)
    }

    fn learn(&self, root: &Rnode) -> OwnerNames {
        let names = OwnerNames::of_root(root);
        locked(&self.names).clone_from(&names);
        names
    }
}

impl ClientFs {
    /// The attributes of the cell's root, as this mount shows them, from the root itself.
    pub(super) fn attr_of_root(&self, root: &Rnode) -> Attr {
        self.owners.learn(root);
        let shown = |kind, number| {
            let name = self.owners.name_in_cell(kind, number);
            self.shown_by_name(kind, number, name.as_deref())
        };
        let attr = root.attr();
        let (uid, gid) = (shown(OwnerKind::User, attr.uid), shown(OwnerKind::Group, attr.gid));
        Attr { uid, gid, ..attr }
    }

    /// Replaces the owner and group by those that this mount shows.
    pub(super) fn with_shown_owner(&self, attr: Attr) -> Result<Attr> {
        let uid = self.shown(OwnerKind::User, attr.uid)?;
        let gid = self.shown(OwnerKind::Group, attr.gid)?;
        Ok(Attr { uid, gid, ..attr })
    }

    /// Returns what this mount shows for a number in the cell.
    pub(super) fn shown(&self, kind: OwnerKind, number: u32) -> Result<u32> {
        if !self.engine.options.owners.by_name || number == 0 {
            return Ok(self.shown_by_name(kind, number, None));
        }
        let mut name = self.owners.name_in_cell(kind, number);
        if name.is_none() {
            // Another client may have added it.
            self.owners.learn(&*self.get_any(RnodeId::ROOT)?);
            name = self.owners.name_in_cell(kind, number);
        }
        Ok(self.shown_by_name(kind, number, name.as_deref()))
    }

    fn shown_by_name(&self, kind: OwnerKind, number: u32, name: Option<&str>) -> u32 {
        let options = &self.engine.options.owners;
        match options.fixed(kind) {
            fixed if !options.by_name => fixed.unwrap_or(number),
            _ if number == 0 => 0,
            fixed => {
                let here = name.and_then(|name| self.owners.here(kind, name));
                here.unwrap_or(fixed.unwrap_or(NOBODY))
            }
        }
    }

    /// Returns what is stored in the cell for a user or group of this machine. A name that the cell
    /// does not have is added to it.
    pub(super) fn stored(&self, kind: OwnerKind, number: u32) -> Result<u32> {
        if !self.engine.options.owners.by_name || number == 0 {
            return Ok(number);
        }
        // As on the kernel's mounts with mapped ids.
        const UNKNOWN: Error = Error::Overflow("a user or group has no name on this machine");
        let name = self.owners.name_here(kind, number).ok_or(UNKNOWN)?;
        if let Some(number) = locked(&self.owners.names).number(kind, &name) {
            return Ok(number);
        }
        loop {
            let root = self.get_any(RnodeId::ROOT)?;
            let mut names = self.owners.learn(&root);
            if let Some(number) = names.number(kind, &name) {
                return Ok(number);
            }
            let number = names.add(kind, &name, number).ok_or(UNKNOWN)?;
            let (id, value) = (root.id, Bytes(names.to_string().into_bytes()));
            let op = Op::SetXattr { id, name: Bytes(OWNERS_XATTR.to_vec()), value };
            let if_version = Some((id, root.version));
            match self.engine.call(Call::Apply { op, if_version })?.0 {
                Outcome::Refused(Refusal::Changed) => {}
                Outcome::Refused(why) => {
                    tracing::warn!(
                        "the name {name:?} cannot be added to the cell's users ({why}): let a member \
                        that may write the cell's root use it once"
                    );
                    return Err(self.refused(id, why));
                }
                _ => {
                    // Before anything relies on it: a change that is given up later would free the
                    // number for another name.
                    self.engine.call(Call::Sync)?;
                    locked(&self.owners.names).clone_from(&names);
                    return Ok(number);
                }
            }
        }
    }

    /// Returns the owner or group that a user sets: `None` if that changes nothing.
    pub(super) fn chosen(&self, kind: OwnerKind, number: Option<u32>) -> Result<Option<u32>> {
        let Some(number) = number else { return Ok(None) };
        let options = &self.engine.options.owners;
        match options.fixed(kind).filter(|_| !options.by_name) {
            None => self.stored(kind, number).map(Some),
            // It is shown so already.
            Some(fixed) if fixed == number => Ok(None),
            Some(_) => Err(Error::NotPermitted),
        }
    }
}
