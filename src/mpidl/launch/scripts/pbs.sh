#!/bin/bash
# Made by: @made
#PBS -N @name
#PBS -l select=@nodes:ncpus=@cores:mpiprocs=@ranks_per_node@gpus@pbs_memory
#PBS -l walltime=@clock
#PBS -r y
#PBS -j oe
#PBS -o @directory/
#PBS -q @queue
#PBS -A @account

# @margin seconds before the time limit, USR1 asks the run to save and to end with exit code 75. Then this script is queued
# again and resumes from the last checkpoint. If a rank or a node is lost, the run starts again at once on what is left, at
# first without queueing. Exit code 0 means done; after 1 or 2 a retry would fail again.
cd "$PBS_O_WORKDIR" || exit 1
@setup
# Hosts of the ranks, for the launchers of Open MPI 5, Open MPI 4, and MPICH and Intel MPI.
export PRTE_MCA_prte_default_hostfile=$PBS_NODEFILE OMPI_MCA_orte_default_hostfile=$PBS_NODEFILE
export HYDRA_HOST_FILE=$PBS_NODEFILE

@begin
@environment
@unpack || exit
@arguments
timeout --signal=USR1 --preserve-status @until mpidl @command -n @ranks@retries "${arguments[@]}"
code=$?
restarts=${MPIDL_RESTARTS:-0}
if [ "$code" -gt 2 ] && [ "$restarts" -lt @restarts ]; then
    # A script that --print has printed may be in any file; $0 is the copy of it that PBS runs.
    [ ! -f "$0" ] || cp --remove-destination "$0" "@script"
    qsub -v "MPIDL_RUN=$run,MPIDL_RESTARTS=$((restarts + 1))" "@script"
fi
exit "$code"
