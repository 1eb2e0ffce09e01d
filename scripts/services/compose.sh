# shellcheck shell=bash
# Services as containers; sourced by services.sh. The containers are described in compose.yaml.

compose() {
  OUTBOX_PG_PORT=${PG_PORT:-} OUTBOX_MARIA_PORT=${MARIA_PORT:-} OUTBOX_REDIS_PORT=${REDIS_PORT:-} \
  OUTBOX_RABBIT_PORT=${RABBIT_PORT:-} OUTBOX_RABBIT_MGMT_PORT=${RABBIT_MGMT_PORT:-} \
  OUTBOX_KAFKA_PORT=${KAFKA_PORT:-} \
    docker compose -f "$REPO/compose.yaml" -p "outbox-$(cksum <<<"$DIR" | cut -d' ' -f1)" "$@" >&2 9<&-
}

compose_usable() {
  command -v docker >/dev/null && docker compose version >/dev/null 2>&1 && docker info >/dev/null 2>&1
}

# The port is asked for as well: an engine on another host says "healthy" and cannot be reached at 127.0.0.1.
compose_up() {
  compose up --detach --wait "$1" && open 127.0.0.1 "$(port_of "$1")" && return
  say "$1: no usable container"
  compose rm --force --stop --volumes "$1" || true
  return 1
}

compose_start() { compose up --detach --wait "$1"; }
compose_stop() { compose stop "$1"; }
compose_kill() { compose kill "$1"; }
compose_pause() { compose pause "$1"; }
compose_resume() { compose unpause "$1"; }
compose_down() { compose down --volumes --timeout 10; }
