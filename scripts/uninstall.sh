#!/usr/bin/env bash
# uninstall.sh FROM: removes what install.sh has put below FROM, and nothing else.
set -euo pipefail
prefix=$1
rm -f "$prefix/bin/weft" "$prefix/bin/.debug/weft.debug" \
  "$prefix/share/bash-completion/completions/weft" "$prefix/share/zsh/site-functions/_weft" \
  "$prefix/share/fish/vendor_completions.d/weft.fish" \
  "$prefix/lib/systemd/system/weft-ringer@.service" \
  "$prefix/lib/systemd/user/weft-ringer-mount@.service" \
  "$prefix/include/weft.h" "$prefix/lib/pkgconfig/weft.pc" \
  "$prefix/lib/libweft.a" "$prefix/lib/libweft.so" "$prefix"/lib/libweft.so.[0-9]* \
  "$prefix"/share/man/man1/weft.1 "$prefix"/share/man/man1/weft-*.1
for helper in "$prefix"/sbin/{mount,umount}{,.fuse}.weft; do
  if [ "$(readlink "$helper")" = ../bin/weft ]; then rm "$helper"; fi
done
rm -f "$prefix"/share/doc/weft/*.md
rmdir "$prefix/share/doc/weft" "$prefix/bin/.debug" 2>/dev/null || true
echo "removed weft from $prefix; links to its mount helper that you made in /sbin are yours to remove"
