//! Files of the host that the command makes or replaces: a power cut leaves the old one or all of the
//! new one, under every model of what file systems keep.

use crate::run::Bench;

const MODELS: [&str; 4] = ["posix", "ext4-ordered", "xfs-like", "btrfs-like"];

/// Runs a command line of weft in a folder that loses its power at any moment.
fn survives(bench: &Bench, setup: &str, run: &str, check: &str) {
    let run = format!("'{}' {run} && echo finished", env!("CARGO_BIN_EXE_weft"));
    for model in MODELS {
        let args = ["crash", "run", "--model", model, "--stdout-is-promise", "finished"];
        let lines = ["--setup", setup, "--run", &run, "--check", check];
        let ran = bench.run(&[&args[..], &lines].concat());
        assert_eq!(ran.code, 0, "{model}: {run}: {}{}", ran.out, ran.err);
        assert!(ran.out.contains(": no state fails; "), "{model}: {run}: {}", ran.out);
    }
}

#[test]
fn certificates_of_a_cell_are_whole_and_stay() {
    let bench = Bench::new();
    let check = r#"
        for file in pki/*.pem; do
            test ! -e "$file" || tail -n 1 "$file" | grep -q '^-----END' || exit 1
        done
        test ! -s "$WEFT_PROMISES" || test "$(ls pki/*.pem | wc -l)" = 6"#;
    survives(&bench, "true", "ringer init pki --host nas --quiet", check);
}

#[test]
fn a_key_stays_when_it_was_reported() {
    let bench = Bench::new();
    let check = r#"test ! -e keys/k || grep -Eqx '[0-9a-f]{64}' keys/k || exit 1
        test ! -s "$WEFT_PROMISES" || test -e keys/k"#;
    let run = "transform keys new keys/k --quiet";
    survives(&bench, "mkdir keys", run, check);
}

#[test]
fn an_exported_archive_replaces_the_old_one_as_a_whole() {
    let bench = Bench::with_volume("ext2");
    bench.write("file", b"content");
    bench.ok(&["put", "file", "v.img:/", "--quiet"]);
    let check =
        "grep -qx old x.tar || tar tf x.tar | grep -qx ./file || tar tf x.tar | grep -qx file";
    survives(&bench, "echo old >x.tar", "export \"$WEFT_CWD/v.img:/\" x.tar --quiet", check);
}
