#!/bin/bash
# Made by: mpidl submit jobs/fashion_mnist.toml --nodes 2 --ranks-per-node 8 --time 30:00 --set topology.servers=2 --scheduler flux --setup 'source .venv/bin/activate' --print
#flux: --job-name=fashion_mnist
#flux: --nodes=2
#flux: --exclusive
#flux: --time-limit=1800s
#flux: --output=runs/fashion_mnist-{{id}}.log

# 120 seconds before the time limit, USR1 asks the run to save and to end with exit code 75. Then this script is queued
# again and resumes from the last checkpoint. If a rank or a node is lost, the run starts again at once on what is left, at
# first without queueing. Exit code 0 means done; after 1 or 2 a retry would fail again.
source .venv/bin/activate

run=${MPIDL_RUN:-runs/fashion_mnist-$(flux getattr jobid)}

nodes=2
for attempt in {1..4}; do
    if [ -f "$run/config.toml" ]; then
        arguments=(--resume "$run")
    else
        arguments=(jobs/fashion_mnist.toml --set=topology.servers=2 --set "run.dir=runs" --set "run.name=${run##*/}")
    fi
    flux run --nodes="$nodes" --tasks-per-node=8 --cores-per-task=1 \
        --time-limit="$((1790 - SECONDS))s" --signal=USR1@120 mpidl train "${arguments[@]}"
    code=$?
    if [ "$code" -eq 2 ] && [ "$attempt" -gt 1 ]; then
        code=75 # Too few ranks are left.
        break
    elif [ "$code" -le 2 ] || [ "$code" -eq 75 ]; then
        break
    fi
    nodes=$(flux resource list --states=up --no-header --format="{nnodes}")
done
restarts=${MPIDL_RESTARTS:-0}
if [ "$code" -gt 2 ] && [ "$restarts" -lt 50 ]; then
    # A script that --print has printed may be in any file; $0 is the copy of it that Flux runs.
    [ ! -f "$0" ] || cp --remove-destination "$0" "runs/fashion_mnist.flux"
    flux --parent batch --env="MPIDL_RUN=$run" --env="MPIDL_RESTARTS=$((restarts + 1))" "runs/fashion_mnist.flux"
fi
exit "$code"
