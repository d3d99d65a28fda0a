#!/usr/bin/env bash
# Runs a command as an ordinary user, as most people run weft: root may open every file, own every
# directory and mount without help, and so hides the faults that users meet.
#
#   scripts/as-user.sh COMMAND...
#
# The user (uid 61234) has a home directory, which is removed at the end, a name, no group but its own,
# no capabilities, and none of root's environment. It exists in a mount name space of the command
# alone: no account is made on this machine. There /dev/fuse may be opened by everybody, as udev has it
# on a Debian, and the directory that this script is in can be read even if it lies below a directory
# that only root may enter. An ordinary user who runs this script runs the command as themselves.
#
# As cargo's runner of tests (scripts/test.sh), it runs those of the crates that WEFT_AS_USER_CRATES names,
# and all if that is empty.
set -euo pipefail

[ $# -gt 0 ] || { echo "usage: $0 COMMAND..." >&2; exit 2; }
if [ -n "${WEFT_AS_USER_CRATES:-}" ] && [[ " $WEFT_AS_USER_CRATES " != *" ${CARGO_PKG_NAME:-} "* ]]; then
  exit 0
fi
[ "$(id -u)" = 0 ] || exec "$@"

uid=61234
name=weft-user
if [ "${WEFT_AS_USER_STAGE:-}" != inside ]; then
  # Its path is named in full: cargo starts a runner in the directory of the crate.
  exec env WEFT_AS_USER_STAGE=inside unshare --mount --propagation private -- "$(realpath "$0")" "$@"
fi
unset WEFT_AS_USER_STAGE
top=$(realpath "$(dirname "$0")/..")
here=$PWD
scratch=$(mktemp -d "${TMPDIR:-/tmp}/weft-as-user.XXXXXX")
chmod 755 "$scratch"
# The mounts below it are of this name space, and end with it.
trap 'umount -l "$scratch/own" 2>/dev/null || true; rm -rf --one-file-system "$scratch"' EXIT

mkdir "$scratch/own" "$scratch/home"
mount -t tmpfs -o mode=755,dev tmpfs "$scratch/own"
mknod -m 666 "$scratch/own/fuse" c 10 229
mount --bind "$scratch/own/fuse" /dev/fuse
for file in passwd group; do cp "/etc/$file" "$scratch/own/$file"; done
echo "$name:x:$uid:$uid:a user of weft:$scratch/home:/bin/sh" >>"$scratch/own/passwd"
echo "$name:x:$uid:" >>"$scratch/own/group"
for file in passwd group; do mount --bind "$scratch/own/$file" "/etc/$file"; done
chown "$uid:$uid" "$scratch/home"
chmod 700 "$scratch/home"

# The first directory above this one that others may not enter is covered by an empty one, in which
# the path leads to this directory alone.
closed=
for ((path = ${#top}; path > 1; path--)); do
  directory=${top:0:path}
  if [ "${top:path:1}" = / ] || [ "$path" = "${#top}" ]; then
    (($(stat -c '0%a' "$directory") & 1)) || closed=$directory
  fi
done
if [ -n "$closed" ]; then
  mkdir "$scratch/own/top"
  mount --bind "$top" "$scratch/own/top"
  mount -t tmpfs -o mode=755 tmpfs "$closed"
  mkdir -p "$top"
  mount --bind "$scratch/own/top" "$top"
fi
# What is unmounted here goes from the sandboxes of the tests, too, as where systemd made the mounts.
mount --make-rshared /
cd "$here"

# What cargo and the tests are told by the environment, and nothing else of root's.
kept=()
while IFS='=' read -r -d '' variable value; do
  case "$variable" in
    WEFT_AS_USER_*) ;;
    CARGO_MANIFEST_DIR | CARGO_PKG_* | LD_LIBRARY_PATH | RUST_* | WEFT_* | CI | LANG | LC_* | TERM)
      kept+=("$variable=$value") ;;
  esac
done </proc/self/environ
status=0
env -i "${kept[@]}" HOME="$scratch/home" USER="$name" LOGNAME="$name" SHELL=/bin/sh \
  PATH=/usr/local/bin:/usr/bin:/bin \
  setpriv --reuid="$uid" --regid="$uid" --clear-groups --inh-caps=-all -- "$@" || status=$?
exit "$status"
