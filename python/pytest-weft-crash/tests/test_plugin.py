"""The plugin as a user has it: tests in a directory of their own, run by pytest."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

SETTINGS = '''
import os
from pathlib import Path

def save(folder: Path, text: str, sync: bool = True) -> None:
    with open(folder / "settings.new", "w") as file:
        file.write(text)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    os.rename(folder / "settings.new", folder / "settings")

def prepare(folder):
    save(folder, "old")

def careless(folder):
    save(folder, "new", sync=False)

def careful(folder):
    save(folder, "new")

def check(folder):
    assert folder == Path.cwd()
    text = Path("settings").read_text()
    assert text in ("old", "new"), f"the settings are {text!r}"
'''


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """Run pytest on the text of a test module, with this plugin and no others."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(text: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(settings=SETTINGS, test_it=text)
        return pytester.runpytest("-p", "pytest_weft_crash.plugin", "--weft-crash-require", *options)

    return run


def test_a_missing_fsync_fails_the_test_with_a_report(run, pytester) -> None:
    result = run(
        """
        from settings import *

        def test_settings(weft_crash):
            weft_crash.run(setup=prepare, run=careless, check=check, model="xfs-like")
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*CrashFailure: a power cut can leave what the check does not accept*",
            '*write("settings.new", bytes 0 to 3) is lost, but the later rename("settings.new", "settings")*',
            '*missing: fsync("settings.new"), after call 2 and before call 4*',
            "*again: weft crash run --replay *",
            "*the settings are ''*",
        ]
    )
    # The command that it names judges the state again, in a plain shell.
    again = re.search(r"again: (weft crash run .*)", result.stdout.str())
    assert again is not None
    weft = os.environ.get("WEFT", "weft")
    ran = pytester.run("/bin/sh", "-c", again.group(1).replace("weft ", f"'{weft}' ", 1))
    assert ran.ret == 3
    ran.stdout.fnmatch_lines(["the check: exit status 1", "*the settings are ''*"])


def test_a_program_that_syncs_passes_and_leaves_nothing(run) -> None:
    run(
        """
        from settings import *

        def test_settings(weft_crash, tmp_path):
            report = weft_crash.run(setup=prepare, run=careful, check=check)
            assert report.passed and not report.findings
            assert "xfs-like: no state fails" in report.text
            assert [model["model"] for model in report.data["models"]] == [
                "ext4-ordered", "xfs-like", "btrfs-like"
            ]
            assert list(tmp_path.iterdir()) == []
        """
    ).assert_outcomes(passed=1)


def test_lines_for_the_shell_and_promises(run) -> None:
    run(
        """
        import os, pytest
        from pytest_weft_crash import CrashFailure, promise

        class TestLog:
            @staticmethod
            def append(folder):
                with open("log", "w", buffering=1) as log:
                    for number in range(3):
                        print(number, file=log)
                        os.fsync(log.fileno())
                        promise(f"wrote {number}")

            @staticmethod
            def check(folder, promises):
                assert promises == [f"wrote {n}" for n in range(len(promises))]
                return not promises or len((folder / "log").read_text().split()) >= len(promises)

            def test_functions(self, weft_crash):
                with pytest.raises(CrashFailure) as failure:
                    weft_crash.run(run=TestLog.append, check=TestLog.check, model="posix", findings=1)
                report = failure.value.report
                assert report.missing == ['fsync(".")']
                assert report.findings[0]["nature"] == "not_durable"
                assert report.recording.exists()
                # The name of a new file is durable with it elsewhere.
                weft_crash.run(run=TestLog.append, check=TestLog.check, model="ext4-ordered")

            def test_lines(self, weft_crash):
                report = weft_crash.run(
                    setup="echo old >f", run="echo new >t; sync t; mv t f; echo saved",
                    check="grep -qx -e old -e new f", promise="saved", model=["xfs-like", "posix"],
                    seed=7, size="64M", states=1000, time=20, torn=False, jobs=1, check_limit="5s",
                    run_limit=0.5 + 9, write_limit=1 << 20, any_exit=True,
                )
                assert report.data["promises"] == 1
        """
    ).assert_outcomes(passed=2)


def test_what_tests_nothing_is_an_error(run) -> None:
    run(
        """
        import pytest
        from pytest_weft_crash import CrashNotTested
        from settings import *

        def fails(folder):
            raise RuntimeError("no settings here")

        def never(folder):
            return False

        def wants_more(folder, promises):
            pass

        def test_all(weft_crash):
            def why(error=CrashNotTested, **parts):
                with pytest.raises(error) as raised:
                    weft_crash.run(**{"run": careful, "check": check, **parts})
                return str(raised.value)

            assert "the setup failed" in why(setup=fails) and "no settings here" in why(setup=fails)
            assert "the program failed (exit status 1)" in why(run=fails)
            assert "no settings here" in why(run=fails)
            assert "changed nothing in its folder" in why(run="true")
            assert "never returned False" in why(check=never)
            assert "exit status 127" in why(check="no-such-program")
            assert "zfs" in why(ValueError, model="zfs")
            local = lambda folder: None
            assert "Move it out of the function around it" in why(TypeError, check=local)
            assert "the run gets the folder" in why(TypeError, run=wants_more)
            assert "is none" in why(TypeError, check=print)
        """
    ).assert_outcomes(passed=1)


def test_a_module_that_cannot_be_imported_again_is_no_verdict(run) -> None:
    run(
        """
        import os, pytest
        from pytest_weft_crash import CrashNotTested

        if "WEFT_PROMISES" in os.environ:
            raise ImportError("not for checks")

        def check(folder):
            pass

        def test_it(weft_crash):
            with pytest.raises(CrashNotTested, match="(?s)the server of checks has ended.*not for checks"):
                weft_crash.run(run="echo x >f", check=check)
        """
    ).assert_outcomes(passed=1)


def test_checks_that_misbehave_get_a_verdict(run) -> None:
    run(
        """
        import os, signal, subprocess, sys, time
        import pytest
        from pytest_weft_crash import CrashFailure

        imported = os.getpid()
        print("printed when it was imported, not by each check")

        def is_old():
            return open("f").read() == "old"

        def passes(folder):
            # The module was imported by the server; and each check has a process of its own.
            assert imported != os.getpid()
            print("nobody reads this")
            subprocess.Popen(["sleep", "1000"], start_new_session=True)
            sys.exit(0)

        def exits(folder):
            if is_old():
                sys.exit("no more")

        def dies(folder):
            if is_old():
                os.kill(os.getpid(), signal.SIGKILL)

        def hangs(folder):
            if is_old():
                time.sleep(1000)

        def removes(folder):
            if not is_old():
                (folder / "f").unlink()

        # Few states: each one that hangs takes its time, and a start of the server.
        PARTS = dict(
            setup="printf old >f", run="printf new >t; sync t; mv t f", model="ext4-ordered",
            findings=1, jobs=1,
        )

        @pytest.mark.parametrize("check", [passes, removes])
        def test_passes(weft_crash, check):
            weft_crash.run(check=check, **PARTS)

        @pytest.mark.parametrize(
            "check, outcome", [(exits, {"failed": 1}), (dies, {"killed": 9}), (hangs, "timed_out")]
        )
        def test_fails(weft_crash, check, outcome):
            with pytest.raises(CrashFailure) as failure:
                weft_crash.run(check=check, check_limit=0.5, **PARTS)
            finding = failure.value.report.findings[0]
            assert finding["outcome"] == outcome
            assert finding["output"].strip() == ("no more" if check is exits else "")
        """
    ).assert_outcomes(passed=5)


@pytest.mark.parametrize("mode", ["prepend", "importlib"])
def test_modules_in_packages_are_found(run, pytester, mode) -> None:
    run("")
    package = pytester.mkpydir("package")
    (package / "helper.py").write_text("OLD = 'old'\n")
    (package / "test_inside.py").write_text(
        "from package.helper import OLD\n"
        "def run(folder): (folder / OLD).mkdir()\n"
        "def check(folder): return all(path.name == OLD for path in folder.iterdir())\n"
        "def test_inside(weft_crash): weft_crash.run(run=run, check=check)\n"
    )
    pytester.syspathinsert()
    result = run("", f"--import-mode={mode}", "package")
    result.assert_outcomes(passed=1)


def fake(pytester, code: int, out: str = "", err: str = "") -> str:
    """Make a command that prints and ends so."""
    path = Path(pytester.path) / "fake-weft"
    (Path(pytester.path) / "out").write_text(out)
    (Path(pytester.path) / "err").write_text(err)
    path.write_text(f"#!/bin/sh\ncat {pytester.path}/out\ncat {pytester.path}/err >&2\nexit {code}\n")
    path.chmod(0o755)
    return str(path)


ONE = """
def test_it(weft_crash):
    weft_crash.run(run="true", check="true")
"""


def test_without_fuse_a_test_is_skipped_or_fails(run, pytester) -> None:
    error = json.dumps({"error": "FUSE cannot be used here: no device", "code": 1, "kind": "no_fuse"})
    weft = fake(pytester, 1, err=error)
    run(ONE, f"--weft-crash-binary={weft}").assert_outcomes(failed=1)
    pytester.makeini(f"[pytest]\nweft_crash_binary = {weft}\nweft_crash_require = false\n")
    pytester.makepyfile(test_it=ONE)
    result = pytester.runpytest("-p", "pytest_weft_crash.plugin", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*FUSE cannot be used here: no device*"])


def test_a_command_that_fails_or_is_not_there_skips_nothing(run, pytester) -> None:
    for code, out, err, says in [
        (1, "", json.dumps({"error": "not tested: x", "code": 1, "kind": "not_tested"}), "not tested: x"),
        (101, "", "thread main panicked", "thread main panicked"),
        (0, json.dumps({"version": 2}), "", "another version"),
    ]:
        result = run(ONE, f"--weft-crash-binary={fake(pytester, code, out, err)}")
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines([f"*CrashNotTested: *{says}*"])
    result = run(ONE, "--weft-crash-binary=/no/such/weft")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*CrashNotTested: /no/such/weft cannot be started*"])


def test_options_are_for_tests_that_name_none(run, pytester) -> None:
    text = """
        def test_it(weft_crash):
            report = weft_crash.run(run="echo x >f", check="true")
            assert [model["model"] for model in report.data["models"]] == ["posix", "xfs-like"]
            report = weft_crash.run(run="echo x >f", check="true", model="btrfs-like")
            assert [model["model"] for model in report.data["models"]] == ["btrfs-like"]
        """
    options = ["--weft-crash-model=posix", "--weft-crash-model=xfs-like", "--weft-crash-time=20s"]
    run(text, *options).assert_outcomes(passed=1)
    pytester.makeini("[pytest]\nweft_crash_model = posix xfs-like\nweft_crash_time = 20s\n")
    run(text).assert_outcomes(passed=1)


def test_the_example_of_the_readme_finds_its_bug_and_passes_when_mended(run, pytester) -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    example, mend = re.findall(r"```python\n(.*?)```", readme, re.S)
    result = run(example)
    result.assert_outcomes(failed=1)
    for line in re.findall(r"missing: .*", readme):
        result.stdout.fnmatch_lines([f"*{line}*"])
    mended = example.replace('        file.write(text)\n', f'        file.write(text)\n{mend}')
    assert mended != example
    run(mended).assert_outcomes(passed=1)
