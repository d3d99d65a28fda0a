#!/usr/bin/env bash
# Compares the hit ratios of the cache's policies with their published simulators and writes a
# section of docs/benchmarks.md. Installs the simulators outside the tree, in
# ~/.cache/weft-bench/peers: libCacheSim (PyPI, in a virtual environment) and Caffeine's (Maven
# Central). One that cannot be installed is skipped, and the section says so.
set -euo pipefail
cd "$(dirname "$0")/.."

peers="${XDG_CACHE_HOME:-$HOME/.cache}/weft-bench/peers"
mkdir -p "$peers"

if [ ! -x "$peers/venv/bin/python" ]; then
    if ! { python3 -m venv "$peers/venv" &&
        "$peers/venv/bin/pip" install --quiet libcachesim==0.3.5; }; then
        rm -rf "$peers/venv"
        echo "hit-ratios: libCacheSim cannot be installed (python3-venv and PyPI are needed)" >&2
    fi
fi

if [ ! -s "$peers/caffeine.classpath" ]; then
    # The one dependency that is left out (a part of ehcache's XML configuration) is no longer
    # published where its own description says.
    cat >"$peers/pom.xml" <<'POM'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>weft</groupId><artifactId>peers</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>com.github.ben-manes.caffeine</groupId>
      <artifactId>simulator</artifactId>
      <version>3.1.8</version>
      <exclusions>
        <exclusion><groupId>org.glassfish.jaxb</groupId><artifactId>*</artifactId></exclusion>
      </exclusions>
    </dependency>
  </dependencies>
</project>
POM
    if mvn -B -q -f "$peers/pom.xml" dependency:build-classpath \
        -Dmdep.outputFile="$peers/caffeine.new" >"$peers/mvn.log" 2>&1; then
        jar="$(tr ':' '\n' <"$peers/caffeine.new" | grep '/simulator-3.1.8.jar$')"
        mkdir -p "$peers/traces"
        unzip -oq "$jar" '*/parser/lirs/*.gz' '*/parser/cloud_physics/*.xz' -d "$peers/traces"
        mv "$peers/caffeine.new" "$peers/caffeine.classpath"
    else
        echo "hit-ratios: Caffeine's simulator cannot be installed (java, maven and unzip are" \
            "needed; see $peers/mvn.log)" >&2
    fi
fi

"${CARGO:-cargo}" build --locked --release -p weft-bench
exec target/release/weft-bench hit-ratio "$@"
