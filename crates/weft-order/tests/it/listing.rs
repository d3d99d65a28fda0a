//! Labels, and the list of the groups of a mount.

use super::*;
use weft_order::ListedGroup;

/// A caller who is neither root nor the user who runs the mount.
const STRANGER: u32 = 54_321;

impl Volume {
    /// Executes a command with an argument of its own. Returns the errno and the argument.
    fn command_with(&self, (uid, pid): (u32, u32), request: u32, data: &[u8]) -> (i32, Vec<u8>) {
        let caller = Caller { uid, pid, ..Caller::ROOT };
        let root = self.fs().root();
        let answer = self.fs().command(&caller, root, Handle::NONE, request, data).unwrap();
        (answer.errno, answer.data)
    }

    fn label(&self, who: (u32, u32), group: u32, label: &[u8]) -> i32 {
        let mut argument = group.to_ne_bytes().to_vec();
        argument.extend((label.len() as u32).to_ne_bytes());
        argument.extend(label);
        argument.resize(72, 0);
        self.command_with(who, commands::LABEL, &argument).0
    }

    /// The numbers and the states of the groups that a caller may see.
    fn list(&self, who: (u32, u32)) -> Vec<(u32, u32)> {
        let mut listed = Vec::new();
        let mut argument = vec![0; 148];
        while let (0, data) = self.command_with(who, commands::NEXT, &argument) {
            let word = |at: usize| u32::from_ne_bytes(data[at..at + 4].try_into().unwrap());
            listed.push((word(0), word(4)));
            argument = data;
        }
        listed
    }
}

#[test]
fn groups_are_listed_with_their_states() {
    const RELEASED: u32 = 0x100;
    const ENGAGED: u32 = 0x200;
    const DEPENDED_ON: u32 = 0x400;
    const DURABLE: u32 = 0x800;
    let volume = Volume::new();
    let root = (0, own());
    assert_eq!(volume.list(root), []);
    let (a, b) = (volume.create(), volume.create());
    let (_, linear, _) = volume.command(own(), commands::CREATE, 0, 1);
    volume.done(commands::ENGAGE, a, PROCESS);
    volume.write(own(), "file");
    let states = [(a, RELEASED | ENGAGED), (b, DURABLE), (linear, 1 | DURABLE)];
    assert_eq!(volume.list(root), states);
    volume.done(commands::DISENGAGE, a, PROCESS);
    volume.done(commands::DEPEND, b, a);
    volume.done(commands::RELEASE, linear, 0);
    let states = [(a, RELEASED | DEPENDED_ON), (b, 0), (linear, 1 | RELEASED | DURABLE)];
    assert_eq!(volume.list(root), states);
    volume.done(commands::SYNC, b, 0);
    volume.done(commands::CLOSE, a, 0);
    assert_eq!(volume.list(root), [(b, DURABLE), (linear, 1 | RELEASED | DURABLE)]);
    let (errno, _) = volume.command_with(root, commands::NEXT, &[0xFF; 148]);
    assert_eq!(errno, ENOENT);
    for len in [0, 147, 149] {
        assert_eq!(volume.command_with(root, commands::NEXT, &vec![0; len]).0, EINVAL);
    }
    assert_eq!(ListedGroup::default().befores, []);
}

#[test]
fn others_see_their_own_groups_alone() {
    let volume = Volume::new();
    let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
    let own_group = volume.create();
    let (errno, of_child, _) = volume.command(child.id(), commands::CREATE, 0, 0);
    assert_eq!(errno, 0);
    let numbers = |who| volume.list(who).into_iter().map(|(number, _)| number).collect::<Vec<_>>();
    assert_eq!(numbers((STRANGER, own())), [own_group]);
    assert_eq!(
        numbers((STRANGER, child.id())),
        [own_group, of_child],
        "it descends from this process"
    );
    assert_eq!(numbers((STRANGER, parent_id())), [0; 0]);
    assert_eq!(numbers((0, parent_id())), [own_group, of_child]);
    child.kill().unwrap();
    child.wait().unwrap();
    yield_until("the group of the dead is gone", || numbers((0, own())) == [own_group]);
}

#[test]
fn a_label_is_checked_and_is_the_owners_to_give() {
    let volume = Volume::new();
    let (root, group) = ((0, own()), volume.create());
    assert_eq!(volume.label(root, group, "Stück für Stück".as_bytes()), 0);
    let listed = volume.command_with(root, commands::NEXT, &[0; 148]).1;
    assert_eq!(listed[84..102], *"Stück für Stück".as_bytes());
    assert_eq!(volume.label(root, group, b""), 0);
    assert_eq!(volume.label(root, group, &[b'x'; 63]), 0);
    for bad in [&[b'x'; 64][..], b"two\nlines", b"\xFF"] {
        assert_eq!(volume.label(root, group, bad), EINVAL, "{bad:?}");
    }
    assert_eq!(volume.label(root, group + 1, b"label"), ENOENT);
    assert_eq!(volume.label((0, parent_id()), group, b"label"), EPERM);
    assert_eq!(volume.command_with(root, commands::LABEL, &[0; 8]).0, EINVAL);
}
