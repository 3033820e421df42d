"""The command ``mpidl``, also as ``python -m mpidl``."""

from mpidl.launch import keeper, output, signals


def main() -> None:
    """Run a command, and end the process with its exit code."""
    # Nothing is imported before: until they are blocked, signals that ask to stop kill the process.
    signals.hold()
    output.occupy()
    keeper.keep(signals.STOPPING)
    from mpidl import cli
    from mpidl.launch.environment import prepare_rank

    prepare_rank()
    code = cli.main()
    output.finish()
    if code not in (0, keeper.STOPPED):
        keeper.ends_job()
    raise SystemExit(code)


if __name__ == "__main__":
    main()
