#!/bin/bash
# Made by: @made
#SBATCH --job-name=@name
#SBATCH --nodes=@nodes
#SBATCH --ntasks-per-node=@ranks_per_node
#SBATCH --cpus-per-task=@cores_per_rank
#SBATCH --time=@clock
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=@directory/@name-%j.log
@options
# @margin seconds before the time is up the run is told USR1: it saves, and ends with exit code 75. Then, or if a node or a
# rank is lost, this job queues itself again and goes on from the last checkpoint. 0 is done; 1 and 2 are errors that would
# come again.
@setup
run=@directory/@name-$SLURM_JOB_ID
if [ -f "$run/config.toml" ]; then
    arguments=(--resume "$run")
else
    arguments=(@arguments --set "run.dir=@directory" --set "run.name=@name-$SLURM_JOB_ID")
fi

@train
# srun also returns 0 for ranks that a node could not start.
if [ "$code" -eq 0 ] && ! grep -qs '"interrupted": *false' "$run/summary.json"; then
    code=75
fi
if [ "$code" -gt 2 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt @restarts ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
