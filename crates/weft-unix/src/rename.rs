//! Renames. The target name is the old file or the new one at every moment: it is overwritten
//! atomically. In soft updates the moved inode counts one name more meanwhile.

use crate::counts::Removal;
use crate::format::Format;
use crate::name_changes::Position;
use crate::node::{Patches, push_patch};
use crate::state::State;
use crate::{Error, Result};
use weft_patch::{Op, PatchId, Policy};
use weft_vfs::{Caller, Error as FsError, FileKind, Ino, RenameFlags, check_name};

/// One side of a rename.
#[derive(Clone, Copy)]
struct Side<P> {
    dir: Ino,
    ino: Ino,
    place: P,
    kind: FileKind,
}

impl<F: Format> State<F> {
    fn side(&mut self, op: &mut Op<'_>, dir: Ino, name: &[u8]) -> Result<Option<Side<F::Place>>> {
        self.load_dir(op, dir)?;
        let (format, node) = self.with_node(dir)?;
        let Some(found) = format.find(op, node, name)? else { return Ok(None) };
        let kind = self.load_entry(op, dir, found.ino)?.kind;
        Ok(Some(Side { dir, ino: found.ino, place: found.place, kind }))
    }

    /// Refuses to move a directory below itself: walks up from `dir`.
    fn check_not_below(&mut self, op: &mut Op<'_>, moved: Ino, dir: Ino) -> Result<()> {
        let mut at = dir;
        // No path is longer than the number of directories; a loop on the disk is.
        for _ in 0..=self.format.limits().inodes_max {
            if at == moved {
                return Err(FsError::Invalid("a directory cannot move below itself").into());
            }
            if at == self.root {
                return Ok(());
            }
            at = self.parent_of(op, at)?;
        }
        Err(Error::corrupt(format!("directory {}", dir.0), 0, "its parents form a loop"))
    }

    /// Returns the directory that `..` of a directory names.
    pub(crate) fn parent_of(&mut self, op: &mut Op<'_>, dir: Ino) -> Result<Ino> {
        self.load_dir(op, dir)?;
        let (format, node) = self.with_node(dir)?;
        format.load_dir(op, node)?;
        Ok(node.parent)
    }

    pub(crate) fn rename(
        &mut self,
        op: &mut Op<'_>,
        policy: Policy,
        caller: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let no_replace = flags.contains(RenameFlags::NO_REPLACE);
        let whiteout = flags.contains(RenameFlags::WHITEOUT);
        if exchange && (no_replace || whiteout) {
            return Err(
                FsError::Invalid("an exchange has no target to spare, nor an old name").into()
            );
        }
        if [from.1, to.1].iter().any(|name| matches!(*name, b"." | b"..")) {
            return Err(FsError::Busy.into());
        }
        self.load_dir(op, to.0)?;
        self.load_dir(op, from.0)?;
        check_name(from.1)?;
        let source = self.side(op, from.0, from.1)?.ok_or(FsError::NotFound)?;
        check_name(to.1)?;
        let target = self.side(op, to.0, to.1)?;
        if no_replace && target.is_some() {
            return Err(FsError::Exists.into());
        }
        let same = target.is_some_and(|target| target.ino == source.ino);
        if !same {
            self.check_loses_name(from.0, source.ino)?;
            match target {
                Some(target) => self.check_loses_name(to.0, target.ino)?,
                None => self.check_gains_name(to.0)?,
            }
        }
        let is_dir = |side: &Side<F::Place>| side.kind == FileKind::Directory;
        if from.0 != to.0 {
            if is_dir(&source) {
                self.check_not_below(op, source.ino, to.0)?;
            }
            if let Some(target) = target.filter(is_dir)
                && exchange
            {
                self.check_not_below(op, target.ino, from.0)?;
            }
        }
        match target {
            None if exchange => Err(FsError::NotFound.into()),
            None => {
                let whiteout = whiteout.then_some(caller);
                self.move_to_new(op, &source, to, whiteout)
            }
            Some(target) if target.ino == source.ino => Ok(()),
            Some(target) if exchange => self.exchange(op, policy, &source, &target),
            Some(target) => {
                match (is_dir(&source), is_dir(&target)) {
                    (true, false) => return Err(FsError::NotADirectory.into()),
                    (false, true) => return Err(FsError::IsADirectory.into()),
                    (true, true) => {
                        // The source below the target makes it not empty.
                        self.check_empty(op, target.ino)?;
                    }
                    (false, false) => {}
                }
                let whiteout = match whiteout {
                    true => Some(self.make_whiteout(op, caller, source.dir)?),
                    false => None,
                };
                self.replace(op, &source, &target, whiteout)
            }
        }
    }

    /// Raises a count before a second name is there (soft updates only: elsewhere the two names
    /// change as one). Returns the patch that the name must follow, and whether the count is raised.
    fn hold(&mut self, op: &mut Op<'_>, ino: Ino) -> Result<(PatchId, bool)> {
        self.make_countable(op, ino)?;
        let links_max = self.format.limits().links_max;
        let raises = self.puts_off() && self.node(ino)?.inode.links < links_max;
        let (format, node) = self.with_node(ino)?;
        node.changed(format);
        if raises {
            node.inode.links += 1;
            node.surplus += 1;
        }
        Ok((self.write_node(op, ino, &[])?, raises))
    }

    fn touch_dirs(&mut self, op: &mut Op<'_>, dirs: [Ino; 2], befores: &[PatchId]) -> Result<()> {
        for (i, dir) in dirs.into_iter().enumerate() {
            if i == 1 && dirs[0] == dir {
                break;
            }
            let (format, node) = self.with_node(dir)?;
            node.modified(format);
            node.epoch += 1;
            self.write_node(op, dir, befores)?;
        }
        Ok(())
    }

    fn clear(
        &mut self,
        op: &mut Op<'_>,
        side: &Side<F::Place>,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        let (format, dir) = self.with_node(side.dir)?;
        format.clear(op, dir, side.place, befores)
    }

    /// Does the second half of a move to the name `to`, which `named` gave: removes the old name after
    /// the new one is there, lowers the count after that, if it was `raised`, and gives a moved
    /// directory its new parent. The old name is given to the whiteout, if there is one.
    fn leave(
        &mut self,
        op: &mut Op<'_>,
        source: &Side<F::Place>,
        to: Position,
        (named, raised): (PatchId, bool),
        whiteout: Option<Ino>,
    ) -> Result<()> {
        let new_dir = to.dir;
        if source.kind != FileKind::Directory {
            self.node(source.ino)?.parent = new_dir;
        }
        let mut cleared = PatchId::DURABLE;
        if whiteout.is_some()
            || !self.may_forget(source, to)?
            || !self.take_back(op, source.dir, source.place, source.ino)?
        {
            let mut befores = vec![named];
            if self.puts_off() {
                // There means: where it can be reached. The directories above may be new themselves.
                befores.extend(self.way_to(op, new_dir));
                if source.dir != new_dir {
                    self.node(source.dir)?.moved_out.note(op, &befores);
                }
            }
            let position = self.position(source);
            if let Some(whiteout) = whiteout {
                befores.push(self.node(whiteout)?.patch);
                let side = Side { ino: whiteout, kind: FileKind::CharDevice, ..*source };
                cleared = self.point_name(op, source, &side, &befores)?;
                self.node(whiteout)?.names.replace(op, position, cleared);
            } else {
                cleared = self.clear(op, source, &befores)?;
            }
            self.node(source.ino)?.names.remove(op, position, cleared);
        }
        if raised {
            self.lower_surplus(op, source.ino, Removal::of_name(source.dir, cleared))?;
        }
        if source.kind == FileKind::Directory && source.dir != new_dir {
            let (format, node) = self.with_node(source.ino)?;
            let dotdot = format.set_parent(op, node, new_dir, &[named])?;
            // The old parent's count goes down after neither the name nor `..` counts.
            let removal = Removal { patches: [cleared, dotdot], dirs: [source.dir, source.ino] };
            self.lower(op, source.dir, removal)?;
        }
        Ok(())
    }

    /// Returns whether the old name of a move may be taken back: nothing else waits until it is there.
    fn may_forget(&mut self, side: &Side<F::Place>, to: Position) -> Result<bool> {
        let position = self.position(side);
        let node = self.node(side.ino)?;
        let relied_on = node.relied_on && node.kind == FileKind::Directory;
        Ok(node.names.may_be_forgotten(position, to, relied_on))
    }

    fn position(&self, side: &Side<F::Place>) -> Position {
        Position::new(side.dir, self.format.position(side.place))
    }

    /// Raises the count of a directory that gets a subdirectory.
    pub(crate) fn gain_subdir(
        &mut self,
        op: &mut Op<'_>,
        dir: Ino,
        befores: &mut Patches,
    ) -> Result<()> {
        self.make_countable(op, dir)?;
        let node = self.node(dir)?;
        node.inode.links = node.inode.links.saturating_add(1);
        push_patch(befores, self.write_node(op, dir, &[])?);
        Ok(())
    }

    fn move_to_new(
        &mut self,
        op: &mut Op<'_>,
        source: &Side<F::Place>,
        to: (Ino, &[u8]),
        whiteout: Option<&Caller>,
    ) -> Result<()> {
        let moves_dir = source.kind == FileKind::Directory && source.dir != to.0;
        if moves_dir && self.node(to.0)?.links() >= self.format.limits().links_max {
            return Err(FsError::TooManyLinks.into());
        }
        let (format, dir) = self.with_node(to.0)?;
        let reserved = format.reserve(op, dir, to.1, source.kind)?;
        let position = Position::new(to.0, format.position(format.place(&reserved)));
        let whiteout = match whiteout {
            Some(caller) => Some(self.make_whiteout(op, caller, source.dir)?),
            None => None,
        };
        let mut befores = Patches::new();
        let (held, raised) = self.hold(op, source.ino)?;
        push_patch(&mut befores, held);
        if moves_dir {
            self.gain_subdir(op, to.0, &mut befores)?;
            befores.extend(self.removals_above(op, to.0));
        }
        self.touch_dirs(op, [source.dir, to.0], &[])?;
        let (format, dir) = self.with_node(to.0)?;
        let named = format.fill(op, dir, reserved, source.ino, &befores)?;
        self.gave_name(op, source.ino, position, named)?;
        // A split may have moved nothing: entries stay where they are.
        self.leave(op, source, position, (named, raised), whiteout)
    }

    fn replace(
        &mut self,
        op: &mut Op<'_>,
        source: &Side<F::Place>,
        target: &Side<F::Place>,
        whiteout: Option<Ino>,
    ) -> Result<()> {
        let moves_dir = source.kind == FileKind::Directory && source.dir != target.dir;
        let position = self.position(target);
        let fresh = self.node(target.ino)?.names.fresh(position);
        let mut befores = Patches::new();
        let (held, raised) = self.hold(op, source.ino)?;
        push_patch(&mut befores, held);
        if moves_dir {
            // For the moment it has both subdirectories.
            self.gain_subdir(op, target.dir, &mut befores)?;
            befores.extend(self.removals_above(op, target.dir));
        }
        if target.kind == FileKind::Directory {
            push_patch(&mut befores, self.out_of(op, target.ino, target.dir)?);
        }
        let named = self.point_name(op, target, source, &befores)?;
        self.touch_dirs(op, [source.dir, target.dir], &[])?;
        self.node(source.ino)?.names.replace(op, position, named);
        self.leave(op, source, position, (named, raised), whiteout)?;
        let mut removed = named;
        if self.puts_off() && fresh.is_some_and(|fresh| fresh.is_with(named)) {
            // A write has either both or neither: it never has the old one.
            removed = PatchId::DURABLE;
        }
        self.node(target.ino)?.names.remove(op, position, removed);
        if target.kind == FileKind::Directory {
            return self.lost_subdir(op, target.ino, target.dir, removed);
        }
        self.lost_name(op, target.ino, target.dir, removed)?;
        Ok(())
    }

    fn point_name(
        &mut self,
        op: &mut Op<'_>,
        at: &Side<F::Place>,
        what: &Side<F::Place>,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        let (format, dir) = self.with_node(at.dir)?;
        format.overwrite(op, dir, at.place, (what.ino, what.kind), befores)
    }

    /// Swaps two names. Between the two changes one inode has both names and the other none: in
    /// soft updates that other inode gets a third name meanwhile: even in one sector, the record of
    /// the second change may wait for another block. A crash may leave that name.
    fn exchange(
        &mut self,
        op: &mut Op<'_>,
        policy: Policy,
        a: &Side<F::Place>,
        b: &Side<F::Place>,
    ) -> Result<()> {
        let a_dir = a.kind == FileKind::Directory && a.dir != b.dir;
        let b_dir = b.kind == FileKind::Directory && a.dir != b.dir;
        // First of all, as it may find no space: nothing has changed then.
        let third =
            if policy == Policy::Soft { Some(self.reserve_third_name(op, b)?) } else { None };
        let mut befores = Patches::new();
        let mut raised = [false; 2];
        for (raised, side) in raised.iter_mut().zip([a, b]) {
            let (held, raises) = self.hold(op, side.ino)?;
            push_patch(&mut befores, held);
            *raised = raises;
        }
        if a_dir {
            self.gain_subdir(op, b.dir, &mut befores)?;
            befores.extend(self.removals_above(op, b.dir));
        }
        if b_dir {
            self.gain_subdir(op, a.dir, &mut befores)?;
            befores.extend(self.removals_above(op, a.dir));
        }
        let third = match third {
            Some(reserved) => {
                let (format, dir) = self.with_node(b.dir)?;
                let place = format.place(&reserved);
                let named = format.fill(op, dir, reserved, b.ino, &befores)?;
                push_patch(&mut befores, named);
                Some(place)
            }
            None => None,
        };
        let first = self.point_name(op, b, a, &befores)?;
        let mut follows = vec![first];
        if policy == Policy::Soft {
            // As in a move: an old name goes after the new one can be reached.
            follows.extend(self.way_to(op, b.dir));
        }
        let mut second = self.point_name(op, a, b, &follows)?;
        if let Some(place) = third {
            let side = Side { place, ..*b };
            let mut follows = vec![second];
            follows.extend(self.way_to(op, a.dir));
            second = self.clear(op, &side, &follows)?;
        }
        self.touch_dirs(op, [a.dir, b.dir], &[])?;
        for ((side, other), raised) in [(a, b), (b, a)].into_iter().zip(raised) {
            let new_dir = other.dir;
            let (old, new) = (self.position(side), self.position(other));
            let (given, removed) =
                if side.ino == a.ino { (first, second) } else { (second, first) };
            let node = self.node(side.ino)?;
            node.names.remove(op, old, removed);
            node.names.exchange(op, new, given);
            if side.kind != FileKind::Directory {
                node.parent = new_dir;
            }
            if policy == Policy::Soft {
                if raised {
                    self.node(side.ino)?.drop_surplus();
                }
                self.write_node(op, side.ino, &[second])?;
                if side.dir != new_dir {
                    let mut arrived = self.way_to(op, new_dir);
                    arrived.extend([first, second]);
                    self.node(side.dir)?.moved_out.note(op, &arrived);
                }
            }
        }
        for (moves, side, other) in [(a_dir, a, b), (b_dir, b, a)] {
            if !moves {
                continue;
            }
            let (format, node) = self.with_node(side.ino)?;
            let dotdot = format.set_parent(op, node, other.dir, &[second])?;
            let old = self.node(side.dir)?;
            old.inode.links = old.inode.links.saturating_sub(1).max(2);
            self.write_node(op, side.dir, &[second, dotdot])?;
        }
        Ok(())
    }

    /// Makes room for another name of an inode beside its own.
    fn reserve_third_name(
        &mut self,
        op: &mut Op<'_>,
        side: &Side<F::Place>,
    ) -> Result<F::Reserved> {
        let (format, dir) = self.with_node(side.dir)?;
        let mut number = side.ino.0;
        let name = loop {
            let name = format!(".exchanged-{number}");
            if format.find(op, dir, name.as_bytes())?.is_none() {
                break name;
            }
            number = number.wrapping_add(1);
        };
        format.reserve(op, dir, name.as_bytes(), side.kind)
    }
}
