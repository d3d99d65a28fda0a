"""A process that forks: what was opened belongs to the parent alone."""

import errno
import multiprocessing
import os
import subprocess
import sys
import textwrap

import pytest

import weft


def in_child(work):
    """Run work in a forked child; return what it returned, which is a text."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            os.write(write, work().encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answers:
        said = answers.read().decode()
    assert os.waitpid(child, 0)[1] == 0
    return said


def refusal(call, *arguments):
    try:
        call(*arguments)
    except weft.Error as e:
        return f"{errno.errorcode[e.errno]} {e}"
    return "nothing"


@pytest.mark.parametrize("format", ["ext2", "ext3"])
@pytest.mark.parametrize("child_first", [False, True])
def test_what_parent_and_child_write_is_the_parents(tmp_path, format, child_first):
    image = tmp_path / "fork.img"
    weft.mkfs(image, format, size=64 << 20)
    volume = weft.Volume(image, write=True)
    volume.write("/before", b"b" * 65536)
    volume.sync()
    file = volume.open("/before", "r+b", buffering=0)
    group = volume.group()

    def child():
        calls = [
            (volume.write, "/child", b"x"),
            (volume.read, "/before"),
            (volume.listdir,),
            (volume.sync,),
            (file.write, b"y"),
            (file.sync,),
            (group.engage,),
            (group.sync,),
            (volume.close,),
        ]
        return "\n".join(refusal(*call) for call in calls)

    def write():
        for number in range(40):
            volume.write(f"/parent{number}", bytes([number]) * 65536)
        volume.sync()

    if child_first:
        said = in_child(child)
        write()
    else:
        write()
        said = in_child(child)
    lines = said.split("\n")
    assert len(lines) == 9
    for line in lines:
        assert line.startswith("EBADF ") and "after a fork" in line, said
    file.close()
    volume.close()
    assert weft.check(image).sound
    with weft.Volume(image) as after:
        assert set(after.listdir()) == {"lost+found", "before", *(f"parent{n}" for n in range(40))}
        for number in range(40):
            assert after.read(f"/parent{number}") == bytes([number]) * 65536


def run(code, *arguments):
    """Run a program, which must print nothing on its standard error."""
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0 and ran.stderr == "", ran
    return ran.stdout


@pytest.mark.parametrize("busy", ["", "busy"])
def test_children_that_end_in_any_way_print_nothing_and_write_nothing(tmp_path, busy):
    # By sys.exit(), which drops what the child has; by a del and a collection; while another thread
    # writes (whose frames hold the volume in the child, too), and without one.
    code = """
        import gc, os, sys, threading
        import weft
        image = sys.argv[1]
        weft.mkfs(image, "ext3", size=64 << 20)
        volume = weft.Volume(image, write=True)
        group = volume.group()
        file = volume.open("/f", "wb")
        file.write(b"parent")
        stop = threading.Event()
        def busy():
            number = 0
            while not stop.is_set():
                volume.write(f"/busy{number % 10}", b"z" * 10000)
                volume.sync()
                number += 1
        writer = threading.Thread(target=busy) if sys.argv[2] else None
        if writer:
            writer.start()
        children = []
        for how in range(30):
            child = os.fork()
            if child == 0:
                if how % 2 == 0:
                    sys.exit(0)
                del volume, group, file
                gc.collect()
                os._exit(0)
            children.append(child)
        for child in children:
            assert os.waitpid(child, 0)[1] == 0
        stop.set()
        if writer:
            writer.join()
        file.close()
        volume.close()
        assert weft.check(image).sound
        with weft.Volume(image) as after:
            assert after.read("/f") == b"parent"
        print("whole")
    """
    assert run(code, tmp_path / "v.img", busy) == "whole\n"


def _worker(number):
    return number * number


def test_multiprocessing_with_fork_leaves_a_volume_alone(image):
    volume = weft.Volume(image, write=True)
    volume.write("/f", b"content")
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(_worker, range(20)) == [n * n for n in range(20)]
    volume.write("/g", b"more")
    volume.close()
    assert weft.check(image).sound
    with weft.Volume(image) as after:
        assert (after.read("/f"), after.read("/g")) == (b"content", b"more")


def test_a_child_opens_what_its_parent_has_closed(image):
    volume = weft.Volume(image, write=True)
    volume.write("/f", b"parent")
    volume.close()

    def child():
        with weft.Volume(image, write=True) as own:
            own.write("/g", b"child")
        return "written"

    assert in_child(child) == "written"
    with weft.Volume(image) as after:
        assert (after.read("/f"), after.read("/g")) == (b"parent", b"child")


def test_a_mount_is_unmounted_by_its_process_only(image, directory):
    mount = weft.mount(image, directory)
    group = weft.group(mount)
    group.engage()

    def child():
        return f"{mount.mounted} {refusal(mount.unmount)}"

    said = in_child(child)
    assert said.startswith("False EBADF ") and "after a fork" in said, said
    # One that ends as programs do drops its copies.
    child = os.fork()
    if child == 0:
        import gc

        del group, mount
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert os.path.ismount(directory)
    (directory / "f").write_text("content")
    group.disengage()
    group.sync()
    group.close()
    mount.unmount()
    with weft.Volume(image) as after:
        assert after.read("/f") == b"content"
