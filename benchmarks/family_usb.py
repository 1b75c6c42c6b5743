"""One step of each algorithm beside USB's own: same network, weights, batches, views, random numbers and memories.

    python benchmarks/family_usb.py --usb PYTHON

PYTHON is the interpreter of an environment that has semilearn 0.3.2. Seconds on one core. The network has no batch norm: USB
passes some views one by one and we pass them together, so that the statistics of a batch would differ (docs/algorithms.md).
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import fields
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from _record import write_result
from momatch.algorithms import ALGORITHMS
from momatch.config import TrainConfig
from momatch.data.batches import Batch
from momatch.heads import Linear
from momatch.models.classifier import Classifier
from momatch.models.normalize import Normalize
from momatch.training.setup import build_step

B, U, K, POOL, LABELED, STEPS, PROGRESS = 10, 20, 5, 60, 20, 3, 0.25
#: So that some pseudo-labels count and some do not.
CUTOFF = 0.9
#: Algorithm -> settings that it alone has.
OWN = {"comatch": {"memory_size": 3 * (B + U)}, "freematch": {"fairness_weight": 0.5}}
#: What the difference is, where there is one.
REASONS = {
    "uda": "USB does not sharpen: it hands over probabilities, which its hook for targets returns as they are",
    "freematch": "a class that no strong view with a pseudo-label is given: USB takes the logarithm of 1e-12, we leave it out",
}
#: Row -> settings, where it is not an algorithm alone.
VARIANTS = {"uda, temperature 1": {"algorithm": "uda", "temperature": 1.0}}
#: Averages of policies after much training: from where they start, every sample would count.
LATE = {
    "freematch": {
        "tau": 0.75,
        "mean_posterior": (0.3, 0.1, 0.2, 0.25, 0.15),
        "mean_histogram": (0.2, 0.2, 0.3, 0.2, 0.1),
    },
    "softmatch": {"mean": 0.8, "variance": 0.05, "mean_posterior": (0.3, 0.1, 0.2, 0.25, 0.15)},
}


#: FlexMatch's memory: of each class another number, some without.
SELECTED = torch.tensor([0] * 20 + [1] * 16 + [2] * 10 + [3] * 6 + [4] * 3 + [-1] * 5)


def classifier():
    torch.manual_seed(0)
    backbone = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.Tanh(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 16), nn.Tanh()
    )
    head = Linear(16, K)
    with torch.no_grad():
        backbone[4].weight *= 6.0  # views of random images would otherwise be nearly the same point
        head.weight *= 6.0
    return Classifier(backbone, head, preprocess=Normalize((0.5,) * 3, (0.25,) * 3))


def batch_at(step):
    generator = torch.Generator().manual_seed(step)

    def images(n):
        return torch.randint(0, 256, (n, 3, 8, 8), dtype=torch.uint8, generator=generator)

    rows = torch.randperm(LABELED // K, generator=generator)[: B // K]
    labeled_indices = (rows[:, None] * K + torch.arange(K)).flatten()  # of each class as many
    indices = torch.randperm(POOL, generator=generator)[:U]
    return Batch(step, images(B), labeled_indices % K, labeled_indices, images(U), indices)


def fill_memory(algorithm):
    """A memory from the first step on: USB uses its own only once it is full."""
    generator = torch.Generator().manual_seed(5)
    memory = algorithm.memory
    size = len(memory.embeddings)
    memory.embeddings.copy_(F.normalize(torch.randn(memory.embeddings.shape, generator=generator), dim=-1))
    if hasattr(memory, "labels"):
        memory.labels.copy_(torch.arange(size) % K)
        memory.seen.fill_(True)
    else:
        memory.posteriors.copy_(torch.randn(memory.posteriors.shape, generator=generator).softmax(-1))
        memory.written.fill_(memory.size)


def ours(name):
    """Our losses at each step, and all that USB needs to compute its own."""
    own = {"algorithm": name, **OWN.get(name, {}), **VARIANTS.get(name, {})}
    config = TrainConfig(
        dataset="cifar10",  # whose images may be turned
        head="linear",
        embedding_dim=0,
        labeled_batch_size=B,
        unlabeled_batch_size=U,
        cutoff=CUTOFF,
        **own,
    ).resolved()
    network = classifier()
    step = build_step(config, network, torch.full((POOL,), -1), num_labeled=LABELED)
    algorithm = step.objective.algorithm
    if hasattr(algorithm, "memory"):
        fill_memory(algorithm)
    if name == "flexmatch":
        counts = torch.bincount(torch.where(SELECTED < 0, K, SELECTED), minlength=K + 1)
        beta = counts[:-1] / counts.max()
        for key, value in {"selected": SELECTED, "counts": counts, "beta": beta}.items():
            getattr(algorithm.policy, key).copy_(value)
    for key, value in LATE.get(name, {}).items():
        getattr(algorithm.policy, key).copy_(torch.tensor(value))
    generator = torch.Generator().manual_seed(9)
    for value in step.average.classifier.parameters():
        value.add_(0.05 * torch.randn(value.shape, generator=generator))
    sent = {f"student.{key}": value for key, value in network.state_dict().items() if "preprocess" not in key}
    sent |= {
        f"teacher.{key}": value
        for key, value in step.average.classifier.state_dict().items()
        if "preprocess" not in key
    }
    sent |= {f"algorithm.{key}": value for key, value in algorithm.state_dict().items()}
    if name == "comatch":
        sent |= {
            "memory.embeddings": algorithm.memory.embeddings[:-1],
            "memory.posteriors": algorithm.memory.posteriors[:-1],
        }
    sent = {key: value.clone() for key, value in sent.items()}
    mixings = []
    mix = algorithm.mix
    algorithm.mix = lambda *given: mixings.append(mix(*given)) or mixings[-1]
    losses = []
    for number in range(STEPS):
        batch = batch_at(number)
        (part,) = step._micro_batches(batch)
        sent |= {f"{number}.{view}": network.normalized(images) for view, images in part.views.items()}
        sent |= {f"{number}.labels": batch.labels, f"{number}.indices": batch.unlabeled_indices}
        sent |= {f"{number}.labeled_indices": batch.labeled_indices}
        if part.turns is not None:
            sent[f"{number}.turns"] = part.turns
        if name == "simmatch":
            sent |= {
                f"{number}.memory.{key}": getattr(algorithm.memory, key).clone() for key in ("embeddings", "labels")
            }
        before = {key: value.clone() for key, value in step.average.classifier.state_dict().items()}
        step(batch, lr=0.0, progress=PROGRESS)
        step.average.classifier.load_state_dict(before)
        for mixing in mixings[number:]:
            sent |= {f"{number}.partner": mixing.partner, f"{number}.share": torch.tensor(mixing.share).double()}
        losses.append({key: float(value) for key, value in step.last_metrics.items() if key.endswith("loss")})
    options = {field.name: getattr(config, field.name) for field in fields(config)}
    options |= {"b": B, "u": U, "pool": POOL, "num_labeled": LABELED, "progress": PROGRESS}
    return losses, sent, {key: value for key, value in options.items() if isinstance(value, int | float | str)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--usb", required=True, metavar="PYTHON", help="interpreter of an environment with semilearn")
    arguments = parser.parse_args()
    names = [*(name for name in ALGORITHMS if name not in ("supervised", "simmatchv2")), *VARIANTS]
    found, sent, options = {}, {}, {}
    for name in names:
        found[name], tensors, options[name] = ours(name)
        sent |= {f"{name}/{key}": value.numpy() for key, value in tensors.items()}
    spec = json.dumps({"options": options, "num_classes": K, "steps": STEPS})
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "cases.npz", spec=np.array(spec), **sent)
        script = Path(__file__).with_name("_usb_family.py")
        command = [arguments.usb, str(script), str(Path(folder) / "cases.npz")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    answer = json.loads(done.stdout.splitlines()[-1])
    rows = []
    for name in names:
        pairs = list(zip(found[name], answer["losses"][name], strict=True))
        apart = max(abs(one["loss"] - other["total_loss"]) / abs(other["total_loss"]) for one, other in pairs)
        supervised = max(
            abs(one["supervised_loss"] - other["sup_loss"]) / abs(other["sup_loss"]) for one, other in pairs
        )
        rows.append(
            {
                "algorithm": name,
                "our loss": " ".join(f"{one['loss']:.5f}" for one, _ in pairs),
                "USB's loss": " ".join(f"{other['total_loss']:.5f}" for _, other in pairs),
                "largest difference": f"{apart:.1e}",
                "of the supervised term": f"{supervised:.1e}",
                "reason": "" if apart <= 1e-5 else REASONS.get(name, "not explained"),
            }
        )
    # The recorded command names no place of this machine.
    sys.argv[sys.argv.index("--usb") + 1] = "PYTHON"
    notes = (
        f"Total loss of {STEPS} steps, relative difference; {B} labelled and {U} unlabelled images of 8 x 8, a small "
        f"network without batch norm, linear head, weights not updated; torch {answer['torch']} for USB (semilearn 0.3.2), "
        "whose `train_step` is called as it is. Memories are full from the start; SimMatch's is set to ours before each step, "
        "because USB normalises its own along the wrong axis. USB does not have SimMatchV2."
    )
    write_result("family_usb", rows, notes, seeds=[0])


if __name__ == "__main__":
    main()
