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
#SBATCH --signal=@signal
#SBATCH --gpus-per-node=@gpus_per_node
#SBATCH --mem=@memory
#SBATCH --partition=@queue
#SBATCH --account=@account

# @margin seconds before the time limit, USR1 asks the run to save and to end with exit code 75. Then this job queues itself
# again and resumes from the last checkpoint. If a rank or a node is lost, the run starts again at once on what is left, at
# first without queueing. Exit code 0 means done; after 1 or 2 a retry would fail again.
@setup
@begin
@environment
@start
if [ "$code" -gt 2 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt @restarts ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
