#!/bin/sh
# dpkg: a package of one file is replaced by its next version, in a root of its own (Debian: dpkg).
#
#   scripts/crash/dpkg.sh [NAME] [OPTIONS OF weft crash run]
#
# NAME is safe-io (the default) or unsafe-io: images of containers often set the latter in
# /etc/dpkg/dpkg.cfg.d, and the manual says that it may lose data.
# After a power cut the check does what an administrator does: the installation again, then it asks
# for the status and the file.
. "$(dirname "$0")/lib.sh"
case ${1:-} in safe-io | unsafe-io) io=$1 && shift ;; *) io=safe-io ;; esac
force=--no-force-unsafe-io
[ "$io" = safe-io ] || force=--force-unsafe-io
need dpkg-deb dpkg
[ "$(id -u)" = 0 ] || skip "dpkg installs as root only"
for version in 1 2; do
    build=$TOOLS/dpkg/$version
    mkdir -p "$build/DEBIAN" "$build/usr/share/crash"
    printf 'Package: crash\nVersion: %s\nArchitecture: all\nMaintainer: a <a@example.com>\nDescription: a\n' \
        "$version" >"$build/DEBIAN/control"
    yes "$version" | head -n 3000 >"$build/usr/share/crash/file" 2>/dev/null
    dpkg-deb -b "$build" "$TOOLS/dpkg/crash_$version.deb" >/dev/null
done
# A check installs in the copy of the state: this may have no effect outside it.
export dpkg="dpkg --root=. --force-not-root --force-script-chrootless $force --log=/dev/null --admindir=var/lib/dpkg"
SETUP='mkdir -p var/lib/dpkg/updates var/lib/dpkg/info && : >var/lib/dpkg/status &&
    $dpkg -i "$TOOLS/dpkg/crash_1.deb" >/dev/null 2>&1'
RUN='$dpkg -i "$TOOLS/dpkg/crash_2.deb" >/dev/null 2>&1 && echo done'
# The file must be one of the two, whole, or what the status says is broken: then it is installed again.
CHECK='status=$(dpkg-query --admindir=var/lib/dpkg -W -f "\${db:Status-Status} \${Version}" crash) || exit 1
    promised=$(cat "$WEFT_PROMISES")
    case $status in
    "installed 1") [ -z "$promised" ] || { echo "promised; found: $status"; exit 1; } ;;
    "installed 2") ;;
    *) $dpkg -i "$TOOLS/dpkg/crash_2.deb" >"$WEFT_PROMISES.log" 2>&1 || { cat "$WEFT_PROMISES.log"; exit 1; }
        status="installed 2" ;;
    esac
    for version in 1 2; do
        cmp -s usr/share/crash/file "$TOOLS/dpkg/$version/usr/share/crash/file" && found=$version
    done
    [ "${found:-}" ] || { echo "$status, and the file is of neither version"; exit 1; }
    [ "$status" != "installed 2" ] || [ "$found" = 2 ] || { echo "$status, but file $found"; exit 1; }'
PROMISE='done*'
crash_test "$(dpkg --version | head -n 1), $io" "$@"
