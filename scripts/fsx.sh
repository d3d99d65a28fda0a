#!/bin/sh
# Runs fsx (crates.io) on a weft mount: random reads, writes, mappings, cuts, holes, copies, each
# read verified. With the same SEED the same operations come.
#
#   scripts/fsx.sh WEFT [OPERATIONS [TOOLS]]
#
# OPERATIONS are per commit policy (default 1000000), in runs of 10000 on one mount: fsx keeps its
# mappings, and so takes ever longer for an operation. TOOLS is a directory with bin/fsx; it is
# installed there if missing (default: target/tools). ORDERS lists the policies (default: soft,
# journal=metadata, journal=ordered, journal=full, async), SEED the seed (default: the time),
# NETWORKS the networks of transformations that it runs through then, with : for blanks (default:
# aead:key=k zstd:frame=16K). Either list may be empty. At the end it runs on two mounts of a cell of
# the shared file service in turn, each time comparing what the two have, in a cell that is attached there,
# and in an encrypted directory, unless CELL is empty.
set -eu

weft=$(realpath "${1:?usage: $0 WEFT [OPERATIONS [TOOLS]]}")
operations=${2:-1000000}
tools=${3:-target/tools}
orders=${ORDERS-soft journal=metadata journal=ordered journal=full async}
networks=${NETWORKS-aead:key=k zstd:frame=16K}
cell=${CELL-yes}
seed=${SEED:-$(date +%s)}
[ -x "$tools/bin/fsx" ] || cargo install --quiet fsx --version 0.3.2 --root "$tools"
fsx=$(realpath "$tools/bin/fsx")

# Every change through a mapping is followed by an msync(2): in memory where possible, since a
# million of them on a disk take hours and test the disk.
room=$(df --output=avail -k /dev/shm 2> /dev/null | tail -n 1)
if [ "${room:-0}" -gt 400000 ]; then
    dir=$(mktemp -d -p /dev/shm)
else
    dir=$(mktemp -d)
fi
clean() {
    for mounted in mnt a b; do
        mountpoint -q "$dir/$mounted" && umount "$dir/$mounted"
    done
    for server in server inner; do
        [ -s "$dir/$server.pid" ] && kill "$(cat "$dir/$server.pid")"
    done
    rm -rf "$dir"
}
trap clean EXIT
trap 'exit 130' INT TERM
mkdir "$dir/mnt"

# What fsx can do and a weft mount offers; fsync is rare, as it costs a thousand other operations.
cat > "$dir/fsx.toml" <<END
flen = 524288
[opsize]
# posix_fallocate(2) of nothing is an error everywhere.
min = 1
max = 32768
[weights]
close_open = 1
read = 10
write = 10
mapread = 10
mapwrite = 10
invalidate = 0.2
truncate = 5
fsync = 0.02
fdatasync = 0.02
posix_fallocate = 1
punch_hole = 3
sendfile = 2
posix_fadvise = 0.5
copy_file_range = 3
END

# run_fsx WHAT MOUNT...: on the mounts in turn, in runs of at most 10000 operations.
run_fsx() {
    what=$1
    shift
    left=$operations
    run_seed=$seed
    while [ "$left" -gt 0 ]; do
        some=$((left < 10000 ? left : 10000))
        on=$1
        shift
        set -- "$@" "$on"
        if ! "$fsx" -q -f "$dir/fsx.toml" -N "$some" -S "$run_seed" -P "$dir" "$on/file" \
            > "$dir/fsx.out" 2>&1
        then
            tail -n 50 "$dir/fsx.out"
            echo "$0: failed; again with SEED=$run_seed $what $0 $weft $some" >&2
            exit 1
        fi
        for other; do
            cmp "$on/file" "$other/file" || { echo "$0: after SEED=$run_seed $what" >&2; exit 1; }
        done
        left=$((left - some))
        run_seed=$((run_seed + 1))
    done
}

# Unmounts, waits until the daemon lets go of the image, and checks it.
finish() {
    umount "$dir/mnt"
    tries=0
    until flock -n "$dir/image" true; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || { echo "$0: the mount did not end" >&2; exit 1; }
        sleep 0.1
    done
    e2fsck -fn "$dir/image" > "$dir/fsck.out" 2>&1 || { cat "$dir/fsck.out"; exit 1; }
}

for order in $orders; do
    case $order in
        journal*) kind=ext3 ;;
        *) kind=ext2 ;;
    esac
    rm -f "$dir/image"
    "$weft" mkfs "$kind" "$dir/image" --size 128M > "$dir/mkfs.out"
    "$weft" mount "$dir/image" "$dir/mnt" --background -o "order=$order" > "$dir/mount.out"
    echo "fsx: $operations operations, seeds from $seed, $kind, order=$order"
    run_fsx "ORDERS=$order NETWORKS= CELL=" "$dir/mnt"
    finish
done

printf '%064d' 7 > "$dir/key"
for network in $networks; do
    echo "file $(echo "$network" | tr : ' ')" > "$dir/rules"
    rm -f "$dir/image"
    "$weft" mkfs ext2 "$dir/image" --size 128M > "$dir/mkfs.out"
    "$weft" mount "$dir/image" "$dir/mnt" --background --transform "$dir/rules" \
        --key "k=$dir/key" > "$dir/mount.out"
    echo "fsx: $operations operations, seeds from $seed, through $(cat "$dir/rules")"
    run_fsx "ORDERS= NETWORKS=$network CELL=" "$dir/mnt"
    finish
done

if [ -n "$cell" ]; then
    "$weft" ringer serve "$dir/cell" --listen "unix:$dir/socket" --background \
        --pid-file "$dir/server.pid" > "$dir/serve.out"
    for name in a b; do
        mkdir "$dir/$name"
        "$weft" ringer mount "unix:$dir/socket" "$dir/$name" --store "$dir/$name.store" \
            --background --block-size 64K > "$dir/mount.out"
    done
    echo "fsx: $operations operations, seeds from $seed, on two mounts of a cell in turn"
    run_fsx "ORDERS= NETWORKS=" "$dir/a" "$dir/b"
    "$weft" ringer serve "$dir/inner" --listen "unix:$dir/inner.socket" --background \
        --pid-file "$dir/inner.pid" > "$dir/serve.out"
    mkdir "$dir/a/in"
    "$weft" ringer attach "$dir/a/in" "unix:$dir/inner.socket" > "$dir/attach.out"
    echo "fsx: $operations operations, seeds from $seed, the same in a cell that is attached there"
    run_fsx "ORDERS= NETWORKS=" "$dir/a/in" "$dir/b/in"
    mkdir "$dir/a/safe"
    "$weft" ringer encrypt "$dir/a/safe" --quiet
    "$weft" ringer key export "$dir/a/safe" | "$weft" ringer key import "$dir/b" --quiet
    echo "fsx: $operations operations, seeds from $seed, the same in an encrypted directory"
    run_fsx "ORDERS= NETWORKS=" "$dir/a/safe" "$dir/b/safe"
    umount "$dir/a" "$dir/b"
fi
echo "fsx found nothing, and e2fsck is content"
