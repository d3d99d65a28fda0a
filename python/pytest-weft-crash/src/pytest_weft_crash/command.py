"""Run ``weft crash run``, and read what it says."""

from __future__ import annotations

import inspect
import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Union

from . import PROMISE_MARK

#: A line for /bin/sh, or a function.
Part = Union[str, Callable[..., object]]
#: Seconds, or a time as ``weft`` takes it, such as ``"200ms"``.
Time = Union[str, int, float]

#: The version of the output of ``weft crash run --json`` that is understood.
JSON_VERSION = 1


class CrashFailure(AssertionError):
    """A power cut can leave a state that the check does not accept."""

    def __init__(self, report: CrashReport) -> None:
        super().__init__(f"a power cut can leave what the check does not accept\n\n{report.text}")
        self.report = report


class CrashNotTested(RuntimeError):
    """The program or its check could not be tested, so that nothing is known of it."""


class NoFuse(CrashNotTested):
    """FUSE cannot be used here."""


@dataclass
class CrashReport:
    """What ``weft crash run`` found."""

    #: As it says it to people.
    text: str
    #: As it says it with ``--json``: docs/crash.md has the fields.
    data: Dict[str, Any] = field(repr=False)
    #: The recording, if it was kept.
    recording: Optional[Path] = None

    @property
    def passed(self) -> bool:
        """Whether no state failed."""
        return bool(self.data["passed"])

    @property
    def findings(self) -> List[Dict[str, Any]]:
        """The kinds of failures, each with its ``model``."""
        models = self.data["models"]
        return [{"model": model["model"], **f} for model in models for f in model["findings"]]

    @property
    def missing(self) -> List[str]:
        """The calls that are missing, such as ``fsync("settings.new")``, each once."""
        calls: Dict[str, None] = {}
        for finding in self.findings:
            calls.update(dict.fromkeys((finding["mend"] or {}).get("calls", ())))
        return list(calls)


def _time(time: Time) -> str:
    return time if isinstance(time, str) else f"{max(1, round(time * 1000))}ms"


def _line(role: str, part: Part, most: int) -> str:
    """Return the shell line of a part of a test; its function gets at most so many arguments."""
    if isinstance(part, str):
        return part
    wanted = (
        f"the {role} of a crash test runs in processes of its own, and needs to be a function at the "
        f"level of its module (or a line for the shell)"
    )
    name = getattr(part, "__qualname__", None)
    if not inspect.isfunction(part) or name is None:
        raise TypeError(f"{wanted}: {part!r} is none")
    if "<" in name:
        raise TypeError(
            f"{wanted}: {name} cannot be found again by another process. Move it out of the function "
            f"around it, and let it read what it needs from a global name, the environment or a file"
        )
    module = sys.modules.get(part.__module__)
    file = getattr(module, "__file__", None)
    found: Any = module
    for step in name.split("."):
        found = getattr(found, step, None)
    if file is None or found is not part:
        raise TypeError(f"{wanted}: {part.__module__}.{name} is something else than {part!r}")
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(part).parameters.values()
    required = sum(p.kind in kinds and p.default is p.empty for p in parameters)
    if required > most:
        what = "the folder" if most == 1 else "the folder and the promises"
        raise TypeError(f"{name} takes {required} arguments: the {role} gets {what}")
    spec = {
        "module": part.__module__,
        "file": str(Path(file).resolve()),
        "name": name,
        "arguments": required,
        # An empty entry is the directory of the process, which is another one there.
        "path": [os.path.abspath(entry) for entry in sys.path],
    }
    script = str(Path(__file__).with_name("call.py"))
    words = ["exec", sys.executable, script, json.dumps(spec)]
    return " ".join(shlex.quote(word) for word in words)


class WeftCrash:
    """Runs crash tests: the fixture ``weft_crash``."""

    def __init__(
        self,
        binary: Optional[str],
        directory: Path,
        time: Optional[Time] = None,
        models: Sequence[str] = (),
    ) -> None:
        self.binary = binary
        self.directory = directory
        self.time = time
        self.models = models
        self.count = 0

    def run(
        self,
        *,
        run: Part,
        check: Part,
        setup: Optional[Part] = None,
        model: Union[str, Sequence[str], None] = None,
        promise: Optional[str] = None,
        seed: Optional[int] = None,
        size: Union[str, int, None] = None,
        states: Optional[int] = None,
        time: Optional[Time] = None,
        findings: Optional[int] = None,
        torn: bool = True,
        jobs: Optional[int] = None,
        check_limit: Optional[Time] = None,
        run_limit: Optional[Time] = None,
        write_limit: Union[str, int, None] = None,
        any_exit: bool = False,
    ) -> CrashReport:
        """Test what power cuts leave of what ``run`` writes.

        ``setup``, ``run`` and ``check`` are lines for /bin/sh, or functions at the level of a
        module. A function gets the folder, which is also the working directory; that of ``check``
        may take a second argument, the promises that were made before the power cut. A check
        fails if it raises, or returns False.

        ``promise`` is a pattern of the lines that are promises, instead of those of
        ``pytest_weft_crash.promise``. The other arguments are the options of ``weft crash run``;
        times are seconds, or such as ``"200ms"``.

        Raises ``CrashFailure`` if a state fails, and ``CrashNotTested`` if nothing was tested.
        """
        __tracebackhide__ = True
        self.count += 1
        recording = self.directory / f"weft-crash-{self.count}.recording"
        models = [model] if isinstance(model, str) else list(model or self.models)
        options = {
            "setup": None if setup is None else _line("setup", setup, 1),
            "run": _line("run", run, 1),
            "check": _line("check", check, 2),
            "stdout-is-promise": PROMISE_MARK if promise is None else promise,
            "record": recording,
            "seed": seed,
            "size": size,
            "states": states,
            "time": self.time if time is None else time,
            "findings": findings,
            "jobs": jobs,
            "check-limit": check_limit,
            "run-limit": run_limit,
            "write-limit": write_limit,
        }
        times = ("time", "check-limit", "run-limit")
        words = ["crash", "run", "--json"]
        for name, value in options.items():
            if value is not None:
                words.append(f"--{name}={_time(value) if name in times else value}")
        words += [f"--model={name}" for name in models]
        words += [] if torn else ["--no-torn"]
        words += ["--any-exit"] if any_exit else []
        words += [] if isinstance(check, str) else ["--check-server"]
        report = self._weft(words)
        if report.passed:
            recording.unlink()
            return report
        report.recording = recording
        raise CrashFailure(report)

    def _weft(self, words: List[str]) -> CrashReport:
        __tracebackhide__ = True
        binary = self.binary or os.environ.get("WEFT") or shutil.which("weft")
        if not binary:
            raise CrashNotTested(
                "the command weft is not on the PATH: install it, or name it with "
                "--weft-crash-binary, weft_crash_binary in the configuration, or WEFT"
            )
        try:
            ran = subprocess.run(
                [binary, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except OSError as e:
            raise CrashNotTested(f"{binary} cannot be started: {e}") from None
        said = ran.stderr.decode(errors="replace").strip()
        if ran.returncode in (0, 3):
            data = json.loads(ran.stdout)
            if data.get("version") != JSON_VERSION:
                raise CrashNotTested(f"{binary} is of another version than this plugin understands")
            return CrashReport(data["text"], data)
        try:
            failure = json.loads(said.splitlines()[-1])
            why, kind = failure["error"], failure.get("kind")
        except (ValueError, LookupError, TypeError):
            why, kind = said or f"weft ended with {ran.returncode}", None
        if ran.returncode == 2:
            raise ValueError(why)
        raise NoFuse(why) if kind == "no_fuse" else CrashNotTested(why)
