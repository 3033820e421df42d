"""The command ``mpidl``, also as ``python -m mpidl``."""

from mpidl.launch import signals


def main() -> None:
    """Run a command, and end the process with its exit code."""
    # Nothing is imported before: until they are blocked, signals that ask to stop kill the process.
    signals.hold()
    from mpidl import cli

    raise SystemExit(cli.main())


if __name__ == "__main__":
    main()
