# What the demos share: simulated nodes, each with a pfod and a pfo-agent of its own. To be sourced.
# shellcheck shell=bash
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
programs=$root/target/${PFO_DEMO_PROFILE:-demo}

work=$(mktemp -d /tmp/pfo-demo.XXXXXX)
chmod 755 "$work"
processes=()
finish() {
    for process in "${processes[@]}"; do kill "$process" 2>/dev/null || true; done
    wait
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

if [ -t 1 ]; then bold=$'\033[1m' plain=$'\033[0m'; else bold='' plain=''; fi
step() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
say() { printf '  %s\n' "$*"; }

# Prints the name of a user or group, or the number of one without a name: name -un, name -gn nobody.
name() { id "$@" 2>/dev/null || true; }

# As root, the trainers run as `nobody`. Otherwise everything runs as the caller, whom the simulated
# driver accepts in place of root.
if [ "$(id -u)" -eq 0 ]; then
    trainer_uid=$(id -u nobody)
    trainer_name=$(name -un nobody) trainers=$(name -gn nobody)
    as_trainer=(--uid "$trainer_uid" --gid "$(id -g nobody)")
    owner=()
else
    trainer_uid=$(id -u)
    trainer_name=$(name -un) trainers=$(name -gn)
    as_trainer=()
    owner=(--owner-uid "$trainer_uid")
fi

# Makes a simulated machine in a directory: create_machine DIRECTORY GPUS
create_machine() {
    mkdir -p "$1/lib"
    PFO_SIM_STATE=$1/gpus "$programs/pfo-sim" create --warm --gpus "$2" ${owner[@]+"${owner[@]}"}
    ln -s "$programs/libnvidia_ml.so" "$1/lib/libnvidia-ml.so.1"
    cat > "$1/pfod.toml" <<TOML
[sockets]
trainers = "$1/pfod.sock"
admin = "$1/admin.sock"
agent = "$1/agent.sock"
[groups]
trainers = "$trainers"
administrators = "$(name -gn)"
[driver]
library = "$1/lib/libnvidia-ml.so.1"
devices = "$1/gpus.dev"
[paths]
ledger = "$1/ledger.json"
TOML
    cat > "$1/agent.toml" <<TOML
[sockets]
users = "$1/pfo-agent.sock"
admin = "$1/pfo-agent-admin.sock"
pfod = "$1/agent.sock"
[groups]
trainers = "$trainers"
administrators = "$(name -gn)"
[paths]
state = "$1/agent"
runtime = "$1/agent-jobs"
TOML
}

# Starts pfod and pfo-agent on a simulated machine: start_node DIRECTORY
start_node() {
    PFO_SIM_STATE=$1/gpus "$programs/pfod" --config "$1/pfod.toml" 2> "$1/pfod.log" &
    processes+=($!)
    "$programs/pfo-agent" --config "$1/agent.toml" 2> "$1/agent.log" &
    processes+=($!)
    for _ in $(seq 200); do
        pfoctl_on "$1" gpus >/dev/null 2>&1 && return
        sleep 0.05
    done
    cat "$1/pfod.log"
    return 1
}

# Runs pfoctl on a node: pfoctl_on DIRECTORY ARGUMENT…
pfoctl_on() {
    PFO_SOCKET=$1/pfod.sock PFO_ADMIN_SOCKET=$1/admin.sock PFO_AGENT_SOCKET=$1/pfo-agent-admin.sock \
        "$programs/pfoctl" "${@:2}"
}

# Prints how many sessions a node has: sessions DIRECTORY
sessions() { pfoctl_on "$1" status --json | grep -o '"sessions": *[0-9]*' | grep -o '[0-9]*'; }
