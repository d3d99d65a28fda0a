"""Has weft read, check, repair and write the volumes on real disks: see scripts/hfs-disks.sh.

    python3 disks.py WEFT DISK..."""

import hashlib
import os
import shutil
import sys
import tempfile
from collections import Counter

import compare
import disk
import reader
from commands import Report, panicked, run, said, text
from verdict import apple_one, weft_fsck

SECONDS = 300
# What weft fsck says of an image that ends before its volume does: that stays as it is.
CUT = "the image is cut"
# Larger disks are not read once more to see that they have not changed.
DIGEST_MAX_BYTES = 1 << 25


def verdict_name(reason):
    return "passes" if reason is None else "fails"


def digest(path):
    if os.path.getsize(path) >= DIGEST_MAX_BYTES:
        return None
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha1").hexdigest()


class Judged:
    """One volume on a disk, and a bare copy of it."""

    def __init__(self, weft, path, place, scratch, report, counts):
        self.weft = weft
        self.disk = path
        self.place = place
        self.source = path + place.suffix
        self.name = os.path.basename(self.source)
        self.scratch = scratch
        self.bare = f"{scratch}/bare.img"
        self.report = report
        self.counts = counts

    def finding(self, message):
        self.report.finding(f"{self.name}: {message}")

    def note(self, message):
        self.report.note(f"{self.name}: {message}")

    def judge(self):
        """All of it; prints one line on the volume."""
        kind = self.place.kind
        self.counts["volumes"] += 1
        self.counts[kind] += 1
        disk.extract(self.disk, self.place, self.bare)
        before = digest(self.disk)
        self.apple = apple_one(self.bare) if kind == "hfs" else None
        self.fsck, self.fsck_said = weft_fsck(self.weft, self.source)
        if "panicked" in self.fsck_said:
            self.finding("weft panicked")
        self.compare_verdicts()
        exported = self.export()
        if digest(self.disk) != before:
            self.finding("weft fsck or weft export changed the image")
        compared = self.compare_export()
        after = self.change() if kind == "hfs" and self.files else ""
        apple = f"Apple {verdict_name(self.apple)}, " if kind == "hfs" else ""
        line = f"{self.name}: {kind} at {self.place.offset}, {apple}weft fsck {self.fsck}, export {exported}"
        print(f"{line}, {compared}{after}", flush=True)

    def compare_verdicts(self):
        self.counts[f"weft passes {self.place.kind}"] += self.fsck == 0
        if self.place.kind == "mfs":
            if self.fsck != 0:
                self.note(f"weft fsck exit {self.fsck}: {self.fsck_said[:400]}")
            return
        self.counts["Apple passes"] += self.apple is None
        weft_says = f"weft fsck exit {self.fsck}: {self.fsck_said[:500]}"
        if self.apple is None and self.fsck != 0:
            self.finding(f"Apple passes, {weft_says}")
        elif self.apple is not None and self.fsck == 0:
            self.finding(f"Apple fails: {self.apple}; {weft_says}")
        elif self.apple is not None:
            self.note(f"both fail: Apple: {self.apple}; {weft_says}")

    def export(self):
        self.out = f"{self.scratch}/out"
        result = run([self.weft, "export", "-q", f"{self.source}:/", self.out], seconds=SECONDS)
        self.counts["exported"] += result.returncode == 0
        if panicked(result):
            self.finding("weft panicked")
        if result.returncode != 0:
            # Of a cut image, what is there is exported; that something is missing must be said.
            tell = self.note if CUT in self.fsck_said else self.finding
            tell(f"weft export exit {result.returncode}: {text(result.stderr)[:500]}")
        return result.returncode

    def compare_export(self):
        """Sets the files the reader sees; empty where it gives up."""
        try:
            contents = reader.read(self.bare, self.place.kind)
            differences = [compare.with_reader(contents, self.out)]
            self.files = contents.files
        except Exception as error:
            # Damage of any kind: this reader is made for sound volumes.
            self.note(f"the reader gives up: {error!r}")
            self.files = {}
            return "the reader gives up"
        if self.place.kind == "hfs" and self.files:
            differences.append(compare.with_hcopy(self.bare, self.files, self.out, self.scratch))
        self.counts["compared with the reader"] += len(self.files)
        compared_with_hcopy = sum(found.compared for found in differences[1:])
        self.counts["compared with hcopy"] += compared_with_hcopy
        for found in differences:
            for message in found.findings:
                self.finding(f"export: {message}")
            for message in found.notes:
                self.note(f"export: {message}")
        count = sum(len(found) for found in differences)
        return f"{len(self.files)} files compared, {compared_with_hcopy} with hcopy, {count} differences"

    def change(self):
        """Repairs the copy, or writes to it where it is sound; then all must be well, and every file as it was."""
        if (self.apple is None) != (self.fsck == 0):
            return ""
        how = self.write() if self.fsck == 0 else self.repair()
        apple = apple_one(self.bare)
        fsck, fsck_said = weft_fsck(self.weft, self.bare)
        try:
            now = reader.read(self.bare, "hfs").files
        except Exception as error:
            self.finding(f"{how}: then the reader gives up: {error!r}")
            now = {}
        lost = [path for path, file in self.files.items() if now.get(path) != file]
        after = f"{how}: Apple {verdict_name(apple)}, weft fsck {fsck}, {len(lost)} of {len(self.files)} files differ"
        remains_cut = CUT in self.fsck_said and CUT in fsck_said
        if lost or ((apple is not None or fsck != 0) and not remains_cut):
            self.finding(f"{after}: {lost[:3]}; {apple}; {fsck_said[:300]}")
        return f", {after}"

    def repair(self):
        self.counts["repaired"] += 1
        result = run([self.weft, "fsck", "--repair", self.bare], seconds=SECONDS)
        if panicked(result):
            self.finding("weft panicked")
        return f"repair {result.returncode}"

    def write(self):
        """Puts, moves and removes files and folders of its own, as far as there is space."""
        self.counts["written to"] += 1
        new = f"{self.scratch}/put/new"
        os.makedirs(f"{new}/sub")
        for number in range(12):
            with open(f"{new}/f{number} é", "wb") as file:
                file.write(bytes([number]) * (number * 300))
            with open(f"{new}/sub/g{number}", "wb") as file:
                file.write(b"g" * number)
        for words in (
            ["put", "-q", new, f"{self.bare}:/"],
            ["mkdir", f"{self.bare}:/Mäp"],
            ["mv", f"{self.bare}:/new/sub", f"{self.bare}:/Mäp/moved"],
            ["rm", "-r", f"{self.bare}:/new"],
            ["put", "-q", new, f"{self.bare}:/Mäp"],
        ):
            result = run([self.weft, *words], seconds=SECONDS)
            if panicked(result):
                self.finding("weft panicked")
            if result.returncode != 0:
                if b"no space left" in result.stderr:
                    self.counts["too full"] += 1
                else:
                    self.finding(f"weft {words[0]} exit {result.returncode}: {said(result)[:300]}")
                return f"written to until {words[0]} said {said(result)[-80:]!r}"
        return "written to"


def judge_disk(weft, path, report, counts):
    places = disk.places(path)
    if not places:
        report.note(f"{os.path.basename(path)}: no volume found")
    for place in places:
        scratch = tempfile.mkdtemp(prefix="hfs-disks.")
        judged = Judged(weft, path, place, scratch, report, counts)
        try:
            judged.judge()
        except Exception as error:
            # One volume must not keep the others from being judged.
            judged.finding(repr(error))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def main():
    weft, *disks = sys.argv[1:]
    report, counts = Report(), Counter()
    for path in disks:
        judge_disk(weft, path, report, counts)
    print(
        f"{counts['volumes']} volumes: {counts['hfs']} HFS, {counts['mfs']} MFS; "
        f"Apple passes {counts['Apple passes']} of {counts['hfs']} HFS, "
        f"weft fsck passes {counts['weft passes hfs']} of {counts['hfs']} HFS and "
        f"{counts['weft passes mfs']} of {counts['mfs']} MFS; export 0 for {counts['exported']}; "
        f"{counts['compared with the reader']} files compared with the reader, "
        f"{counts['compared with hcopy']} with hcopy; {counts['repaired']} repaired, "
        f"{counts['written to']} written to (of them {counts['too full']} too full)"
    )
    return report.conclude()


if __name__ == "__main__":
    sys.exit(main())
