import errno
import io
import os
import threading

import pytest

import weft


def test_files_are_those_of_python(volume):
    with volume.open("/f", "w", encoding="utf-8") as file:
        assert file.name == b"/f" and file.writable() and not file.readable()
        print("first", "zweite Zeile: ü", sep="\n", file=file)
    with volume.open("/f") as file:
        assert file.read().splitlines() == ["first", "zweite Zeile: ü"]
    with volume.open("/f", "a") as file:
        file.write("third\n")
    with volume.open("/f", "r+b") as file:
        file.seek(-6, io.SEEK_END)
        assert file.read() == b"third\n"
        file.seek(0)
        file.write(b"FIRST")
        file.truncate(6)
        file.flush()
        file.raw.sync()
    assert volume.read("/f") == b"FIRST\n"
    with pytest.raises(FileExistsError):
        volume.open("/f", "x")
    with volume.open("/g", "xb", buffering=0) as file:
        assert file.write(b"12345") == 5
    file = volume.open("/g", "rb")
    volume.unlink("/g")
    assert file.read() == b"12345"  # an open file stays readable
    file.close()
    with pytest.raises(ValueError):
        file.read()
    for mode in ("", "rw", "b", "rbt", "q"):
        with pytest.raises(ValueError):
            volume.open("/f", mode)
    with pytest.raises(ValueError):
        volume.open("/f", "rb", encoding="utf-8")
    with pytest.raises(io.UnsupportedOperation):
        volume.open("/f", "rb", buffering=0).write(b"")


def test_large_content_comes_back(volume):
    content = os.urandom(1 << 20)
    volume.write("/large", memoryview(content))
    assert volume.read("/large") == content
    with volume.open("/large", "rb") as file:
        file.seek(12345)
        assert file.read(100000) == content[12345:112345]


def test_directories(volume):
    volume.mkdir("/d", 0o700)
    volume.write("/d/a", b"1")
    volume.write(b"/d/\xff", b"22")
    assert set(volume.listdir("/d")) == {"a", os.fsdecode(b"\xff")}
    assert set(volume.listdir(b"/d")) == {b"a", b"\xff"}
    found = volume.stat("/d")
    assert found.is_dir() and not found.is_file() and found.st_mode & 0o777 == 0o700
    assert volume.stat(b"/d/\xff").st_size == 2
    assert volume.stat("/d/a").st_uid == os.geteuid()
    assert abs(volume.stat("/d/a").st_mtime_ns / 1e9 - os.stat(".").st_mtime) < 3600
    volume.rename("/d/a", "/b")
    assert volume.exists("/b") and not volume.exists("/d/a") and not volume.exists("/b/c")
    with pytest.raises(OSError) as caught:
        volume.rmdir("/d")
    assert caught.value.errno == errno.ENOTEMPTY and isinstance(caught.value, weft.Error)
    volume.unlink(b"/d/\xff")
    volume.rmdir("/d")
    assert set(volume.listdir()) == {"b", "lost+found"}


def test_errors_are_of_both_kinds(volume):
    with pytest.raises(weft.Error) as caught:
        volume.read("/missing")
    assert isinstance(caught.value, FileNotFoundError)
    assert caught.value.errno == errno.ENOENT and "/missing" in caught.value.strerror
    with pytest.raises(IsADirectoryError):
        volume.unlink("/lost+found")
    with pytest.raises(weft.Error, match="journal=ordered"):
        weft.Volume(volume.source, order="sideways")


def test_what_is_closed_says_so(image):
    volume = weft.Volume(image, write=True, order="async")
    assert volume.order == "async" and not volume.read_only and not volume.closed
    group = weft.group(volume)
    file = volume.open("/f", "wb", buffering=0)
    volume.close()
    volume.close()
    assert volume.closed
    with pytest.raises(ValueError):
        volume.listdir()
    with pytest.raises(weft.Error) as caught:
        file.write(b"x")
    assert caught.value.errno == errno.EBADF
    with pytest.raises(weft.Error):
        group.sync()
    with pytest.raises(weft.Error):
        file.close()
    assert weft.check(image).sound  # nothing holds the image any more


def test_without_write_nothing_is_written(image):
    with open(image, "rb") as file:
        before = file.read()
    with weft.Volume(image) as volume:
        assert volume.read_only
        with pytest.raises(OSError) as caught:
            volume.mkdir("/d")
        assert caught.value.errno == errno.EROFS
        with pytest.raises(weft.Error):
            weft.group(volume)
    with open(image, "rb") as file:
        assert file.read() == before


@pytest.mark.parametrize("format", ["ext2", "ext3", "hfs", "mfs"])
def test_every_format_is_made_and_checked(format):
    size = 800 << 10 if format == "mfs" else 16 << 20
    weft.mkfs("other.img", format, size, label="Label")
    with weft.Volume("other.img", write=True) as volume:
        volume.write("/f", b"content")
    assert weft.check("other.img").sound
    with pytest.raises(weft.Error):
        weft.mkfs("other.img", "ext2", 16 << 20)
    weft.mkfs("other.img", "ext2", 16 << 20, force=True)
    with pytest.raises(weft.Error, match="ntfs"):
        weft.mkfs("other.img", "ntfs")


def test_a_check_finds_and_repairs(image):
    with open(image, "r+b") as file:
        file.seek(1024 + 12)  # the number of free blocks, in the superblock
        file.write(b"\1\0\0\0")
    found = weft.check(image)
    assert not found.sound and found.problems == found.remaining
    found = weft.check(image, repair=True)
    assert found.sound and found.problems and not found.remaining
    assert weft.check(image) == weft.Checked([], [])


def test_threads_share_a_volume(volume):
    def work(number):
        for turn in range(20):
            volume.write(f"/{number}", bytes([number]) * 5000)
            assert volume.read(f"/{number}") == bytes([number]) * 5000

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(volume.listdir()) == 5


def test_errors_are_for_programs_and_not_for_a_command_line(image):
    with pytest.raises(ValueError, match="-1 bytes"):
        weft.mkfs("new.img", size=-1)
    assert not os.path.exists("new.img")

    def refusal(call, *arguments, **options):
        with pytest.raises(weft.Error) as caught:
            call(*arguments, **options)
        said = str(caught.value)
        assert "--" not in said
        return said

    assert "give the size" in refusal(weft.mkfs, "new.img")
    assert "overwritten only if that is asked for" in refusal(weft.mkfs, image)
    assert "take the order soft" in refusal(weft.Volume, image, write=True, order="journal")
    with weft.Volume(image, write=True) as volume:
        assert "open in this process already" in refusal(weft.Volume, image)
        # There is no current directory: a path without a slash starts at the root, too.
        volume.write("x", b"1")
        assert volume.read("/x") == b"1"
