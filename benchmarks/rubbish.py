"""Bad configurations at random: no traceback, no hang, no internal error, and each message once.

    make rubbish
    python benchmarks/rubbish.py [--cases 2000] [--ranks 60] [--seed 0] [--kinds values,keys,...]

All commands run ``--cases`` configurations in this process, ``mpidl train -n 3`` runs ``--ranks`` on ranks. The files
of those that end wrongly are kept, and the command's output is printed. The exit code is 1 if there are any.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from harness import parse

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "cli"))

from rubbish_cases import KINDS, cases
from rubbish_outcomes import Outcome, attempt, judge

#: Seconds that a run on ranks has before it is asked to stop, and then to end.
RANKS_LIMIT, PATIENCE = 20.0, 20.0
#: Characters shown of a line.
WIDTH = 300
#: Bytes of memory that a process may allocate: more is an error of one line.
MEMORY = 16 << 30


def main() -> None:
    """Run all cases, and print those that end wrongly."""
    parser = argparse.ArgumentParser(description="Bad configurations at random.")
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--ranks", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS))
    options = parse(parser, cases=20, ranks=1)
    kinds = tuple(options.kinds.split(","))
    place = Path(tempfile.mkdtemp(prefix="rubbish-"))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    wrong = 0
    for name, number, outcomes in (
        ("in one process", options.cases, in_process(options.seed, kinds, place / "one")),
        ("on ranks", options.ranks, on_ranks(options.seed, kinds, place / "ranks")),
    ):
        bad = list(tell(islice(outcomes, number)))
        wrong += len(bad)
        print(f"{name}: {number} cases, {len(bad)} end wrongly", flush=True)
    if not wrong:
        shutil.rmtree(place)
    sys.exit(bool(wrong))


def tell(outcomes: Iterator[tuple[Path, Outcome]]) -> Iterator[Outcome]:
    """Print each outcome that is wrong, and yield it."""
    for place, outcome in outcomes:
        if outcome.problem:
            print(f"{outcome.problem}: {shortened(' '.join(outcome.arguments))}  in {place}")
            print(*(f"  {shortened(line)}" for line in outcome.stderr.splitlines()[-5:]), sep="\n", flush=True)
            yield outcome


def shortened(text: str) -> str:
    """Return a line of at most `WIDTH` characters."""
    return text if len(text) <= WIDTH else f"{text[: WIDTH // 2]} ... {text[-WIDTH // 2 :]}"


def in_process(seed: int, kinds: tuple[str, ...], place: Path) -> Iterator[tuple[Path, Outcome]]:
    """Yield the outcomes of cases that are run in this process."""
    for number, case in enumerate(cases(seed, kinds)):
        yield place / str(number), attempt(case, place / str(number))


def on_ranks(seed: int, kinds: tuple[str, ...], place: Path) -> Iterator[tuple[Path, Outcome]]:
    """Yield the outcomes of cases that are run on three ranks."""
    kinds = tuple(kind for kind in kinds if kind != "options")
    for number, case in enumerate(cases(seed, kinds, ("train",))):
        yield place / str(number), launched(case, place / str(number))


def launched(case: Callable[[Path], list[str]], place: Path) -> Outcome:
    """Run a case on ranks, in an empty directory."""
    place.mkdir(parents=True)
    arguments = [*case(place), "-n", "3"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with (place / "stderr").open("w+", errors="replace") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "mpidl", *arguments], cwd=place, env=environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr,
        )  # fmt: skip
        code = waited(process, RANKS_LIMIT)
        if code is None:
            process.send_signal(signal.SIGTERM)
            code = waited(process, PATIENCE)
        if code is None:
            process.kill()
            process.wait()
        stderr.seek(0)
        said = stderr.read()
    return judge(arguments, code, said, code is not None and (place / "runs").exists())


def waited(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Return the exit code of a process; None if it runs on."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(seconds)
    return None


if __name__ == "__main__":
    main()
