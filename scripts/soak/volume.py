"""A volume under test: its image, the weft process that mounts it, and the ways in which that ends.

The daemon is a child in the foreground, so that its exit status and its last words are known. The
image is either the file itself, or a disk that can lose its power (disk.py) behind NBD.
"""

import os
import signal
import subprocess
import sys

from tools import HANG_SECONDS, Trouble, copy_image, demand, end, last, run, wait_until

HERE = os.path.dirname(os.path.abspath(__file__))


def kind_of(order):
    return "ext3" if order.startswith("journal") else "ext2"


class Volume:
    """An image that is mounted again and again."""

    def __init__(self, weft, directory, order, size, block_bytes, power):
        self.weft = weft
        self.directory = directory
        self.order = order
        self.size = size
        self.block_bytes = block_bytes
        self.power = power
        self.image = os.path.join(directory, "volume.img")
        self.mount_point = os.path.join(directory, "mnt")
        self.log = os.path.join(directory, "daemon.log")
        self.daemon = None
        self.disk = None
        os.makedirs(self.mount_point)

    def make(self):
        kind = kind_of(self.order)
        demand([self.weft, "mkfs", kind, self.image, "--size", self.size,
                "--block-size", self.block_bytes, "--inode-size", 256])  # fmt: skip

    def mount(self):
        """Starts the daemon and waits until the volume is there."""
        source = self.image
        if self.power:
            path = os.path.join(self.directory, "disk.sock")
            if os.path.exists(path):
                os.unlink(path)
            self.disk = subprocess.Popen(
                [sys.executable, os.path.join(HERE, "disk.py"), self.image, path],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
            )  # fmt: skip
            if self.disk.stdout.readline().strip() != "ready":
                raise Trouble("the disk of the soak did not start: this is not weft's fault")
            source = f"nbd+unix:///?socket={path}"
        with open(self.log, "ab") as log:
            self.daemon = subprocess.Popen(
                [self.weft, "mount", source, self.mount_point, "--order", self.order, "-o", "allow_other"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env=dict(os.environ, RUST_BACKTRACE="1"),
            )  # fmt: skip
        self.wait_mounted()

    def wait_mounted(self):
        def there():
            if self.daemon.poll() is not None:
                raise Trouble(f"weft mount ended with {self.daemon.returncode}:\n{self.last_words()}")
            return os.path.ismount(self.mount_point)

        wait_until(there, HANG_SECONDS, "weft did not mount the volume")

    def last_words(self):
        with open(self.log, errors="backslashreplace") as file:
            return last(file.read(), 40)

    def check_daemon(self):
        """Trouble if the daemon has ended by itself, or a thread of it has panicked."""
        if self.daemon.poll() is not None:
            raise Trouble(f"the mount ended by itself, with {self.daemon.returncode}:\n{self.last_words()}")
        with open(self.log, errors="backslashreplace") as file:
            if "panicked at" in file.read():
                raise Trouble(f"a thread of the mount panicked:\n{self.last_words()}")

    def stop(self):
        """SIGSTOP, and waits until no thread is within a system call any more."""
        pid = self.daemon.pid
        os.kill(pid, signal.SIGSTOP)

        def stopped():
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/stat") as file:
                    if file.read().rpartition(")")[2].split()[0] != "T":
                        return False
            return True

        wait_until(stopped, HANG_SECONDS, "the mount did not stop")

    def go_on(self):
        os.kill(self.daemon.pid, signal.SIGCONT)

    def snapshot(self, path):
        """The image as a crash of the daemon at this moment leaves it, while it goes on."""
        self.stop()
        try:
            copy_image(self.image, path)
        finally:
            self.go_on()

    def cut(self, path, seed):
        """The image as a power cut at this moment may leave it, while the disk goes on."""
        self.disk.stdin.write(f"cut {path} {seed}\n")
        self.disk.stdin.flush()
        said = self.disk.stdout.readline().strip()
        if not said:
            raise Trouble("the disk of the soak ended: this is not weft's fault")
        return said

    def kill(self):
        """kill -9 of the daemon; what it leaves is taken off the mount point."""
        self.daemon.kill()
        self.daemon.wait(60)
        self.detach()
        self.end_disk()

    def kill_in_cut(self, seed):
        """A power cut of machine and disk: the image is what the disk has kept."""
        after = self.image + ".after"
        said = self.cut(after, seed)
        self.kill()
        os.replace(after, self.image)
        return said

    def unmount(self, how):
        """A clean unmount, by weft itself or by umount(8); waits until the daemon has ended."""
        command = [self.weft, "umount"] if how == "weft" else ["umount"]
        demand(command + [self.mount_point])
        try:
            status = self.daemon.wait(HANG_SECONDS)
        except subprocess.TimeoutExpired:
            raise Trouble(f"the mount did not end within {HANG_SECONDS} s of its unmount") from None
        if status != 0:
            raise Trouble(f"the mount ended with {status} after its unmount:\n{self.last_words()}")
        if self.power:
            # What the disk was not asked to flush is not durable, unmount or not.
            after = self.image + ".after"
            self.cut(after, 0)
            self.end_disk()
            os.replace(after, self.image)

    def detach(self):
        for _ in range(10):
            if not os.path.ismount(self.mount_point) and not self.is_dead_mount():
                return
            run(["umount", "-l", self.mount_point], timeout=HANG_SECONDS)

    def is_dead_mount(self):
        try:
            os.stat(self.mount_point)
        except OSError:
            return True
        return False

    def end_disk(self):
        if self.disk is not None:
            self.disk.stdin.close()
            end(self.disk, 20)
            self.disk = None

    def close(self):
        """Ends everything, whatever state it is in."""
        if self.daemon is not None and self.daemon.poll() is None:
            self.go_on()
            self.kill()
        self.detach()
        self.end_disk()
