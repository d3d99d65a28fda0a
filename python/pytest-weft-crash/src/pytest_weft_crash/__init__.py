"""Crash tests in pytest: what a power cut would leave of a program's files.

The fixture ``weft_crash`` is in ``plugin``. This module is imported by the processes that run the
functions of a test, too, one for each state: it imports next to nothing.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .command import CrashFailure, CrashNotTested, CrashReport, WeftCrash

__all__ = ["CrashFailure", "CrashNotTested", "CrashReport", "WeftCrash", "promise"]

#: The beginning of a line of ``promise``.
PROMISE_MARK = "weft-promise: "


def promise(text: str) -> None:
    """Tell the crash test that what the program did until now is durable.

    The checks of what is left by a power cut after this get ``text`` among their promises. It is a
    line on the standard output, ``weft-promise: TEXT``, which any program may print.
    """
    text = " ".join(text.splitlines())
    sys.stdout.write(f"\n{PROMISE_MARK}{text}\n")
    sys.stdout.flush()


def __getattr__(name: str) -> object:
    if name in __all__:
        from . import command

        return getattr(command, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
