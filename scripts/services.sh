#!/usr/bin/env bash
# The services that the tests need. `scripts/services.sh help` says how.
# shellcheck source-path=SCRIPTDIR
set -euo pipefail

REPO=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
KNOWN="pg maria redis rabbit kafka"
WANTED=${OUTBOX_SERVICES:-pg maria rabbit redis kafka}
# Short, because a Unix socket's path holds 107 bytes; under /tmp, because the servers' own users must reach it.
DIR=${OUTBOX_SERVICES_DIR:-/tmp/outbox-services-$(id -u)-$(cksum <<<"$REPO" | cut -d' ' -f1)}
STATE=$DIR/state

usage() {
  cat <<'E'
usage: scripts/services.sh COMMAND [SERVICE ...]        services: pg maria redis rabbit kafka

  up [SERVICE ...]   start what is missing and print its variables: eval "$(scripts/services.sh up)"
  install TOOL ...   install what is missing of: make c++
  down               stop what `up` started and delete its data
  env                print the variables of what is up
  status             what is up, where, and from where it came
  stop, start, restart, kill, pause, resume SERVICE ...
                     break and mend a service that `up` started; its data stay

For each service `up` takes, in this order:
  1. the one its variable names: OUTBOX_PG_URL, OUTBOX_MYSQL_URL, OUTBOX_REDIS_URL, OUTBOX_AMQP_URL, OUTBOX_KAFKA
  2. a container, where a Docker engine with Compose runs
  3. a private instance from Debian packages, which are installed if missing (needs root or sudo);
     Kafka from its Maven artefacts, which are kept in ~/.cache/outbox

Settings:
  OUTBOX_SERVICES          what `up` starts when nothing is named (default: pg maria rabbit redis kafka)
  OUTBOX_SERVICES_BACKEND  compose or private: only that one
  OUTBOX_SERVICES_DIR      data and state of one set of services (default: one in /tmp for each checkout)
  OUTBOX_SERVICES_OWNER    a process id: the services go down when that process is gone
  OUTBOX_PG_PORT, OUTBOX_MARIA_PORT, OUTBOX_REDIS_PORT, OUTBOX_RABBIT_PORT, OUTBOX_RABBIT_MGMT_PORT,
  OUTBOX_RABBIT_DIST_PORT, OUTBOX_RABBIT_EPMD_PORT, OUTBOX_KAFKA_PORT, OUTBOX_KAFKA_CONTROLLER_PORT
                           the first port to try; a taken one is passed over
E
}

say() { echo "[services] $*" >&2; }
die() { say "$*"; exit 1; }

# --- what is remembered between calls ------------------------------------------------------------------

remember() { # NAME VALUE
  printf -v "$1" %s "$2"
  echo "$1=$2" >>"$STATE"
}

backend_of() { # SERVICE: compose, private, or nothing when it is not ours
  local name=$1_backend
  echo "${!name:-}"
}

# --- ports ---------------------------------------------------------------------------------------------

open() { (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null; } # HOST PORT

default_port() {
  case $1 in
    PG) echo 24432 ;; MARIA) echo 24306 ;; REDIS) echo 24379 ;; RABBIT) echo 24672 ;;
    RABBIT_MGMT) echo 24680 ;; RABBIT_DIST) echo 24690 ;; RABBIT_EPMD) echo 24700 ;;
    KAFKA) echo 24092 ;; KAFKA_CONTROLLER) echo 24112 ;;
  esac
}

# A port that a stopped service of another set will want back counts as taken.
taken() { open 127.0.0.1 "$1" || grep -qs "_PORT=$1\$" /tmp/outbox-services*/state; }

choose_port() { # NAME
  local wish=OUTBOX_$1_PORT port
  port=${!wish:-$(default_port "$1")}
  while taken "$port"; do port=$((port + 1)); done
  remember "$1_PORT" "$port"
}

choose_ports() { # SERVICE
  case $1 in
    pg) choose_port PG ;;
    maria) choose_port MARIA ;;
    redis) choose_port REDIS ;;
    rabbit) for name in RABBIT RABBIT_MGMT RABBIT_DIST RABBIT_EPMD; do choose_port "$name"; done ;;
    kafka) choose_port KAFKA; choose_port KAFKA_CONTROLLER ;;
  esac
}

# --- variables -----------------------------------------------------------------------------------------

variable_of() {
  case $1 in
    pg) echo OUTBOX_PG_URL ;; maria) echo OUTBOX_MYSQL_URL ;;
    redis) echo OUTBOX_REDIS_URL ;; rabbit) echo OUTBOX_AMQP_URL ;; kafka) echo OUTBOX_KAFKA ;;
    *) die "no service is called '$1'; there are: $KNOWN" ;;
  esac
}

env_of() {
  case $1 in
    pg) echo "export OUTBOX_PG_URL=postgres://postgres@127.0.0.1:$PG_PORT/outbox" ;;
    maria) echo "export OUTBOX_MYSQL_URL=mysql://outbox:outbox@127.0.0.1:$MARIA_PORT/outbox" ;;
    redis) echo "export OUTBOX_REDIS_URL=redis://127.0.0.1:$REDIS_PORT/0" ;;
    rabbit)
      echo "export OUTBOX_AMQP_URL=amqp://guest:guest@127.0.0.1:$RABBIT_PORT/%2f"
      echo "export OUTBOX_AMQP_MGMT=http://guest:guest@127.0.0.1:$RABBIT_MGMT_PORT"
      echo "export OUTBOX_AMQP_MAX_MESSAGE_SIZE=16777216"
      ;;
    kafka) echo "export OUTBOX_KAFKA=127.0.0.1:$KAFKA_PORT" ;;
  esac
}

print_env() { # only what is ours: what came in variables is in the caller's environment already
  local service
  for service in $KNOWN; do
    [ -z "$(backend_of "$service")" ] || env_of "$service"
  done
  [ "${controllable:-no}" = no ] || echo "export OUTBOX_SERVICES_CTL=$DIR/ctl"
}

# --- up and down ---------------------------------------------------------------------------------------

check_given() { # VARIABLE
  local scheme=${!1%%:*} host port
  host=${!1#*://}
  host=${host##*@}
  host=${host%%[/?,]*}
  case $scheme in
    mysql) port=3306 ;; redis | rediss) port=6379 ;;
    amqp) port=5672 ;; amqps) port=5671 ;; postgres*) port=5432 ;; *) port=9092 ;;
  esac
  case $host in *:*) port=${host##*:} host=${host%:*} ;; esac
  open "${host:-localhost}" "$port" ||
    die "$1 is set, but nothing answers at ${host:-localhost}:$port. Start that service, or unset $1 to get a fresh one."
}

allowed() { [ "${OUTBOX_SERVICES_BACKEND:-$1}" = "$1" ]; }

up_one() { # SERVICE
  local variable
  variable=$(variable_of "$1")
  if [ -n "$(backend_of "$1")" ]; then
    "$(backend_of "$1")_start" "$1"
  elif [ -n "${!variable:-}" ]; then
    check_given "$variable"
    say "$1: as $variable says"
    remember controllable no
  else
    choose_ports "$1"
    if allowed compose && compose_usable && remember "$1_backend" compose && compose_up "$1"; then
      say "$1: container on port $(port_of "$1")"
    elif allowed private; then
      remember "$1_backend" private
      private_up "$1"
      say "$1: private instance on port $(port_of "$1")"
    else
      die "$1: no way left to start it"
    fi
  fi
}

port_of() { local name; name=$(tr '[:lower:]' '[:upper:]' <<<"$1")_PORT; echo "${!name}"; }

make_dir() {
  mkdir -p "$DIR"
  [ ! -e "$STATE" ] || return 0
  [ -z "$(ls -A "$DIR")" ] || die "$DIR is not empty; name another folder in OUTBOX_SERVICES_DIR"
  chmod 755 "$DIR"
  : >"$STATE"
  remember controllable yes
  printf '#!/usr/bin/env bash\nOUTBOX_SERVICES_DIR=%q exec %q "$@"\n' "$DIR" "$REPO/scripts/services.sh" >"$DIR/ctl"
  chmod 755 "$DIR/ctl"
}

up() {
  local service
  trap 'say "not everything came up"; down' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  make_dir
  # One set after the other, or two would choose the same ports.
  exec 9</tmp
  ! command -v flock >/dev/null || flock 9
  for service in "$@"; do up_one "$service"; done
  # Tests write to the table with the one and run programs with a wrong clock with the other.
  case " $* " in *" pg "*) private_install psql; private_install faketime ;; esac
  # Tests of restarts, fail-over and clusters start Redis servers of their own.
  case " $* " in *" redis "*) private_install redis ;; esac
  exec 9<&-
  watch_owner
  trap - EXIT
  print_env
}

# In a session of its own, so that what kills the owner's whole process group leaves it alive.
watch_owner() {
  [ -n "${OUTBOX_SERVICES_OWNER:-}" ] || return 0
  # shellcheck disable=SC2046
  $(command -v setsid) "$DIR/ctl" watch >/dev/null 2>&1 </dev/null &
}

watch() {
  while [ -e "$STATE" ] && running "$OUTBOX_SERVICES_OWNER"; do sleep 2; done
  down
}

down() {
  local service backend
  [ -e "$STATE" ] || return 0
  for service in $KNOWN; do
    backend=$(backend_of "$service")
    [ -n "$backend" ] || continue
    say "$service: down"
    "${backend}_down" "$service" || say "$service: that went wrong; going on"
  done
  rm -rf "$DIR"
}

status() {
  local service backend variable answer
  for service in $KNOWN; do
    backend=$(backend_of "$service")
    variable=$(variable_of "$service")
    if [ -n "$backend" ]; then
      open 127.0.0.1 "$(port_of "$service")" && answer="answers" || answer="does not answer"
      echo "$service: $backend, $answer on port $(port_of "$service")"
    elif [ -n "${!variable:-}" ]; then
      echo "$service: given in $variable"
    else
      echo "$service: none"
    fi
  done
}

each() { # VERB SERVICE...
  local verb=$1 service backend
  shift
  [ $# -gt 0 ] || die "$verb which service?"
  for service in "$@"; do
    variable_of "$service" >/dev/null
    backend=$(backend_of "$service")
    [ -n "$backend" ] || die "$service was not started by 'scripts/services.sh up', so it is not touched"
    "${backend}_$verb" "$service"
  done
}

# shellcheck source=services/private.sh
. "$REPO/scripts/services/private.sh"
# shellcheck source=services/compose.sh
. "$REPO/scripts/services/compose.sh"
if [ -e "$STATE" ]; then
  [ -O "$DIR" ] || die "$DIR belongs to another user; name another folder in OUTBOX_SERVICES_DIR"
  # shellcheck source=/dev/null
  . "$STATE"
fi

install() { # TOOL ...
  local tool
  make_dir
  for tool in "$@"; do private_install "$tool"; done
}

command=${1:-help}
[ $# -eq 0 ] || shift
case $command in
  up) [ $# -gt 0 ] || eval "set -- $WANTED"; up "$@" ;;
  down) down ;;
  env) print_env ;;
  status) status ;;
  watch) watch ;;
  install) install "$@" ;;
  restart) each stop "$@"; each start "$@" ;;
  stop | start | kill | pause | resume) each "$command" "$@" ;;
  help | -h | --help) usage ;;
  *) usage >&2; exit 2 ;;
esac
