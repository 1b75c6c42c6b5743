"""Small models with every part that a saved model can have, not trained but with unlike numbers everywhere."""

import torch

from momatch.heads import GaussianMixtureHead
from momatch.models.model_files import build_classifier
from momatch.models.outputs import run_classifier
from momatch.models.saved_model import OutlierCalibration, SavedModel
from momatch.models.scorer import Scorer
from momatch.models.spec import ModelSpec
from momatch.outliers import Judge, find_stages

FACTS = {
    "backbone": "cnn-tiny",
    "head": "aagmm",
    "embedding_dim": 4,
    "class_names": ("cat", "dog", "Käfer"),
    "in_channels": 1,
    "image_size": (9, 8),
    "normalization": ((0.4,), (0.3,)),
    "dataset": "pets",
}


def random_images(facts: ModelSpec, n: int, *, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (n, facts.in_channels, *facts.image_size)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def small_model(
    *, refitted: bool = True, judged: bool = True, calibrated: int = 30, seen: int = 60, **facts: object
) -> SavedModel:
    """A model of random weights; its clusters lie where its embeddings of the images that it has `seen` do."""
    values = FACTS | facts
    if values["in_channels"] == 3:
        values["normalization"] = ((0.4, 0.5, 0.6), (0.3, 0.2, 0.25))
    known = ModelSpec(**values)
    torch.manual_seed(0)
    classifier = build_classifier(known, trust_code=True)
    # Batch norm with the statistics of images, as after training.
    for module in classifier.modules():
        if isinstance(module, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d):
            module.momentum = None
    images = random_images(known, seen, seed=0)
    labels = torch.arange(len(images)) % len(known.class_names)
    with torch.no_grad():
        classifier.train()(images)
        classifier.eval()
        names = find_stages(classifier.backbone, classifier.preprocess(images[:1])) if judged else None
        outputs = run_classifier(classifier, images, stage_names=names)
        head = None
        if isinstance(classifier.head, GaussianMixtureHead):
            classifier.head.centers.copy_(outputs.z[: len(classifier.head.centers)])
            if refitted:
                head = type(classifier.head)(classifier.head.embedding_dim, len(known.class_names))
                head.refit(outputs.z, labels)
        judge = None
        if names is not None:
            judge = Judge(outputs.stages.shape[1], len(known.class_names), names).fit([(outputs.stages, labels)])
    calibration = None
    if calibrated:
        some = outputs.select(torch.arange(calibrated))
        scorer = Scorer(classifier.head, head, judge=judge).calibrate(some.z, some.stages)
        calibration = OutlierCalibration(scorer.calibration_scores, scorer.score_name, f"{calibrated} test images")
    return SavedModel(classifier, known, head, judge, calibration)
