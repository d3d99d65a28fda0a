#!/usr/bin/env bash
# install.sh BINARY TO [PREFIX]: the command, its manual pages, completions, the mount helper and
# units of systemd. PREFIX is where it will be found, if that is not TO.
set -euo pipefail
binary=$1
prefix=$2
install -D -m 755 "$binary" "$prefix/bin/weft"
mkdir -p "$prefix/share/man/man1" "$prefix/share/bash-completion/completions" \
  "$prefix/share/zsh/site-functions" "$prefix/share/fish/vendor_completions.d"
"$binary" man "$prefix/share/man/man1"
"$binary" completions bash >"$prefix/share/bash-completion/completions/weft"
"$binary" completions zsh >"$prefix/share/zsh/site-functions/_weft"
"$binary" completions fish >"$prefix/share/fish/vendor_completions.d/weft.fish"
# mount -t fuse.weft IMAGE DIR runs mount.fuse3, which finds weft on the PATH; mount -t weft and
# an fstab line of type weft run this name.
mkdir -p "$prefix/sbin"
ln -sf ../bin/weft "$prefix/sbin/mount.weft"
ln -sf ../bin/weft "$prefix/sbin/mount.fuse.weft"
here=$(dirname "$(realpath "$0")")
bindir=${3:-$(realpath "$prefix")}/bin
mkdir -p "$prefix/lib/systemd/system" "$prefix/lib/systemd/user"
sed "s|@BINDIR@|$bindir|" "$here/systemd/weft-ringer@.service" \
  >"$prefix/lib/systemd/system/weft-ringer@.service"
sed "s|@BINDIR@|$bindir|" "$here/systemd/weft-ringer-mount@.service" \
  >"$prefix/lib/systemd/user/weft-ringer-mount@.service"
echo "installed weft under $prefix; mount(8) looks for helpers in /sbin only: for fstab, link" \
  "$prefix/sbin/mount.fuse.weft there"
