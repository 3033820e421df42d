"""Update rules applied to a shard, against memcpy and PyTorch's fused optimizers, on one thread or on a GPU.

    python benchmarks/rules.py [--device cuda] [--rounds 9]

Bandwidth counts bytes read and bytes written: memcpy 8 per element, Adagrad 20 (reads parameter, sum and gradient,
writes parameter and sum). The shard of 64 Ki elements is in the cache, like a chunk of a push when the server applies
it; the one of 32 Mi elements isn't. PyTorch's figure is that of `optimizer.step()`: of Adagrad, or of Adam on a GPU,
for which it has no fused Adagrad. There memcpy is CuPy's copy within the GPU's memory.

A second table has Muon's step of a matrix, against the products of these shapes that it consists of.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from harness import QUICK, interleave, parse, save, table
from mpidl.device import choose
from mpidl.rules import RULES, Muon, Rule, TensorRule

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

MEMCPY = "memcpy"
TORCH = "PyTorch, fused"
#: Elements of the shard, and updates in one timing.
SIZES = {"64 Ki": (1 << 16, 2)} if QUICK else {"64 Ki": (1 << 16, 2048), "32 Mi": (1 << 25, 2)}
REAL = np.dtype(np.float32)
SCALAR = [rule for rule in RULES.values() if not issubclass(rule, TensorRule)]
#: Rows and columns of matrices.
SHAPES = [(32, 48)] if QUICK else [(256, 1024), (1024, 1024), (4096, 1024)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=9, help="timings of each case (default: %(default)s)")
    arguments = parse(parser, rounds=1)
    place = choose(arguments.device, 0)
    rows = [row for name in SIZES for row in measure(place.xp, name, arguments.rounds)]
    print(f"on {place}")
    print(table(rows))
    matrices = [of_matrix(place.xp, *shape, arguments.rounds) for shape in SHAPES]
    print(table(matrices))
    if torch is None:
        print(f"{TORCH}: torch not installed")
    print(f"written to {save('rules', rows + matrices)}")


def measure(xp: Any, name: str, rounds: int) -> list[dict[str, Any]]:
    """Return a row for each case at this size."""
    elements, repeats = SIZES[name]
    cases = cases_of(xp, elements)
    same = "adagrad" if xp is np else "adam"
    moved = {MEMCPY: 2} | {rule.name: 3 + 2 * len(rule.states) for rule in SCALAR}
    moved[TORCH] = moved[same]
    for case in cases.values():
        case()
    seconds = interleave({key: partial(repeat, xp, case, repeats) for key, case in cases.items()}, rounds)
    each = {key: median(times) / repeats for key, times in seconds.items()}
    bandwidth = {key: moved[key] * REAL.itemsize * elements / each[key] / 1e9 for key in cases}
    return [
        {
            "elements": name,
            "case": key,
            "bytes/element": moved[key] * REAL.itemsize,
            "us": each[key] * 1e6,
            "GB/s": bandwidth[key],
            "of memcpy": bandwidth[key] / bandwidth[MEMCPY],
            "of PyTorch": bandwidth[key] / bandwidth[TORCH] if key == same and TORCH in cases else None,
        }
        for key in cases
    ]


def cases_of(xp: Any, elements: int) -> dict[str, Callable[[], None]]:
    """Return the timed functions: each rule and memcpy on shared vectors, PyTorch on its own."""
    # With positive gradients, the states that one case leaves to the next are valid for every rule.
    parameters, gradient = xp.asarray(np.random.default_rng(0).random((2, elements), REAL))
    states = xp.zeros((2, elements), REAL)
    cases: dict[str, Callable[[], None]] = {MEMCPY: partial(xp.copyto, states[0], gradient)}
    for rule in SCALAR:
        cases[rule.name] = partial(apply, rule(), parameters, tuple(states[: len(rule.states)]), gradient)
    if torch is not None:
        cases[TORCH] = their_step(parameters.copy(), gradient)
    return cases


def of_matrix(xp: Any, rows: int, columns: int, rounds: int) -> dict[str, Any]:
    """Return a row for Muon's step of a matrix of this shape."""
    rule, small, large = Muon(), min(rows, columns), max(rows, columns)
    matrix, momentum, direction = xp.asarray(np.random.default_rng(0).normal(size=(3, rows, columns)), REAL)
    workspace = xp.empty(rule.workspace_size(rows, columns), REAL)
    x, product = xp.ones((2, small, large), REAL)
    gram, square = xp.ones((2, small, small), REAL)

    def products() -> None:
        for _ in range(rule.iterations):
            xp.matmul(x, x.T, out=gram)
            xp.matmul(gram, gram, out=square)
            xp.matmul(square, x, out=product)

    cases = {
        "step": partial(rule.step, matrix, (momentum, direction), 1e-6, workspace, False),
        "products": products,
    }
    for case in cases.values():
        case()
    seconds = interleave({key: partial(repeat, xp, case, 1) for key, case in cases.items()}, rounds)
    step, alone = (median(seconds[key]) for key in cases)
    operations = rule.operations(rows, columns)
    return {
        "matrix": f"{rows} x {columns}",
        "ms": step * 1e3,
        "Gflop/s": operations / step / 1e9,
        "of products": step / alone,
    }


def apply(rule: Rule, parameters: Any, state: tuple[Any, ...], gradient: Any) -> None:
    """Apply one gradient."""
    rule.update(parameters, state, gradient, step=1)


def their_step(parameters: Any, gradient: Any) -> Callable[[], Any]:
    """Return the step of PyTorch's optimizer on these vectors."""
    torch.set_num_threads(1)
    tensor = torch.nn.Parameter(torch.as_tensor(parameters))
    tensor.grad = torch.as_tensor(gradient)
    optimizer = torch.optim.Adam if tensor.is_cuda else torch.optim.Adagrad
    return optimizer([tensor], lr=0.01, fused=True).step


def repeat(xp: Any, case: Callable[[], None], times: int) -> None:
    """Call a case some times, and wait for the GPU if it is there."""
    for _ in range(times):
        case()
    if xp is not np:
        xp.cuda.Device().synchronize()


if __name__ == "__main__":
    main()
