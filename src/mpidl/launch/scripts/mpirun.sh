@unpack || exit
@arguments
mpidl @command -n @ranks@retries "${arguments[@]}" &
trap 'kill -USR1 $!' USR1
wait $!
code=$?
# A signal ends the wait, not the run.
while kill -0 $! 2> /dev/null; do wait $!; code=$?; done
