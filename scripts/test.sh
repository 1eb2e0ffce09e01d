#!/usr/bin/env bash
# Everything that must hold before a change goes in. `scripts/test.sh --help` says how.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'E'
usage: scripts/test.sh [PART ...]        without a part: lint, services, features, examples

  lint       format, clippy and docs, warnings denied
  unit       the tests that need no service, and doctests
  services   every test, those of `unit` among them, on real services; then those named alone_…, which stop and start
             services, one by one
  features   the feature combinations that users pick, and what the crates must not pull in
  examples   the quickstart, as a user runs it

Needs Rust (with rustfmt and clippy), make, a C and a C++ compiler, nothing else. Services come from the variables
OUTBOX_PG_URL, OUTBOX_MYSQL_URL, OUTBOX_AMQP_URL (with OUTBOX_AMQP_MAX_MESSAGE_SIZE, the broker's max_message_size in bytes),
OUTBOX_REDIS_URL and OUTBOX_KAFKA (a broker that makes no topics by itself), else from Docker Compose, else from Debian
packages and, for Kafka, from Maven; packages that are missing are installed, which takes root or sudo
(`scripts/services.sh help`). What was started is stopped again. A service that cannot be had is a failure: nothing is
skipped.
E
}

# What users put in their Cargo.toml besides a single feature; each is checked without any other.
COMBINATIONS="postgres,amqp mysql,amqp sqlite,amqp sqlite,memory postgres,amqp,redis postgres,kafka"

lint() {
  step "format" cargo fmt --all --check
  step "shell scripts parse" bash -n scripts/*.sh scripts/services/*.sh .ci/run
  step "clippy" cargo clippy --locked --workspace --all-targets --all-features --keep-going -- -D warnings
  step "docs" env RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --all-features --no-deps
}

unit() {
  step "tests without services" counted cargo test --locked --workspace --all-features
}

services() {
  step "services" start_services
  step "tests" every_test
  [ -n "${OUTBOX_SERVICES_CTL:-}" ] || step "services that may be stopped" start_own_services
  step "tests that need the services alone" every_test_alone
}

features() {
  local features
  for features in $(every_feature) $COMBINATIONS; do
    step "features: $features" check_features "$features"
  done
  step "outbox-core knows no database and no broker" core_is_bare
  step "one TLS provider" one_tls_provider
}

examples() {
  step "quickstart's tests, without its services" counted cargo test --locked -p quickstart
  step "quickstart" cargo run --locked -p quickstart
}

# --- steps ---------------------------------------------------------------------------------------------

# Of the facade; the first is `default`.
every_feature() { awk '/^\[/ { inside = $0 == "[features]" } inside && /^[a-z]/ { print $1 }' Cargo.toml; }

check_features() { cargo clippy --locked -p outbox --no-default-features --features "$1" -- -D warnings; }

core_is_bare() {
  packages outbox-core && contains outbox-core &&
    lacks 'sqlx.*|lapin|amq-protocol|rdkafka.*|redis|libsqlite3-sys'
}

one_tls_provider() {
  packages outbox && contains ring &&
    lacks 'aws-lc-.*|boring-sys|openssl-sys|native-tls'
}

packages() { # CRATE: all that its widest build pulls in, one name a line
  cargo tree --locked -p "$1" --all-features -e normal,build --prefix none --format '{p}' | cut -d' ' -f1 | sort -u >"$WORK/packages"
}

contains() { grep -qxE "$1" "$WORK/packages" || { echo "$1 is not there"; return 1; }; }
lacks() { ! grep -xE "$1" "$WORK/packages" || { echo "the above must not be there"; return 1; }; }

# `counted` sums up in PASSED, FAILED, IGNORED and OTHERS (filtered out) what the test programs report.
counted() {
  local code=0
  "$@" 2>&1 | tee "$WORK/output" || code=$?
  read -r PASSED FAILED IGNORED OTHERS < <(awk '/^test result: / {
      for (i = 2; i <= NF; i++) {
        if ($i ~ /^passed/) p += $(i-1); if ($i ~ /^failed/) f += $(i-1); if ($i ~ /^ignored/) g += $(i-1)
        if ($i == "filtered") o += $(i-1)
      } } END { print p + 0, f + 0, g + 0, o + 0 }' "$WORK/output")
  TOTAL_PASSED=$((TOTAL_PASSED + PASSED))
  TOTAL_FAILED=$((TOTAL_FAILED + FAILED))
  return "$code"
}

every_test() {
  counted cargo test --locked --workspace --all-features --no-fail-fast -- --include-ignored --skip alone_ || return
  LEFT_OUT=$OTHERS
  [ "$IGNORED" = 0 ] || { echo "$IGNORED tests were ignored"; return 1; }
}

# Doctests and tests of programs have nothing named alone_; that all the tests left out before ran now proves it.
every_test_alone() {
  counted cargo test --locked --workspace --all-features --tests --no-fail-fast -- \
    --include-ignored --test-threads=1 alone_ || return
  [ "$PASSED" = "$LEFT_OUT" ] || { echo "$LEFT_OUT tests were left for this step, $PASSED ran"; return 1; }
}

start_services() {
  export OUTBOX_SERVICES_OWNER=$$ OUTBOX_SERVICES_DIR=$SERVICES
  scripts/services.sh up >"$WORK/env" || return
  # shellcheck source=/dev/null
  . "$WORK/env"
  # More than any version's default, so that a payload past it is past the broker's limit.
  export OUTBOX_AMQP_MAX_MESSAGE_SIZE=${OUTBOX_AMQP_MAX_MESSAGE_SIZE:-134217728}
}

# The services were given in variables, so nobody may stop them.
start_own_services() {
  unset OUTBOX_PG_URL OUTBOX_MYSQL_URL OUTBOX_AMQP_URL OUTBOX_REDIS_URL OUTBOX_KAFKA
  scripts/services.sh down
  start_services
}

# --- running them --------------------------------------------------------------------------------------

STEPS=0 TOTAL_PASSED=0 TOTAL_FAILED=0

step() { # NAME COMMAND...
  local name=$1 code=0 start=$SECONDS
  shift
  printf '\n==> [%4d s] %s\n' "$SECONDS" "$name"
  "$@" || code=$?
  if [ "$code" != 0 ]; then
    printf '\n==> [%4d s] FAILED: %s (exit code %d after %d s)\n' "$SECONDS" "$name" "$code" $((SECONDS - start))
    [ "$TOTAL_FAILED" != 0 ] || TOTAL_FAILED=1
    summary
    exit 1
  fi
  STEPS=$((STEPS + 1))
}

summary() { echo "$TOTAL_PASSED passed, $TOTAL_FAILED failed"; }

leave() {
  OUTBOX_SERVICES_DIR=$SERVICES scripts/services.sh down || true
  rm -rf "$WORK" "$SERVICES"
}

for part in "$@"; do
  case $part in
    lint | unit | services | features | examples) ;;
    -h | --help) usage; exit ;;
    *) usage >&2; exit 2 ;;
  esac
done
[ $# -gt 0 ] || set -- lint services features examples

WORK=$(mktemp -d /tmp/outbox-test.XXXXXX)
SERVICES=$(mktemp -d /tmp/outbox-services.XXXXXX)
trap leave EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
step "build tools" env OUTBOX_SERVICES_DIR="$SERVICES" scripts/services.sh install make c++
for part in "$@"; do "$part"; done
printf '\n==> [%4d s] all %d steps passed\n' "$SECONDS" "$STEPS"
summary
