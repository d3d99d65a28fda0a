//! The stage that runs an external program.
//!
//! Programs are named by the user who opens the tree, and not by the rules in it: a tree from
//! elsewhere must not run commands here. A process gets no privileges, limits on memory and
//! descriptors, and, where the kernel supports them, its own namespaces, Landlock and a seccomp
//! filter: it cannot write files, read files that its command does not name, see other processes or
//! reach the network ([`confine`]). A process that exceeds its deadline is killed with all its
//! descendants. Its standard error is read, kept up to 4 KiB, and included in the error if it
//! fails.
//!
//! - `mode=once`: a process for each pass over a file ([`pass`]): any filter.
//! - `mode=blocks` and `mode=stream`: persistent processes, which get requests in frames
//!   ([`pooled`]).

mod confine;
mod pass;
mod pooled;
mod process;

use std::sync::Arc;
use std::time::Duration;

use crate::parameters::{Program, StageInfo};
use crate::{Direction, Result, Shape, Stream, StreamCodec, Transform};
use pass::Pass;
use pooled::{Mode, Pooled};

pub(super) const STAGES: &[StageInfo] = &[StageInfo {
    name: "exec",
    summary: "runs a program that --program names",
    parameters: &[
        ("program", "the name of the program"),
        (
            "mode",
            "once (a process for each pass), blocks or stream (processes that live on) (once)",
        ),
        ("inverse", "yes if a program that lives on has one (no)"),
        ("deadline", "milliseconds without progress, or for a request, 1 to 3600000 (10000)"),
    ],
    make: |p, context| {
        let name = p.required("program")?;
        let millis = p.number("deadline", 1..=3_600_000, 10_000)?;
        let modes =
            [("once", None), ("blocks", Some(Mode::Blocks)), ("stream", Some(Mode::Stream))];
        let mode = p.choice("mode", &modes, None)?;
        let invertible = p.choice("inverse", &[("no", false), ("yes", true)], false)?;
        let deadline = Duration::from_millis(millis);
        let Some(program) = context.programs.get(&name).cloned() else {
            return Err(p.error(format!("no program named \"{name}\"")));
        };
        match mode {
            Some(mode) => Ok(Arc::new(Pooled::new(name, program, mode, invertible, deadline))),
            None if invertible => Err(p.error("inverse=yes is for mode=blocks and mode=stream")),
            None => Ok(Arc::new(Exec { name, program, deadline })),
        }
    },
}];

#[derive(Debug)]
struct Exec {
    name: String,
    program: Program,
    deadline: Duration,
}

impl Transform for Exec {
    fn name(&self) -> &'static str {
        "exec"
    }

    fn kept_as(&self) -> Option<Vec<u8>> {
        // The program's output may depend on files that it reads.
        None
    }

    fn acts_outside(&self) -> bool {
        true
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Stream(self)
    }

    fn invertible(&self) -> bool {
        false
    }
}

impl StreamCodec for Exec {
    fn start(&self, direction: Direction) -> Result<Box<dyn Stream>> {
        if direction == Direction::Inverse {
            return Err(crate::model::no_inverse("exec"));
        }
        Ok(Box::new(Pass::start(&self.name, &self.program, self.deadline)?))
    }
}

#[cfg(test)]
mod tests {
    use weft_testing::ends;

    use super::*;
    use crate::exec::{RunOptions, run};
    use crate::{Context, Io, Registry};

    fn through(command: &str, deadline: u64, input: &[u8]) -> (Result<u64>, Vec<u8>) {
        let mut context = Context::default();
        context.programs.insert("p".to_owned(), Program::new(command));
        let text = format!("view: exec program=p deadline={deadline}");
        let network = Registry::new(context).parse(&text).expect("a network");
        let mut out = Vec::new();
        let ran = run(&network, Io::Read, &mut &input[..], &mut out, RunOptions::default());
        (ran, out)
    }

    fn fails(command: &str, input: &[u8]) -> String {
        let (owned, input) = (command.to_owned(), input.to_vec());
        let (ran, _) = ends(command, move || through(&owned, 700, &input));
        ran.expect_err(command).to_string()
    }

    #[test]
    fn programs_filter() {
        let text = b"one\ntwo\n".repeat(200_000);
        let (ran, out) = through("tr a-z A-Z", 20_000, &text);
        ran.expect("tr");
        assert!(out == text.to_ascii_uppercase());
        assert_eq!(through("cat", 9000, b"").1, b"");
        assert_eq!(through("wc -c", 20_000, &text).1.trim_ascii(), b"1600000", "output at the end");
        // A program that reads only a part of its input, and one that reads nothing.
        assert_eq!(through("head -n 1", 9000, &text).1, b"one\n");
        assert_eq!(through("echo hello", 9000, &text).1, b"hello\n");
    }

    #[test]
    fn hostile_programs_end_in_time() {
        let text = vec![b'x'; 3 << 20];
        assert!(fails("sleep 1000", &text).contains("no answer within 700 ms"));
        assert!(fails("cat >/dev/null; sleep 1000 & wait", &text).contains("no answer"));
        let died = fails("echo because >&2; exit 3", &text);
        assert!(died.contains("exit status: 3") && died.contains("because"), "{died}");
        assert!(fails("kill -9 $$", &text).contains("signal: 9"));
        let flood = fails("head -c 50000000 /dev/zero >&2; exit 1", b"");
        assert!(flood.len() < 10_000);
        assert!(fails("no-such-program-anywhere", b"").contains("127"));
        // Its descendants are killed with it, even if they changed session or process group.
        for (nr, how) in
            ["sleep", "setsid sleep", "nohup setsid -f sleep", "setsid setsid -f sleep"]
                .iter()
                .enumerate()
        {
            let marker = format!("99{nr}{}", std::process::id());
            let command = format!("{how} {marker} & sleep 1000; wait");
            assert!(fails(&command, b"").contains("no answer"), "{how}");
            assert!(!runs_somewhere(&marker), "{how}: left behind");
            // The same holds if the program itself ends normally.
            let command = format!("{how} {marker} >/dev/null 2>&1 & sleep 0.1; cat");
            assert_eq!(through(&command, 9000, b"text").1, b"text", "{how}");
            assert!(!runs_somewhere(&marker), "{how}: left behind by one that ended");
        }
    }

    /// Returns true if a `sleep` process has this word among its arguments, ignoring shells that
    /// are about to start it.
    fn runs_somewhere(word: &str) -> bool {
        let pids = std::fs::read_dir("/proc").expect("processes").flatten();
        let lines = pids.filter_map(|pid| std::fs::read(pid.path().join("cmdline")).ok());
        lines.map(|line| String::from_utf8_lossy(&line).into_owned()).any(|line| {
            let mut words = line.split('\0');
            words.next() == Some("sleep") && words.any(|there| there == word)
        })
    }

    /// A program can read and change only the files that it is given.
    #[test]
    fn programs_see_what_they_are_given_and_no_more() {
        let dir = tempfile::tempdir().expect("a directory");
        let key = dir.path().join("key");
        std::fs::write(&key, "the secret of a key").expect("a file");
        let hidden = key.display().to_string();
        // The command names no part of the path, which it puts together.
        let (start, end) = hidden.split_at(hidden.len() / 2);
        let says = |command: &str| {
            let (_, out) = through(command, 9000, format!("{start}{end}").as_bytes());
            String::from_utf8_lossy(&out).trim().to_owned()
        };
        assert_eq!(says("read p; cat \"$p\" 2>/dev/null; echo ."), ".", "a file nobody named");
        assert_eq!(says("read p; ls \"${p%/key}\" 2>/dev/null; echo ."), ".", "a directory");
        assert_eq!(says(&format!("cat {hidden}")), "the secret of a key", "one that is named");
        for change in ["chmod 777", "touch", "chown 1", "setfattr -n user.x -v y", "truncate -s 0"]
        {
            says(&format!("{change} {hidden} 2>/dev/null; echo ."));
        }
        let found = std::fs::metadata(&key).expect("there");
        let mode = std::os::unix::fs::PermissionsExt::mode(&found.permissions());
        assert!(mode & 0o777 != 0o777 && found.len() == 19);
        assert_eq!(says("cat /proc/*/environ 2>/dev/null | tr -d '\\0'; echo ."), ".");
        assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
        assert!(!says("env").contains("CARGO"), "the environment is not this process's");
        let ours = std::process::id();
        assert_eq!(says(&format!("kill -0 {ours} 2>/dev/null && echo reached; echo .")), ".");
        let capabilities = "perl -ne 'print $1 if /^CapEff:\\s*(\\w+)/' /proc/self/status; echo .";
        assert!(["0000000000000000.", "."].contains(&&*says(capabilities)));
    }

    #[test]
    fn programs_are_kept_from_harm() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("written");
        fails(&format!("echo harm > {}", file.display()), b"");
        let content = std::fs::read(&file).unwrap_or_default();
        assert!(content.is_empty(), "it wrote a file");
        assert!(Registry::new(Context::default()).parse("view: exec program=p").is_err());
    }

    /// Returns a filter that implements the protocol, in Perl (which every Debian has): it swaps
    /// case in blocks, or doubles stream data. `when` is run before each request, with its letter
    /// in `$k` and its data in `$d`.
    fn perl(mode: &str, when: &str) -> String {
        let turn = match mode {
            "blocks" => "$d = substr($d, 8); $d =~ tr/a-zA-Z/A-Za-z/; put('d', $d);",
            _ => "put('d', $d . $d) if $k eq 'd'; put('d', '!') if $k eq 'z';",
        };
        format!(
            r#"exec perl -e '
            sub take {{ my $b = ""; while (length $b < $_[0]) {{
                sysread(STDIN, $b, $_[0] - length $b, length $b) or exit 0 }} $b }}
            sub put {{ my $s = $_[0] . pack("V", length $_[1]) . $_[1]; my $o = 0;
                while ($o < length $s) {{ $o += syswrite(STDOUT, $s, length($s) - $o, $o) }} }}
            while (1) {{
                my ($k, $n) = unpack("aV", take(5)); my $d = take($n);
                {};
                if ($k eq "h") {{ put("d", "weft filter 1") }} else {{ {} }}
                put("n", "");
            }}'"#,
            when.replace('\'', "\""),
            turn.replace('\'', "\"")
        )
    }

    fn living(command: &str, text: &str) -> crate::Network {
        let mut context = Context::default();
        context.programs.insert("p".to_owned(), Program::new(command));
        Registry::new(context).parse(text).expect("a network")
    }

    fn runs(network: &crate::Network, input: &[u8]) -> (Result<u64>, Vec<u8>) {
        let mut out = Vec::new();
        let io = Io::Read;
        (run(network, io, &mut &input[..], &mut out, RunOptions::default()), out)
    }

    #[test]
    fn programs_that_live_on_serve_many_files() {
        let text = b"One two Three\n".repeat(70_000);
        let blocks = perl("blocks", "");
        let network = living(&blocks, "exec program=p mode=blocks inverse=yes");
        assert_eq!(network.can().write, crate::Write::InPlace);
        let view = living(&blocks, "view: exec program=p mode=blocks");
        let swapped: Vec<u8> =
            text.iter().map(|b| b ^ (u8::from(b.is_ascii_alphabetic()) << 5)).collect();
        assert!(runs(&view, &text).1 == swapped);
        let stream = perl("stream", "");
        let network = living(&stream, "view: exec program=p mode=stream");
        for _ in 0..50 {
            let (ran, out) = runs(&network, b"abc");
            ran.expect("a small file");
            assert_eq!(out, b"abcabc!");
        }
        let (ran, out) = runs(&network, &text);
        ran.expect("a large file");
        assert_eq!(out.len(), 2 * text.len() + 1);
    }

    #[test]
    fn one_process_serves_until_it_dies_and_then_the_next_does() {
        // The process answers with its id, in as many bytes as requested, and dies after three
        // requests.
        let command = perl(
            "blocks",
            "exit 1 if $k eq 'f' && $count++ == 3; $id = sprintf('%08d', rand(1e8)) unless $id;
             $d = substr($d, 0, 8) . $id",
        );
        let network = living(&command, "view: exec program=p mode=blocks");
        let numbers: Vec<Vec<u8>> = (0..7)
            .map(|_| {
                let (ran, out) = runs(&network, b"12345678");
                ran.expect("one that waited and died is none of this reader's business");
                out
            })
            .collect();
        assert!(numbers[0] == numbers[1] && numbers[0] == numbers[2], "{numbers:?}");
        assert!(numbers[3] != numbers[0] && numbers[3] == numbers[5], "{numbers:?}");
    }

    #[test]
    fn hostile_programs_that_live_on_end_in_time_and_others_go_on() {
        // The harm is triggered by files that begin with an x.
        let at_x = |harm: &str| {
            perl("blocks", &format!("if ($k eq 'f' && substr($d, 8, 1) eq 'x') {{ {harm} }}"))
        };
        for (harm, said) in [
            ("sleep 1000", "no answer within 500 ms"),
            ("print STDERR 'because'; exit 3", "died: because"),
            ("kill 9, $$", "died"),
            ("while (1) { print STDERR 'x' x 100000 }", "no answer"),
            ("while (1) { syswrite STDOUT, 'x' x 100000 }", "garbage"),
            ("syswrite STDOUT, 'd' . pack('V', 4000000000)", "garbage"),
            ("while (1) { put('d', 'x' x 100000) }", "without end"),
            ("put('n', ''); next", "answered 0 bytes to 8"),
            ("put('d', 'x'); put('n', ''); next", "answered 1 bytes to 8"),
            ("syswrite STDOUT, ('n' . pack('V', 0)) x 2; next", "before it was asked"),
            ("put('e', 'not this one'); next", "refuses: not this one"),
            ("close STDOUT; sleep 1000", "died"),
        ] {
            let network = living(&at_x(harm), "view: exec program=p mode=blocks deadline=500");
            assert_eq!(runs(&network, b"good one").1, b"GOOD ONE", "{harm}");
            let (network, ran) = ends(harm, move || {
                let (ran, _) = runs(&network, b"x is bad");
                (network, ran)
            });
            let error = ran.expect_err(harm).to_string();
            assert!(error.contains(said), "{harm}: {error}");
            assert_eq!(runs(&network, b"good one").1, b"GOOD ONE", "{harm}: afterwards");
        }
        let no_protocol = living("cat", "view: exec program=p mode=blocks deadline=500");
        assert!(runs(&no_protocol, b"x").0.is_err());
        let gone = living("exit 0", "view: exec program=p mode=stream deadline=500");
        assert!(runs(&gone, b"x").0.expect_err("gone").to_string().contains("died"));
    }

    #[test]
    fn programs_are_kept_from_system_calls_that_no_filter_needs() {
        // socket(AF_UNIX), which Landlock does not cover.
        let command = "perl -MSocket -e 'socket(S, AF_UNIX, SOCK_STREAM, 0) or print \"$!\"'";
        assert_eq!(through(command, 9000, b"").1, b"Operation not permitted");
    }

    /// Whatever the process has inherited, a lock or a connection, the program does not get it.
    #[test]
    fn programs_inherit_no_descriptors() {
        let dir = tempfile::tempdir().expect("a directory");
        let outside = dir.path().join("outside");
        std::fs::write(&outside, "private").expect("a file");
        let file = std::fs::File::open(&outside).expect("a file");
        // As one that a shell has opened for this process: it stays open in child processes.
        let inherited = rustix::io::dup(&file).expect("a descriptor");
        rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty()).expect("set");
        let number = std::os::fd::AsRawFd::as_raw_fd(&inherited);
        let command =
            format!("perl -e 'open(F, \"<&=\", {number}) and print <F>'; ls /proc/self/fd");
        let out = through(&format!("cat >/dev/null; {command} 2>&1"), 20_000, b"x").1;
        let text = String::from_utf8_lossy(&out);
        assert!(!text.contains("private"), "{text}");
        let by_shell = format!("cat <&{number} 2>&1; true");
        if number < 10 {
            let out = through(&by_shell, 20_000, b"").1;
            assert!(!String::from_utf8_lossy(&out).contains("private"));
        }
    }

    #[test]
    fn programs_make_no_memory_that_no_limit_counts() {
        let says = |call: &str| {
            let command = format!("perl -e '$! = 0; print syscall({call}) < 0 ? $! + 0 : 0'");
            String::from_utf8_lossy(&through(&command, 20_000, b"").1).into_owned()
        };
        for call in [
            format!("{}, 0, 4096, 01600", libc::SYS_shmget),
            format!("{}, 0, 01600", libc::SYS_msgget),
            format!("{}, 0, 1, 01600", libc::SYS_semget),
            format!("{}, 0", libc::SYS_inotify_init1),
        ] {
            assert_eq!(says(&call), libc::EPERM.to_string(), "{call}");
        }
        let path = "($p = \"/usr\"), ($n = \"user.x\"), ($b = \"0\" x 64), 64";
        let get = format!("{}, {path}", libc::SYS_getxattr);
        assert_eq!(says(&get), libc::EOPNOTSUPP.to_string());
    }

    #[test]
    fn programs_start_a_bounded_number_of_processes() {
        // The kernel does not count the processes of root.
        if rustix::process::geteuid().is_root() {
            return;
        }
        let command = "perl -e 'for (1..3000) { $k = fork; last unless defined $k; \
                       if (!$k) { sleep 20; exit } $n++ } print $n < 600 ? 1 : 0; kill 9, 0'";
        let out = through(command, 20_000, b"").1;
        assert!(out.is_empty() || out == b"1", "{}", String::from_utf8_lossy(&out));
    }

    /// Attacks that Landlock does not cover: a program has a file open that it may read, and that
    /// its user owns.
    #[test]
    fn programs_change_nothing_about_files_that_they_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("read");
        std::fs::write(&file, "content").expect("a file");
        let ioctl = libc::SYS_ioctl;
        // Each call has arguments that would succeed where the kernel and the file system support
        // it. `$f` is the path, `$d` the descriptor, `$n` the name of an attribute, `$b` zeroes.
        // The kernel uses the lower 32 bits of an `ioctl` command.
        let calls = [
            ("setxattrat", "463, -100, $f, 0, $n, ($p = pack('QLL', 0, 0, 0)), 16".to_owned()),
            ("removexattrat", "466, -100, $f, 0, $n".to_owned()),
            ("file_setattr", "469, -100, $f, $b, 24, 0".to_owned()),
            ("open_tree_attr", "467, -100, $f, 1, 0, 0".to_owned()),
            ("fspick", format!("{}, -100, $f, 0", libc::SYS_fspick)),
            ("fsconfig", format!("{}, $d, 6, 0, 0, 0", libc::SYS_fsconfig)),
            ("quotactl_fd", format!("{}, $d, 0x800001 << 8, 0, 0", libc::SYS_quotactl_fd)),
            ("fchmodat2", format!("{}, -100, $f, 0777, 0", libc::SYS_fchmodat2)),
            ("FS_IOC_SETFLAGS", format!("{ioctl}, $d, 0x40086602, ($p = pack('Q', 0x40))")),
            ("with high bits", format!("{ioctl}, $d, 0x140086602, ($p = pack('Q', 0x40))")),
            ("FS_IOC32_SETFLAGS", format!("{ioctl}, $d, 0x40046602, ($p = pack('Q', 0x40))")),
            ("FS_IOC_SETVERSION", format!("{ioctl}, $d, 0x40087602, ($p = pack('Q', 7))")),
            ("FS_IOC32_SETVERSION", format!("{ioctl}, $d, 0x40047602, ($p = pack('Q', 7))")),
            ("FS_IOC_FSSETXATTR", format!("{ioctl}, $d, 0x401c5820, ($p = pack('L7', 0x80))")),
            ("FS_IOC_ENABLE_VERITY", format!("{ioctl}, $d, 0x40806685, $b")),
            ("FS_IOC_SET_ENCRYPTION_POLICY", format!("{ioctl}, $d, 0x800c6613, $b")),
            ("FS_IOC_SETFSLABEL", format!("{ioctl}, $d, 0x41009432, $b")),
            ("FITRIM", format!("{ioctl}, $d, 0xc0185879, $b")),
            ("EXT4_IOC_MIGRATE", format!("{ioctl}, $d, 0x6609, 0")),
            ("clone into a new user space", format!("{}, 0x10000011, 0, 0, 0, 0", libc::SYS_clone)),
            ("a push", format!("{ioctl}, $d, {}, $b", crate::PUSH_COMMAND)),
            ("TIOCSTI", format!("{ioctl}, $d, 0x5412, $b")),
        ];
        let says = |call: &str| {
            let start =
                format!("$f = '{}'; open(F, '<', $f) or die; $d = fileno F;", file.display());
            let rest = "$n = 'user.x'; $b = \"\\0\" x 4096; $! = 0;";
            let call = format!("print syscall({call}) < 0 ? $! + 0 : 0");
            let command =
                format!("perl -e '{}'", [&start, rest, &call].concat().replace('\'', "\""));
            let out = through(&command, 20_000, b"").1;
            String::from_utf8_lossy(&out).into_owned()
        };
        let refused = libc::EPERM.to_string();
        let passed: Vec<_> = calls.iter().filter(|(_, call)| says(call) != refused).collect();
        assert!(passed.is_empty(), "not refused: {passed:#?}");
        // System calls newer than this list, and calls by the numbers of another ABI, are unknown.
        for call in ["470, 0, 0, 0, 0", "600, 0, 0", "0x4000005b, $d, 0777", "-1", "435, $b, 88"] {
            assert_eq!(says(call), libc::ENOSYS.to_string(), "{call}");
        }
        // Common `ioctl` commands are allowed.
        for (call, want) in [("0x5401", libc::ENOTTY), ("0x5451", 0), ("0x541b", 0)] {
            assert_eq!(says(&format!("{ioctl}, $d, {call}, $b")), want.to_string(), "{call}");
        }
    }
}
