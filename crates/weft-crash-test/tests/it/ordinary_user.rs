//! The tests of crash tests in Rust, run once more by ordinary users.

use weft_testing::{ORDINARY_USERS, Said, User, as_user};

#[test]
fn crash_tests_in_rust_work_for_ordinary_users() {
    for uid in ORDINARY_USERS {
        let Some(user) = as_user(uid).filter(User::can_mount) else { continue };
        for tmp in [user.path("tmp"), "/tmp".into()] {
            let mut tests = user.command(std::env::current_exe().expect("this program"));
            tests.args(["crash_tests::", "--test-threads=2", "--nocapture"]).env("TMPDIR", &tmp);
            let ran = Said::from(tests.output().expect("it starts"));
            let said = format!("{}{}", ran.out, ran.err);
            assert_eq!(ran.code, Some(0), "{uid}: {said}");
            assert!(!said.contains("skipped:") && !said.contains(" 0 passed"), "{uid}: {said}");
        }
    }
}
