//! What the users of a mount may choose by names, and by what they store in the tree: no log
//! of the administrator's that the mount was not given for that.

use crate::derived::{STRANGER, Shared, chmod};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};

/// A log holds what was read of files that its readers may not read, and counts as evidence.
#[test]
fn only_rules_of_the_mount_write_logs_of_views() {
    let rules = "*.logged log to=audit\n*@seen view: log to=audit\n";
    let Some(m) = Shared::new(rules, &["--log", "audit=audit.log"]) else { return };
    let at = |name: &str| m.bench.path("m").join(name);
    let log = m.bench.path("audit.log");
    let mode = fs::metadata(&log).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "a log is its owner's");
    fs::write(at("secret"), "root-private-hunter2").unwrap();
    chmod(&at("secret"), 0o600);
    fs::create_dir(at("own")).unwrap();
    chown(at("own"), Some(STRANGER), Some(STRANGER)).unwrap();
    m.allowed(
        "cd own && echo forged-by-nobody > f && echo '*@v view: log to=audit' > .weftattributes &&
            tar -cf f.tar f && chmod 644 f f.tar .weftattributes && echo done",
        "done",
    );
    for name in [
        "secret@log to=audit",
        "secret@log to=audit+tree",
        "own/f@log to=audit",
        "own/f@upper+log to=audit",
        "own/f@tee (log to=audit)",
        "own/f@tee (upper+log to=audit)",
        "own/f@log to=audit@lower",
        "own/f.tar@log to=audit+tree",
        "own/f.tar@tree/f@log to=audit",
        "own/f@v",
    ] {
        let (_, said) = m.stranger(&format!("stat '{name}'; ls '{name}'; cat '{name}'"));
        assert!(!said.contains("forged"), "{name}: {said}");
    }
    let logged = String::from_utf8_lossy(&fs::read(&log).unwrap()).into_owned();
    assert_eq!(logged, "");
    // Rules of the mount say so for names and files.
    m.allowed("cat own/f@seen", "forged-by-nobody");
    fs::write(at("x.logged"), "an entry").unwrap();
    let logged = String::from_utf8_lossy(&fs::read(&log).unwrap()).into_owned();
    assert!(logged.contains("forged-by-nobody") && logged.contains("an entry"), "{logged:?}");
}
