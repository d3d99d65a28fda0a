#!/usr/bin/env bash
# The kernel's hfs driver on a volume made elsewhere: what was put in is there (data, Finder type and
# creator), then the guest works on it, and the volume is checked on the host: what the kernel wrote
# reads back, resource forks are as they were. (Kernels since 3.13 cannot open a resource fork: the
# driver offers it as FILE/rsrc, and the kernel walks through directories only.) Run by
# scripts/guest.sh hfs.
#
# MAKER=hfsutils makes and fills the volume with hformat and hcopy in weft's place, to tell the
# driver's faults from weft's.
. "$(dirname "$(realpath "$0")")/scenario.sh"
maker=${MAKER:-weft}
if [ "$maker" = hfsutils ] && ! command -v hformat >/dev/null; then
  echo "skipped: no hfsutils"
  exit 0
fi

image=$scenario_dir/volume.img
in=$scenario_dir/in
# What goes in: names that end in digits, so that they stay in order, and sizes round the limits of
# a sector, an allocation block and a clump. "Notes" has a resource fork of its own (MacBinary).
mkdir -p "$in/folder"
for size in 0 1 511 512 513 4096 70000 1000000; do
  head -c "$size" /dev/urandom >"$in/size-$size"
done
for i in $(seq 100 299); do echo "file $i" >"$in/folder/file-$i"; done
# A MacBinary II header by hand (Peter N Lewis, "MacBinary II Standard"): name, type, creator,
# lengths of the forks, and a CRC-16 (XMODEM) of it at 124.
python3 - "$scenario_dir/Notes.bin" <<'END' || exit 1
import struct, sys
data, resource = bytes(range(256)) * 9, b"resource fork " * 77
header = bytearray(128)
header[1:7] = b"\x05Notes"
header[65:73] = b"TEXTweft"
struct.pack_into(">II", header, 83, len(data), len(resource))
header[122], header[123] = 129, 129
crc = 0
for byte in header[:124]:
    crc ^= byte << 8
    for _ in range(8):
        crc = (crc << 1 ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
struct.pack_into(">H", header, 124, crc)
pad = lambda fork: fork + bytes(-len(fork) % 128)
open(sys.argv[1], "wb").write(bytes(header) + pad(data) + pad(resource))
END
data_sum=$(tail -c +129 "$scenario_dir/Notes.bin" | head -c 2304 | md5sum | cut -d ' ' -f 1)
resource_sum=$(tail -c +$((129 + 2304)) "$scenario_dir/Notes.bin" | head -c 1078 | md5sum | cut -d ' ' -f 1)

case $maker in
  weft)
    check "weft makes a volume" "$weft" mkfs hfs "$image" --size 20M --label Guest
    check "weft fills it" "$weft" put -r "$in/." "$image:/"
    check "weft takes a MacBinary file" "$weft" put --as macbinary "$scenario_dir/Notes.bin" "$image:/Notes"
    check "weft finds it whole" "$weft" fsck "$image"
    ;;
  hfsutils)
    # hfsutils keep the mounted volume's name in the home directory.
    export HOME=$scenario_dir
    truncate -s 20M "$image"
    check "hformat makes a volume" hformat -l Guest "$image"
    {
      hmount "$image" && hmkdir folder && hcopy -r "$in"/size-* : && hcopy -r "$in"/folder/* :folder &&
        hcopy -m "$scenario_dir/Notes.bin" : && humount
    } >"$scenario_dir/fill.log" 2>&1 || { fail "hfsutils fill it"; cat "$scenario_dir/fill.log"; }
    ;;
esac
[ "$checks_failed" -eq 0 ] || exit 1

(cd "$in" && find . -type f | sort | xargs md5sum) >"$scenario_dir/sums"
cat >"$scenario_dir/work" <<END
modprobe -a nls_utf8 hfs
mount -t hfs /dev/vda /mnt || { dmesg | tail -n 5; exit 20; }
grep -q ' /mnt hfs rw' /proc/mounts || { echo "mounted read-only:"; dmesg | tail -n 5; exit 21; }
cd /mnt
md5sum -c /put/sums 2>&1 | grep -v ': OK$' && exit 22
echo "@listed \$(ls folder | wc -l)"
echo "@data \$(md5sum <Notes | cut -d ' ' -f 1)"
echo "@finder \$(getfattr --only-values -n hfs.type Notes)\$(getfattr --only-values -n hfs.creator Notes)"
# Work: a folder that grows past a few nodes, files removed, moved, grown, cut, written over.
mkdir -p made/deep/er || exit 23
i=0
while [ \$i -lt 150 ]; do
  echo "made \$i" >"made/made-\$i" || exit 24
  i=\$((i + 1))
done
head -c 300000 /dev/urandom >made/large && cp made/large made/copy || exit 25
rm folder/file-1[0-4]? || exit 26
mv folder/file-200 folder/moved && mv folder/file-201 made/from-folder || exit 27
head -c 5000 /dev/urandom >>size-513 || exit 28
truncate -s 100 size-70000 || exit 29
# The data fork grows, the file moves: the other fork stays with it.
head -c 90000 /dev/urandom >>Notes && mv Notes made/deep/Notes || exit 30
find . -type f | sort | xargs md5sum | sed 's/^/@sum /'
cd / && umount /mnt || exit 31
dmesg | grep -i 'hfs.*\(error\|warn\|bad\)' && exit 32
exit 0
END

echo "== hfs: the kernel's driver on a volume of $maker"
guest_run --drive "$image" --put "$scenario_dir/sums" "$scenario_dir/work" >"$scenario_dir/out"
code=$?
said() { sed -n "s/^@$1 //p" "$scenario_dir/out"; }
check "the kernel mounts it read-write, finds every file, and works on it (status $code)" [ "$code" = 0 ]
check "it lists the folder" [ "$(said listed)" = 200 ]
check "it reads the data fork" [ "$(said data)" = "$data_sum" ]
check "it reads type and creator" [ "$(said finder)" = TEXTweft ]
[ "$checks_failed" -eq 0 ] || { grep -v '^@sum' "$scenario_dir/out"; exit 1; }

# What the kernel left, read by others.
said sum | sort -k 2 >"$scenario_dir/left"
out=$scenario_dir/taken
mkdir "$out"
case $maker in
  weft)
    # The driver does not count a file that moves out of the root (drNmFls): that alone may be wrong.
    wrong=$("$weft" fsck --json "$image" | python3 -c '
import json, sys
problems = [p["problem"] for p in json.load(sys.stdin)["problems"]]
print("\n".join(p for p in problems if not p.startswith("MDB: the number of files in the root is")))')
    check "weft finds the volume whole after the kernel, but for one count" [ -z "$wrong" ]
    [ -z "$wrong" ] || echo "$wrong"
    "$weft" fsck --repair --quiet "$image" >/dev/null
    check "and repairs that" "$weft" fsck "$image"
    check "weft takes everything out" "$weft" export "$image:/" "$out"
    check "weft reads what the kernel wrote" \
      bash -c 'cd "$1" && md5sum --quiet -c "$2"' - "$out" "$scenario_dir/left"
    "$weft" get --as macbinary "$image:/made/deep/Notes" "$out/Notes.bin"
    ;;
  hfsutils)
    hmount "$image" >/dev/null
    hcopy -r ":made:large" "$out/large" && hcopy -r ":size-513" "$out/size-513" && hcopy -r ":made:made-77" "$out/made-77"
    hcopy -m ":made:deep:Notes" "$out/Notes.bin"
    humount
    for name in made/large size-513 made/made-77; do
      check "hfsutils read $name as the kernel wrote it" \
        [ "$(md5sum <"$out/${name##*/}" | cut -d ' ' -f 1)" = "$(awk -v n="./$name" '$2 == n {print $1}' "$scenario_dir/left")" ]
    done
    ;;
esac
# The data fork is 2304 + 90000 bytes and ends 2^7-aligned at 92416.
resource_of() { tail -c +$((129 + 92416)) "$1" | head -c 1078 | md5sum | cut -d ' ' -f 1; }
check "the resource fork is as it was" [ "$(resource_of "$out/Notes.bin")" = "$resource_sum" ]
exit $((checks_failed > 0))
