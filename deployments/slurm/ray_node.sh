#!/usr/bin/env bash
# Runs Ray on one node of a Slurm job until it gets SIGTERM; train.sbatch starts it on each node. The first is the head,
# at RAY_ADDRESS.
set -euo pipefail

head=$RAY_ADDRESS client_port=$1
unset RAY_ADDRESS # `ray start` would take it for a cluster that runs
export RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=0 # no node needs to drain: they all end, after the run
address=$(bash deployments/slurm/node_address.sh)

# Ray's sockets need a short path, and its files a folder that no other user can enter. If this script is killed before it
# removes the folder, the next run or stack of the user on this machine does, because nobody holds the lock.
folder=$(mktemp --directory /tmp/embodyflow-XXXXXX)
exec 9>"$folder/lock"
flock 9
trap 'rm -rf "$folder"' EXIT

if [[ $SLURM_PROCID = 0 ]]; then
    role=(--head --port="${head##*:}" --ray-client-server-port="$client_port" --include-dashboard=false --no-monitor)
else
    until (exec 3<>"/dev/tcp/${head%:*}/${head##*:}") 2>/dev/null; do sleep 1; done
    role=(--address="$head")
fi
stopped='' ray=''
stop() {
    stopped=1
    [[ ! $ray ]] || kill -TERM "$ray"
}
trap stop TERM

# Ray gives up if its own processes take long to answer, as on a busy machine. A run goes on without a node that dies, and
# uses it when it is back.
for _ in {1..3}; do
    ray start "${role[@]}" --block --node-ip-address="$address" --num-cpus="$SLURM_CPUS_ON_NODE" \
        --temp-dir="$folder/ray" --disable-usage-stats --dashboard-agent-listen-port=0 --metrics-export-port=0 \
        --min-worker-port=0 --max-worker-port=0 &
    ray=$!
    wait "$ray" || wait "$ray" || true # SIGTERM interrupts the first one
    [[ ! $stopped && $SLURM_PROCID != 0 ]] || break
done
if [[ ! $stopped && $SLURM_PROCID = 0 ]]; then # without a head the others would wait for it
    scancel --signal=TERM "$SLURM_JOB_ID.$SLURM_STEP_ID"
fi
