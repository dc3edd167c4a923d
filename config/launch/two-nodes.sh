#!/bin/bash
# Kiln on two nodes over ssh, without any scheduler.
#
#   config/launch/two-nodes.sh node1 node2 --epochs 50 --gpu-ids 0,1 --world-size 4
#
# Both nodes need train (TRAIN names its path) and this working directory (DIRECTORY names another). The processes meet
# on the first node: ADDRESS says under which address, if not the name that ssh knows, PORT at which port. Ctrl-C lets
# the run save and leave. A secret for this run is made here and reaches the nodes through ssh only.
set -u

if [ $# -lt 2 ]; then
    echo "usage: two-nodes.sh NODE1 NODE2 [options of train]" >&2
    exit 2
fi
nodes=("$1" "$2")
shift 2
url=tcp://${ADDRESS:-${nodes[0]##*@}}:${PORT:-23456}

# Runs on each node. It reads the secret from its input, and ends train by SIGTERM when that input closes, be it by
# Ctrl-C here or by the death of this script: no orphan stays on a node.
# shellcheck disable=SC2016 # these variables are the node's
there='cd "$1" || exit 1; shift
umask 077; secret=$(mktemp) || exit 1; trap "rm -f $secret" EXIT
read -r line; printf "%s\n" "$line" >"$secret"
exec 3<&0
"$@" --job-secret-file "$secret" 3<&- & train=$!
{ while read -r line; do :; done; kill -TERM "$train"; } <&3 >/dev/null 2>&1 & watch=$!
wait "$train"; code=$?
kill "$watch" 2>/dev/null
exit "$code"'

# Each argument so that any shell on the node reads it back as one word.
quoted() {
    printf "'%s' " "${@//\'/\'\\\'\'}"
}

pipes=$(mktemp -d) || exit 1
trap 'rm -rf "$pipes"' EXIT
processes=()
for rank in 0 1; do
    mkfifo "$pipes/$rank" || exit 1
    command=$(quoted sh -c "$there" train "${DIRECTORY:-$PWD}" \
        "${TRAIN:-train}" "$@" --rank "$rank" --dist-url "$url")
    # Ctrl-C must not cut the connection that brings the last lines.
    (trap '' INT && exec ssh -o BatchMode=yes "${nodes[$rank]}" "$command") <"$pipes/$rank" &
    processes+=($!)
done

exec 3>"$pipes/0" 4>"$pipes/1"
trap 'exec 3>&- 4>&-' INT TERM HUP
trap '' PIPE
secret=$(head -c 32 /dev/urandom | base64)
# A node that is gone already is told of by ssh.
echo "$secret" 2>/dev/null >&3
echo "$secret" 2>/dev/null >&4

# 255 is ssh's own: without a connection to one node the other would wait for nobody.
wait -n "${processes[@]}"
if [ $? -eq 255 ]; then
    exec 3>&- 4>&-
fi

# A signal interrupts the wait, not the processes.
codes=()
for process in "${processes[@]}"; do
    while kill -0 "$process" 2>/dev/null; do
        wait "$process"
    done
    wait "$process"
    codes+=($?)
done

# 75 only says that the other one was lost.
if [ "${codes[0]}" -eq 0 ] || { [ "${codes[0]}" -eq 75 ] && [ "${codes[1]}" -ne 0 ]; }; then
    exit "${codes[1]}"
fi
exit "${codes[0]}"
