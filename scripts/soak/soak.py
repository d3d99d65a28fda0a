"""Runs real programs on weft mounts, takes the mount away from under them, and judges what is left.

    soak.sh SECONDS [WEFT]

For each order of writes in turn, volumes are made and used for some rounds of 20 to 60 seconds. In
each round several programs run at once; at random moments the volume is looked at as a crash would
leave it (SIGSTOP and a copy of the image, or the image after a power cut), and at the end it is
killed, loses its power, or is unmounted. The first finding ends the soak: the image is kept, and
the command that repeats the volume is printed. Environment:

    ORDERS      the orders of writes, separated by blanks (default: all)
    PROGRAMS    the programs, separated by blanks (default: all that are installed)
    SEED        the seed of the first volume of each order (default: the time)
    SOAK_DIR    where the volumes are (default: /dev/shm if there is room, else $TMPDIR or /tmp)
    GO_ON=1     keep the image of a finding, and go on with another volume

The seed decides what is run and when it is cut; the scheduling of processes it does not.
"""

import os
import random
import shutil
import signal
import sys
import tempfile
import time

from judge import Judge, check_itself, free_bytes
from notes import View, position, settle
from program import Place, Worker, shows_no_stale_data
from postgres import remove_shared_memory
from programs import PROGRAMS
from tools import Trouble, copy_image
from trees import acls_of
from volume import Volume

ORDERS = ["soft", "journal=metadata", "journal=ordered", "journal=full", "async"]
VOLUME_BYTES = 640 << 20
ROUNDS_OF_A_VOLUME = 4
# Snapshots, copies, disks with their caches.
ROOM_BYTES = 6 << 30


class Totals:
    """What was looked at in one order."""

    def __init__(self):
        # How the mounts of this order treat ACLs, once it is known.
        self.acls = None
        self.counts = dict.fromkeys(
            ["rounds", "kills", "snapshots", "power cuts", "unmounts", "rows", "files", "pages", "commits", "findings"], 0
        )

    def add(self, what, n=1):
        if what in self.counts:
            self.counts[what] += n

    def __str__(self):
        return ", ".join(f"{n} {what}" for what, n in self.counts.items())


class Campaign:
    """One volume of one order, for some rounds."""

    def __init__(self, weft, order, seed, top, programs, totals):
        self.order, self.seed, self.totals = order, seed, totals
        self.rng = random.Random(f"{order} {seed}")
        self.directory = os.path.join(top, f"{order}-{seed}")
        self.originals = os.path.join(self.directory, "originals")
        self.notes = os.path.join(self.directory, "notes")
        self.scratch = os.path.join(self.directory, "scratch")
        for path in [self.directory, self.originals, self.notes, self.scratch]:
            os.makedirs(path)
        self.programs = programs
        self.power = self.rng.random() < 0.5
        block_bytes = self.rng.choice([1024, 2048, 4096, 4096])
        self.volume = Volume(weft, os.path.join(self.directory, "v"), order, VOLUME_BYTES, block_bytes, self.power)
        self.kind = f"blocks of {block_bytes}, {'a disk with a volatile cache' if self.power else 'an image file'}"
        self.judge = Judge(order, self.scratch)
        self.workers = []
        # The image of the last crash, as it was before it was judged.
        self.evidence = os.path.join(self.directory, "evidence.img")
        self.is_evidence = False
        self.snapshot_volume = None

    def place(self, number, index=0, mount=None):
        return Place(
            mount=mount or self.volume.mount_point, notes=self.notes, scratch=self.scratch, originals=self.originals,
            order=self.order, power=self.power, volume=f"{self.order}-{self.seed}", round=number,
            seed=self.seed, index=index,
        )  # fmt: skip

    def verifier(self, number, view, clean):
        """A function that asks every program about a mounted volume."""

        def verify(mount):
            place = self.place(number, mount=mount)
            for program in PROGRAMS.values():
                findings, counts = program.verify(place, view, clean)
                for what, n in counts.items():
                    self.totals.add(what, n)
                if findings:
                    shown = findings[:10] + ([f"and {len(findings) - 10} more"] if len(findings) > 10 else [])
                    raise Trouble("\n".join(shown))

        return verify

    def keep_evidence(self, image):
        copy_image(image, self.evidence)
        self.is_evidence = True

    def look(self):
        """Snapshot or power cut in the midst of a round, and its judgement."""
        volume = self.volume
        path = os.path.join(self.directory, "s", "volume.img")
        shutil.rmtree(os.path.dirname(path), ignore_errors=True)
        copy = Volume(volume.weft, os.path.dirname(path), self.order, volume.size, volume.block_bytes, False)
        self.snapshot_volume = copy
        before = position(self.notes)
        if self.power:
            self.said = volume.cut(path, self.rng.getrandbits(32))
            self.totals.add("power cuts")
        else:
            volume.snapshot(path)
            self.totals.add("snapshots")
        view = View(self.notes, before, position(self.notes))
        self.keep_evidence(path)
        self.judge.judge_crash(copy, self.verifier(self.number, view, clean=False))
        self.is_evidence = False
        copy.close()
        self.snapshot_volume = None

    def check_workers(self):
        self.volume.check_daemon()
        for worker in self.workers:
            failure = worker.failure()
            if failure:
                raise Trouble(failure)

    def run_round(self, number):
        self.number = number
        rng, volume = self.rng, self.volume
        for flag in ["stop", "cut"]:
            if os.path.exists(os.path.join(self.scratch, flag)):
                os.unlink(os.path.join(self.scratch, flag))
        chosen = rng.sample(self.programs, min(len(self.programs), rng.randrange(3, 6)))
        length = rng.uniform(15, 45)
        looks = sorted(rng.uniform(2, length) for _ in range(rng.randrange(1, 4)))
        ending = rng.choice(["kill", "kill", "unmount"])
        began = time.monotonic()
        volume.mount()
        self.workers = []
        if number == 0 and "trees" in self.programs and not self.totals.acls:
            self.totals.acls = acls_of(volume.mount_point)
            if self.totals.acls == "ignored":
                print(f"skipped: {self.order}: ACLs and cp -a: this mount stores ACLs and does not heed them")
        for name in chosen:
            program = PROGRAMS[name]
            for index in range(program.processes()):
                self.workers.append(Worker(program, self.place(number, index)))
        # A judgement takes longer than the time between looks on a slow machine: then the next
        # look is at once.
        for moment in [*looks, length]:
            while time.monotonic() - began < moment:
                self.check_workers()
                time.sleep(0.1)
            if moment != length:
                self.look()
                self.check_workers()
        said = self.end_round(ending)
        self.totals.add("rounds")
        seconds = time.monotonic() - began
        print(
            f"{self.order}, seed {self.seed}, round {number} ({', '.join(chosen)}; {self.kind}): "
            f"{len(looks)} looks, {said}, well after {seconds:.0f} s",
            flush=True,
        )

    def end_round(self, ending):
        volume = self.volume
        if ending == "unmount":
            self.flag("stop")
            for worker in self.workers:
                worker.finish()
            self.check_workers()
            how = self.rng.choice(["weft", "umount"])
            volume.unmount(how)
            self.totals.add("unmounts")
            self.workers = []
            self.keep_evidence(volume.image)
            self.judge.judge_clean(volume, self.verifier(self.number, View(self.notes), clean=True))
            self.is_evidence = False
            return f"unmounted by {how}"
        before = position(self.notes)
        self.flag("cut")
        if self.power:
            said = f"power cut ({volume.kill_in_cut(self.rng.getrandbits(32))})"
            self.totals.add("power cuts")
        else:
            volume.kill()
            said = "killed"
        self.totals.add("kills")
        for worker in self.workers:
            worker.end()
        self.workers = []
        settle(self.notes, before)
        view = View(self.notes)
        self.keep_evidence(volume.image)
        self.judge.judge_crash(volume, self.verifier(self.number, view, clean=False))
        self.is_evidence = False
        return said

    def flag(self, name):
        with open(os.path.join(self.scratch, name), "w"):
            pass

    def keep(self, trouble):
        """Keeps what a person needs to see what went wrong; returns where."""
        kept = tempfile.mkdtemp(prefix="weft-soak-finding.", dir=os.environ.get("TMPDIR", "/tmp"))
        image = self.evidence if self.is_evidence else None
        if image:
            copy_image(image, os.path.join(kept, "before-judging.img"))
        for volume in [self.volume, self.snapshot_volume]:
            if volume is not None and os.path.exists(volume.image):
                name = "volume.img" if volume is self.volume else "judged.img"
                copy_image(volume.image, os.path.join(kept, name))
                if os.path.exists(volume.log):
                    shutil.copy(volume.log, os.path.join(kept, name + ".log"))
        shutil.copytree(self.notes, os.path.join(kept, "notes"))
        shutil.copytree(self.scratch, os.path.join(kept, "scratch"), ignore_dangling_symlinks=True,
                        ignore=shutil.ignore_patterns("*.img", ".s.*"))  # fmt: skip
        with open(os.path.join(kept, "finding"), "w") as file:
            file.write(str(trouble) + "\n")
        return kept

    def close(self):
        for worker in self.workers:
            self.flag("cut")
        if self.volume.daemon is not None:
            self.volume.close()
        if self.snapshot_volume is not None:
            self.snapshot_volume.close()
        for worker in self.workers:
            worker.end()
        shutil.rmtree(self.directory, ignore_errors=True)


def soak_order(order, seconds, weft, seed, top, programs, go_on):
    """Volumes of one order until the time is over. Returns its totals."""
    totals = Totals()
    if not shows_no_stale_data(order):
        for name in [name for name in programs if not PROGRAMS[name].bears_stale_data]:
            print(f"skipped: {order}: {name}: a new block may show stale data after a crash")
        programs = [name for name in programs if PROGRAMS[name].bears_stale_data]
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        campaign = Campaign(weft, order, seed, top, programs, totals)
        try:
            campaign.volume.make()
            for number in range(ROUNDS_OF_A_VOLUME):
                if time.monotonic() >= until and totals.counts["rounds"] > 0:
                    break
                campaign.run_round(number)
        except Trouble as trouble:
            totals.add("findings")
            kept = campaign.keep(trouble)
            chosen = f" PROGRAMS='{' '.join(programs)}'" if "PROGRAMS" in os.environ else ""
            print(
                f"\nFINDING in {order}, {campaign.kind}:\n{trouble}\nWhat is left is in {kept}\nAgain with: "
                f"SEED={seed} ORDERS={order}{chosen} scripts/soak.sh {max(60, int(seconds))} {weft}\n",
                flush=True,
            )
            if not go_on:
                return totals
        finally:
            campaign.close()
        seed += 1
    return totals


def choose_directory():
    named = os.environ.get("SOAK_DIR")
    if named:
        return named
    if os.path.isdir("/dev/shm") and free_bytes("/dev/shm") > ROOM_BYTES:
        return "/dev/shm"
    return os.environ.get("TMPDIR", "/tmp")


def interrupted(*_):
    raise KeyboardInterrupt


def main():
    seconds, weft = int(sys.argv[1]), os.path.realpath(sys.argv[2])
    orders = os.environ.get("ORDERS", " ".join(ORDERS)).split()
    wanted = os.environ.get("PROGRAMS", " ".join(PROGRAMS)).split()
    seed = int(os.environ.get("SEED", int(time.time())))
    go_on = os.environ.get("GO_ON") == "1"
    programs = []
    for name in wanted:
        if name not in PROGRAMS:
            sys.exit(f"soak: no such program: {name}; there are {', '.join(PROGRAMS)}")
        lacking = PROGRAMS[name].lacks()
        if lacking:
            print(f"skipped: {name}: {lacking}")
        else:
            programs.append(name)
    check_itself()
    began = time.time()
    signal.signal(signal.SIGINT, interrupted)
    signal.signal(signal.SIGTERM, interrupted)
    signal.signal(signal.SIGHUP, interrupted)
    top = tempfile.mkdtemp(prefix="weft-soak.", dir=choose_directory())
    # PostgreSQL's server, another user, passes through.
    os.chmod(top, 0o755)
    results, stopped = [], False
    try:
        for order in orders:
            totals = soak_order(order, seconds / len(orders), weft, seed, top, programs, go_on)
            results.append((order, totals))
            if totals.counts["findings"] and not go_on:
                stopped = True
                break
    except KeyboardInterrupt:
        print("soak: interrupted", file=sys.stderr)
        sys.exit(130)
    finally:
        # A second Ctrl-C must not leave mounts behind.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        shutil.rmtree(top, ignore_errors=True)
        remove_shared_memory(began)
        for order, totals in results:
            print(f"soak {order}: {totals}")
    findings = sum(totals.counts["findings"] for _, totals in results)
    if stopped:
        print("soak: stopped at the first finding")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
