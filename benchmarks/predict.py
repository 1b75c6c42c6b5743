"""Images/s of a whole prediction, from files on disk to rows in a file, against the bare backbone's forward.

    python benchmarks/predict.py                  about twenty minutes on two idle cores; CIFAR-10 from $MOMATCH_DATA
    python benchmarks/predict.py --backbone onnx:FILE --images 192 --rounds 2 --most 0 --name predict-onnx
                                                  one backbone alone, at 224 pixels; an ONNX graph against ONNX Runtime itself

- throughput: `momatch predict`'s path (list, read, decode, normalise, network, head, densities, p-values, CSV) over JPEG files,
  and the backbone alone over the same images, decoded and normalised in memory beforehand, at the same batch size, memory
  layout and number of threads. The backbone runs in both ways: all threads on one batch, as torch does by itself, and a batch a
  thread, as predict does. All three in turns; the ratios are medians over the rounds. Busy cores slow the first way most, so on
  a machine that is not idle only the ratio of CPU times (one thread each) means much.
- memory: peak of a fresh process that predicts 1,000, 10,000 and 50,000 images listed in a manifest.
"""

# ruff: noqa: E402 - the allocator is set up before numpy and torch start threads, as in the commands
from momatch.training.allocator import keep_large_blocks

keep_large_blocks()

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from _record import write_result
from momatch.data.load import load_dataset
from momatch.data.locate import data_root, find
from momatch.heads import AAGMM
from momatch.inference.predict.inputs import find_sources
from momatch.inference.predict.pipeline import Predictor, default_workers, in_order
from momatch.inference.predict.stream import Settings, predict_to_file
from momatch.models.model_files import build_classifier, load_model, save_model
from momatch.models.saved_model import OutlierCalibration, SavedModel
from momatch.models.spec import ModelSpec

TARGET = 0.9
#: backbone, side of the files, side of the model's images
CASES = (
    ("efficientnet-lite0", 32, 32),  # enlarged to 96 inside the network
    ("efficientnet-lite0", 256, 96),
    ("efficientnet-lite0", 256, 224),
    ("wrn-28-2", 32, 32),
)
_MEMORY = """
import json, sys
from momatch.cli.main import main
assert main(["predict", *sys.argv[1:], "--no-progress"]) == 0
with open("/proc/self/status") as file:
    print(json.dumps(next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024))
"""


def model(backbone, size):
    """A classifier with all that prediction needs; what its weights are makes no difference to the time."""
    torch.manual_seed(0)
    facts = ModelSpec(
        backbone=backbone,
        head="aagmm",
        embedding_dim=8,
        class_names=tuple(f"class {k}" for k in range(10)),
        in_channels=3,
        image_size=(size, size),
        normalization=((0.5,) * 3, (0.25,) * 3),
        dataset="benchmark",
    )
    calibration = OutlierCalibration(torch.rand(1000).sort().values, "nearest", "random numbers")
    return SavedModel(build_classifier(facts).eval(), facts, AAGMM(8, 10).eval(), calibration=calibration)


def cifar_images(count):
    """The first test images of CIFAR-10, and whether they are; random ones where it is not at hand."""
    if find("cifar10", data_root()) is not None:
        return load_dataset("cifar10").test.images[:count].permute(0, 2, 3, 1).numpy(), True
    return np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8), False


def photographs(count, side):
    """Smooth random pictures with grain, whose files are as large as those of photographs."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (side // 16, side // 16, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((side, side), Image.Resampling.BICUBIC), np.int16)
        yield np.clip(smooth + rng.integers(-10, 11, smooth.shape), 0, 255).astype(np.uint8)


def write_jpegs(folder, images):
    folder.mkdir()
    for i, pixels in enumerate(images):
        Image.fromarray(pixels).save(folder / f"{i:06}.jpg", quality=90)
    return folder


def decoded(trained, folder, batch_size):
    """The same images as normalised batches in memory, in the layout that predict uses."""
    predictor = Predictor(trained, torch.device("cpu"))
    batches = []
    for source in find_sources([str(folder)]):
        for batch in source.batches(batch_size):
            pixels, reasons = predictor._decode(batch)
            assert not reasons
            batches.append(trained.classifier.preprocess(pixels))
    return batches


def throughput(backbone, folder, size, *, batch_size, rounds, scratch):
    trained = model(backbone, size)
    batches = decoded(trained, folder, batch_size)
    images = sum(map(len, batches))
    forward, workers = bare_network(backbone, trained.classifier.backbone), default_workers()
    settings = Settings(batch_size=batch_size, progress=False)

    def one_batch():
        for x in batches:
            forward(x)

    def batch_a_thread():
        for _ in in_order(forward, batches, workers):
            pass

    def predict(settings=settings):
        summary = predict_to_file(trained, find_sources([str(folder)]), scratch / "out.csv", settings)
        assert summary.images == images

    rates = {"predict": [], "one batch": [], "batch a thread": []}
    for round_ in range(rounds + 1):  # the first warms up
        for name, call in zip(rates, (predict, one_batch, batch_a_thread), strict=True):
            start = time.perf_counter()
            call()
            if round_:
                rates[name].append(images / (time.perf_counter() - start))

    def ratio(name):
        pairs = zip(rates["predict"], rates[name], strict=True)
        return round(statistics.median(mine / bare for mine, bare in pairs), 2)

    cpu = cpu_ratio(lambda: predict(replace(settings, workers=1)), one_batch, rounds)
    middle = {name: round(statistics.median(values), 1) for name, values in rates.items()}
    return {
        "predict (images/s)": middle["predict"],
        "backbone, all threads on a batch (images/s)": middle["one batch"],
        "backbone, a batch a thread (images/s)": middle["batch a thread"],
        "ratio": ratio("one batch"),
        "ratio to a batch a thread": ratio("batch a thread"),
        "ratio of CPU time, one thread": cpu,
    }


def without_folder(backbone):
    """The name of a backbone to show: of an ONNX graph, that of its file."""
    return f"onnx:{Path(backbone).name}" if backbone.startswith("onnx:") else backbone


def bare_network(backbone, network):
    """The forward pass without anything around it: torch, or ONNX Runtime on the file itself."""
    if not backbone.startswith("onnx:"):
        return torch.inference_mode()(network)
    import onnxruntime

    sessions = {}

    def forward(x):
        threads = torch.get_num_threads()
        if threads not in sessions:
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = threads
            sessions[threads] = onnxruntime.InferenceSession(backbone.removeprefix("onnx:"), options)
        session, only_features = sessions[threads], onnxruntime.RunOptions()
        only_features.only_execute_path_to_fetches = True
        name = network._content["features"]
        return session.run([name], {session.get_inputs()[0].name: x.contiguous().numpy()}, only_features)[0]

    return forward


def cpu_ratio(predict, bare, rounds):
    """CPU time of the backbone as a share of the whole prediction's, one thread each, in turns: other programs do not count."""

    def seconds(call):
        start = time.process_time()
        call()
        return time.process_time() - start

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        pairs = [(seconds(bare), seconds(predict)) for _ in range(rounds)]
    finally:
        torch.set_num_threads(threads)
    return round(statistics.median(bare / whole for bare, whole in pairs), 2)


def memory(scratch, folder, counts):
    """Peak megabytes of a fresh process, by the number of images."""
    trained = model("cnn-small", 32)
    (scratch / "model").mkdir()
    save_model(scratch / "model", trained.classifier, trained.spec, trained.refitted_head, trained.calibration)
    assert load_model(scratch / "model").calibration is not None
    paths = [str(path) for path in sorted(folder.iterdir())]
    rows = []
    for count in counts:
        manifest = scratch / f"{count}.csv"
        manifest.write_text("path\n" + "".join(f"{paths[i % len(paths)]}\n" for i in range(count)))
        for rule in (("--alpha", "0.05"), ("--fdr", "0.05")):
            words = [str(scratch / "model"), str(manifest), "--out", str(scratch / f"{count}{rule[0]}.parquet"), *rule]
            done = subprocess.run([sys.executable, "-c", _MEMORY, *words], capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(done.stderr)
            megabytes = round(json.loads(done.stdout))
            rows.append({"what": f"{count:,} images, {rule[0]}", "peak memory (MB)": megabytes})
            print(rows[-1], flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=Settings().batch_size)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--backbone", help="this one alone, on photographs at 224 pixels")
    parser.add_argument("--most", type=int, default=50_000, help="largest number of images whose memory is measured")
    parser.add_argument("--name", default="predict", help="of the record")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="momatch-benchmark-") as name:
        scratch = Path(name)
        small, is_real = cifar_images(arguments.images)
        folders = {
            32: write_jpegs(scratch / "small", small),
            256: write_jpegs(scratch / "photographs", photographs(arguments.images, 256)),
        }
        cases = [(arguments.backbone, 256, 224)] if arguments.backbone else CASES
        for backbone, side, size in cases:
            found = throughput(
                backbone,
                folders[side],
                size,
                batch_size=arguments.batch_size,
                rounds=arguments.rounds,
                scratch=scratch,
            )
            rows.append({"what": f"{without_folder(backbone)}, JPEGs of {side} x {side} to {size} x {size}", **found})
            print(rows[-1], flush=True)
        least = {name: min(row[name] for row in rows) for name in rows[0] if name.startswith("ratio")}
        rows += memory(scratch, folders[32], [n for n in (1000, 10_000, 50_000) if n <= arguments.most])
    notes = (
        f"{arguments.images} files in the page cache, batches of {arguments.batch_size}, {torch.get_num_threads()} threads, "
        f"medians of {arguments.rounds} rounds in turns; the ratio is taken within each round. JPEGs of 32 x 32 are "
        f"{'test images of CIFAR-10' if is_real else 'random pixels'}, those of 256 x 256 smooth random pictures with grain. "
        "efficientnet-lite0 enlarges images of 32 to 96 pixels inside. Memory: the peak of a fresh process, torch included "
        "(cnn-small; files listed in a manifest, rows to Parquet)."
    )
    write_result(
        arguments.name, rows, notes, target=f"ratio of at least {TARGET}; least of the rows: {least}", seeds=[0]
    )


if __name__ == "__main__":
    main()
