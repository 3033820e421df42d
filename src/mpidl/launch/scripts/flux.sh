#!/bin/bash
# Made by: @made
#flux: --job-name=@name
#flux: --nodes=@nodes
#flux: --exclusive
#flux: --time-limit=@limit
#flux: --output=@directory/@name-{{id}}.log
@options
# @margin seconds before the time limit, USR1 asks the run to save and to end with exit code 75. Then, or if a node or a rank is
# lost, this script is queued again and resumes from the last checkpoint. Exit code 0 means done; after 1 or 2 a retry would fail again.
@setup
@begin
flux run --nodes=@nodes --tasks-per-node=@ranks_per_node --cores-per-task=@cores_per_rank@gpus \
    --time-limit=@inner_limit --signal=USR1@@@margin mpidl @command "${arguments[@]}"
code=$?
restarts=${MPIDL_RESTARTS:-0}
if [ "$code" -gt 2 ] && [ "$restarts" -lt @restarts ]; then
    flux --parent batch --env="MPIDL_RUN=$run" --env="MPIDL_RESTARTS=$((restarts + 1))" "@script"
fi
exit "$code"
