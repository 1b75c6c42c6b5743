"""What the judge of outliers costs: its share of prediction, of training, and the memory of a fit.

    python benchmarks/judge.py

Prediction: images already decoded, batches of 64, one thread, the classifier with its scorer against the same with the head's
scores alone, in turns, with memory kept between batches as `momatch predict` keeps it. Training: seconds of a run on digits
with `auto` that go into weighing the pool, and into fitting and calibrating the judge after the last step. Memory: resident
memory that a fit to 50,000 images adds in a fresh process, streamed in batches through `StageJudge`.
"""

import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from unittest import mock

import torch

from _record import medians, write_result
from momatch import Classifier, TrainConfig, fit
from momatch.models.scorer import Scorer, score_images
from momatch.outliers import Judge, StageReader, find_stages
from momatch.training import fit as training_loop
from momatch.training.allocator import keep_large_blocks

#: Network, channels, image side, classes.
NETWORKS = (
    ("cnn-tiny", 1, 28, 10),
    ("cnn-small", 3, 32, 10),
    ("wrn-28-2", 3, 32, 10),
    ("efficientnet-lite0", 3, 96, 10),
)
#: What `momatch predict` takes by default.
BATCH = 64
#: What the loop does about outliers after the last step.
AFTER = ("fit_to_outputs", "find_outliers")

MEMORY = """
import resource, sys, torch
sys.path[:0] = {path!r}
torch.set_num_threads(1)
from momatch import Classifier, StageJudge
network = Classifier.build({name!r}, "aagmm", num_classes=10, in_channels=3, normalization=((0.5,) * 3, (0.2,) * 3)).eval()
class Loader:
    def __iter__(self):
        generator = torch.Generator().manual_seed(0)
        for _ in range({batches}):
            yield torch.randn(500, 3, 32, 32, generator=generator), torch.randint(10, (500,), generator=generator)
with torch.no_grad():
    network(torch.randn(500, 3, 32, 32))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
StageJudge(network).fit(Loader())
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def prediction(name, channels, side, classes):
    """Seconds of a batch with the head's scores, and with the judge's."""
    options = {"normalization": ((0.5,) * channels, (0.2,) * channels), "image_size": side}
    network = Classifier.build(name, num_classes=classes, in_channels=channels, **options).eval()
    images = torch.randint(256, (BATCH, channels, side, side), dtype=torch.uint8)
    images = images.contiguous(memory_format=torch.channels_last)
    network.to(memory_format=torch.channels_last)
    with torch.inference_mode():
        names = find_stages(network.backbone, network.preprocess(images[:2]))
        stages = network.inspect(images, names)[1]
    judge = Judge(stages.shape[1], classes, names).fit([(stages.clone(), torch.arange(BATCH) % classes)])
    by_head, by_judge = Scorer(network.head), Scorer(network.head, judge=judge)
    reader = StageReader(network.backbone, names)

    def run(scorer):
        with torch.inference_mode():
            score_images(network, scorer, images, reader)

    found = medians({"head": lambda: run(by_head), "judge": lambda: run(by_judge)}, repeats=161, at_most=40.0)
    return found["head"], found["judge"], stages.shape[1]


def training():
    """Seconds of a run on digits, those of weighing its pool, and those of its judge after the last step."""
    spent = {}

    def timed(name):
        real = getattr(training_loop, name)

        def call(*given):
            begin = time.perf_counter()
            result = real(*given)
            spent[name] = spent.get(name, 0.0) + time.perf_counter() - begin
            return result

        return mock.patch.object(training_loop, name, call)

    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        for name in ("weigh_pool", *AFTER):
            stack.enter_context(timed(name))
        begin = time.perf_counter()
        fit(TrainConfig(outliers="auto", run_dir=f"{folder}/run", progress=False))
        return time.perf_counter() - begin, spent["weigh_pool"], sum(spent[name] for name in AFTER)


def main():
    keep_large_blocks()
    torch.set_num_threads(1)
    rows = []
    for name, channels, side, classes in NETWORKS:
        head, judge, size = prediction(name, channels, side, classes)
        what = f"prediction, {name}, {side} px, {size} statistics"
        rows.append(
            {
                "what": what,
                "without": f"{1e3 * head:.1f} ms",
                "with": f"{1e3 * judge:.1f} ms",
                "more": f"{judge / head - 1:+.1%}",
            }
        )
    whole, weighing, after = training()
    for what, seconds in (("weighing the pool", weighing), ("judge, after the last step", after)):
        rest = whole - weighing - after
        rows.append(
            {
                "what": f"a run on digits, {what}",
                "without": f"{rest:.1f} s",
                "with": f"{rest + seconds:.1f} s",
                "more": f"{seconds / rest:+.1%}",
            }
        )
    for name in ("cnn-tiny",):
        script = MEMORY.format(name=name, batches=100, path=sys.path[:1])
        found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        rows.append(
            {
                "what": f"fit to 50,000 images, {name}: memory added",
                "without": "",
                "with": f"{float(found.stdout):.0f} MB",
                "more": "",
            }
        )
    write_result("judge", rows, __doc__.split("\n\n", 2)[2].strip().replace("\n", " "))


if __name__ == "__main__":
    main()
