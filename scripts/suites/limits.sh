# The longest that a test may take, and the end of what it leaves running.

# limited COMMAND...: runs it for at most $limit seconds (status 124, or 137 if it had to be killed).
limited() {
  env WEFT_SUITE_RUN="$dir" timeout -k 10 "$limit" "$@"
}

# Ends what a test that exceeded its limit has left running: its programs would keep the volume busy.
# Daemons of weft end by themselves once the volume is unmounted.
end_leftovers() {
  local environment process
  while read -r environment; do
    process=${environment%/environ}
    if [ "$process" = "/proc/$$" ] || [ "$process/exe" -ef "$weft" ]; then continue; fi
    kill -KILL "${process#/proc/}" 2>/dev/null || true
  done < <(grep -lzxF "WEFT_SUITE_RUN=$dir" /proc/[0-9]*/environ 2>/dev/null)
}
