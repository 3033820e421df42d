#!/bin/bash
# Made by: @made
#flux: --job-name=@name
#flux: --nodes=@nodes
#flux: --exclusive
#flux: --time-limit=@limit
#flux: --output=@directory/@name-{{id}}.log
#flux: --queue=@queue
#flux: --bank=@account

# @margin seconds before the time limit, USR1 asks the run to save and to end with exit code 75. Then this script is queued
# again and resumes from the last checkpoint. If a rank or a node is lost, the run starts again at once on what is left, at
# first without queueing. Exit code 0 means done; after 1 or 2 a retry would fail again.
@setup
@begin
@environment
nodes=@nodes
for attempt in {1..@attempts}; do
    @unpack || { code=$?; break; }
    @arguments
    flux run --nodes="$nodes" --tasks-per-node=@ranks_per_node --cores-per-task=@cores_per_rank@gpus \
        --time-limit="$((@inner_limit - SECONDS))s" --signal=USR1@@@margin mpidl @command "${arguments[@]}"
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
if [ "$code" -gt 2 ] && [ "$restarts" -lt @restarts ]; then
    # A script that --print has printed may be in any file; $0 is the copy of it that Flux runs.
    [ ! -f "$0" ] || cp --remove-destination "$0" "@script"
    flux --parent batch --env="MPIDL_RUN=$run" --env="MPIDL_RESTARTS=$((restarts + 1))" "@script"
fi
exit "$code"
