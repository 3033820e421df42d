"""Wrong formulas, put into algorithms, policies, rules and wire formats one after another: the tests must notice each.

    make formulas
    python benchmarks/wrong_formulas.py [--only TEXT]

Changes one expression at a time in a copy of the sources, and runs the tests of that expression's room on it. Prints
the formulas that no test has noticed; the exit code is 1 if there is one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from harness import parse

ROOT = Path(__file__).parent.parent
PACKAGE = Path("src", "mpidl")


class Wrong(NamedTuple):
    """A file of the package, an expression in it, and a wrong one in its place."""

    file: str
    right: str
    wrong: str


FORMULAS = (
    # Algorithms.
    Wrong("algorithms/downpour.py", "step + 1) % self.n_push", "step) % self.n_push"),
    Wrong("algorithms/downpour.py", "step % self.n_fetch == 0", "(step + 1) % self.n_fetch == 0"),
    Wrong("algorithms/downpour.py", "                accrued += gradient", "                accrued[:] = gradient"),
    Wrong("algorithms/downpour.py", "(step + 1) % self.n_fetch:", "step % self.n_fetch:"),
    Wrong("algorithms/easgd.py", "0.9 / replicas)", "0.9)"),
    Wrong("algorithms/easgd.py", "parameters -= elastic", "parameters += elastic"),
    Wrong("algorithms/easgd.py", "                elastic *= alpha\n", ""),
    Wrong("algorithms/easgd.py", 'counts["steps"] % self.tau == 0', '(counts["steps"] + 1) % self.tau == 0'),
    Wrong("algorithms/eamsgd.py", "-self.delta, out", "self.delta, out"),
    Wrong("algorithms/eamsgd.py", "x -= elastic", "parameters -= elastic"),
    Wrong("algorithms/aeasgd.py", "local.rate * rho", "self.rate * rho"),
    Wrong("algorithms/aeasgd.py", "parameters -= elastic", "parameters -= 2 * elastic"),
    Wrong("algorithms/windowed.py", "np.multiply(change, factor", "np.multiply(change, 1.0"),
    Wrong("algorithms/windowed.py", "0.4 * window / replicas)", "0.5)"),
    Wrong("algorithms/windowed.py", "0.8 / sqrt(replicas), 0.4", "0.8, 0.4"),
    Wrong("algorithms/windowed.py", "ceil(3 * replicas / 4)", "replicas // 2"),
    Wrong("algorithms/windowed.py", "int(steps * (yield Speed()))", "int(steps / (yield Speed()))"),
    Wrong("algorithms/windowed.py", "float(done) if self.dynamic", "1.0 if self.dynamic"),
    Wrong("algorithms/agn.py", "1 / window)", "1.0)"),
    Wrong("algorithms/adag.py", '1.0 if self.damping == "norm" else 1 / window', "1.0"),
    Wrong("algorithms/dynsgd.py", "AddChange(inverse_plus_one)", "AddChange()"),
    Wrong("algorithms/dcasgd.py", "origin[:] = parameters", "origin[:] = 0"),
    Wrong("algorithms/softsync.py", "replicas // self.n", "replicas // self.n + 1"),
    Wrong("algorithms/softsync.py", "inverse if self.modulate else unscaled", "unscaled"),
    Wrong("algorithms/backup_sync.py", "replicas - self.backup", "replicas"),
    Wrong("algorithms/backup_sync.py", "replicas, self.grace)", "replicas)"),
    Wrong("algorithms/backup_sync.py", "unless_late=self.restart", "unless_late=False"),
    Wrong("algorithms/fedprox.py", "parameters, 1, -self.mu", "parameters, 1, self.mu"),
    Wrong("algorithms/fedprox.py", "            start[:] = parameters\n", "            pass\n"),
    Wrong("algorithms/diloco.py", "2 * replicas", "replicas"),
    Wrong("algorithms/diloco.py", "newer=not self.asynchronous", "newer=False"),
    Wrong("algorithms/diloco.py", "self.quorum, replicas, self.grace)", "replicas, replicas, self.grace)"),
    Wrong("algorithms/diloco.py", "outer: ClassVar[bool] = True", "outer: ClassVar[bool] = False"),
    Wrong("algorithms/windowed.py", "number * window // len(parts)", "number"),
    Wrong("algorithms/windowed.py", "sent(under_way[0]) + overlap", "sent(under_way[0])"),
    Wrong("algorithms/windowed.py", "        own *= mixing\n", "        own *= 1 - mixing\n"),
    Wrong("algorithms/windowed.py", "sent(n) + overlap), key", "sent(n) + overlap + 1), key"),
    Wrong("algorithms/windowed.py", "min(counts", "max(counts"),
    Wrong("algorithms/windowed.py", '1 / counts["done"])', "1 / window)"),
    Wrong("algorithms/windowed.py", "if factor == 1.0:", "if True:"),
    Wrong("algorithms/windowed.py", "max(1, int(steps * (yield Speed())))", "int(steps * (yield Speed()))"),
    Wrong("algorithms/lbfgs.py", "curvature[-1] / gram", "1 / gram"),
    Wrong("algorithms/lbfgs.py", "alpha[i] - beta", "alpha[i] + beta"),
    Wrong("algorithms/sandblaster.py", "1 / norm if not", "1.0 if not"),
    Wrong("algorithms/lbfgs.py", "(best is start or value < best.value)", "True"),
    Wrong("algorithms/lbfgs.py", "(best is start or value < best.value)", "best is start"),
    Wrong("algorithms/lbfgs.py", "best if best is not start", "best if best is not low"),
    Wrong("algorithms/lbfgs.py", "gain = self.decrease * start.slope", "gain = 0.0"),
    Wrong("algorithms/lbfgs.py", "point.value - gain * point.step", "point.value - gain"),
    Wrong("algorithms/lbfgs.py", "0.66 * double", "0.9 * double"),
    Wrong("algorithms/lbfgs.py", "step + 1.1 * (step - low.step)", "step"),
    Wrong("algorithms/lbfgs.py", "width <= self.width * largest or", "width <= self.width or"),
    Wrong("algorithms/coordinated.py", "gradient *= state.weight", "gradient *= len(batch.indices)"),
    Wrong("algorithms/sandblaster.py", "(part / weight, each.vector)", "(1 / 3, each.vector)"),
    Wrong("algorithms/sandblaster.py", "elif accepted.step != trial:", "elif False:"),
    Wrong("algorithms/lbfgs.py", "if curvature > ROUNDING * square:", "if True:"),
    Wrong("algorithms/sandblaster.py", "min(1.0, 1 / norm)", "1 / norm"),
    Wrong("algorithms/sandblaster.py", "yield Operate((copy(PARAMETERS, ORIGIN),))", "pass"),
    Wrong("algorithms/lbfgs.py", "self._history.order.clear()", "pass"),
    Wrong("algorithms/sandblaster.py", "return self._means[0], slope", "return self._value, slope"),
    Wrong("algorithms/sandblaster.py", "(self._shared, DIRECTION)", "(GRADIENT, DIRECTION)"),
    Wrong("algorithms/sandblaster.py", "self._number + 1, accepted.step", "self._number + 1, 1.0"),
    Wrong("algorithms/sandblaster.py", "-slope * step <= ROUNDING", "-slope <= ROUNDING"),
    Wrong("algorithms/sandblaster.py", "self._evaluations += len(found)", "self._evaluations += 1"),
    Wrong("algorithms/sandblaster.py", "norm <= self._settings.tolerance", "norm <= 0"),
    Wrong("algorithms/sandblaster.py", "(self._at_floor or not curvature.known)", "not curvature.known"),
    Wrong("algorithms/sandblaster.py", "if not curvature.known:\n", "if False:\n"),
    Wrong("algorithms/sandblaster.py", "forget()\n                yield from self._evaluate()", "forget()"),
    Wrong("algorithms/stacking.py", "(loss + self._stacking.ridge *", "(loss + 0.5 * self._stacking.ridge *"),
    Wrong("algorithms/stacking.py", "float(np.sum(upper**2)) / module.outputs", "float(np.sum(upper**2))"),
    Wrong("algorithms/stacking.py", "(self._module + 1) / count", "(self._module + 2) / count"),
    Wrong("algorithms/stacking.py", "np.zeros(each.weight.size", "np.ones(each.weight.size"),
    Wrong("algorithms/stacking.py", "task + 1 + part", "task + 1"),
    Wrong("nn/stacking.py", "sums /= len(hidden)", "sums /= 1"),
    Wrong("nn/stacking.py", "ridge * np.eye(hidden)", "np.eye(hidden)"),
    Wrong("nn/stacking.py", "np.subtract(1, hidden, out=hidden)", "hidden[:] = 1"),
    Wrong("nn/stacking.py", "-2 / error.size", "-1 / error.size"),
    Wrong("algorithms/broyden.py", "sqrt(a / (1 + a))", "sqrt(a)"),
    Wrong("algorithms/broyden.py", "(low - 1) / a if a else (-inf", "(low - 1) / a if a else (0.0"),
    Wrong("algorithms/broyden.py", "(1 - b) / b))", "1 / (1 - b)))"),
    Wrong("algorithms/broyden.py", "-1 / max(1, size - 1)", "-1 / size"),
    Wrong("algorithms/broyden.py", "min(1.0, 1 / b)", "1 / b"),
    Wrong("algorithms/broyden.py", "* root, sigma)", "* root, 1.0)"),
    Wrong("algorithms/broyden.py", "(1 - theta) / sigma", "1 - theta"),
    Wrong("algorithms/broyden.py", "if curvature <= ROUNDING * float(y @ y):", "if False:"),
    Wrong("algorithms/broyden.py", "b, h = -step *", "b, h = -1.0 *"),
    Wrong("algorithms/broyden.py", "phi * h / tau + 1", "phi * h / tau"),
    Wrong("algorithms/broyden.py", "mixed = -phi / curvature / tau", "mixed = -phi / curvature"),
    Wrong("algorithms/broyden.py", "(phi - 1) / square / tau", "phi / square / tau"),
    Wrong("algorithms/broyden.py", "yield Operate((Identity(INVERSE),))", "yield from ()"),
    Wrong("shards/matrix.py", "self.columns[start : start + len(rows)]", "self.columns[: len(rows)]"),
    Wrong("shards/matrix.py", "block *= self.factor", "pass"),
    Wrong("storage/matrix_files.py", "[own[found] - block.start][:, places]", "[own[found] - block.start]"),
    Wrong("algorithms/ringleader.py", "GradientTable(replicas)", "GradientTable(replicas + 1)"),
    Wrong("algorithms/rescaled.py", "RescaledRate(replicas)", "RescaledRate(replicas - 1)"),
    # Policies.
    Wrong("shards/policies/policy.py", "1.0 / max(staleness, 1)", "1.0 / (staleness + 1)"),
    Wrong("shards/policies/policy.py", "1.0 / (staleness + 1)", "1.0 / max(staleness, 1)"),
    Wrong("shards/policies/immediate.py", "shard.add(chunk, values, self.factor(push))", "shard.add(chunk, values)"),
    Wrong("shards/policies/rescaled.py", "* len(times) / sum(times)", "/ self._workers"),
    Wrong("shards/policies/rescaled.py", "min(pushes, self.HORIZON)", "1"),
    Wrong("shards/policies/rescaled.py", "if self._last[push.worker] != push.ordinal:", "if True:"),
    Wrong("shards/policies/rescaled.py", " if pushes]", "]"),
    Wrong("shards/policies/rescaled.py", "= 0, float(self._workers)", "= 0, self._times[worker]"),
    Wrong("shards/policies/gradient_table.py", "change /= counts[push.worker]", "pass"),
    Wrong("shards/policies/gradient_table.py", "            change /= self._workers", "            pass"),
    Wrong("shards/policies/gradient_table.py", "        mean /= self._workers", "        mean /= len(given)"),
    Wrong("shards/policies/gradient_table.py", "elif not awaited:", "else:"),
    Wrong("shards/policies/gradient_table.py", "mean[part] = 0", "pass"),
    Wrong("shards/policies/gradient_table.py", "self._active.issubset(given)", "len(given) >= self._workers"),
    Wrong("shards/policies/gather.py", "self._factors[chunk] / self.count", "1.0"),
    Wrong("shards/policies/gather.py", "gathered /= self._factors[chunk]", "gathered /= self.count"),
    Wrong("shards/policies/immediate.py", "corrected *= gradient\n        corrected *=", "corrected *="),
    Wrong("shards/policies/immediate.py", "root *= 1 - decay", "root *= 1"),
    Wrong("shards/policies/immediate.py", "            moved += 1\n", ""),
    Wrong("shards/policies/immediate.py", "self._rate * shard.rate_factor", "self._rate"),
    Wrong("shards/policies/immediate.py", "staleness <= self._bound", "staleness < self._bound"),
    Wrong("shards/policies/gather.py", "gathered /= self._count", "gathered /= 1"),
    Wrong("shards/policies/first.py", "gathered /= self._given[chunk]", "gathered /= self._count"),
    Wrong("shards/policies/first.py", "gathered /= self._given[chunk]", "gathered /= len(self._givers[chunk])"),
    Wrong("shards/policies/first.py", "            givers.discard(worker)\n", "            pass\n"),
    Wrong("shards/policies/first.py", "now + self._grace", "now"),
    Wrong("shards/policies/first.py", "push.worker not in self._taken)", "False)"),
    Wrong("shards/policies/first.py", "if not self._taken:\n", "if True:\n"),
    Wrong("shards/policies/first.py", "or self._active <= self._givers[chunk]", "or False"),
    Wrong("shards/policies/first.py", "self._count and not self._grace", "self._count"),
    Wrong("shards/policies/first.py", "clock, None, False", "clock, self._end, False"),
    Wrong("shards/policies/first.py", "clock, None, False", "clock, None, self._ended"),
    Wrong("shards/policies/first.py", '"ended": np.array(self._ended', '"ended": np.array(False'),
    Wrong("shards/shard.py", "            self.copy.pass_time(math.inf)\n", "            pass\n"),
    Wrong("shards/shard.py", "self.begun += self.policy.takes(staleness)", "self.begun += 1"),
    Wrong("shards/staleness.py", "p99 if p99 < exact else self.max", "p99"),
    Wrong("shards/staleness.py", "max(found.max, each.max)", "each.max"),
    Wrong("shards/state.py", "self.rate, weight=weight)", "self.rate * weight)"),
    # Rules.
    Wrong("rules/adaptive.py", "sum = sum + g * g", "sum = sum + abs(g)"),
    Wrong("rules/adaptive.py", "self.epsilon * correction", "self.epsilon"),
    Wrong("rules/adaptive.py", "1 - self.beta1**step)", "1 - self.beta1)"),
    Wrong("rules/adaptive.py", "1 - rate * weight * self.weight_decay", "1 - weight * self.weight_decay"),
    Wrong("rules/adaptive.py", "1 - rate * weight * self.weight_decay", "1 - rate * self.weight_decay"),
    Wrong("rules/adaptive.py", "(1 - self.beta1) * weight", "1 - self.beta1"),
    Wrong("rules/adaptive.py", "1 - self.beta2\n        return", "(1 - self.beta2) * weight**2\n        return"),
    Wrong("rules/adaptive.py", "rate * weight, self.decay", "rate, self.decay"),
    Wrong("rules/momentum.py", "return rate, self.momentum, weight", "return rate * weight, self.momentum, 1.0"),
    Wrong("rules/momentum.py", "weighted + momentum * v", "momentum * v"),
    Wrong("rules/segments.py", "self._sparing, weight=weight)", "self._sparing)"),
    Wrong("rules/segments.py", "sparing, decay, weight)", "sparing, decay)"),
    Wrong("rules/segments.py", "rate * factor", "rate"),
    Wrong("rules/segments.py", "for each in covering if not each.frozen", "for each in covering"),
    Wrong("rules/segments.py", "_covering(segments, whole) if not each.frozen", "_covering((), whole)"),
    Wrong("rules/scalar.py", "{decay} * {parts.element}", "{decay} * {parts.gradient}"),
    Wrong("rules/adaptive.py", "return w - rate * g / (sqrt(s) + epsilon)", "return w - rate * g / sqrt(s + epsilon)"),
    Wrong("rules/schedule.py", "(1 + cos(", "(1 - cos("),
    Wrong("rules/schedule.py", "(length - epoch) / (length - self.warm_up)", "(length - epoch) / length"),
    Wrong("rules/schedule.py", "min(1.0, max(0.0, left))", "min(1.0, left)"),
    Wrong("rules/schedule.py", "min(1.0, (epoch - peak) / (length - peak))", "(epoch - peak) / (length - peak)"),
    # Tables.
    Wrong("sparse/server_tables.py", "[0].values, step, rate, total / count)", "[0].values, step, rate)"),
    Wrong("sparse/server_tables.py", "summed, step, rate, total / count)", "summed, step, rate * total / count)"),
    # Data.
    Wrong("data/dealing.py", "order = random.permutation(len(labels))", "order = np.arange(len(labels))"),
    Wrong("data/dealing.py", "np.round(np.cumsum(shares)", "np.floor(np.cumsum(shares)"),
    Wrong("data/dealing.py", "[largest][-1:], shares[largest][:-1]", "[largest][1::2], shares[largest][::2]"),
    Wrong("data/dealing.py", "min(self.value, EQUAL)", "self.value"),
    Wrong("data/drawing.py", "places[0][0] // self._own.samples", "(places[-1][1] - 1) // self._own.samples"),
    Wrong("job/notes.py", "ArraySplit(own[:, None], labels[own])", "data.train"),
    Wrong("data/sampler.py", 'f"{seed} {epoch}"', 'f"{seed}"'),
    Wrong("data/sampler.py", "            generator.manual_seed(seed)", "            pass"),
    Wrong("data/subset.py", "[indices], epoch)\n\n    def labels", "[indices])\n\n    def labels"),
    Wrong("data/subset.py", "min(max(1, round(share * blocks)), blocks - 1)", "max(1, round(share * blocks))"),
    Wrong("data/schedule.py", "epoch * self.steps_per_epoch + place *", "portion *"),
    Wrong("data/drawing.py", "spawn_key=(STREAM, owner)", "spawn_key=(STREAM,)"),
    Wrong("data/loader.py", "self.done - used - self.current.first :", "self.done - used :"),
    Wrong("data/loader.py", "self._left += self._rest()", "pass"),
    Wrong("data/schedule.py", "rest = [(part.portion, part.last) for part in parts[:current]]", "rest = []"),
    Wrong("data/schedule.py", "/ self.steps_per_epoch * self.portions.samples", "* self.portions.batch"),
    # Metrics.
    Wrong("metrics/auc.py", "weighed[1:] *= weight", "weighed[:] *= weight"),
    # Wire formats.
    Wrong("wire/topk.py", "values[i] if residual[i] == 0 else values[i] + residual[i]", "values[i]"),
    Wrong("wire/topk.py", "                residual[i] = 0\n", ""),
    Wrong("wire/quantisation.py", "max(block.size - above, 1)", "block.size"),
    Wrong("wire/quantisation.py", "np.uint32(0x7FFF)", "np.uint32(0x8000)"),
    Wrong("wire/wire.py", "origin[:] = data[end : end", "origin[:] = data[0 : 0"),
    Wrong("wire/feedback.py", "self.values[part], out=difference", "0, out=difference"),
    Wrong("wire/feedback.py", "            residual[:] = 0\n", ""),
    Wrong("wire/feedback.py", "self.values[part] += difference", "self.values[part] = difference"),
    Wrong("wire/quantisation.py", "scales[number] / real(LARGEST)", "scales[number] / real(LARGEST + 1)"),
    Wrong("wire/quantisation.py", "np.rint(left[i] / divisor)", "np.floor(left[i] / divisor)"),
    Wrong("wire/quantisation.py", "left[i] -= whole * scale", "left[i] += whole * scale"),
    # Runs on disk, and rates that follow evaluations.
    Wrong("history/columns.py", "if alike and len(set(map(tuple, records))) == 1:", "if alike:"),
    Wrong("history/columns.py", "[_nothing(self.rows)] if self.rows else []", "[]"),
    Wrong("report/reporter.py", "int(epoch + ROUNDING) - 1)", "int(epoch + ROUNDING))"),
    Wrong("roles/plateau.py", "isfinite(value) and (self._best", "(self._best"),
    # Tables.
    Wrong(
        "sparse/server_tables.py",
        "policy: Policy) -> None:\n        self._apply(shard, policy, self._clock + 1)",
        "policy: Policy) -> None:\n        self._apply(shard, policy, self._clock)",
    ),
    Wrong(
        "sparse/server_tables.py",
        "(parts, 1.0))\n            self._apply(shard, policy, self._clock + 1)",
        "(parts, 1.0))",
    ),
    Wrong("sparse/server_tables.py", "list(parts) for worker", "parts for worker"),
    Wrong("sparse/server_tables.py", "summed /= total", "summed /= len(found)"),
    Wrong("sparse/unpushed.py", "gradients[found.places] = given", "gradients[:] = given"),
    Wrong(
        "tables/admission.py",
        "max(counters[one], count), max(counters[other], count)",
        "counters[one] + 1, counters[other] + 1",
    ),
    Wrong("tables/admission.py", "% counters.size", "% (counters.size - 1)"),
    Wrong("tables/entries.py", "min(entry.count + 1, 0xFFFFFFFF)", "entry.count + 1"),
    Wrong("tables/entries.py", "0, row, row", "0, 0, 0"),
    Wrong("tables/table.py", "new = np.flatnonzero(rows == 0)", "new = np.arange(ids.size)"),
    # Cut models.
    Wrong("partition/transfer.py", "missing = [rest for each in missing for rest in each.minus(box)]", "pass"),
    Wrong("partition/transfer.py", "added = [rest for each in added for rest in each.minus(part)]", "pass"),
    Wrong("partition/persistent_transfer.py", "            view.fill(0)\n", "            pass\n"),
    Wrong("partition/persistent_transfer.py", "if adds:", "if False:"),
    Wrong("partition/persistent_transfer.py", "not any(each.added for each in summands)", "True"),
    Wrong("partition/network.py", ".shift(own.samples.start)", ""),
    Wrong("partition/network.py", "gradient, len(batch.inputs))", "gradient)"),
    Wrong("partition/plan.py", "value and _overlaps(taken)", "False"),
    Wrong("partition/plan.py", "shared = any(len(ranks) > 1", "shared = any(False"),
    Wrong("nn/losses.py", "- chosen).sum() / samples", "- chosen).mean()"),
    Wrong("nn/losses.py", "gradient, 1 / samples", "gradient, 1 / len(gradient)"),
    Wrong("nn/losses.py", "2 / size", "2 / gradient.size"),
    Wrong("parameters/shards.py", "part.intersect(blocks)", "part"),
    Wrong("parameters/shards.py", "part.shift(own.start + fragment.start)", "part"),
    Wrong("data/columns.py", "largest >= classes", "largest > classes"),
    Wrong("data/columns.py", "start + first[0]", "start"),
    Wrong("job/fill.py", "each._replace(range=part.shift(-own.start))", "each._replace(range=part)"),
    Wrong("partition/network.py", "group.sum(sums)", "pass"),
    Wrong("partition/network.py", "difference(self._untrained, names)", "difference(names)"),
    Wrong("partition/program.py", "not move.first", "False"),
    Wrong("partition/program.py", "origin + start * workspace.strides[0]", "origin"),
    Wrong("partition/tensors.py", "                    total.fill(0)", "                    pass"),
    Wrong("partition/tensors.py", "own[name] *= self._share", "pass"),
    Wrong("partition/tensors.py", "total += own[name]", "total[...] = own[name]"),
    Wrong("partition/schedules.py", "stages - 1 - stage", "stages - stage"),
    Wrong("partition/schedules.py", "each.micro_batch >= stage", "each.micro_batch > stage"),
    Wrong("partition/schedules.py", "max(0, micro_batches - stage)", "max(0, micro_batches - stage + 1)"),
    Wrong("partition/schedules.py", "free.append(found[each.micro_batch])", "pass"),
    Wrong("partition/timeline.py", "transfer if each[0] != stage else 0.0", "0.0"),
    Wrong("partition/cutting.py", "squares + (sums[stop] - sums[start]) ** 2", "squares"),
    Wrong("partition/costs.py", "=self.parameter_bandwidth / factor", "=self.parameter_bandwidth"),
    Wrong("partition/program.py", "part.offset(Box.whole(shape))", "0"),
    Wrong("partition/program.py", "tensors.get(statistic) == own and ", ""),
    Wrong("partition/local.py", "one.share[0] == other.share[0]", "False"),
    Wrong("partition/tensors.py", "bisect_right(stops, piece.start)", "0"),
    Wrong("nn/workspaces.py", "start, target = stop", "start, target = 0"),
    # Files.
    Wrong("mirrors/memory.py", "-each[2].step", "each[2].step"),
    Wrong("mirrors/memory.py", "verify_file(mirror / name, Seal.parse(seal))", "(mirror / name).stat()"),
    Wrong("mirrors/memory.py", " and not entry.is_symlink()", ""),
    Wrong("mirrors/memory.py", "directory.lstat()", "directory.stat()"),
    Wrong("mirrors/memory.py", "        os.fsync(copy.fileno())\n", ""),
    Wrong("mirrors/memory.py", "    sync(target)\n", ""),
    Wrong("mirrors/exchange.py", "raise self._ended()\n                rest", "break\n                rest"),
    Wrong("mirrors/exchange.py", "!= self._address.node", "is None"),
    Wrong("mirrors/exchange.py", "open_regular(self._place / mirror / name)",
          'open(self._place / mirror / name, "rb")'),
    Wrong("mirrors/feature.py", "range(-1, len(nodes) - 1)", "range(len(nodes))"),
    Wrong("tracing/files.py", "before.dropped + each.dropped", "before.dropped"),
    Wrong("tracing/files.py", "before.dropped + each.dropped", "each.dropped"),
    Wrong("tracing/files.py", "if _is_own(name, place)", "if True"),
    Wrong("storage/checkpoints.py", "linked and str(owner) !=", "False and str(owner) !="),
    Wrong("storage/table_files.py", "        self._check_distinct([part.ids for part in self.parts])", "        pass"),
    # Who has taken what, and what dead processes leave.
    Wrong("rma/tickets.py", "ticket if claimed else None", "ticket"),
    Wrong("rma/tickets.py", "        self._window.fence(self._coordinator)\n", ""),
    Wrong("rma/tickets.py", "self._slowest() <= before", "self._slowest() < before"),
    Wrong("rma/takings.py", "if self._notes and self._notes % TAKINGS == 0:", "if False:"),
    Wrong("rma/takings.py", "self._noted.raise_to(taken)", "pass"),
    Wrong("rma/takings.py", "self._entry[Taking.SAMPLES] + samples", "samples"),
    Wrong("rma/takings.py", "self._notes += 1", "pass"),
    Wrong("rma/takings.py", "return claims.fetch_add() == 0", "return claims.fetch_add() <= 1"),
    Wrong("engines/mpi/servers/connection.py", "max(clocks[:, ShardClock.CUT]", "min(clocks[:, ShardClock.CUT]"),
    Wrong("engines/mpi/servers/connection.py", "            start += size", "            start += 0"),
    Wrong("engines/mpi/servers/connection.py", "            start += copy.values.size", "            start += 0"),
    Wrong("engines/mpi/servers/connection.py", "all(each.begun", "any(each.begun"),
    Wrong("engines/mpi/servers/connection.py", "self._behind, self._begun = (), None", "self._behind = ()"),
    Wrong("engines/mpi/servers/connection.py", "pushes.bytes - self._pushed_before", "pushes.bytes"),
    Wrong("engines/mpi/servers/connection.py", "        self.fetched[:] = clocks\n", "        pass\n"),
    Wrong("engines/mpi/servers/overlap.py", "            self._taken = False\n", ""),
    Wrong("engines/mpi/servers/overlap.py", "        self._taken = True\n", ""),
    Wrong("survival/table.py", "if count < len(self._incidents):", "if True:"),
    Wrong("survival/table.py", "return not before", "return before"),
    Wrong("survival/table.py", "self.states[self.processes] == State.DEAD", "self.states == State.DEAD"),
    Wrong("survival/table.py", "self._incidents[known : ", "self._incidents[0 : "),
    Wrong("survival/table.py", "self.states == State.ALIVE", "self.states != State.DEAD"),
    Wrong("survival/table.py", "fcntl.flock(self._file, fcntl.LOCK_EX)", "pass"),
    Wrong("survival/settlement.py", "if order.number <= self._marked:", "if order.number < self._marked:"),
    Wrong("survival/settlement.py", "        self._marked = order.number\n", ""),
    Wrong("survival/settlement.py", "if ticket >= taken]", "]"),
    Wrong("survival/settlement.py", "*self._estates.claimed(self._number), ", ""),
    Wrong("survival/settlement.py", "if not others_train:", "if True:"),
    Wrong("rma/estates.py", "            return False\n        known", "            pass\n        known"),
    Wrong("rma/estates.py", "rows[:, GivenBack.TAKER] != 1 + worker", "rows[:, GivenBack.TAKER] < 0"),
    Wrong("data/schedule.py", "in dict(rest).items() if", "in rest if"),
    Wrong("job/takeover.py", "if config.data.owned is not None:", "if False:"),
    Wrong("topology/takeover.py", "return self.all or own", "return self.all"),
    Wrong("topology/takeover.py", "found[rank] = played[rank] = candidates[0]", "found[rank] = candidates[0]"),
    Wrong("topology/takeover.py", "if played.count(each) == 1]", "]"),
    # Marks that servers make for workers.
    Wrong("roles/served.py", "(-1, -1) if worker in self.shard.open else ", ""),
    Wrong("roles/checkpoint_coordinator.py", " or len({cut[:2] for cut in cuts}) > 1", ""),
    Wrong("roles/checkpoint_coordinator.py", "            found.replicas |= off\n", ""),
    Wrong("roles/checkpoint_coordinator.py", " if found.given_back is None else found.given_back", ""),
    Wrong("storage/deltas.py", ", copied, pushes)", ", int(state['clock']), pushes)"),
    Wrong("storage/position.py", "i <= current or 0 <= each[0] < known", "i <= current"),
    Wrong("storage/position.py", "i <= current or 0 <= each[0] < known", "True"),
    Wrong("storage/position.py", " if ticket not in since]", "]"),
    Wrong("survival/pace.py", "done < BATCHES and self._hang_after is None", "done < BATCHES"),
    # What follows a death.
    Wrong("survival/watch.py", "(process < self._own, process)", "process"),
    Wrong("survival/watch.py", " or now - before > LATE", ""),
    Wrong("survival/watch.py", "(pid, cpu_clock(pid))", "(pid, 0)"),
    Wrong("survival/survival.py", "self._parents[process]) and", "0) and"),
    Wrong("launch/keeper.py", '.endswith(b"!")', '.startswith(b"!")'),
    Wrong("launch/leftovers.py", 'each in record["files"] or ', ""),
    Wrong("launch/leftovers.py", "time.time() - status.st_ctime > SETTLED", "True"),
    Wrong("launch/forwarding.py", '== {"Z"}', '>= {"Z"}'),
)  # fmt: skip


#: Tests of what ranks note of themselves in memory that they share, and of the processes that die there.
BOOKKEEPING = ("tests/rma/test_claims.py", "tests/engines/test_connection.py", "tests/job/test_servers_taken_over.py")
LEFT_BEHIND = "tests/survival/test_takings.py"
#: Files with their tests in the folder of another room.
ELSEWHERE = {
    "job/notes.py": "tests/data/test_likeness.py",
    "storage/deltas.py": "tests/sparse/test_deltas_of_checkpoints.py",
}


def main() -> None:
    """Try all formulas; print those that no test notices."""
    parser = argparse.ArgumentParser(description="Wrong formulas that the tests must notice.")
    parser.add_argument("--only", default="", help="files whose name has this in it")
    options = parse(parser, only="partition/timeline")
    chosen = [formula for formula in FORMULAS if options.only in formula.file]
    with tempfile.TemporaryDirectory(prefix="wrong-formulas-") as directory:
        tree = Path(directory)
        for part in ("src", "tests", "jobs"):
            shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", tree)
        unnoticed = [formula for formula in chosen if not noticed(formula, tree)]
    for formula in unnoticed:
        print(f"{formula.file}: {formula.wrong.strip()!r} in the place of {formula.right.strip()!r}")
    print(f"{len(chosen) - len(unnoticed)} of {len(chosen)} wrong formulas are noticed")
    sys.exit(bool(unnoticed))


def noticed(formula: Wrong, tree: Path) -> bool:
    """Tell whether the tests of a formula's room notice it."""
    path = tree / PACKAGE / formula.file
    text = path.read_text()
    if text.count(formula.right) < 1:
        sys.exit(f"{formula.file} has no {formula.right!r}: FORMULAS must follow it")
    path.write_text(text.replace(formula.right, formula.wrong, 1))
    try:
        return any(fails(tests, tree) for tests in rooms(formula.file))
    finally:
        path.write_text(text)
        print(".", end="", file=sys.stderr, flush=True)


def rooms(file: str) -> list[list[str]]:
    """Return the tests of a file's room, first those that are likeliest to notice."""
    room = Path(file).parts[0]
    patterns = [f"tests/{room}/test_{Path(file).stem}{end}.py" for end in ("_*", "")]
    named = [str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern)]
    own = [named] if named else []
    if room in ("algorithms", "shards"):
        names = ("policies", "uneven", "trajectories", "family", "steps", "quorum")
        first = [f"tests/algorithms/test_{name}.py" for name in names]
        return [*own, *([["tests/shards"]] if room == "shards" else []), first, ["tests/algorithms"]]
    if room in ("rma", "engines", "survival") or file == "data/schedule.py":
        # Without ranks; what workers take is what settlements find.
        return [
            *own,
            ["tests/survival/test_obeying.py", "tests/survival/test_incidents.py", *BOOKKEEPING],
            [LEFT_BEHIND],
        ]
    if file in ELSEWHERE:
        return [[ELSEWHERE[file]]]
    return [*own, [f"tests/{room}"], *([["tests/algorithms/test_steps.py"]] if room == "rules" else [])]


def fails(tests: list[str], tree: Path) -> bool:
    """Tell whether a test fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, check=False)
    if done.returncode not in (0, 1):
        sys.exit(f"{done.stdout.decode()}\n{command}: exit code {done.returncode}")
    return done.returncode == 1


if __name__ == "__main__":
    main()
