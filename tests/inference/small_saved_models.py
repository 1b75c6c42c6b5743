"""A small saved model, untrained but calibrated, and files of images."""

import numpy as np
import torch
from PIL import Image

from momatch.heads import AAGMM
from momatch.models.model_files import build_classifier
from momatch.models.outputs import run_classifier
from momatch.models.saved_model import OutlierCalibration, SavedModel
from momatch.models.scorer import Scorer
from momatch.models.spec import ModelSpec
from momatch.outliers import Judge

CLASSES = ("cat", "dog", "sea lion")


def small_model(*, channels=3, size=(8, 8), head="aagmm", calibration_size=19, refitted=True, judged=False):
    facts = ModelSpec(
        backbone="mlp",
        head=head,
        embedding_dim=4,
        class_names=CLASSES,
        in_channels=channels,
        image_size=size,
        normalization=((0.5,) * channels, (0.25,) * channels),
        dataset="pets",
    )
    classifier = build_classifier(facts).eval()
    mixture = AAGMM(4, 3).eval() if refitted and head == "aagmm" else None
    names = classifier.backbone.stage_names if judged else None

    def outputs(count):
        pixels = torch.randint(0, 256, (count, channels, *size), dtype=torch.uint8)
        return run_classifier(classifier, pixels, stage_names=names)

    judge = None
    if judged:
        seen = outputs(60).stages
        judge = Judge(seen.shape[1], 3, names).fit([(seen, torch.arange(60) % 3)])
    calibration = None
    if calibration_size:
        held_out = outputs(calibration_size)
        scorer = Scorer(classifier.head, mixture, judge=judge).calibrate(held_out.z, held_out.stages)
        calibration = OutlierCalibration(scorer.calibration_scores, scorer.score_name, "random pixels")
    return SavedModel(classifier, facts, mixture, judge, calibration)


def pictures(folder, count=7, side=8, *, mode="RGB", extension="png"):
    """Random pictures in `folder`, 0.png onwards; every third is flat, and so far from the calibration's random pixels."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(len(mode))
    bands = (side, side, 3) if mode == "RGB" else (side, side)
    paths = []
    for i in range(count):
        pixels = rng.integers(0, 256, bands, dtype=np.uint8)
        if i % 3 == 2:
            pixels[:] = 255 * (i % 2)
        paths.append(folder / f"{i}.{extension}")
        Image.fromarray(pixels).save(paths[-1])
    return paths
