#!/usr/bin/env bash
# demo.sh WEFT: the main job of weft, end to end, each step told in one sentence.
set -euo pipefail
weft=$(realpath "${1:-target/ci/weft}")
export PATH="$PATH:/usr/sbin:/sbin"

# The tree that is copied in. /usr/include is on every machine that can build weft.
tree=${WEFT_DEMO_TREE:-/usr/include}
dir=$(mktemp -d "${TMPDIR:-/tmp}/weft-demo.XXXXXX")
image=$dir/volume.img
mnt=$dir/mnt
loop=$dir/kernel
mkdir "$mnt" "$loop"
daemon=
number=0

say() { number=$((number + 1)); printf '\n%2d. %s\n' "$number" "$*"; }
fact() { printf '    %s\n' "$*"; }
fail() { printf '\nThe demo FAILED: %s\n(what it left is in %s)\n' "$*" "$dir" >&2; keep=1; exit 1; }
keep=
cleanup() {
  mountpoint -q "$loop" && umount "$loop"
  [ -z "$daemon" ] || kill -9 "$daemon" 2>/dev/null || true
  "$weft" umount --lazy "$mnt" >/dev/null 2>&1 || true
  [ -n "$keep" ] || rm -rf "$dir"
}
trap cleanup EXIT
trap 'fail "the command at line $LINENO of scripts/demo.sh ended with an error"' ERR
seconds() { date +%s.%N; }
since() { awk -v a="$1" -v b="$(seconds)" 'BEGIN { printf "%.2f", b - a }'; }
start_daemon() {
  "$weft" mount "$image" "$mnt" --quiet --background --pid-file "$dir/pid" "$@"
  daemon=$(cat "$dir/pid")
}

if [ ! -c /dev/fuse ]; then
  echo "The demo mounts a volume and needs /dev/fuse, which this machine (or container) lacks." \
    "In a container, start it with: --device /dev/fuse --cap-add SYS_ADMIN" >&2
  exit 1
fi

files=$(find "$tree" -xdev -type f | wc -l)
echo "weft keeps an ext2 volume in an image file and survives a pulled plug. This shows it on the"
echo "$files files of $tree; everything happens in $dir, which is removed at the end."

say "Make an empty ext2 volume of 1 GiB."
"$weft" mkfs ext2 "$image" --size 1G | sed 's/^/    /'

say "Mount it through FUSE, with soft updates: no journal, every write ordered after what it needs."
start_daemon --order soft
fact "mounted on $mnt by process $daemon"

say "Copy the tree in, and beside it write files that are fsynced one by one; then, in the middle of both, kill the daemon with SIGKILL."
cp -a "$tree" "$mnt/first" 2>/dev/null &
copier=$!
: >"$dir/fsynced"
i=0
# Until a third of the tree has been copied, and forty files at the least.
while [ "$i" -lt 40 ] || [ "$(find "$mnt/first" -type f | wc -l)" -lt $((files / 3)) ]; do
  i=$((i + 1))
  kill -0 "$copier" 2>/dev/null || break
  head -c $((i % 97 * 700)) /dev/urandom >"$dir/sample"
  if dd if="$dir/sample" of="$mnt/fsynced-$i" conv=fsync bs=64k status=none 2>/dev/null; then
    # Noted only after fsync has returned: from here on weft has promised to keep it.
    printf '%s  fsynced-%s\n' "$(sha256sum <"$dir/sample" | cut -d' ' -f1)" "$i" >>"$dir/fsynced"
  fi
done
copied=$(find "$mnt/first" -type f | wc -l)
kill -9 "$daemon"
daemon=
wait "$copier" 2>/dev/null || true
fact "$copied of the $files files had been copied and $(wc -l <"$dir/fsynced") fsynced when it died"

say "Mount it again at once, without any check first."
began=$(seconds)
start_daemon --order soft
fact "mounted in $(since "$began") s; $(find "$mnt/first" -type f 2>/dev/null | wc -l) of the copied files had reached the volume"

say "Every file that was fsynced is there, with its content."
(cd "$mnt" && sha256sum --quiet -c "$dir/fsynced") || fail "an fsynced file is lost or changed"
fact "$(wc -l <"$dir/fsynced") checksums agree"

say "Remove the half-copied tree, copy the whole one in, and unmount."
rm -rf "$mnt/first"
began=$(seconds)
cp -a "$tree" "$mnt/tree"
"$weft" umount "$mnt"
daemon=
fact "copied, unmounted and durable in $(since "$began") s"

say "Repair what the crash leaked (with soft updates a crash may leak space, and nothing else), and let e2fsck judge the volume."
repair=0
"$weft" fsck --repair "$image" >"$dir/repair" || repair=$?
sed 's/^/    weft fsck: /' "$dir/repair" | tail -4
[ "$repair" -le 1 ] || fail "weft fsck --repair ended with $repair"
e2fsck -fn "$image" >"$dir/e2fsck" 2>&1 || { cat "$dir/e2fsck"; fail "e2fsck found something"; }
fact "e2fsck -fn: clean"

say "Read the volume back without a mount, and with the kernel's own driver."
# Modes, and access control lists where getfacl is there: diff does not look at them.
modes() {
  (cd "$1" && find . -printf '%p %M\n' | sort)
  command -v getfacl >/dev/null && (cd "$1" && find . ! -type l | sort | getfacl -c -n -s - 2>/dev/null)
  true
}
mkdir "$dir/out"
"$weft" export "$image:/tree" "$dir/out/tree" >/dev/null
diff -r --no-dereference "$tree" "$dir/out/tree" || fail "the exported tree differs"
fact "weft export: diff -r finds no difference"
if [ "$(id -u)" -eq 0 ] && mount -o loop,ro -t ext2 "$image" "$loop" 2>"$dir/mount.err"; then
  diff -r --no-dereference "$tree" "$loop/tree" || fail "the kernel sees a different tree"
  [ "$(modes "$tree")" = "$(modes "$loop/tree")" ] || fail "the kernel sees other modes or ACLs"
  umount "$loop"
  fact "the kernel's ext2: diff -r finds no difference, nor do stat and getfacl"
else
  fact "(the kernel mount is skipped: it needs root and loop devices here)"
fi

say "Do the same crash without luck: record small workloads, then check the images that a power cut could leave at every moment, writes reordered, lost and torn."
"$weft" crash --states "${WEFT_DEMO_STATES:-2000}" | tail -6 | sed 's/^/    /'

printf '\nThe demo passed: an fsynced file survived SIGKILL, the remount was immediate, e2fsck and the\n'
printf 'kernel agree with weft on every byte, and no power cut tried here broke a promise.\n'
