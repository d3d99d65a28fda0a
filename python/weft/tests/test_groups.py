import errno
import gc
import mmap
import os
import subprocess
import sys
import threading
import time

import pytest

import weft


def refused(number, call, *arguments, **named):
    with pytest.raises(weft.Error) as caught:
        call(*arguments, **named)
    assert caught.value.errno == number, caught.value


def test_a_group_of_a_volume_is_durable_after_a_sync(volume):
    with weft.group(volume) as first:
        volume.write("/a", b"1")
    with weft.group(volume, after=first) as second:
        volume.write("/b", b"2")
    assert not second.durable
    second.sync()
    assert first.durable and second.durable
    with second:
        volume.write("/c", b"3")
        second.barrier()
        volume.write("/d", b"4")
    assert not second.durable
    second.close()
    refused(errno.EBADF, second.sync)


def test_changes_outside_of_a_group_are_not_in_it(volume):
    with weft.group(volume) as group:
        pass
    volume.write("/a", b"1")
    assert group.durable

    with group:
        other = threading.Thread(target=lambda: volume.write("/b", b"2"))
        other.start()
        other.join()
    assert group.durable


def test_the_life_of_a_group(volume, image):
    first, second = weft.group(volume), volume.group()
    with first:
        refused(errno.EBUSY, weft.group, volume, after=first)
    third = weft.group(volume, after=[first, second])
    refused(errno.EBUSY, first.__enter__)
    with third:
        with third:  # to enter twice is to enter once
            volume.write("/a", b"1")
    weft.mkfs("other.img", size=16 << 20)
    with weft.Volume("other.img", write=True) as other:
        refused(errno.EXDEV, weft.group, other, after=first)


def test_a_thread_may_end_in_a_group(volume):
    group = weft.group(volume)
    thread = threading.Thread(target=group.__enter__)
    thread.start()
    thread.join()
    # The thread of the system ends a moment after that of Python.
    for _ in range(200):
        try:
            weft.group(volume, after=group)
            break
        except weft.Error:
            time.sleep(0.05)
    else:
        pytest.fail("the thread has left its group engaged")
    del group
    gc.collect()
    volume.write("/a", b"1")


def test_there_are_no_groups_elsewhere(tmp_path):
    refused(errno.ENOTTY, weft.group, tmp_path)
    refused(errno.ENOENT, weft.group, tmp_path / "missing")


def test_groups_order_system_calls_on_a_mount(image, directory):
    with weft.mount(image, directory, order="soft") as mounted:
        assert mounted.mounted and os.fspath(mounted) == os.path.realpath(directory)
        with weft.group(directory) as first:
            (directory / "a").write_bytes(b"1" * 100000)
        with weft.group(mounted, after=first) as second:
            (directory / "b").write_bytes(b"2")
            os.rename(directory / "b", directory / "c")
        assert not second.durable
        second.sync()
        assert first.durable and second.durable
        with weft.group(directory) as third:
            refused(errno.EBUSY, weft.group, directory, after=third)
        with weft.Volume(_other(), write=True) as volume:
            refused(errno.EXDEV, weft.group, volume, after=third)
    assert not mounted.mounted
    with weft.Volume(image) as volume:
        assert set(volume.listdir()) == {"a", "c", "lost+found"}


def _other():
    weft.mkfs("other.img", size=16 << 20)
    return "other.img"


def test_groups_of_two_mounts_are_not_mixed_up(image, directory, tmp_path):
    (tmp_path / "n").mkdir()
    with weft.mount(image, directory), weft.mount(_other(), tmp_path / "n"):
        here, there = weft.group(directory), weft.group(tmp_path / "n")
        also_there = weft.group(tmp_path / "n")
        refused(errno.EXDEV, weft.group, directory, after=there)
        refused(errno.EXDEV, weft.group, tmp_path / "n", after=[also_there, here])


def test_a_mount_in_use_stays(image, directory):
    mounted = weft.mount(image, directory)
    with open(directory / "f", "w") as file:
        refused(errno.EBUSY, mounted.unmount)
        assert mounted.mounted
        file.write("still there")
    mounted.unmount()
    mounted.unmount()
    with weft.Volume(image) as volume:
        assert volume.read("/f") == b"still there"


def test_a_mount_without_write_is_read_only(image, directory):
    with weft.mount(image, directory, write=False):
        with pytest.raises(OSError) as caught:
            (directory / "f").write_text("")
        assert caught.value.errno == errno.EROFS
        refused(errno.ENOTTY, weft.group, directory)
    with pytest.raises(weft.Error, match="sideways"):
        weft.mount(image, directory, options="sideways")


def took(group):
    """Returns true if the group has changes that are not durable, and makes them durable."""
    took = not group.durable
    group.sync()
    return took


def test_a_group_takes_the_changes_of_a_process_or_of_an_open_file(image, directory):
    other = "import sys; open(sys.argv[1], 'w').write('changed')"
    command = [sys.executable, "-c", other, directory / "f"]
    with weft.mount(image, directory, order="soft", options="open_files") as mounted:
        group = weft.group(mounted)
        group.set_label("of Python")
        for bad in ["x" * 64, "two\nlines"]:
            refused(errno.EINVAL, group.set_label, bad)
        with group.engaged(process=True, fsync="group:60000") as same:
            assert same is group
            subprocess.run(command, check=True)
            assert took(group)
            with open(directory / "f", "r+b", buffering=0) as file:
                file.write(b"mine")
                os.fsync(file)
                assert took(group), "fsync does not wait"
        subprocess.run(command, check=True)
        assert not took(group)

        with open(directory / "f", "r+b", buffering=0) as file:
            with group.engaged(file=file, fsync="barrier"):
                subprocess.run(command, check=True)
                assert not took(group)
                echo = [sys.executable, "-c", "print('passed on')"]
                subprocess.run(echo, stdout=file, check=True)
                assert took(group)
                file.write(b"mine")
                os.fsync(file)
                assert took(group)
                with mmap.mmap(file.fileno(), 0) as mapped:
                    mapped[:4] = b"Mine"
                    mapped.flush()
                assert took(group)
            file.write(b"more")
            assert not took(group)
            group.engage(file=file.fileno())
            group.disengage(file=file)

            with pytest.raises(ValueError):
                group.engage(file=file, process=True)
            with pytest.raises(ValueError):
                group.engage(fsync="sometimes")
        refused(errno.EBADF, group.engage, file=-1)
        with open(image, "rb") as elsewhere:
            refused(errno.EXDEV, group.engage, file=elsewhere)
    with weft.Volume(image, write=True) as volume:
        group = weft.group(volume)
        group.engage()
        group.disengage()
        for how in [{"process": True}, {"file": 0}, {"fsync": "barrier"}]:
            refused(errno.EOPNOTSUPP, group.engage, **how)


def test_a_mount_may_make_every_fsync_a_barrier(image, directory):
    with weft.mount(image, directory, order="soft", options="fsync=barrier"):
        group = weft.group(directory)
        with open(directory / "f", "w") as file:
            with group:
                file.write("content")
                file.flush()
            os.fsync(file)
            assert took(group)
