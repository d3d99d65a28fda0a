# What the scenarios share: lines that pass or fail, an NBD server on the host. Sourced after rig.sh.

checks_failed=0
scenario_dir=$(mktemp -d)
server_pid=

pass() { echo "pass: $*"; }
fail() { echo "FAIL: $*"; checks_failed=$((checks_failed + 1)); }

# check WHAT COMMAND...: passes if the command succeeds; its output is shown if it does not.
check() {
  local what=$1
  shift
  if "$@" >"$scenario_dir/check.out" 2>&1; then
    pass "$what"
  else
    fail "$what"
    sed 's/^/    /' "$scenario_dir/check.out"
  fi
}

# The weft command: the argument, else the newer of the two that the Makefile builds.
find_weft() {
  local target
  target=$(dirname "${BASH_SOURCE[0]}")/../../target
  weft=${1:-$(ls -t "$target/release/weft" "$target/ci/weft" 2>/dev/null | head -n 1)}
  if [ -z "$weft" ] || [ ! -x "$weft" ]; then
    echo "no weft command: build one (make build), or give it as the argument" >&2
    exit 2
  fi
  weft=$(realpath "$weft")
}

# serve PORT COMMAND...: starts a server and waits until it takes connections on the loopback.
serve() {
  local port=$1 tries=0
  shift
  "$@" >"$scenario_dir/server.log" 2>&1 &
  server_pid=$!
  until (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
    tries=$((tries + 1))
    if [ "$tries" -gt 100 ] || ! kill -0 "$server_pid" 2>/dev/null; then
      echo "no server on port $port: $*" >&2
      cat "$scenario_dir/server.log" >&2
      exit 1
    fi
    sleep 0.1
  done
}

# stop_server [SIGNAL]: ends it, and waits until it has.
stop_server() {
  [ -n "$server_pid" ] || return 0
  kill "-${1:-TERM}" "$server_pid" 2>/dev/null
  wait "$server_pid" 2>/dev/null
  server_pid=
}

# A port of the loopback that nobody listens on now.
free_port() {
  local port
  while :; do
    port=$((20000 + RANDOM % 20000))
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port"; return; }
  done
}

end_scenario() {
  stop_server KILL
  rm -rf "$scenario_dir"
}
trap end_scenario EXIT
trap 'exit 130' INT TERM
