"""The moment constraint against building the D^p cells: time and memory of forward + backward, side by side.

Three ways to build the cells, all by plain autograd and all equal in value:
- naive: for every sample and every cluster, D^p cells (n K D^p numbers), as the paper's published code does;
- outer: D^p cells for every sample, in its own cluster only (n D^p numbers);
- einsum: only the clusters' moment tensors (K D^p numbers), contracted by torch.einsum.

Each memory figure comes from a process of its own: the rise of the peak resident size over what it was before the call, which
has the allocator's and the kernels' share too. The constraint's own tensors are counted apart, to the byte.

    python benchmarks/moments.py             alone on an idle machine
    python benchmarks/moments.py --tensors   what its own tensors take; seconds, whatever else the machine does
"""

import argparse
import json
import subprocess
import sys
from itertools import product

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from _record import medians, peak_megabytes, write_result
from momatch import MomentConstraint
from momatch.constraints.cells import NORMAL_MOMENTS, cell_weights
from momatch.constraints.moments import PAPER_WEIGHTS

K = 10
LETTERS = "abcd"


def cell_tables(D, order):
    """Per order: weight and target of every one of the D^p cells."""
    weights = cell_weights(D, order, PAPER_WEIGHTS)
    tables = []
    for p in range(1, order + 1):
        indices = torch.stack(torch.meshgrid(*[torch.arange(D)] * p, indexing="ij"), -1).reshape(-1, p)
        multiplicities = (indices.unsqueeze(2) == indices.unsqueeze(1)).sum(-1)
        # Sum of multiplicities tells the partitions of one order apart.
        by_sum = {sum(q * q for q in part): part for part in weights if sum(part) == p}
        weight, target = torch.zeros(len(indices)), torch.zeros(len(indices))
        for key, part in by_sum.items():
            here = multiplicities.sum(-1) == key
            weight[here], target[here] = weights[part], NORMAL_MOMENTS.get(part, 0.0)
        tables.append((weight.view([D] * p), target.view([D] * p)))
    return tables


def naive(z, centers, labels, tables):
    one_hot = torch.nn.functional.one_hot(labels, K).to(z.dtype)
    u = (z.unsqueeze(1) - centers) * one_hot.unsqueeze(-1)  # (n, K, D)
    cells, loss = u, 0.0
    counts = one_hot.sum(0)
    for p, (weight, target) in enumerate(tables, 1):
        if p > 1:
            cells = cells.unsqueeze(-1) * u.view(*u.shape[:2], *[1] * (p - 1), u.shape[-1])  # (n, K, D, ..., D)
        moments = cells.sum(0) / counts.view(K, *[1] * p)
        loss = loss + (counts / len(z) * ((moments - target).square() * weight).flatten(1).sum(1)).sum()
    return loss


def outer(z, centers, labels, tables):
    loss = 0.0
    for k in range(K):
        u = z[labels == k] - centers[k]
        cells = u
        for p, (weight, target) in enumerate(tables, 1):
            if p > 1:
                cells = cells.unsqueeze(-1) * u.view(len(u), *[1] * (p - 1), u.shape[-1])
            loss = loss + len(u) / len(z) * ((cells.mean(0) - target).square() * weight).sum()
    return loss


def einsum(z, centers, labels, tables):
    loss = 0.0
    for k in range(K):
        u = z[labels == k] - centers[k]
        for p, (weight, target) in enumerate(tables, 1):
            formula = ",".join("n" + letter for letter in LETTERS[:p]) + "->" + LETTERS[:p]
            moments = torch.einsum(formula, *[u] * p) / len(u)
            loss = loss + len(u) / len(z) * ((moments - target).square() * weight).sum()
    return loss


BUILDS = {"naive": naive, "outer": outer, "einsum": einsum}


def problem(n, D):
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(n, D, generator=generator).requires_grad_()
    centers = (0.1 * torch.randn(K, D, generator=generator)).requires_grad_()
    return z, centers, torch.arange(n) % K


def stepper(name, n, D, order):
    """A call that does forward + backward once, and the loss it gives."""
    z, centers, labels = problem(n, D)
    if name == "momatch":
        constraint = MomentConstraint(order)

        def loss():
            return constraint(z, centers, labels)
    else:
        tables = cell_tables(D, order)

        def loss():
            return BUILDS[name](z, centers, labels, tables)

    def run():
        z.grad = centers.grad = None
        value = loss()
        value.backward()
        return value.detach()

    return run


class CountTensors(TorchDispatchMode):
    """Counts the bytes of the tensors that are made within it: `peak`, the most that are alive at once."""

    def __init__(self):
        super().__init__()
        self.alive, self.peak = {}, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                reference = StorageWeakRef(storage)
                self.alive[reference.cdata] = (reference, storage.nbytes())
        self.alive = {key: kept for key, kept in self.alive.items() if not kept[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self.alive.values()))
        return result


def tensor_mebibytes(call):
    """The most that the tensors of `call` hold at once."""
    with CountTensors() as count:
        call()
    return count.peak / 2**20


def memory(name, n, D, order):
    """Extra megabytes of one step, in a fresh process that has already run a tiny one."""
    arguments = [sys.executable, __file__, "--measure", name, str(n), str(D), str(order)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure(name, n, D, order):
    stepper(name, 64, 4, order)()  # loads the libraries' code and threads
    print(json.dumps(peak_megabytes(stepper(name, n, D, order))))


def compare(n, D, order, builds):
    contenders = {name: stepper(name, n, D, order) for name in ("momatch", *builds)}
    losses = {name: call().item() for name, call in contenders.items()}
    for name, loss in losses.items():
        assert abs(loss - losses["momatch"]) <= 1e-4 * abs(loss), (name, losses)
    seconds = medians(contenders, repeats=15, warmup=2, at_most=30)
    del contenders
    row = {"n": n, "D": D, "order": order}
    for name, value in seconds.items():
        row[f"{name} ms"], row[f"{name} MB"] = 1e3 * value, memory(name, n, D, order)
    for name in builds:
        row[f"{name} / momatch time"] = row[f"{name} ms"] / row["momatch ms"]
        row[f"{name} / momatch memory"] = row[f"{name} MB"] / max(row["momatch MB"], 0.1)
    print(row, flush=True)
    return row


def main():
    rows = [compare(448, D, order, ["naive", "outer", "einsum"]) for D, order in product([8], [1, 2, 3, 4])]
    rows += [compare(448, 32, order, ["naive", "outer", "einsum"]) for order in (2, 3)]
    rows += [compare(32, 32, 4, ["naive", "outer", "einsum"]), compare(448, 32, 4, ["outer", "einsum"])]
    rows += [compare(448, D, order, []) for D, order in product([64, 128, 512], [1, 2, 3, 4])]
    rows += [compare(n, D, 4, []) for D, n in product([8, 128, 512], [2048, 8192])]
    notes = (
        "Forward + backward, K = 10 equal clusters, float32, medians of interleaved rounds. naive: n K D^p cells as in the "
        "published code (at D = 32, order 4, n = 448 it would need 18.8 GB a tensor, so n = 32 stands for it); outer: n D^p; "
        "einsum: K D^p. MB is the rise of peak resident memory in a fresh process, which for a few small cases is below what "
        "the allocator already held (then 0.1 counts in the ratio). Targets: order 4 adds at most 64 MB at n = 448 up to "
        "D = 512 and takes well under 100 ms there; 10 times faster and smaller than naive at D = 8, 100 times at D = 32."
    )
    write_result("moments", rows, notes, threads=torch.get_num_threads(), seed=0)


#: Images of each view in a step of the paper's batch: labelled, weak and strong.
VIEWS = (64, 448, 448)


def training_step(D, order):
    """A call that does what a step does with the constraint: a term for each view, and one backward pass."""
    constraint = MomentConstraint(order)
    views = [problem(n, D) for n in VIEWS]
    centers = views[0][1]

    def run():
        centers.grad = None
        for z, *_ in views:
            z.grad = None
        torch.stack([constraint(z, centers, labels) for z, _, labels in views]).sum().backward()

    return run


def count_tensors():
    rows = []
    for D in (8, 32, 128, 512):
        row = {"D": D}
        for order in (1, 2, 3, 4):
            row[f"order {order} (MiB)"] = tensor_mebibytes(training_step(D, order))
            row[f"D^{order} cells (MiB)"] = 4 * K * D**order / 2**20
        rows.append(row)
    notes = (
        "The most that the tensors of the constraint hold at once in a training step with the paper's batch, counted to the "
        "byte: its three terms (64 labelled, 448 weak and 448 strong views), forward and backward (K = 10, float32). Beside "
        "it the least that explicit moments need: one tensor of D^p cells for each class, without what computing it and its "
        "gradient takes. So few dimensions need fewer cells than Gram matrices have entries."
    )
    write_result("moments-tensors", rows, notes, seed=0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", nargs=4, metavar=("NAME", "N", "D", "ORDER"), help="used by the script itself")
    parser.add_argument("--tensors", action="store_true", help="count the constraint's own tensors instead")
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure[0], *map(int, arguments.measure[1:]))
    elif arguments.tensors:
        count_tensors()
    else:
        main()
