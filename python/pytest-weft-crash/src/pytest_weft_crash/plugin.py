"""The fixture and the options."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List, Optional

import pytest

from .command import CrashReport, NoFuse, WeftCrash


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("weft-crash", "crash tests with weft")
    group.addoption("--weft-crash-binary", metavar="PATH", help="the command weft [default: that on the PATH]")
    group.addoption(
        "--weft-crash-time", metavar="TIME", help="search at most this long for each model, such as 30s"
    )
    group.addoption(
        "--weft-crash-model",
        metavar="MODEL",
        action="append",
        help="a model of what file systems may lose and reorder, for tests that name none; may be repeated",
    )
    group.addoption(
        "--weft-crash-require",
        action="store_true",
        default=None,
        help="fail crash tests where FUSE cannot be used, instead of skipping them",
    )
    parser.addini("weft_crash_binary", "the command weft")
    parser.addini("weft_crash_time", "search at most this long for each model")
    parser.addini("weft_crash_model", "the models for tests that name none", type="args")
    parser.addini("weft_crash_require", "fail where FUSE cannot be used", type="bool", default=False)


class _Fixture(WeftCrash):
    """A test whose folder cannot be mounted is skipped, unless that is to be an error."""

    require = False

    def _weft(self, words: List[str]) -> CrashReport:
        __tracebackhide__ = True
        try:
            return super()._weft(words)
        except NoFuse as e:
            if self.require:
                raise
            pytest.skip(f"weft crash: {e}")


@pytest.fixture
def weft_crash(request: pytest.FixtureRequest, tmp_path: Path) -> WeftCrash:
    """Run crash tests: ``weft_crash.run(setup=..., run=..., check=...)``."""

    def option(name: str) -> Optional[Any]:
        given = request.config.getoption(f"weft_crash_{name}")
        return request.config.getini(f"weft_crash_{name}") if given is None else given

    fixture = _Fixture(
        option("binary") or None, tmp_path, option("time") or None, option("model") or ()
    )
    fixture.require = bool(option("require"))
    return fixture
