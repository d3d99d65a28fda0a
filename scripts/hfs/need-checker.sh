# Sourced, with the directory of scripts in $here: ends the script, with 77, where Apple's checker is not
# at hand. It says so itself when it is asked about an empty directory.
empty=$(mktemp -d)
status=0
bash "$here/apple-fsck.sh" "$empty" >/dev/null || status=$?
rmdir "$empty"
[ "$status" -eq 0 ] || exit "$status"
