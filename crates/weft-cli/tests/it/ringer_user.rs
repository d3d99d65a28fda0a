//! A shared folder as ordinary users have it: root passes every check of the kernel, and hides what
//! they meet.

use crate::run::{Bench, Ran, can_mount, ran};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use weft_testing::wait_until;

/// Users that own nothing on this machine.
pub const ADA: u32 = 12345;
pub const BEN: u32 = 12346;
pub const ROOT: u32 = 0;
const ACCOUNTS: [(&str, u32); 2] = [("weft-ada", ADA), ("weft-ben", BEN)];

/// A directory that all users reach, with the command `weft` in `bin`, and processes of several
/// users, in a mount namespace of their own: there both users have names, and may open /dev/fuse as on
/// most systems. What they mount is seen by no other process.
pub struct Users {
    bench: Rc<Bench>,
    namespace: Child,
}

impl Users {
    /// `None`, with a line that says why, where this process cannot act for others.
    pub fn new() -> Option<Self> {
        Self::on(Self::bench()?, &ACCOUNTS, "", "")
    }

    /// Users in a network of their own, in which this machine is also called `name`.
    pub fn in_network(name: &str) -> Option<Self> {
        let set_up = format!(
            "ip link set lo up && cp /etc/hosts dev/hosts && echo 127.0.0.1 {name} >> dev/hosts &&
             mount --bind dev/hosts /etc/hosts &&"
        );
        Self::on(Self::bench()?, &ACCOUNTS, "--net", &set_up)
    }

    fn bench() -> Option<Rc<Bench>> {
        if !can_mount() {
            return None;
        }
        if !rustix::process::geteuid().is_root() {
            println!("skipped: not root, which can act for other users");
            return None;
        }
        let has = |tool: &str| {
            let path = std::env::var("PATH").unwrap_or_default();
            path.split(':').any(|dir| Path::new(dir).join(tool).exists())
        };
        for tool in ["setpriv", "unshare", "nsenter", "fusermount3", "ip"] {
            if !has(tool) {
                println!("skipped: {tool} is not installed");
                return None;
            }
        }
        let bench = Bench::new();
        let shared = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(bench.dir(), shared).unwrap();
        for name in ["bin", "dev"] {
            std::fs::create_dir(bench.path(name)).unwrap();
        }
        std::fs::copy(env!("CARGO_BIN_EXE_weft"), bench.path("bin/weft")).unwrap();
        for (name, user) in [("ada", ADA), ("ben", BEN)] {
            let home = bench.path(name);
            std::fs::create_dir(&home).unwrap();
            std::os::unix::fs::chown(&home, Some(user), Some(user)).unwrap();
        }
        Some(Rc::new(bench))
    }

    /// Another machine, as it were: the same directories, and users of these names and numbers.
    pub fn machine(&self, accounts: &[(&str, u32)]) -> Self {
        Self::on(Rc::clone(&self.bench), accounts, "", "").expect("a second namespace")
    }

    fn on(
        bench: Rc<Bench>,
        accounts: &[(&str, u32)],
        more_spaces: &str,
        set_up: &str,
    ) -> Option<Self> {
        let of = |line: &dyn Fn(&str, u32) -> String| -> String {
            accounts.iter().map(|(name, id)| line(name, *id)).collect()
        };
        let users = of(&|name, id| format!("{name}:x:{id}:{id}::/:/bin/sh\n"));
        let groups = of(&|name, id| format!("{name}:x:{id}:\n"));
        let lines = format!(
            "mount -t tmpfs none dev && mknod -m 666 dev/fuse c 10 229 &&
             mount --bind dev/fuse /dev/fuse &&
             cp /etc/passwd dev/passwd && printf '{users}' >> dev/passwd &&
             cp /etc/group dev/group && printf '{groups}' >> dev/group &&
             mount --bind dev/passwd /etc/passwd && mount --bind dev/group /etc/group &&
             {set_up} echo ready && exec sleep 3600"
        );
        let mut namespace = Command::new("unshare")
            .args(Some(more_spaces).filter(|spaces| !spaces.is_empty()))
            .args(["--mount", "--propagation", "private", "sh", "-c", &lines])
            .current_dir(bench.dir())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare runs");
        let mut said = String::new();
        let out = namespace.stdout.as_mut().expect("a pipe");
        BufReader::new(out).read_line(&mut said).expect("a line");
        let users = Self { bench, namespace };
        if said.trim() != "ready" {
            println!("not here: a mount namespace with device nodes of its own");
            return None;
        }
        Some(users)
    }

    fn home(&self, user: u32) -> PathBuf {
        match user {
            ADA => self.bench.path("ada"),
            BEN => self.bench.path("ben"),
            _ => self.bench.dir().to_owned(),
        }
    }

    /// Has Ada serve a cell with certificates (in `ada/pki`), and returns its address.
    pub fn serve(&self, options: &str) -> String {
        let out = self.ok(
            ADA,
            &format!(
                "weft ringer init pki --host 127.0.0.1 >&2
                 weft ringer serve c.cell --listen 127.0.0.1:0 --tls-certificates pki --background \
                 --pid-file s.pid --json {options}"
            ),
        );
        let served: serde_json::Value = serde_json::from_str(&out).expect(&out);
        served["addresses"][0].as_str().expect("an address").to_owned()
    }

    /// Runs lines of a shell as a user, in the user's directory; root's is the one above.
    pub fn run(&self, user: u32, lines: &str) -> Ran {
        let home = self.home(user);
        let path = format!(
            "{}:{}",
            self.bench.path("bin").display(),
            std::env::var("PATH").unwrap_or_default()
        );
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--target={}", self.namespace.id()))
            .args(["--mount", "--net", "setpriv"])
            .arg(format!("--reuid={user}"))
            .arg(format!("--regid={user}"))
            .args(["--clear-groups", "bash", "-e", "-c"])
            .arg(format!("cd '{}'\n{lines}", home.display()))
            .env("PATH", path)
            .env("LC_ALL", "C")
            .env("HOME", home)
            .env_remove("WEFT_LOG")
            .env_remove("WEFT_RUNTIME_DIR")
            .stdin(Stdio::null());
        ran(&command.output().expect("nsenter runs"))
    }

    pub fn ok(&self, user: u32, lines: &str) -> String {
        let ran = self.run(user, lines);
        assert_eq!(ran.code, 0, "user {user}: {lines}\n{ran:#?}");
        ran.out
    }

    pub fn fails(&self, user: u32, lines: &str) -> String {
        let ran = self.run(user, lines);
        assert_ne!(ran.code, 0, "user {user}: {lines}\n{ran:#?}");
        ran.err
    }
}

impl Drop for Users {
    fn drop(&mut self) {
        // Mounts end when they are unmounted; servers say who they are.
        self.run(
            ROOT,
            "for m in */* *; do umount --lazy \"$m\" 2>&- || true; done
             for p in */*.pid; do kill $(cat \"$p\") 2>&- || true; done",
        );
        let _ = self.namespace.kill();
        let _ = self.namespace.wait();
    }
}

/// The first block of commands below a heading of docs/ringer.md.
pub fn documented(heading: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/ringer.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let below = page.split_once(&format!("\n{heading}\n")).expect("the heading").1;
    let fence = below.split_once("\n```sh").expect("a block").1;
    let block = fence.split_once('\n').expect("its lines").1;
    block.split_once("```").expect("its end").0.to_owned()
}

#[test]
fn five_minutes_work_for_an_ordinary_user() {
    let Some(users) = Users::new() else { return };
    let lines = documented("## Five minutes");
    assert!(lines.contains("unix:cell.sock") && lines.lines().count() >= 10, "{lines}");
    let out = users.ok(ADA, &lines);
    assert!(out.lines().any(|line| line == "hello"), "the other mount reads it: {out}");
    assert_eq!(out.matches("  here  ").count(), 2, "two clients: {out}");
    assert!(out.lines().any(|line| line == "/greeting"), "it is found: {out}");
}

#[test]
fn root_of_a_new_cell_belongs_to_who_made_it_or_who_was_asked_for() {
    let Some(users) = Users::new() else { return };
    let serve = "weft ringer serve";
    users.ok(
        ADA,
        &format!(
            "{serve} a.cell --listen unix:$PWD/s --background --pid-file s.pid
             mkdir m; weft ringer mount unix:$PWD/s m --store m.store --background
             [ \"$(stat -c '%u %g %a' m)\" = '{ADA} {ADA} 755' ]
             chmod 700 m; chmod 755 m; mkdir m/d; echo x > m/d/file
             weft ringer policy m --versions 3
             weft umount m; kill $(cat s.pid)
             # The first one may not have ended yet.
             until {serve} a.cell --owner {BEN}:7 --root-mode 1777 --listen unix:$PWD/s --background --pid-file s.pid
             do sleep 0.1; done
             weft ringer mount unix:$PWD/s m --store m.store --background
             [ \"$(stat -c '%u %g %a' m)\" = '{ADA} {ADA} 755' ]
             weft umount m; kill $(cat s.pid)
             {serve} b.cell --owner {BEN}:7 --root-mode 1777 --listen unix:$PWD/t --background --pid-file t.pid
             weft ringer mount unix:$PWD/t m --store n.store --background
             [ \"$(stat -c '%u %g %a' m)\" = '{BEN} 7 1777' ]
             echo x > m/file
             weft ringer own m --owner {ADA}:{ADA} --mode 0750
             [ \"$(stat -c '%u %g %a' m)\" = '{ADA} {ADA} 750' ]
             weft umount m; kill $(cat t.pid)"
        ),
    );
}

/// What concerns a mount is for its user, in somebody else's cell as well.
#[test]
fn user_of_a_mount_pins_scrubs_and_settles_in_a_cell_of_another() {
    let Some(users) = Users::new() else { return };
    let at = users.serve("");
    let out = users.ok(
        ADA,
        &format!(
            "mkdir m; weft ringer mount {at} m --store m.store --tls-certificates pki --background
             mkdir -p m/docs/private; echo text > m/docs/t; chmod 644 m/docs/t; chmod 700 m/docs/private
             sync m; weft ringer invite {at} --tls-certificates pki"
        ),
    );
    let token = out.lines().last().expect("a token");
    users.ok(
        BEN,
        &format!(
            "weft ringer join {token} keys --name ben
             mkdir m; weft ringer mount {at} m --store m.store --tls-certificates keys --background"
        ),
    );
    // The kernel refuses what changes the files.
    users.fails(BEN, "touch m/file");
    users.fails(BEN, "echo x >> m/docs/t");
    // The mount is the user's own.
    for (user, lines) in [
        (BEN, "weft ringer pin m; weft ringer unpin m"),
        (BEN, "weft ringer pin m/docs; weft ringer unpin m/docs"),
        (BEN, "weft ringer pin m/docs/t"),
        (BEN, "weft ringer pin m/docs/private; weft ringer unpin m/docs/private"),
        (BEN, "weft ringer scrub m"),
        (BEN, "weft ringer conflicts m"),
        (BEN, "weft ringer status m"),
        (BEN, "weft ringer key trust m $(weft ringer key id m)"),
        (ADA, "weft ringer pin m; weft ringer scrub m"),
    ] {
        users.ok(user, lines);
    }
    let why = users.fails(BEN, "weft ringer resolve m 1 --keep mine");
    assert!(why.contains("no such conflict"), "{why}");
    wait_until("the pinned file is here", || {
        users.ok(BEN, "weft ringer holders m/docs/t").contains("(here)")
    });
    // What concerns the cell is for its owner or an administrator.
    let why = users.fails(BEN, "weft ringer policy m --copies 1");
    assert!(why.contains("administrator"), "{why}");
    let why = users.fails(BEN, "weft ringer own m --mode 1777");
    assert!(why.contains("administrator"), "{why}");
    users.ok(
        ADA,
        "weft ringer own m --owner 0:0 --mode 1777
         [ \"$(stat -c '%u %g %a' m)\" = '0 0 1777' ]
         weft ringer policy m --versions 2
         weft ringer policy m --inherit",
    );
    users.ok(BEN, "echo of-ben > m/file");
    // Nobody else is answered, whatever the mount shows them.
    users.ok(
        ROOT,
        &format!(
            "mkdir root; weft ringer mount {at} root --store root.store --tls-certificates ada/pki \
             -o allow_other --background"
        ),
    );
    for verb in ["pin ../root/docs", "scrub ../root", "own ../root --mode 0777"] {
        users.fails(BEN, &format!("weft ringer {verb}"));
    }
    users.fails(BEN, "weft ringer key trust ../root $(weft ringer key id m)");
    users.ok(ROOT, "weft ringer pin root/docs; weft umount root");
    for user in [ADA, BEN] {
        users.ok(user, "weft umount m");
    }
    users.ok(ADA, "kill $(cat s.pid)");
}

/// A NAS and a laptop as the page sets them up: what they type, less the addresses of files that are
/// root's, and with the mounts and the server in the background.
#[test]
fn a_cell_for_several_machines_is_run_as_documented() {
    let Some(users) = Users::in_network("nas") else { return };
    let mut token = String::new();
    let mut machines = std::collections::BTreeSet::new();
    for line in documented("### Run a cell for several machines").lines() {
        let Some((machine, command)) = line.split_once("$ ") else {
            assert!(line.starts_with("weft1."), "the output of `invite`: {line}");
            continue;
        };
        let user = match machine {
            "nas" => BEN,
            "ada" => ADA,
            other => panic!("{other} is a machine of the page"),
        };
        machines.insert(machine.to_owned());
        let mut command = command.replace("/etc/weft/", "").replace("/srv/", "");
        if let Some((_, rest)) = command.split_once("join ") {
            let documented = rest.split(' ').next().expect("a token").to_owned();
            command = command.replace(&documented, &token);
        }
        if command.starts_with("weft ringer serve") {
            command += " --background --pid-file s.pid";
        } else if command.contains(" mount ") && !command.contains("--background") {
            command += " --background";
        }
        let out = users.ok(user, &command);
        if command.contains("invite") {
            out.lines().last().expect("a token").clone_into(&mut token);
            assert!(token.ends_with("nas:7473"), "{token}");
        }
    }
    assert_eq!(machines.len(), 2);
    users.ok(ADA, "echo important > ~/family/will; sync ~/family");
    wait_until("the NAS has a copy", || {
        users.ok(BEN, "weft ringer holders family/will").contains("(here)")
    });
    // The laptop is off.
    users.ok(ADA, "weft umount ~/family");
    users.ok(BEN, "grep -x important family/will; weft umount family; kill $(cat s.pid)");
}
