#!/usr/bin/env bash
# install-library.sh BUILT TO [PREFIX]: libweft for C, from the directory BUILT in which cargo has put
# libweft_c.so and libweft_c.a: shared and static library, header, pkg-config file. PREFIX is where
# they will be found, if that is not TO. uninstall.sh undoes it.
set -euo pipefail
built=$1
prefix=$2
here=$(dirname "$(realpath "$0")")
crate=$here/../crates/weft-c
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/../Cargo.toml" | head -1)
# The number of the ABI is in the library itself (crates/weft-c/build.rs).
soname=$(sed -n 's/.*-soname,\(libweft\.so\.[0-9]*\).*/\1/p' "$crate/build.rs")
install -D -m 644 "$crate/include/weft.h" "$prefix/include/weft.h"
install -D -m 755 "$built/libweft_c.so" "$prefix/lib/libweft.so.$version"
install -D -m 644 "$built/libweft_c.a" "$prefix/lib/libweft.a"
if command -v strip >/dev/null 2>&1; then
  strip --strip-debug --strip-unneeded "$prefix/lib/libweft.so.$version"
  strip --strip-debug "$prefix/lib/libweft.a"
else
  echo "strip (Debian package binutils) is missing: libweft is installed with its debug data" >&2
fi
ln -sf "libweft.so.$version" "$prefix/lib/$soname"
ln -sf "$soname" "$prefix/lib/libweft.so"
mkdir -p "$prefix/lib/pkgconfig"
sed -e "s|@PREFIX@|${3:-$(realpath "$prefix")}|" -e "s|@VERSION@|$version|" "$crate/weft.pc.in" \
  >"$prefix/lib/pkgconfig/weft.pc"
if [ "$(id -u)" -eq 0 ] && [ "${3:-$prefix}" = "$prefix" ] && [ "$prefix" = /usr/local ]; then
  ldconfig || true
fi
