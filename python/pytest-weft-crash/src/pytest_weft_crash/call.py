"""Call a function of a test in the folder that ``weft crash run`` has mounted.

``python call.py SPEC`` imports the module of the function and calls it. The exit status is 0 if it
returned, and returned anything but False; 1 if it raised; 126 if it could not be called, which
``weft crash run`` tells from a verdict.

With ``WEFT_CHECK_SERVER`` in the environment it serves checks: it imports the module once, and calls
the function in a process of its own for each line that it reads.

This file is run by its path: it imports what it needs, and nothing more.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import sys
import traceback
from typing import Any, Callable, Dict, List

NOT_CALLED = 126
PROMISE_MARK = "weft-promise: "


def load(name: str, file: str) -> Any:
    """Import a module from its file, under the name that it has in the test."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None or os.path.realpath(spec.origin) != os.path.realpath(file):
        spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"no Python module: {file}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def find(spec: Dict[str, Any]) -> Callable[..., object]:
    """Return the function that is named."""
    found: Any = load(spec["module"], spec["file"])
    for part in spec["name"].split("."):
        found = getattr(found, part)
    return found


def promises() -> List[str]:
    """Return the promises that were made before the power cut."""
    path = os.environ.get("WEFT_PROMISES")
    if not path:
        return []
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = file.read().splitlines()
    return [line.split(PROMISE_MARK, 1)[-1] for line in lines]


def call(function: Callable[..., object], count: int) -> int:
    """Call the function with the first of its arguments, and return the exit status."""
    arguments: List[object] = [pathlib.Path(os.environ["WEFT_MNT"])]
    if count > 1:
        arguments.append(promises())
    try:
        returned = function(*arguments[:count])
    except SystemExit:
        raise
    except BaseException:
        kind, error, frames = sys.exc_info()
        # Without the frame of this file.
        traceback.print_exception(kind, error, frames.tb_next if frames else None)
        return 1
    if returned is False:
        print(f"{function.__qualname__} returned False", file=sys.stderr)
        return 1
    return 0


def serve(function: Callable[..., object], count: int, answers: int) -> None:
    """Call the function for each line of the standard input, and answer with the exit status."""
    # What waits to be printed would be printed by each process.
    sys.stdout.flush()
    os.write(answers, b"ready\n")
    while os.read(0, 64):
        process = os.fork()
        if process == 0:
            status = 1
            try:
                os.close(answers)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                try:
                    status = call(function, count)
                except SystemExit as e:
                    status = e.code if isinstance(e.code, int) else int(e.code is not None)
                    if isinstance(e.code, str):
                        print(e.code, file=sys.stderr)
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(status & 255)
        _, ended = os.waitpid(process, 0)
        status = -os.WTERMSIG(ended) if os.WIFSIGNALED(ended) else os.WEXITSTATUS(ended)
        os.write(answers, b"%d\n" % status)


def main() -> int:
    spec = json.loads(sys.argv[1])
    sys.path[:] = spec["path"]
    sys.argv[:] = [spec["file"]]
    answers = None
    if os.environ.pop("WEFT_CHECK_SERVER", None):
        answers = os.dup(1)
        os.dup2(2, 1)
    try:
        function = find(spec)
    except BaseException:
        traceback.print_exc()
        return NOT_CALLED
    if answers is None:
        return call(function, spec["arguments"])
    serve(function, spec["arguments"], answers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
