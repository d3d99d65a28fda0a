//! The groups of a mount with their owners, and the engagements of threads and processes.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use smallvec::SmallVec;
use weft_patch::PatchGroup;

use crate::commands::{Kind, Refused, Scope};
use crate::engagement::OrderedEngagement;
use crate::listing::{BEFORES_LISTED_MAX, ListedGroup};
use crate::process::{Process, ancestors};

/// The most groups of one process, and of one mount, at a time.
const GROUPS_OF_PROCESS_MAX: usize = 16_384;
const GROUPS_MAX: usize = 65_536;
/// The most processes with groups at a time: each takes a descriptor of the mount's process.
const PROCESSES_MAX: usize = 512;

/// The time for which the answer "these are the engagements of this thread" is kept, and the interval
/// at which processes are looked for that have ended. No number of a process comes again in so short a
/// time.
const KEPT: Duration = Duration::from_millis(100);

/// The most answers that are kept.
const ANSWERS_MAX: usize = 4096;

/// A thread or a process whose changes belong to a group.
#[derive(Debug)]
struct Engaged {
    group: u32,
    scope: Scope,
    thread: u32,
    process: Process,
    engagement: Arc<OrderedEngagement>,
}

impl Engaged {
    fn is(&self, group: u32, scope: Scope, thread: u32, pid: u32) -> bool {
        let same = match scope {
            Scope::Thread => self.thread == thread,
            Scope::Process => self.process.pid == pid,
        };
        self.group == group && self.scope == scope && same
    }

    fn is_alive(&self) -> bool {
        match self.scope {
            Scope::Thread => self.process.has_thread(self.thread),
            Scope::Process => self.process.is_alive(),
        }
    }
}

/// The engagements of a thread.
pub(crate) type Engagements = SmallVec<[Arc<OrderedEngagement>; 1]>;

#[derive(Debug)]
struct Owned {
    patchgroup: PatchGroup,
    owner: Process,
    kind: Kind,
    label: Box<str>,
    // The engine keeps the rest, and does not tell it.
    is_released: bool,
    is_depended_on: bool,
    /// The first groups that it depends on, and how many there are.
    befores: SmallVec<[u32; 2]>,
    befores_count: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Table {
    groups: BTreeMap<u32, Owned>,
    last: u32,
    engaged: Vec<Engaged>,
    answers: HashMap<u32, (Instant, Engagements)>,
    processes: HashMap<u32, Process>,
    swept: Option<Instant>,
}

impl Table {
    /// Adds a group that belongs to the process of a thread. Returns its number.
    pub fn add(&mut self, thread: u32, patchgroup: PatchGroup, kind: Kind) -> Result<u32, Refused> {
        self.sweep(true);
        let owner = self.process_of(thread)?;
        let of_process =
            self.groups.values().filter(|g| g.owner == owner).take(GROUPS_OF_PROCESS_MAX);
        // No process can have too many while all have fewer.
        let many = self.groups.len() >= GROUPS_OF_PROCESS_MAX;
        if self.groups.len() >= GROUPS_MAX || (many && of_process.count() >= GROUPS_OF_PROCESS_MAX)
        {
            return Err(Refused::TooMany);
        }
        loop {
            self.last = self.last.wrapping_add(1).max(1);
            if !self.groups.contains_key(&self.last) {
                break;
            }
        }
        let owned = Owned {
            patchgroup,
            owner,
            kind,
            label: Box::default(),
            is_released: false,
            is_depended_on: false,
            befores: SmallVec::new(),
            befores_count: 0,
        };
        self.groups.insert(self.last, owned);
        Ok(self.last)
    }

    /// Labels a group.
    pub fn label(&mut self, thread: u32, number: u32, label: &str) -> Result<(), Refused> {
        self.group(thread, number)?;
        let group = self.groups.get_mut(&number).ok_or(Refused::NoSuchGroup)?;
        group.label = label.into();
        Ok(())
    }

    /// Notes that a group takes no more dependencies.
    pub fn released(&mut self, number: u32) {
        if let Some(group) = self.groups.get_mut(&number) {
            group.is_released = true;
        }
    }

    /// Notes that a group depends on another.
    pub fn depends(&mut self, number: u32, before: u32) {
        if let Some(group) = self.groups.get_mut(&before) {
            group.is_depended_on = true;
        }
        if let Some(group) = self.groups.get_mut(&number) {
            if group.befores.contains(&before) {
                return;
            }
            group.befores_count = group.befores_count.saturating_add(1);
            if group.befores.len() < BEFORES_LISTED_MAX {
                group.befores.push(before);
            }
        }
    }

    /// Returns the group with the next number after `last` that a thread may see, and the group itself to
    /// ask whether it is durable.
    pub fn next(
        &mut self,
        thread: u32,
        sees_all: bool,
        last: u32,
    ) -> Result<(ListedGroup, PatchGroup), Refused> {
        self.sweep(true);
        let own = if sees_all { Vec::new() } else { ancestors(thread) };
        let mut later = self.groups.range((Bound::Excluded(last), Bound::Unbounded));
        let next = later.find(|(_, group)| sees_all || own.contains(&group.owner.pid));
        let (&number, group) = next.ok_or(Refused::NoSuchGroup)?;
        let listed = ListedGroup {
            number,
            label: group.label.to_string(),
            kind: group.kind,
            pid: group.owner.pid,
            is_released: group.is_released,
            is_engaged: self.engaged.iter().any(|engaged| engaged.group == number),
            is_depended_on: group.is_depended_on,
            is_durable: false,
            befores: group.befores.to_vec(),
            befores_count: group.befores_count,
        };
        Ok((listed, group.patchgroup.clone()))
    }

    /// Returns a group that the process of a thread, or one from which it descends, has made.
    pub fn group(&self, thread: u32, number: u32) -> Result<PatchGroup, Refused> {
        let owned = self.groups.get(&number).ok_or(Refused::NoSuchGroup)?;
        if !ancestors(thread).contains(&owned.owner.pid) {
            return Err(Refused::NotOwner);
        }
        Ok(owned.patchgroup.clone())
    }

    /// Forgets a group, and ends its engagements.
    pub fn close(&mut self, thread: u32, number: u32) -> Result<(), Refused> {
        self.group(thread, number)?;
        self.groups.remove(&number);
        self.disengage_all(number);
        Ok(())
    }

    /// Adds an engagement of a thread or its process.
    pub fn engage(
        &mut self,
        thread: u32,
        number: u32,
        scope: Scope,
        engagement: OrderedEngagement,
    ) -> Result<(), Refused> {
        self.group(thread, number)?;
        let process = self.process_of(thread)?;
        self.engaged.retain(|e| !e.is(number, scope, thread, process.pid));
        let engagement = Arc::new(engagement);
        self.engaged.push(Engaged { group: number, scope, thread, process, engagement });
        self.answers.clear();
        Ok(())
    }

    /// Ends an engagement of a thread or its process, if there is one.
    pub fn disengage(&mut self, thread: u32, number: u32, scope: Scope) -> Result<(), Refused> {
        self.group(thread, number)?;
        let process = self.process_of(thread)?;
        self.engaged.retain(|e| !e.is(number, scope, thread, process.pid));
        self.answers.clear();
        Ok(())
    }

    /// Returns true if threads or processes are engaged in a group.
    pub fn is_engaged(&self, number: u32) -> bool {
        self.engaged.iter().any(|e| e.group == number)
    }

    /// Ends all engagements in a group.
    pub fn disengage_all(&mut self, number: u32) {
        self.engaged.retain(|e| e.group != number);
        self.answers.clear();
    }

    pub fn engagements(&self) -> usize {
        self.engaged.len()
    }

    /// Returns the engagements of a thread: its own, and those of the processes that it descends from.
    pub fn of_thread(&mut self, thread: u32) -> Engagements {
        if let Some((since, found)) = self.answers.get(&thread)
            && since.elapsed() < KEPT
        {
            return found.clone();
        }
        self.sweep(false);
        let by_process = self.engaged.iter().any(|e| e.scope == Scope::Process);
        let processes = if by_process { ancestors(thread) } else { Vec::new() };
        let found = self.engaged.iter().filter(|e| match e.scope {
            Scope::Thread => e.thread == thread,
            Scope::Process => processes.contains(&e.process.pid),
        });
        let found: Engagements = found.map(|e| Arc::clone(&e.engagement)).collect();
        if self.answers.len() >= ANSWERS_MAX {
            self.answers.clear();
        }
        self.answers.insert(thread, (Instant::now(), found.clone()));
        found
    }

    /// Removes what belongs to processes that have ended, if it was not done just before.
    fn sweep(&mut self, groups_too: bool) {
        if self.swept.is_some_and(|at| at.elapsed() < KEPT) {
            return;
        }
        self.swept = Some(Instant::now());
        let before = self.engaged.len();
        self.engaged.retain(Engaged::is_alive);
        self.processes.retain(|_, process| process.is_alive());
        if self.engaged.len() != before {
            self.answers.clear();
        }
        if groups_too {
            let known = &self.processes;
            self.groups.retain(|_, g| known.get(&g.owner.pid) == Some(&g.owner));
        }
    }

    /// Returns the process of a thread.
    pub fn process_of(&mut self, thread: u32) -> Result<Process, Refused> {
        let pid = ancestors(thread).first().copied().ok_or(Refused::NoSuchProcess)?;
        if let Some(process) = self.processes.get(&pid).filter(|process| process.is_alive()) {
            return Ok(process.clone());
        }
        if self.processes.len() >= PROCESSES_MAX {
            return Err(Refused::TooMany);
        }
        let process = Process::find(pid).ok_or(Refused::NoSuchProcess)?;
        self.processes.insert(pid, process.clone());
        Ok(process)
    }
}
