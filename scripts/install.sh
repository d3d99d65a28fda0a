#!/usr/bin/env bash
# install.sh BINARY TO [PREFIX]: the command, its manual pages, completions, the mount helper and
# units of systemd; and libweft for C, if it is built beside BINARY. PREFIX is where it will be found,
# if that is not TO. uninstall.sh undoes it.
#
# install.sh --writable TO: says what to do where TO cannot be written, and nothing else.
#
# The command is installed without its debug data, which is five times its size. That is kept
# beside BINARY as BINARY.debug; `make install-debug` puts it where debuggers and backtraces look.
set -euo pipefail
if [ "$1" = --writable ]; then
  prefix=$2
  # The nearest directory that exists; mkdir makes the others.
  while [ ! -e "$prefix" ] && [ "$prefix" != / ] && [ "$prefix" != . ]; do prefix=$(dirname "$prefix"); done
  [ -d "$prefix" ] && [ -w "$prefix" ] && { [ ! -e "$2/bin" ] || [ -w "$2/bin" ]; } && exit 0
  printf 'install: %s cannot be written by %s. Either install for yourself alone:\n' "$prefix" "$(id -un)" >&2
  printf '    make install PREFIX="$HOME/.local"\nor build as yourself and install as root:\n' >&2
  printf '    make build && sudo make install%s\n' \
    "$([ "$2" = /usr/local ] || printf ' PREFIX=%q' "$2")" >&2
  exit 1
fi
binary=$1
prefix=$2
debug=$binary.debug
if command -v objcopy >/dev/null 2>&1; then
  objcopy --only-keep-debug --compress-debug-sections "$binary" "$debug"
  stripped=$(mktemp)
  trap 'rm -f "$stripped"' EXIT
  objcopy --strip-debug --strip-unneeded --add-gnu-debuglink="$debug" "$binary" "$stripped"
  install -D -m 755 "$stripped" "$prefix/bin/weft"
else
  echo "objcopy (Debian package binutils) is missing: weft is installed with its debug data" >&2
  install -D -m 755 "$binary" "$prefix/bin/weft"
fi
mkdir -p "$prefix/share/man/man1" "$prefix/share/bash-completion/completions" \
  "$prefix/share/zsh/site-functions" "$prefix/share/fish/vendor_completions.d"
"$binary" man "$prefix/share/man/man1"
"$binary" completions bash >"$prefix/share/bash-completion/completions/weft"
"$binary" completions zsh >"$prefix/share/zsh/site-functions/_weft"
"$binary" completions fish >"$prefix/share/fish/vendor_completions.d/weft.fish"
# The documents that help texts and manual pages name.
documents=$(dirname "$(realpath "$0")")/..
mkdir -p "$prefix/share/doc/weft"
install -m 644 "$documents/README.md" "$documents/CHANGELOG.md" "$documents"/docs/*.md "$prefix/share/doc/weft/"
# mount -t fuse.weft IMAGE DIR runs mount.fuse3, which finds weft on the PATH; mount -t weft and
# an fstab line of type weft run this name.
mkdir -p "$prefix/sbin"
ln -sf ../bin/weft "$prefix/sbin/mount.weft"
ln -sf ../bin/weft "$prefix/sbin/mount.fuse.weft"
# umount(8), and systemd by it, wait by this one until all is on the disk.
ln -sf ../bin/weft "$prefix/sbin/umount.fuse.weft"
here=$(dirname "$(realpath "$0")")
bindir=${3:-$(realpath "$prefix")}/bin
mkdir -p "$prefix/lib/systemd/system" "$prefix/lib/systemd/user"
sed "s|@BINDIR@|$bindir|" "$here/systemd/weft-ringer@.service" \
  >"$prefix/lib/systemd/system/weft-ringer@.service"
sed "s|@BINDIR@|$bindir|" "$here/systemd/weft-ringer-mount@.service" \
  >"$prefix/lib/systemd/user/weft-ringer-mount@.service"
if [ -e "$(dirname "$binary")/libweft_c.so" ]; then
  bash "$here/install-library.sh" "$(dirname "$binary")" "$prefix" "${@:3}"
fi
echo "installed weft under $prefix; mount(8) and umount(8) look for helpers in /sbin only: for fstab," \
  "link $prefix/sbin/mount.fuse.weft and umount.fuse.weft there"
