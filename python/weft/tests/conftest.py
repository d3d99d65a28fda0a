import os
import pathlib
import shutil

import pytest

import weft


@pytest.fixture(autouse=True)
def in_scratch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def image(tmp_path):
    weft.mkfs(tmp_path / "v.img", "ext2", size=16 << 20)
    return tmp_path / "v.img"


@pytest.fixture
def volume(image):
    with weft.Volume(image, write=True) as opened:
        yield opened


@pytest.fixture
def directory(tmp_path):
    if not os.path.exists("/dev/fuse"):
        pytest.skip("there is no /dev/fuse")
    if os.geteuid() != 0 and shutil.which("fusermount3") is None:
        pytest.skip("not root, and there is no fusermount3")
    made = tmp_path / "m"
    made.mkdir()
    return made


@pytest.fixture
def readme():
    return (pathlib.Path(__file__).parent.parent / "README.md").read_text()
