# The ranks' environment: unpacked on each node, in memory if programs may run there, and removed when this job ends.
env=/dev/shm
if [ ! -w "$env" ] || grep -q '^[^ ]* /dev/shm [^ ]* [^ ]*noexec' /proc/mounts; then env=${TMPDIR:-/tmp}; fi
env=$env/mpidl-@number
unpack() { # the archive $1 into the directory $2, once, although a node may start this several times
    local archive=$1 directory=$2 said
    fail() {
        echo "mpidl: $(hostname): --env $archive: $1" >&2
        [ ! -O "$directory" ] || touch "$directory/.failed"
        exit 1
    }
    umask 077
    mkdir "$directory" 2> /dev/null || { [ -O "$directory" ] && [ ! -L "$directory" ]; } || fail "can't make $directory"
    exec 9> "$directory/.lock" && flock 9
    [ ! -e "$directory/.unpacked" ] || exit 0
    [ ! -e "$directory/.failed" ] || exit 1
    [ -r "$archive" ] || fail "no such file, or no permission to read it"
    case $archive in
        *.sqfs | *.squashfs) said=$(unsquashfs -f -no-progress -no-xattrs -d "$directory" "$archive" 2>&1 > /dev/null);;
        *) said=$(tar -x --no-same-owner -f "$archive" -C "$directory" 2>&1);;
    esac || fail "unpacking into $directory: $(grep -m 1 'No space' <<< "$said" || head -n 1 <<< "$said")"
    [ -d "$directory/bin" ] || fail "has no bin, expected an archive of conda-pack or venv-pack"
    if [ -e "$directory/bin/conda-unpack" ]; then
        "$directory/bin/python" "$directory/bin/conda-unpack" || fail "conda-unpack failed"
    fi
    chmod 700 "$directory" && touch "$directory/.unpacked"
}
remove() { # the directory $2, when ranks that a signal has ended have saved
    for _ in {1..40}; do pgrep -f "$2/bin/" > /dev/null || break; sleep 0.2; done
    rm -rf "$2"
}
keep() { # the directory until this job is cancelled, by a signal to all of its processes
    trap '' USR1
    trap : HUP INT TERM
    sleep infinity & wait $!
    kill $!
    remove "$@"
}
on_each_node() { # in a subshell
    exec @on_each_node /bin/bash -c "$(declare -f unpack remove keep); $1 \"\$@\"" mpidl @archive "$env"
}
on_each_node keep &> /dev/null &
keeper=$!
trap '(on_each_node remove &> /dev/null); kill "$keeper"' EXIT
export PATH=$env/bin:$PATH
