#!/bin/bash
# Made by: mpidl submit jobs/fashion_mnist.toml --nodes 2 --ranks-per-node 8 --time 30:00 --set topology.servers=2 --scheduler flux --setup 'source .venv/bin/activate' --print
#flux: --job-name=fashion_mnist
#flux: --nodes=2
#flux: --exclusive
#flux: --time-limit=1800s
#flux: --output=runs/fashion_mnist-{{id}}.log

# 120 seconds before the time limit, USR1 asks the run to save and to end with exit code 75. Then, or if a node or a rank is
# lost, this script is queued again and resumes from the last checkpoint. Exit code 0 means done; after 1 or 2 a retry would fail again.
source .venv/bin/activate

run=${MPIDL_RUN:-runs/fashion_mnist-$(flux getattr jobid)}
if [ -f "$run/config.toml" ]; then
    arguments=(--resume "$run")
else
    arguments=(jobs/fashion_mnist.toml --set=topology.servers=2 --set "run.dir=runs" --set "run.name=${run##*/}")
fi

flux run --nodes=2 --tasks-per-node=8 --cores-per-task=1 \
    --time-limit=1790s --signal=USR1@120 mpidl train "${arguments[@]}"
code=$?
restarts=${MPIDL_RESTARTS:-0}
if [ "$code" -gt 2 ] && [ "$restarts" -lt 50 ]; then
    flux --parent batch --env="MPIDL_RUN=$run" --env="MPIDL_RESTARTS=$((restarts + 1))" "runs/fashion_mnist.flux"
fi
exit "$code"
