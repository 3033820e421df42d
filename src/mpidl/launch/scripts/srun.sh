nodes=()
for attempt in {1..@attempts}; do
    @unpack || { code=$?; break; }
    @arguments
    srun @srun "${nodes[@]}" mpidl @command "${arguments[@]}"
    code=$?
    if [ "$code" -eq 0 ] && ! @done; then
        code=75 # srun returns 0 even if a node could not start its ranks.
    elif [ "$code" -eq 2 ] && [ "$attempt" -gt 1 ]; then
        code=75 # Too few ranks are left.
        break
    elif [ "$code" -le 2 ] || [ "$code" -eq 75 ]; then
        break
    fi
    # Of the nodes that this job still has, those that answer. The step that was lost may hold their cores for a while.
    left=$(for node in $(scontrol show hostnames "$(squeue -h -j "$SLURM_JOB_ID" -o %N)"); do
        timeout --kill-after=5 20 srun --overlap --nodes=1 --ntasks=1 --nodelist="$node" echo "$node" 2> /dev/null &
    done; wait)
    count=$(wc -w <<< "$left")
    [ "$count" -gt 0 ] || break
    nodes=(--overlap --nodes="$count" --ntasks="$((count * @ranks_per_node))" --nodelist="${left//$'\n'/,}")
done
