# The longest that a test may take, and the end of what it leaves running.

# limited COMMAND...: runs it for at most $limit seconds (status 124, or 137 if it had to be killed).
limited() {
  env WEFT_SUITE_RUN="$dir" timeout -k 10 "$limit" "$@"
}

# Ends what a test that exceeded its limit has left running: its programs would keep the volume busy.
# Daemons of weft end by themselves once the volume is unmounted.
end_leftovers() {
  local process pid
  for process in /proc/[0-9]*; do
    pid=${process#/proc/}
    [ "$pid" != $$ ] && ! [ "$process/exe" -ef "$weft" ] || continue
    if tr '\0' '\n' 2>/dev/null <"$process/environ" | grep -qxF "WEFT_SUITE_RUN=$dir"; then
      kill -KILL "$pid" 2>/dev/null || true
    fi
  done
}
