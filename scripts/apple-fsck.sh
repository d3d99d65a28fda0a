#!/usr/bin/env bash
# Runs Apple's checker over the HFS images in a directory, or one image: scripts/apple-fsck.sh DIR|IMAGE
#
# fsck_hfs builds on Linux from the branch "linux" of https://github.com/glaubitz/hfs ("make CC=clang"
# there, with libblocksruntime-dev, libbsd-dev and, for newfs_hfs beside it, libssl-dev). It is looked
# for in $PATH and in WEFT_FSCK_HFS. It asks for a block device, so images are attached to loop devices,
# read-only: that takes root. Exits with 1 if it finds anything wrong, with 77 if it is not at hand.
set -euo pipefail

if [ $# -ne 1 ] || { [ ! -d "$1" ] && [ ! -f "$1" ]; }; then
  echo "usage: $0 DIRECTORY|IMAGE" >&2
  exit 2
fi
judge=${WEFT_FSCK_HFS:-$(command -v fsck_hfs || true)}
if [ ! -x "$judge" ]; then
  echo "skipped: fsck_hfs is not at hand (see the head of $0)" >&2
  exit 77
fi
if [ "$(id -u)" -ne 0 ]; then
  echo "skipped: loop devices need root" >&2
  exit 77
fi

# In a directory, what is smaller than a floppy disk is passed over.
smallest=()
[ -f "$1" ] || smallest=(-size +399k)
good=0 bad=0 other=0 loop=
trap '[ -z "$loop" ] || losetup --detach "$loop"' EXIT
while IFS= read -r -d '' image; do
  # BD in block 2: a volume of HFS.
  if [ "$(dd if="$image" bs=1 skip=1024 count=2 status=none | tr -d '\0')" != BD ]; then
    other=$((other + 1))
    continue
  fi
  loop=$(losetup --find --show --read-only "$image")
  if said=$(timeout 600 "$judge" -n -f -d "$loop" 2>&1); then
    good=$((good + 1))
  else
    bad=$((bad + 1))
    printf '%s:\n%s\n' "$image" "$said"
  fi
  losetup --detach "$loop"
  loop=
done < <(find "$1" -type f "${smallest[@]}" -print0 | sort -z)
echo "$good images pass, $bad do not; $other files are no HFS volume"
[ "$bad" -eq 0 ]
