import asyncio
import errno
import gc
import os
import selectors
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


@pytest.fixture
def journalled(tmp_path):
    weft.mkfs(tmp_path / "j.img", "ext3", size=256 << 20)
    return tmp_path / "j.img"


class Stopped(Exception):
    pass


def notes(error):
    return "".join(getattr(error, "__notes__", []))


def change(top):
    (top / "f").write_text("new, and longer")
    os.rename(top / "old", top / "renamed")
    os.unlink(top / "gone")
    (top / "made").mkdir()
    (top / "made" / "g").write_text("g")


def contents(top):
    files = {p.name: p.read_text() for p in top.iterdir() if p.is_file()}
    return files, (top / "made").exists()


def prepare(top):
    for name in ["f", "old", "gone"]:
        (top / name).write_text(name)
    return contents(top)


CHANGED = {"f": "new, and longer", "renamed": "old"}, True


def test_an_exception_undoes_what_was_changed(journalled, directory):
    with weft.mount(journalled, directory) as mounted:
        before = prepare(directory)
        for where in [mounted, directory]:
            with pytest.raises(Stopped) as caught:
                with weft.atomic(where):
                    change(directory)
                    assert contents(directory) == CHANGED
                    raise Stopped("in the middle")
            assert not notes(caught.value)
            assert contents(directory) == before
        (directory / "in no group").write_text("kept")
        (directory / "in no group").unlink()

        with weft.atomic(directory) as group:
            assert group.blocks_left > 0
            change(directory)
            with open(directory / "f") as file:
                os.fsync(file)  # does not wait for its own group
            refused(errno.EBUSY, group.commit)
        assert contents(directory) == CHANGED
        assert group.blocks_left == 0 and not group.durable
        refused(errno.EINVAL, group.abort)
        with weft.group(directory, after=group) as later:
            (directory / "f").write_text("later")
        later.sync()
        assert group.durable
    with weft.Volume(journalled) as volume:
        assert volume.read("/f") == b"later" and volume.exists("/made/g")
    assert weft.check(journalled).sound


def test_the_changes_of_a_process_or_of_an_open_file_are_undone(journalled, directory):
    append = "import sys; open(sys.argv[1], 'a').write('+')"
    command = [sys.executable, "-c", append, directory / "f"]
    with weft.mount(journalled, directory, options="open_files"):
        (directory / "f").write_text("before")
        with pytest.raises(Stopped):
            with weft.atomic(directory, process=True):
                subprocess.run(command, check=True)
                assert (directory / "f").read_text() == "before+"
                raise Stopped
        assert (directory / "f").read_text() == "before"
        with open(directory / "f", "r+b", buffering=0) as file:
            with pytest.raises(Stopped):
                with weft.atomic(directory, file=file):
                    file.write(b"BEFORE")
                    (directory / "other").write_text("kept")
                    raise Stopped
        assert (directory / "f").read_text() == "before"
        assert (directory / "other").read_text() == "kept"


def test_what_others_have_changed_is_kept(journalled, directory):
    with weft.mount(journalled, directory):
        prepare(directory)
        with pytest.raises(Stopped) as caught:
            with weft.atomic(directory) as group:
                change(directory)
                write = (directory / "f").write_text
                other = threading.Thread(target=write, args=["new, and longer"])
                other.start()
                other.join()
                raise Stopped
        assert "kept: others" in notes(caught.value)
        assert contents(directory) == CHANGED
        group.sync()


def test_an_exception_undoes_the_changes_of_a_volume(journalled):
    with weft.Volume(journalled, write=True, order="journal") as volume:
        volume.write("/f", b"old")
        with pytest.raises(Stopped) as caught:
            with weft.atomic(volume) as group:
                volume.write("/f", b"new")
                volume.write("/g", b"new")
                raise Stopped
        assert not notes(caught.value)
        assert volume.read("/f") == b"old"
        refused(errno.ENOENT, volume.read, "/g")
        refused(errno.EINVAL, group.abort)
        with weft.atomic(volume) as group:
            volume.write("/f", b"new")
        refused(errno.EINVAL, group.abort)
        assert volume.read("/f") == b"new"


def test_where_nothing_can_be_undone_the_exception_says_so(tmp_path):
    weft.mkfs(tmp_path / "small.img", "ext3", size=64 << 20)
    with weft.Volume(tmp_path / "small.img", write=True, order="journal") as volume:
        with pytest.raises(Stopped) as caught:
            with weft.atomic(volume) as group:
                volume.write("/f", b"kept")
                raise Stopped
        assert "the changes are kept: nothing can be undone" in notes(caught.value)
        assert volume.read("/f") == b"kept"
        refused(errno.EINVAL, group.abort)
        refused(errno.EOPNOTSUPP, weft.group, volume, kind="abortable")
        with weft.atomic(volume, after=group) as second:
            volume.write("/g", b"whole")
        refused(errno.EBUSY, second.engage)
        second.sync()
        assert group.durable
        with volume.group(kind="linear"):
            volume.write("/h", b"1")
        with pytest.raises(ValueError, match="sideways"):
            volume.group(kind="sideways")


def test_an_atomic_group_needs_a_journal(image, volume, tmp_path, directory):
    refused(errno.EOPNOTSUPP, weft.group, volume, kind="atomic")
    refused(errno.EOPNOTSUPP, weft.atomic(volume).__enter__)
    volume.close()
    with weft.mount(image, directory):
        refused(errno.EOPNOTSUPP, weft.atomic(directory).__enter__)
        with weft.group(directory, kind="linear") as group:
            (directory / "f").write_text("1")
        group.sync()


def told(group, write):
    """A group that has nothing to wait for, then changes, then durable ones."""
    with group.when_durable() as now:
        assert now.wait(60) and now.wait(0)
    with group:
        write()
    durable = group.when_durable()
    forgotten = group.when_durable().fileno()
    gc.collect()
    with pytest.raises(OSError):
        os.fstat(forgotten)
    with selectors.DefaultSelector() as selector:
        selector.register(durable, selectors.EVENT_READ)
        assert not selector.select(0) and not durable.wait(0.01)
        group.sync()
        assert selector.select(60)
    assert durable.wait() and durable.wait()
    durable.close()
    for call in [durable.fileno, durable.wait]:
        with pytest.raises(ValueError):
            call()


def awaited(group, write):
    with group:
        write()

    async def both():
        durable = group.when_durable()

        async def one():
            await durable
            return time.monotonic()

        waiting = [asyncio.ensure_future(one()) for _ in range(2)]
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in waiting)
        begun = time.monotonic()
        await asyncio.get_running_loop().run_in_executor(None, group.sync)
        ended = await asyncio.wait_for(asyncio.gather(*waiting), 60)
        assert min(ended) > begun
        await durable

    asyncio.run(both())


def test_a_program_is_told_that_a_group_of_a_volume_is_durable(volume):
    told(weft.group(volume), lambda: volume.write("/f", b"1"))
    awaited(weft.group(volume), lambda: volume.write("/f", b"2"))
    with weft.group(volume) as group:
        volume.write("/f", b"3")
    durable = group.when_durable()
    volume.close()
    assert durable.wait(60)
    refused(errno.EBADF, group.when_durable)


def test_a_program_is_told_that_a_group_of_a_mount_is_durable(image, directory):
    with weft.mount(image, directory, order="soft"):
        told(weft.group(directory), lambda: (directory / "f").write_text("1"))
        awaited(weft.group(directory), lambda: (directory / "f").write_text("2"))
        with weft.group(directory) as group:
            (directory / "f").write_text("3")
        durable = group.when_durable()
    assert durable.wait(60)


@pytest.mark.parametrize("then_changes", [True, False])
def test_a_context_that_takes_too_long_ends_with_a_timeout(journalled, directory, then_changes):
    with weft.mount(journalled, directory), open(directory / "other", "w") as other:
        other.write("of another")
        other.flush()
        before = prepare(directory)
        with pytest.raises(TimeoutError) as caught:
            with weft.atomic(directory):
                change(directory)
                waits = threading.Thread(target=os.fsync, args=[other.fileno()])
                waits.start()
                waits.join()  # for 5 seconds
                if then_changes:
                    (directory / "f").write_text("too late")
        assert contents(directory) == before
        assert not notes(caught.value)


def test_a_group_may_be_undone_within_its_context(journalled, directory):
    with weft.mount(journalled, directory):
        before = prepare(directory)
        with weft.atomic(directory) as group:
            change(directory)
            group.abort()
        assert contents(directory) == before


def test_a_context_that_changes_too_much_is_undone(journalled, directory):
    with weft.mount(journalled, directory):
        (directory / "f").write_bytes(b"1" * (8 << 20))
        with open(directory / "f", "r+b", buffering=0) as file:
            os.fsync(file)
            with pytest.raises(OSError) as caught:
                with weft.atomic(directory):
                    while True:
                        file.write(b"2" * (1 << 20))
        assert caught.value.errno == errno.EFBIG and not notes(caught.value)
        assert (directory / "f").read_bytes() == b"1" * (8 << 20)
