//! Stages pushed on open files of a mount by `ioctl(2)`: by the example of the documentation, and by
//! the library.

use crate::transformed::{has, over_both};
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::process::Command;
use weft::attach_ioctl;

/// The Python block of docs/transform.md that says `word`.
fn example(word: &str) -> String {
    let page = include_str!("../../../../docs/transform.md");
    let blocks = page.split("```python\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.filter(|block| block.contains(word)).map(str::to_owned).next().expect("an example")
}

#[test]
fn the_example_of_the_documentation_runs() {
    if !has("python3") {
        return;
    }
    over_both(|m| {
        fs::write(m.at("words.log"), "Hello").unwrap();
        let out = Command::new("python3")
            .args(["-c", &example("fcntl")])
            .arg(m.at("words.log"))
            .output()
            .expect("python3 runs");
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        assert_eq!(said, "rot13 | zstd: b'Uryyb'\nzstd: b'Hello'\n");
        // A file without a network, which the kernel would read by itself.
        fs::write(m.at("words"), "Hello").unwrap();
        let out = Command::new("python3")
            .args(["-c", &example("fcntl")])
            .arg(m.at("words"))
            .output()
            .expect("python3 runs");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        assert_eq!(said, "rot13: b'Uryyb'\n: b'Hello'\n");
    });
}

#[test]
fn stages_are_pushed_on_a_plain_file_while_a_command_runs() {
    over_both(|m| {
        fs::write(m.at("words"), "Hello").unwrap();
        assert_eq!(fs::read(m.at("words")).unwrap(), b"Hello");
        let run = &["transform", "push", "rot13", "m/words", "--during", "cat m/words"];
        assert_eq!(m.bench.ok(run), "Uryyb");
        let file = File::open(m.at("words")).unwrap();
        reads(&file, "Hello");
    });
}

/// Reads until it is so: of a descriptor that is closed the kernel tells a moment later.
fn reads(file: &File, want: &str) {
    let mut got = String::new();
    for _ in 0..200 {
        let mut file = file;
        std::io::Seek::rewind(&mut file).unwrap();
        got.clear();
        file.read_to_string(&mut got).unwrap();
        if got == want {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("{got:?} and not {want:?}");
}

#[test]
fn all_who_read_see_what_one_pushed_until_that_one_closes() {
    over_both(|m| {
        fs::write(m.at("words.log"), "Hello").unwrap();
        let before = File::open(m.at("words.log")).unwrap();
        reads(&before, "Hello");
        let pusher = File::open(m.at("words.log")).unwrap();
        assert_eq!(attach_ioctl::push(&pusher, "rot13").unwrap(), "rot13 | zstd");
        reads(&before, "Uryyb");
        assert_eq!(attach_ioctl::shown(&before).unwrap(), "rot13 | zstd");
        // What somebody else pushes lies on top, and goes for itself.
        let other = File::open(m.at("words.log")).unwrap();
        assert_eq!(attach_ioctl::push(&other, "view: upper").unwrap(), "~upper | rot13 | zstd");
        reads(&other, "URYYB");
        assert!(attach_ioctl::pop(&before).unwrap_err().to_string().contains("pushed nothing"));
        drop(pusher);
        reads(&other, "HELLO");
        // Nothing is attached meanwhile, and nothing was written down.
        let (attached, said) = m.sh("setfattr -n user.weft.network -v rot13 words.log");
        assert!(!attached || said.contains("not found"), "{said}");
        assert_eq!(attach_ioctl::pop(&other).unwrap(), "zstd");
        reads(&before, "Hello");
        assert_eq!(m.bench.ok(&["transform", "show", "m/words.log"]), "m/words.log: zstd\n");
        // As long as a command runs.
        let run = &["transform", "push", "rot13", "m/words.log", "--during", "cat m/words.log"];
        assert_eq!(m.bench.ok(run), "Uryyb");
        reads(&before, "Hello");
    });
}

#[test]
fn what_is_written_meanwhile_goes_through_what_is_pushed() {
    over_both(|m| {
        fs::write(m.at("words.log"), "Hello").unwrap();
        let file = OpenOptions::new().read(true).write(true).open(m.at("words.log")).unwrap();
        attach_ioctl::push(&file, "rot13").unwrap();
        file.write_all_at(b"Uryyb, jbeyq", 0).unwrap();
        reads(&file, "Uryyb, jbeyq");
        attach_ioctl::pop(&file).unwrap();
        reads(&file, "Hello, world");
    });
}

#[test]
fn what_cannot_serve_is_refused_with_the_reason() {
    over_both(|m| {
        fs::write(m.at("words.log"), "Hello").unwrap();
        let read = File::open(m.at("words.log")).unwrap();
        let write = OpenOptions::new().write(true).open(m.at("words.log")).unwrap();
        for (file, network, says) in [
            (&read, "rot31", "did you mean \"rot13\"?"),
            (&read, "rot13 |", "byte 7"),
            (&read, "view: json", "size of its output is not known"),
            (&read, "view: upper", "no inverse"),
            (&read, "upper", "works in a view only"),
            (&write, "aead key=nobody", "no key named"),
        ] {
            let refused = attach_ioctl::push(file, network).unwrap_err().to_string();
            assert!(refused.contains(says), "{network}: {refused}");
        }
        drop(write);
        // Nobody writes any more.
        attach_ioctl::push(&read, "view: upper").unwrap();
        assert!(OpenOptions::new().write(true).open(m.at("words.log")).is_err());
        drop(read);
        let plain = File::open(m.bench.path("rules")).unwrap();
        let refused = attach_ioctl::push(&plain, "rot13").unwrap_err().to_string();
        assert!(refused.contains("not a file of a mount with networks"), "{refused}");
    });
}
