#!/bin/sh
# Python libraries, from PyPI (and dbm.gnu from Debian): stores that promise durability, and savers of
# files that promise nothing, or that the file is whole.
#
#   scripts/crash/python.sh NAME [OPTIONS OF weft crash run]
#
# NAME: dumb gdbm lmdb leveldb old-leveldb rocksdb zodb diskcache tinydb dotenv configobj atomicwrites
# keyring joblib; dotenv-mended is a copy with what is in mended/.
. "$(dirname "$0")/lib.sh"
name=${1:?"usage: $0 NAME [OPTIONS]"}
shift
python=$TOOLS/python/bin/python
PROMISE='done*'
case $name in
dumb) package= what="dbm.dumb" ;;
gdbm)
    package= what="dbm.gnu" python=/usr/bin/python3
    "$python" -c 'import dbm.gnu' 2>/dev/null || skip "no dbm.gnu in $python (Debian: python3-gdbm)"
    ;;
lmdb) package=lmdb==3.0.0 ;;
leveldb) package=plyvel==1.5.1 ;;
old-leveldb) package=leveldb==0.201 ;;
rocksdb) package=rocksdict==0.3.29 ;;
zodb) package=ZODB==6.4 ;;
atomicwrites) package=atomicwrites==1.4.1 ;;
diskcache) package=diskcache==5.6.3 PROMISE= ;;
tinydb) package=tinydb==4.9.0 PROMISE= ;;
dotenv | dotenv-mended) package=python-dotenv==1.2.4 PROMISE= ;;
configobj) package=configobj==5.0.9 PROMISE= ;;
keyring) package="keyrings.alt==5.0.2 keyring" PROMISE= ;;
joblib) package=joblib==1.6.0 PROMISE= ;;
*) echo "$0: no library is called $name" >&2; exit 2 ;;
esac
if [ "$python" = "$TOOLS/python/bin/python" ]; then
    need python3 python3-venv
    [ -x "$python" ] || python3 -m venv "$TOOLS/python"
    # Word splitting is meant: a list of packages.
    # shellcheck disable=SC2086
    [ -z "$package" ] || "$python" -m pip install --quiet --disable-pip-version-check $package
fi
case $name in *-mended)
    need patch patch
    name=${name%-mended} what="$package, mended"
    copy=$TOOLS/mended-$name
    rm -rf "$copy"
    "$python" -m pip install --quiet --disable-pip-version-check --no-compile \
        --target "$copy" "$package"
    patch --quiet -d "$copy" -p1 <"$HERE/mended/$name.patch"
    export PYTHONPATH="$copy"
    ;;
esac
export python name
subject='"$python" "$HERE/subjects.py" "$name"'
SETUP="$subject setup" RUN="$subject run" CHECK="$subject check"
crash_test "${what:-$package}, $("$python" --version)" "$@"
