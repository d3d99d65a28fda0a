//! Owners of files on machines where people have other numbers.

use crate::ringer_user::{ADA, BEN, ROOT, Users};

/// On the first machine Ada and Ben have these numbers, on the second the other way round.
const CAROL: u32 = 12347;

/// Mounts the cell for all users of a machine.
fn mount(users: &Users, at: &str, dir: &str, options: &str) {
    users.ok(
        ROOT,
        &format!(
            "mkdir {dir}; weft ringer mount {at} {dir} --store {dir}.store --tls-certificates ada/pki \
             -o allow_other {options} --background"
        ),
    );
}

#[test]
fn owners_are_mapped_by_name_or_all_shown_as_one() {
    let Some(one) = Users::new() else { return };
    let two = one.machine(&[("weft-ben", ADA), ("weft-ada", BEN), ("weft-carol", CAROL)]);
    let three = one.machine(&[("weft-dave", CAROL)]);
    let at = one.serve("--root-mode 1777");
    mount(&one, &at, "m1", "--map-users");
    mount(&two, &at, "m2", "--map-users");
    mount(&three, &at, "m3", "--map-users -o uid=1,gid=2");
    mount(&two, &at, "raw", "");
    mount(&two, &at, "mine", &format!("-o uid={CAROL},gid={CAROL}"));
    let owner = |users: &Users, path: &str| {
        users.ok(ROOT, &format!("stat -c '%u:%g' {path}")).trim().to_owned()
    };
    let of = |user: u32| format!("{user}:{user}");
    assert_eq!(owner(&one, "m1"), of(ADA));
    assert_eq!(owner(&two, "m2"), of(BEN), "the server knew the name of the root's owner");

    one.ok(ADA, "echo of ada > ../m1/a; chmod 600 ../m1/a");
    one.ok(BEN, "echo of ben > ../m1/b; chmod 600 ../m1/b");
    // Ada on the second machine, with Ben's number of the first.
    two.ok(BEN, "grep -x 'of ada' ../m2/a; echo more >> ../m2/a; chmod 640 ../m2/a");
    two.fails(BEN, "cat ../m2/b");
    two.fails(ADA, "cat ../m2/a");
    two.ok(ADA, "grep -x 'of ben' ../m2/b; mkdir ../m2/d; echo x > ../m2/d/file");
    assert_eq!(owner(&one, "m1/d/file"), of(BEN));
    for (path, here, there) in [("a", ADA, BEN), ("b", BEN, ADA)] {
        assert_eq!(owner(&one, &format!("m1/{path}")), of(here));
        assert_eq!(owner(&two, &format!("m2/{path}")), of(there));
        assert_eq!(owner(&two, &format!("raw/{path}")), of(here), "as it is stored");
    }
    // Root is root everywhere, and gives files away by name.
    one.ok(ROOT, "echo x > m1/r");
    assert_eq!(owner(&two, "m2/r"), "0:0");
    two.ok(ROOT, "chown weft-ada:weft-ben m2/r");
    assert_eq!(owner(&one, "m1/r"), format!("{ADA}:{BEN}"));

    // Names that a machine does not have.
    two.ok(CAROL, "echo of carol > m2/c");
    assert_eq!(owner(&one, "m1/c"), of(65534));
    assert_eq!(owner(&three, "m3/c"), "1:2");
    // Dave has Carol's number on his machine, and gets another one in the cell.
    three.ok(CAROL, "echo of dave > m3/e; mkdir m3/f; echo x >> m3/e");
    assert_eq!(owner(&three, "m3/e"), of(CAROL));
    assert_eq!(owner(&two, "m2/e"), of(65534));
    assert_eq!(owner(&two, "raw/e"), of(2_000_000_000));
    let why = one.fails(55555, "echo x > m1/d/../u");
    assert!(why.contains("too large"), "no name, no file: {why}");

    // The names are for reading, and no part of what is copied.
    let script = "import os, sys
assert 'user.weft.owners' not in os.listxattr('m1')
try:
    os.setxattr('m1', 'user.weft.owners', b'user 0 weft-ben')
    sys.exit('set')
except PermissionError: pass
try:
    os.removexattr('m1', 'user.weft.owners')
    sys.exit('removed')
except PermissionError: pass
print(os.getxattr('m1', 'user.weft.owners').decode(), end='')";
    let names = one.ok(ROOT, &format!("python3 -c \"{script}\""));
    let mut lines: Vec<&str> = names.lines().collect();
    lines.sort_unstable();
    let wanted = [(ADA, "ada"), (BEN, "ben"), (CAROL, "carol"), (2_000_000_000, "dave")];
    let wanted: Vec<String> = ["group", "user"]
        .iter()
        .flat_map(|kind| wanted.map(|(id, name)| format!("{kind} {id} weft-{name}")))
        .collect();
    let mut wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
    wanted.sort_unstable();
    assert_eq!(lines, wanted);

    // One owner for all: shown, and nothing stored.
    for path in ["", "/a", "/b", "/e", "/d/file"] {
        assert_eq!(owner(&two, &format!("mine{path}")), of(CAROL));
    }
    two.ok(CAROL, "grep -x 'of ben' mine/b; echo mine > mine/g; chmod 600 mine/a mine/g");
    two.ok(ROOT, &format!("chown {CAROL}:{CAROL} mine/a; chgrp {CAROL} mine/b"));
    two.fails(ROOT, "chown 0 mine/a");
    two.fails(ROOT, "chgrp 0 mine/a");
    assert_eq!(owner(&two, "raw/a"), of(ADA));
    assert_eq!(owner(&two, "raw/g"), of(CAROL), "the user who made it");

    one.ok(ROOT, "weft umount m1");
    two.ok(ROOT, "weft umount m2; weft umount raw; weft umount mine");
    three.ok(ROOT, "weft umount m3");
    one.ok(ADA, "kill $(cat s.pid)");
}
