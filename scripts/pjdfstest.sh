#!/bin/sh
# Runs pjdfstest on the kernel's ext2 and on a weft mount, both on a fresh image, and demands of weft
# every test that the kernel passes. As root.
#
#   scripts/pjdfstest.sh WEFT [TOOLS]
#
# WEFT is the weft command, TOOLS a directory with bin/pjdfstest, the suite in Rust; it is installed
# there from crates.io if missing (default: target/tools). SUITE=DIR runs the older suite in C and
# shell instead: DIR is a tree of it that is built (https://github.com/pjd/pjdfstest).
# ORDER=soft|journal=...|async chooses the commit policy, KIND=ext2|ext3 the format; KIND=ringer is a
# cell of the shared file service, beside the kernel's ext2. What FUSE itself rules out is in
# pjdfstest.exceptions beside this script.
set -eu

weft=$(realpath "${1:?usage: $0 WEFT [TOOLS]}")
here=$(dirname "$(realpath "$0")")
tools=${2:-target/tools}
suite=${SUITE:+$(realpath "$SUITE")}
order=${ORDER:-soft}
kind=${KIND:-ext2}
[ "$(id -u)" = 0 ] || { echo "$0: needs root, to mount and to act as other users" >&2; exit 2; }
if [ -n "$suite" ]; then
    [ -x "$suite/pjdfstest" ] || { echo "$0: $suite is no pjdfstest that is built" >&2; exit 2; }
else
    [ -x "$tools/bin/pjdfstest" ] ||
        cargo install --quiet pjdfstest --version 0.2.2 --root "$tools"
    pjdfstest=$(realpath "$tools/bin/pjdfstest")
fi

dir=$(mktemp -d)
chmod 755 "$dir"
clean() {
    mountpoint -q "$dir/weft" && umount "$dir/weft"
    mountpoint -q "$dir/kernel" && umount "$dir/kernel"
    [ -s "$dir/server.pid" ] && kill "$(cat "$dir/server.pid")"
    rm -rf "$dir"
}
trap clean EXIT
trap 'exit 130' INT TERM
mkdir "$dir/kernel" "$dir/weft"

# Two users that exist everywhere; group names differ between distributions.
nobody_group=$(id -gn nobody)
cat > "$dir/config.toml" <<END
[features]
posix_fallocate = {}
rename_ctime = {}
utimensat = {}
utime_now = {}
stat_st_birthtime = {}
[settings]
naptime = 0.02
allow_remount = false
[dummy_auth]
entries = [["nobody", "$nobody_group"], ["daemon", "daemon"]]
END

# Runs every script of the C suite in the directory of a mount: its lines "ok N" and "not ok N - why"
# become "SCRIPT:N ok" and "SCRIPT:N FAILED", the latter with the reason on the next line.
run_scripts() {
    mkdir "$1/suite"
    for test in "$suite"/tests/*/*.t; do
        (cd "$1/suite" && sh "$test" </dev/null 2>&1) | awk -v name="${test#"$suite"/tests/}" '
            /^ok [0-9]/ { print name ":" $2, "ok"; any++ }
            /^not ok [0-9]/ {
                print name ":" $3, / # TODO / ? "skipped" : "FAILED"
                print "    " $0
                any++
            }
            END { if (!any) print name, "skipped" }'
    done
    rm -rf "$1/suite"
}

# The programs' exit status is not looked at: their list of results is.
results() {
    if [ -n "$suite" ]; then
        run_scripts "$1" > "$2" 2>&1
        grep -E ' (ok|skipped|FAILED)$' "$2" | awk '{print $1, $2}' | sort > "$2.results"
        awk '{ n[$2]++ } END { printf "%d ok, %d failed, %d skipped\n", n["ok"], n["FAILED"],
            n["skipped"] }' "$2.results"
        return
    fi
    "$pjdfstest" -c "$dir/config.toml" -p "$1" > "$2" 2>&1 || true
    tail -n 1 "$2"
    grep -E ' (ok|skipped|FAILED)$' "$2" | awk '{print $1, $NF}' | sort > "$2.results"
    [ -s "$2.results" ] || { echo "$0: pjdfstest gave no results:" >&2; cat "$2" >&2; exit 1; }
}

case $kind in
    ringer) kernel_kind=ext2 ;;
    *) kernel_kind=$kind ;;
esac
truncate -s 512M "$dir/kernel.img"
mke2fs -q -F -t "$kernel_kind" "$dir/kernel.img"
mount -o loop "$dir/kernel.img" "$dir/kernel"
echo "kernel $kernel_kind:"
results "$dir/kernel" "$dir/kernel.out"

if [ "$kind" = ringer ]; then
    lock=$dir/store
    "$weft" ringer serve "$dir/cell" --listen "unix:$dir/socket" --background \
        --pid-file "$dir/server.pid" > "$dir/serve.out"
    "$weft" ringer mount "unix:$dir/socket" "$dir/weft" --store "$lock" --background \
        -o allow_other > "$dir/mount.out"
    echo "weft ringer:"
else
    lock=$dir/weft.img
    "$weft" mkfs "$kind" "$lock" --size 512M > "$dir/mkfs.out"
    "$weft" mount "$lock" "$dir/weft" --background -o "allow_other,order=$order" > "$dir/mount.out"
    echo "weft $kind, order=$order:"
fi
results "$dir/weft" "$dir/weft.out"
umount "$dir/weft"

# The daemon may still be writing: it holds a lock until it is done.
tries=0
until flock -n "$lock" true; do
    tries=$((tries + 1))
    [ $tries -lt 300 ] || { echo "$0: the mount did not end" >&2; exit 1; }
    sleep 0.1
done
checked="e2fsck is content"
if [ "$kind" = ringer ]; then
    checked="the mount has ended well"
else
    e2fsck -fn "$lock" > "$dir/fsck.out" 2>&1 || { cat "$dir/fsck.out"; exit 1; }
fi

status=0
awk '$2 == "ok" {print $1}' "$dir/kernel.out.results" > "$dir/wanted"
sed -e 's/#.*//' -e 's/[[:space:]]*$//' -e '/^$/d' "$here/pjdfstest.exceptions" > "$dir/excepted"
while read -r test; do
    grep -qxF "$test ok" "$dir/weft.out.results" && continue
    grep -qxF "$test" "$dir/excepted" && continue
    echo "the kernel passes $test, weft does not:"
    grep -F -A 3 "$test " "$dir/weft.out" | head -n 4
    status=1
done < "$dir/wanted"
[ $status = 0 ] && echo "weft passes every test that the kernel passes, and $checked"
exit $status
