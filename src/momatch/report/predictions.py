"""Images with what the model predicts for them, and what follows directly: contact sheets, densities, separation."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor

from momatch.data.dataset import UNLABELED, Split
from momatch.data.rows import Rows
from momatch.evaluation.evaluate import Outputs, outlier_scores, run_classifier, separation
from momatch.evaluation.judging import judge_scores
from momatch.evaluation.metrics import log_doubt
from momatch.heads import log_posterior
from momatch.report.read_run import Model, RunData
from momatch.report.run_report import Densities, Picture
from momatch.suggestions import suggest

#: Largest side of a thumbnail: thousands of photographs would take gigabytes.
MAX_THUMBNAIL_SIDE = 64
#: Images on a contact sheet.
MAX_PICTURES = 40
#: Images in the list of what to label next.
MAX_TO_LABEL = 20
#: Images of the pool that are scored; more would take long and show the same.
MAX_POOL = 20_000


@dataclass(frozen=True)
class Predictions:
    """The model's predictions for the images of one origin.

    Attributes:
        name: name of the origin.
        images: N images in the shape that the model takes.
        labels: (N,) true class, -1 for outliers and unlabelled images.
        outputs: the model's outputs.
        model: the model.
        files: name of each image's file; empty if the images did not come from files.
    """

    name: str
    images: Rows
    labels: Int64[Tensor, " N"]
    outputs: Outputs
    model: Model
    files: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        model: Model,
        name: str,
        images: Rows,
        labels: Int64[Tensor, " N"] | None = None,
        *,
        files: tuple[str, ...] = (),
    ) -> "Predictions":
        """Run the model on images; without `labels` they count as unlabelled.

        Raises:
            ValueError: if there are no images, or the model does not take raw images.
        """
        labels = torch.full((len(images),), UNLABELED) if labels is None else labels
        names = None if model.judge is None else model.judge.stage_names
        return cls(name, images, labels, run_classifier(model.classifier, images, stage_names=names), model, files)

    def __len__(self) -> int:
        return len(self.images)

    def select(self, positions: Int64[Tensor, " n"]) -> "Predictions":
        """The predictions at `positions`."""
        rows, labels = self.images.select(positions), self.labels[positions]
        files = tuple(self.files[position] for position in positions.tolist()) if self.files else ()
        return Predictions(self.name, rows, labels, self.outputs.select(positions), self.model, files)

    def where(self, mask: Bool[Tensor, " N"]) -> "Predictions":
        """The predictions where `mask` is true."""
        return self.select(mask.nonzero().flatten())

    @cached_property
    def is_finite(self) -> Bool[Tensor, " N"]:
        """(N,) whether embedding, log joint and outlier scores are finite; those of a diverged model are not."""
        outputs = self.outputs.z.isfinite().all(1) & self.outputs.log_joint.isfinite().all(1)
        return outputs & self.score.isfinite() & self.scores["density"].isfinite()

    @property
    def predicted(self) -> Int64[Tensor, " N"]:
        """The class of the largest posterior."""
        return self.outputs.log_joint.argmax(1)

    @property
    def confidence(self) -> Float[Tensor, " N"]:
        """The largest posterior."""
        return log_posterior(self.outputs.log_joint.double() / self.model.temperature).exp().amax(1)

    @property
    def doubt(self) -> Float[Tensor, " N"]:
        """log(1 - confidence), which distinguishes confidences that round to 1."""
        return log_doubt(self.outputs.log_joint / self.model.temperature)

    @cached_property
    def scores(self) -> dict[str, Float[Tensor, " N"]]:
        """All outlier scores, by the judge; without one, by the refitted head if there is one."""
        if self.model.judge is not None:
            return judge_scores(self.model.judge, self.outputs)
        return outlier_scores(self.model.outlier_head, self.outputs)

    @property
    def score(self) -> Float[Tensor, " N"]:
        """The judge's score; without a judge the distance to the nearest center, or the energy of a head without centers."""
        return next(self.scores[name] for name in ("judge", "nearest", "density") if name in self.scores)

    def thumbnails(self) -> UInt8[Tensor, "N C h w"]:
        """The images, no side longer than `MAX_THUMBNAIL_SIDE`; for features the pictures stored with them, or black ones."""
        pictures = self.images.pictures
        if pictures is None:
            return torch.zeros((len(self), self.model.spec.in_channels, 1, 1), dtype=torch.uint8)
        channels, height, width = pictures.shape
        scale = min(1.0, MAX_THUMBNAIL_SIDE / max(height, width))
        size = (max(1, round(scale * height)), max(1, round(scale * width)))
        return pictures.converted((channels, *size)).gather(torch.arange(len(self)))

    def pictures(self, order: Int64[Tensor, " n"], truths: Sequence[str | None]) -> tuple[Picture, ...]:
        """A contact sheet of the first images in `order`, at full size if available.

        Args:
            order: positions, first on the sheet first.
            truths: names of the true classes by position; None where unknown.
        """
        order = order[:MAX_PICTURES]
        shown, names = self.select(order), self.model.spec.class_names
        pictures = shown.images.pictures
        images = shown.thumbnails() if pictures is None else pictures.gather(torch.arange(len(shown)))
        columns = (order.tolist(), shown.predicted.tolist(), shown.confidence.tolist(), shown.score.tolist())
        files = shown.files or [""] * len(shown)
        return tuple(
            Picture(image, truths[position], names[predicted], confidence, score, file)
            for image, file, position, predicted, confidence, score in zip(images, files, *columns, strict=True)
        )


def outlier_threshold(inliers: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """The score above which an image is flagged: at most 5 % of the inliers lie above it."""
    accepted = -(-95 * len(inliers) // 100)
    return inliers.sort().values[accepted - 1]


def confident_mistakes(test: Predictions) -> tuple[Picture, ...]:
    """Misclassified test images, most confident first.

    Raises:
        ValueError: if no test image has a label.
    """
    known = test.where((test.labels != UNLABELED) & test.is_finite)
    if len(known) == 0:
        raise ValueError("There are no labelled test images, so no mistakes are known")
    wrong = known.where(known.predicted != known.labels)
    names = test.model.spec.class_names
    return wrong.pictures(wrong.doubt.argsort(stable=True), [names[k] for k in wrong.labels.tolist()])


def pool_sample(size: int, seed: int) -> Int64[Tensor, " n"]:
    """Positions in a pool of `size` images, ascending: all of them, or `MAX_POOL` drawn by `seed`."""
    if size <= MAX_POOL:
        return torch.arange(size)
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    return order[:MAX_POOL].sort().values


def most_outlying(pool: Predictions, apart: Int64[Tensor, " m"]) -> Int64[Tensor, " n"]:
    """Positions of the images with the highest outlier scores, highest first.

    Args:
        pool: predictions for images of the pool; those without finite outputs are left out.
        apart: positions of images to label next, which are left out as well: in a small pool every image is among the most
            outlying.
    """
    order = pool.score.argsort(descending=True, stable=True)
    return order[pool.is_finite[order] & ~torch.isin(order, apart)]


def to_label(pool: Predictions, is_labeled: Bool[Tensor, " N"], *, seed: int) -> Int64[Tensor, " n"]:
    """Positions of images to label next (`momatch.suggest`), of those that are neither labelled nor outlying.

    Args:
        pool: predictions for images of the pool.
        is_labeled: which images have a label that the model was trained on.
        seed: of the choice.
    """
    positions = pool.is_finite.nonzero().flatten()
    usable, is_known = pool.select(positions), is_labeled[positions]
    if bool(is_known.all()):
        return positions[:0]
    is_ordinary = is_known | (usable.score <= outlier_threshold(usable.score[~is_known]))
    chosen = suggest(
        usable.outputs.z.double().numpy(),
        torch.where(is_known, usable.predicted, UNLABELED).numpy(),
        n=MAX_TO_LABEL,
        posterior=log_posterior(usable.outputs.log_joint.double() / usable.model.temperature).exp().numpy(),
        p_inlier=is_ordinary.double().numpy(),
        seed=seed,
    )
    return positions[torch.from_numpy(chosen.rows)]


def file_names(split: Split, rows: Rows) -> tuple[str, ...]:
    """File names of `rows`, which were selected from `split`; none if its images did not come from files."""
    if not split.files:
        return ()
    # A selection has the tensors of the split; a pool with held-out images has them twice.
    place = split.rows.places()
    return tuple(split.files[position] for position in place[rows.index % len(place)].tolist())


def pool_truths(data: RunData, positions: Int64[Tensor, " n"]) -> list[str | None]:
    """Names of the true classes at `positions` of the pool; None where unknown."""
    truth, parts = data.split.truth, data.parts
    columns = (truth.labels[positions], truth.is_outlier[positions], truth.row[positions])
    names: list[str | None] = []
    for label, is_outlier, row in zip(*(column.tolist() for column in columns), strict=True):
        if is_outlier:
            names.append(f"{parts.unknown_names[int(parts.unknown_train.labels[row])]} (held out)")
        else:
            names.append(None if label == UNLABELED else parts.class_names[label])
    return names


def measure_densities(origins: Sequence[Predictions]) -> Densities:
    """log p(x) of every origin, and how well each score separates the others from the first.

    Log densities of a diverged model that are not finite are left out of the histograms; in the separation they count as
    most outlying.

    Args:
        origins: the test images first.

    Raises:
        ValueError: if the outputs of no test image are finite.
    """
    test, *others = origins
    if not bool(test.is_finite.any()):
        raise ValueError("The log density is not finite for any test image: the model has diverged")
    heads = {"as trained": test.model.classifier.head, "refitted": test.model.refitted}
    by_state = {
        state: {origin.name: outlier_scores(head, origin.outputs) for origin in origins}
        for state, head in heads.items()
        if head is not None
    }
    if test.model.judge is not None:
        by_state = {"judge": {origin.name: origin.scores for origin in origins}, **by_state}
    log_density, separations = {}, {}
    for state, scores in by_state.items():
        log_density[state] = {name: -found["density"][found["density"].isfinite()] for name, found in scores.items()}
        separations[state] = {origin.name: separation(scores[test.name], scores[origin.name]) for origin in others}
    return Densities(log_density, separations)
