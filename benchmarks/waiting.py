"""What a server's look for answers that are due costs while many ranks wait, against MPI's look for their messages.

    python benchmarks/waiting.py

Every rank that waits for a server has asked it once. The server looks, each time that it serves messages, whether a
counter that one of them waits for is large enough by now; here none is. MPI looks at a receive for each rank as often.
Prints a table, and writes it to results/waiting.json.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from mpi4py import MPI

from harness import interleave, save, table
from mpidl.rma.later import Later

#: Looks in a round, and rounds.
LOOKS, ROUNDS = 100, 9


def main() -> None:
    """Print the table."""
    rows = [measure(ranks) for ranks in (1, 10, 100, 1000)]
    print(table(rows))
    print(f"written to {save('waiting', rows)}")


def measure(ranks: int) -> dict[str, Any]:
    """Return the row for so many ranks that wait."""
    later = Later(np.zeros(8 * ranks, np.uint8), range(ranks))
    for rank in range(ranks):
        later.add(rank, 8 * rank, 1, np.zeros(1))
    receives = [MPI.COMM_SELF.Irecv([np.empty(8), MPI.DOUBLE], 0, tag) for tag in range(ranks)]
    cases = {
        "look": lambda: repeat(later.take),
        "MPI's look": lambda: repeat(lambda: MPI.Request.Testsome(receives)),
    }
    spent = {case: median(times) / LOOKS * 1e6 for case, times in interleave(cases, ROUNDS).items()}
    for receive in receives:
        receive.Cancel()
        receive.Wait()
    figures = {f"{case} us": each for case, each in spent.items()}
    return {"ranks": ranks, **figures, "ratio": spent["look"] / spent["MPI's look"]}


def repeat(look: Callable[[], object]) -> None:
    """Look many times."""
    for _ in range(LOOKS):
        look()


if __name__ == "__main__":
    main()
