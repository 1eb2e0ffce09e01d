# shellcheck shell=bash
# Services as private instances of Debian packages; sourced by services.sh. Every server is a process of its
# own session whose id is in $DIR/SERVICE.pid, and is only ever ended by that id.

private_up() {
  case $1 in
    # In this order: on most systems maven brings a Java that is new enough.
    kafka) private_install maven; private_install java ;;
    *) private_install "$1" ;;
  esac
  "${1}_create"
  private_start "$1"
}

private_start() { alive "$1" || "${1}_launch"; }
private_kill() { signal_all KILL "$1"; wait_gone "$1" 10; }
private_pause() { signal_all STOP "$1"; }
private_resume() { signal_all CONT "$1"; }

private_stop() {
  alive "$1" || return 0
  private_resume "$1"
  case $1 in
    pg) signal INT pg ;; # the fast shutdown
    *) signal TERM "$1" ;;
  esac
  wait_gone "$1" 30 || { say "$1 did not stop within 30 s, so it is killed"; signal KILL "$1"; }
}

private_down() {
  private_stop "$1"
  [ "$1" != rabbit ] || private_stop epmd
}

# --- processes -----------------------------------------------------------------------------------------

# A zombie is gone: where nothing reaps orphans, `kill -0` would find it for ever.
running() { # PID
  local stat
  [ -d /proc/self ] || { kill -0 "$1" 2>/dev/null; return; }
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  stat=${stat##*) }
  [ "${stat%% *}" != Z ]
}

pid_of() { cat "$DIR/$1.pid" 2>/dev/null; }
alive() { local pid; pid=$(pid_of "$1") && running "$pid"; }
signal() { kill "-$1" "$(pid_of "$2")" 2>/dev/null || true; } # SIGNAL SERVICE

signal_all() { # SIGNAL SERVICE: the server and all its children
  local pid
  pid=$(pid_of "$2") || return 0
  { cat /proc/[0-9]*/stat 2>/dev/null || true; } | sed -E 's/^([0-9]+) \(.*\) . ([0-9]+) .*/\1 \2/' |
    awk -v root="$pid" '{ parent[$1] = $2 }
      END { for (p in parent) { q = p; while (q > 1 && q != root) q = parent[q]; if (q == root) print p } }' |
    while read -r pid; do kill "-$1" "$pid" 2>/dev/null || true; done
}

wait_gone() { # SERVICE SECONDS
  local end=$((SECONDS + $2))
  while alive "$1"; do
    [ "$SECONDS" -lt "$end" ] || return 1
    sleep 0.05
  done
}

wait_ready() { # SERVICE SECONDS COMMAND...
  local service=$1 seconds=$2 end=$((SECONDS + $2))
  shift 2
  until "$@" >/dev/null 2>&1; do
    alive "$service" || give_up "$service" "stopped while it was starting"
    [ "$SECONDS" -lt "$end" ] || give_up "$service" "did not come up within $seconds s"
    sleep 0.05
  done
}

give_up() { # SERVICE WHAT
  tail -n 20 "$DIR/$1.log" >&2
  die "$1 $2; the end of its log is above"
}

# Replaces the subshell that calls it. Servers refuse to run as root, so root becomes the user that the
# package brought.
as() { # USER COMMAND...
  local user=$1
  shift
  [ "$(id -u)" != 0 ] || set -- setpriv --reuid="$user" --regid="$(id -g "$user")" --clear-groups -- "$@"
  exec "$@"
}

launch() { # SERVICE USER COMMAND...
  local service=$1 user=$2
  shift 2
  (cd "$DIR/$service" && as "$user" setsid "$@") >>"$DIR/$service.log" 2>&1 </dev/null 9<&- &
  echo $! >"$DIR/$service.pid"
}

folder() { # USER PATH...
  local user=$1
  shift
  mkdir -p "$@"
  chmod 750 "$@"
  own "$user" "$@"
}

own() { # USER PATH...
  [ "$(id -u)" != 0 ] || chown "$1:" "${@:2}"
}

# --- packages ------------------------------------------------------------------------------------------

installed() { # PROGRAM OR SERVICE
  case $1 in
    psql | faketime | make) command -v "$1" ;;
    c++) command -v c++ || command -v g++ || command -v clang++ ;;
    java) java_is_at_least 17 ;;
    maven) command -v mvn ;;
    pg) compgen -G '/usr/lib/postgresql/*/bin/postgres' ;;
    maria) command -v mariadbd && command -v mariadb-install-db ;;
    redis) command -v redis-server ;;
    rabbit) [ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] ;;
  esac >/dev/null
}

java_is_at_least() { # VERSION
  local said
  said=$(java -version 2>&1) && [[ $said =~ \"([0-9]+) ]] && [ "${BASH_REMATCH[1]}" -ge "$1" ]
}

package_of() {
  case $1 in
    psql) echo postgresql-client ;; faketime) echo faketime ;; make) echo make ;; c++) echo g++ ;;
    java) echo openjdk-17-jre-headless ;; maven) echo maven ;;
    pg) echo postgresql ;; maria) echo mariadb-server ;;
    redis) echo redis-server ;; rabbit) echo rabbitmq-server ;;
  esac
}

private_install() {
  local package
  installed "$1" && return
  package=$(package_of "$1")
  command -v apt-get >/dev/null ||
    die "$1 is missing, and there is no apt-get to install $package with. Install it, start Docker, or give the service's address ('scripts/services.sh help')."
  say "$1: installing $package"
  as_root bash -c "$INSTALL" install "$package" >"$DIR/apt.log" 2>&1 || {
    tail -n 20 "$DIR/apt.log" >&2
    die "$1: apt-get could not install $package (root or sudo is needed); the end of its log is above"
  }
  installed "$1" || die "$1: $package is installed, but its program is not where it was expected"
}

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }

# The packages must neither start a server nor create a database cluster. Both switches are taken back.
# shellcheck disable=SC2016
INSTALL='
set -e
export DEBIAN_FRONTEND=noninteractive
switches=()
trap '\''rm -f "${switches[@]}"'\'' EXIT
if [ ! -e /usr/sbin/policy-rc.d ]; then
  switches+=(/usr/sbin/policy-rc.d)
  printf "#!/bin/sh\nexit 101\n" >/usr/sbin/policy-rc.d
  chmod 755 /usr/sbin/policy-rc.d
fi
mkdir -p /etc/postgresql-common/createcluster.d
switches+=(/etc/postgresql-common/createcluster.d/outbox.conf)
echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.d/outbox.conf
apt-get -o DPkg::Lock::Timeout=300 update
apt-get -o DPkg::Lock::Timeout=300 install --yes --no-install-recommends "$1"
'

# --- PostgreSQL ----------------------------------------------------------------------------------------

pg_bin() { printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -n 1; }

pg_create() {
  folder postgres "$DIR/pg"
  ( cd "$DIR/pg"
    as postgres "$(pg_bin)/initdb" -D data -U postgres -A trust -E UTF8 --locale=C.UTF-8 --no-sync ) \
    >"$DIR/pg.log" 2>&1 || { cat "$DIR/pg.log" >&2; die "pg: initdb failed"; }
  cat >>"$DIR/pg/data/postgresql.conf" <<E
listen_addresses = '127.0.0.1'
port = $PG_PORT
unix_socket_directories = ''
max_connections = 300
max_wal_size = 4GB
E
}

pg_launch() {
  # A killed server leaves its lock behind, and takes it for held while the dead process is still a zombie.
  rm -f "$DIR/pg/data/postmaster.pid"
  launch pg postgres "$(pg_bin)/postgres" -D "$DIR/pg/data"
  wait_ready pg 60 pg_query 'select 1'
  [ -n "$(pg_query "select 1 from pg_database where datname = 'outbox'")" ] || pg_query 'create database outbox'
}

pg_query() { "$(pg_bin)/psql" -qAtX -h 127.0.0.1 -p "$PG_PORT" -U postgres -c "$1"; }

# --- MariaDB -------------------------------------------------------------------------------------------

maria_create() {
  folder mysql "$DIR/maria" "$DIR/maria/tmp"
  ( cd "$DIR/maria"
    as mysql mariadb-install-db --no-defaults --datadir="$DIR/maria/data" --tmpdir="$DIR/maria/tmp" \
      --auth-root-authentication-method=normal --skip-test-db ) \
    >"$DIR/maria.log" 2>&1 || { cat "$DIR/maria.log" >&2; die "maria: mariadb-install-db failed"; }
  cat >"$DIR/maria/init.sql" <<'E'
CREATE DATABASE IF NOT EXISTS outbox CHARACTER SET utf8mb4;
CREATE USER IF NOT EXISTS 'outbox'@'127.0.0.1' IDENTIFIED BY 'outbox';
GRANT ALL ON *.* TO 'outbox'@'127.0.0.1';
E
  own mysql "$DIR/maria/init.sql"
}

maria_launch() {
  launch maria mysql mariadbd --no-defaults --datadir="$DIR/maria/data" --tmpdir="$DIR/maria/tmp" \
    --bind-address=127.0.0.1 --port="$MARIA_PORT" --socket="$DIR/maria/socket" --pid-file="$DIR/maria/pid" \
    --skip-name-resolve --init-file="$DIR/maria/init.sql" --max-connections=300
  wait_ready maria 60 mariadb --no-defaults -h 127.0.0.1 -P "$MARIA_PORT" -u outbox -poutbox -e 'select 1' outbox
}

# --- Redis ---------------------------------------------------------------------------------------------

redis_create() { folder redis "$DIR/redis"; }

redis_launch() {
  launch redis redis redis-server --bind 127.0.0.1 --port "$REDIS_PORT" --dir "$DIR/redis" \
    --save '' --appendonly yes --daemonize no
  wait_ready redis 30 redis-cli -h 127.0.0.1 -p "$REDIS_PORT" ping
}

# --- RabbitMQ ------------------------------------------------------------------------------------------

rabbit_create() {
  local home=$DIR/rabbit
  folder rabbitmq "$home" "$DIR/epmd"
  head -c 15 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$home/.erlang.cookie"
  chmod 400 "$home/.erlang.cookie"
  cat >"$home/rabbitmq.conf" <<E
listeners.tcp.default = 127.0.0.1:$RABBIT_PORT
management.tcp.ip = 127.0.0.1
management.tcp.port = $RABBIT_MGMT_PORT
max_message_size = 16777216
disk_free_limit.absolute = 100MB
log.file.level = warning
log.console = false
E
  echo '[].' >"$home/advanced.config"
  echo '[rabbitmq_management].' >"$home/enabled_plugins"
  : >"$home/env.conf"
  own rabbitmq "$home/.erlang.cookie" "$home"/*.con* "$home/enabled_plugins"
}

rabbit_launch() {
  ( rabbit_env
    # A node starts a daemon of its own here if there is none, and that one would outlive it.
    alive epmd || launch epmd rabbitmq epmd -address 127.0.0.1 -port "$RABBIT_EPMD_PORT"
    launch rabbit rabbitmq /usr/lib/rabbitmq/bin/rabbitmq-server )
  wait_ready rabbit 180 rabbit_answers
}

rabbit_env() {
  local home=$DIR/rabbit loopback='-kernel inet_dist_use_interface {127,0,0,1}'
  export HOME=$home LANG=C.UTF-8
  export RABBITMQ_NODENAME=outbox@localhost # the machine's own name may not resolve
  export RABBITMQ_CONF_ENV_FILE=$home/env.conf RABBITMQ_CONFIG_FILE=$home/rabbitmq.conf
  export RABBITMQ_ADVANCED_CONFIG_FILE=$home/advanced.config RABBITMQ_ENABLED_PLUGINS_FILE=$home/enabled_plugins
  export RABBITMQ_MNESIA_BASE=$home/mnesia RABBITMQ_LOG_BASE=$home/log RABBITMQ_SCHEMA_DIR=$home/schema
  export RABBITMQ_GENERATED_CONFIG_DIR=$home/generated RABBITMQ_PID_FILE=$home/pid
  # shellcheck disable=SC2153
  export RABBITMQ_DIST_PORT=$RABBIT_DIST_PORT RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=$loopback
  export ERL_EPMD_PORT=$RABBIT_EPMD_PORT ERL_EPMD_ADDRESS=127.0.0.1
  export RUNNING_UNDER_SYSTEMD=true # the start script becomes the node instead of waiting for it
}

# Management comes up last, so its answer means that everything is there.
rabbit_answers() {
  local line
  open 127.0.0.1 "$RABBIT_PORT" && exec 3<>"/dev/tcp/127.0.0.1/$RABBIT_MGMT_PORT" || return 1
  printf 'GET /api/overview HTTP/1.0\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\r\n' >&3
  read -r line <&3
  exec 3<&-
  [[ $line == *' 200 '* ]]
}

# --- Kafka ---------------------------------------------------------------------------------------------

kafka_create() {
  local home=$DIR/kafka
  kafka_obtain
  folder "$(id -un)" "$home" "$home/logs"
  # What `kafka-storage format` writes; writing it here saves starting Java once more.
  printf 'version=1\ncluster.id=outbox-tests-kafka-000\nnode.id=1\n' >"$home/logs/meta.properties"
  cat >"$home/server.properties" <<E
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$KAFKA_CONTROLLER_PORT
listeners=PLAINTEXT://127.0.0.1:$KAFKA_PORT,CONTROLLER://127.0.0.1:$KAFKA_CONTROLLER_PORT
advertised.listeners=PLAINTEXT://127.0.0.1:$KAFKA_PORT
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
log.dirs=$home/logs
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
E
}

# Maven takes the jars from where the user's own settings say.
kafka_obtain() {
  local pom=$REPO/scripts/services/kafka-pom.xml
  remember KAFKA_JARS "${XDG_CACHE_HOME:-$HOME/.cache}/outbox/kafka-$(cksum <"$pom" | cut -d' ' -f1)"
  [ ! -e "$KAFKA_JARS/complete" ] || return 0
  say "kafka: Maven brings the jars of the broker (45 MB, kept in $KAFKA_JARS)"
  mkdir -p "$KAFKA_JARS"
  mvn -q -B -f "$pom" dependency:copy-dependencies -DoutputDirectory="$KAFKA_JARS" >"$DIR/maven.log" 2>&1 || {
    tail -n 20 "$DIR/maven.log" >&2
    die "kafka: Maven could not bring the jars of the broker; the end of its log is above. Without a Maven repository, start Docker or give a broker in OUTBOX_KAFKA."
  }
  : >"$KAFKA_JARS/complete"
}

# A broker of the tests lives for minutes: it shall start fast and be small.
kafka_launch() {
  launch kafka "$(id -un)" java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xms64m -Xmx512m \
    -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -cp "$KAFKA_JARS/*" kafka.Kafka "$DIR/kafka/server.properties"
  wait_ready kafka 180 kafka_answers
}

# Asks for metadata, and looks in the answer for the number of brokers that take requests.
kafka_answers() {
  local brokers
  exec 3<>"/dev/tcp/127.0.0.1/$KAFKA_PORT" || return 1
  printf '\0\0\0\016\0\3\0\0\0\0\0\1\377\377\0\0\0\0' >&3
  brokers=$(timeout 2 head -c 12 <&3 | od -An -tu1 -j8)
  exec 3>&-
  [[ $brokers =~ [1-9] ]]
}
