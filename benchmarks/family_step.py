"""The step of each algorithm with WRN-28-2 at 8 + 56 images: its time by FixMatch's, and what it adds to its own passes.

    python benchmarks/family_step.py

About fifteen minutes on two idle cores. An algorithm's passes through the network are timed on ready tensors, in turns with
its step.
"""

import argparse

import torch

from _record import medians, write_result
from momatch.algorithms import ALGORITHMS
from momatch.models.backbones import build_backbone
from momatch.training.allocator import keep_large_blocks
from step import LABELED, THREADS, UNLABELED, dataset, whole

#: Digits are not rotated by default, but the algorithm has rotations.
OWN = {"remixmatch": {"rotation_weight": 0.5}, "supervised": {"unlabeled_batch_size": 0}}
HEADS = {
    "linear, wide": {"head": "linear", "embedding_dim": 0},
    "AAGMM 8-D, order 1": {},
}
#: Those with a memory of embeddings may cost more.
LIMIT, LIMIT_WITH_MEMORY = 0.05, 0.10


def passes(algorithm):
    """Images that pass without gradient, and with."""
    wants = algorithm.wants
    mixed = LABELED + UNLABELED * len(wants.mixed) if wants.mixed else 0
    trained = LABELED * wants.labeled + UNLABELED * (len(wants.trained) + (wants.rotated is not None)) + mixed
    if wants.guess == "trained":
        return 0, trained
    return UNLABELED * len(wants.guessed) + LABELED * wants.features, trained


def bare(network, without, trained):
    """The call that takes ready tensors through the network as often as an algorithm does."""
    layout = torch.channels_last
    first, second = (torch.randn(n, 3, 32, 32).contiguous(memory_format=layout) for n in (without, trained))

    def call():
        if without:
            with torch.no_grad():
                network(first)
        network(second).square().mean().backward()
        network.zero_grad(set_to_none=True)

    return call


def measure(head, names, rounds):
    data, network = dataset(), build_backbone("wrn-28-2", 3).to(memory_format=torch.channels_last)
    calls, images = {}, {}
    for name in names:
        training, step = whole({"algorithm": name, **HEADS[head], **OWN.get(name, {})}, data)
        images[name] = passes(training.step.objective.algorithm)
        calls[name], calls[f"passes of {name}"] = step, bare(network, *images[name])
    seconds = medians(calls, repeats=rounds, warmup=2, at_most=3600.0)
    rows = []
    for name in names:
        own, network_time = seconds[name], seconds[f"passes of {name}"]
        has_memory = name in ("comatch", "simmatch", "simmatchv2")
        overhead = own / network_time - 1
        rows.append(
            {
                "head": head,
                "algorithm": ALGORITHMS[name].__name__,
                "images without gradient + with": f"{images[name][0]} + {images[name][1]}",
                "step (ms)": round(own * 1e3),
                "times FixMatch's": round(own / seconds["fixmatch"], 2),
                "its passes (ms)": round(network_time * 1e3),
                "overhead (%)": round(100 * overhead, 1),
                "limit (%)": round(100 * (LIMIT_WITH_MEMORY if has_memory else LIMIT)),
            }
        )
        print(rows[-1], flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="timed steps of each algorithm, in turns")
    parser.add_argument("--heads", nargs="+", choices=HEADS, default=list(HEADS))
    parser.add_argument(
        "--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS), help="FixMatch among them"
    )
    parser.add_argument("--name", default="family_step", help="of the record")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(THREADS)
    keep_large_blocks()
    rows = [row for head in arguments.heads for row in measure(head, arguments.algorithms, arguments.rounds)]
    notes = (
        f"WRN-28-2, {LABELED} labelled and {UNLABELED} unlabelled images of 32 x 32, float32, channels_last, {THREADS} "
        f"threads; medians of {arguments.rounds} rounds in turns, one process. Step: batch, views, passes, losses, optimiser, "
        "average, state. Its passes: as many images through the backbone on ready tensors, without gradient and with. "
        "Overhead: the first by the second, less 1."
    )
    write_result(arguments.name, rows, notes, seeds=[0])


if __name__ == "__main__":
    main()
