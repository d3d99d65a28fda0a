# The sources of suites, each at a pinned version, outside the tree.

# fetch_suite NAME VERSION URL: sets $tree to a checkout of the git repository at the tag VERSION, below
# $tools; SOURCE names another copy of the repository, a directory for example.
fetch_suite() {
  tree=$tools/$1-$2
  [ -d "$tree" ] && return
  mkdir -p "$tools"
  rm -rf "$tree.part"
  git -c advice.detachedHead=false clone --quiet --depth 1 --branch "$2" "${SOURCE:-$3}" "$tree.part" || {
    echo "$0: cannot fetch $1; SOURCE=DIR names a copy of its git repository" >&2
    return 2
  }
  mv "$tree.part" "$tree"
}

# built_once COMMAND...: builds the suite in $tree, unless that is done; the log is beside the tree.
built_once() {
  [ -e "$tree.built" ] && return
  echo "building $(basename "$tree"); the log is $tree.log"
  (cd "$tree" && "$@") >"$tree.log" 2>&1 || { tail -n 20 "$tree.log" >&2; return 2; }
  touch "$tree.built"
}
