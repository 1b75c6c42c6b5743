"""Every setting of an embedding."""

from dataclasses import dataclass
from pathlib import Path

from momatch.config import TrainConfig
from momatch.numerics.checks import check_positive_int


@dataclass(frozen=True, kw_only=True)
class EmbedOptions:
    """What is embedded, by what and how. Fields of the same name are those of `TrainConfig`.

    Attributes:
        dataset: a known name, an image folder, a .csv/.parquet manifest or an .npz of images.
        out: the features file to make.
        backbone: a known network or package.module:factory.
        backbone_variant: of the Wide ResNets.
        weak_views: weak views of each training image, beside the plain one.
        strong_views: strong views of each training image.
        flip: mirror images at random; "auto": not where mirroring changes the class.
        strong_operations: random changes that a strong view makes to an image.
        cutout: largest side of the square that a strong view blanks, as a fraction of the image's.
        image_size: side to which images are brought before views are made of them.
        test_fraction: hold out this fraction of each class for testing, where the dataset has no test images.
        limit: training images to take; None for all.
        limit_test: test images to take; None for all.
        data_dir: where known datasets lie.
        batch_size: images a pass.
        seed: of the views, of the images taken by `limit`, and of a backbone that starts from random weights.
        device: as in `TrainConfig`.
        overwrite: replace a file that is there.
        progress: show progress on the standard error.

    Raises:
        ValueError: naming the option that is out of range.
    """

    dataset: str
    out: Path
    backbone: str = "efficientnet-lite0"
    backbone_variant: str = "default"
    weak_views: int = 1
    strong_views: int = 2
    flip: str = "auto"
    strong_operations: int = 3
    cutout: float = 0.5
    image_size: int | None = None
    test_fraction: float = 0.0
    limit: int | None = None
    limit_test: int | None = None
    data_dir: str | None = None
    batch_size: int = 64
    seed: int = 0
    device: str = "auto"
    overwrite: bool = False
    progress: bool = True

    def __post_init__(self) -> None:
        if self.weak_views < 0:
            raise ValueError(f"weak_views: got {self.weak_views}, expected 0 or more: the plain view counts as weak")
        for name in ("strong_views", "batch_size"):
            check_positive_int(name, getattr(self, name))
        for name in ("limit", "limit_test"):
            if getattr(self, name) is not None:
                check_positive_int(name, getattr(self, name))
        self.as_config()
        parent = self.out.absolute().parent
        if self.out.suffix.lower() != ".npz" or self.out.is_dir() or not parent.is_dir():
            raise ValueError(f"out: got {self.out}, expected a file that ends in .npz, in a directory that exists")
        if self.out.exists() and not self.overwrite:
            raise ValueError(f"out: {self.out} is there already; give another name, or overwrite (--overwrite)")

    def as_config(self) -> TrainConfig:
        """A config with the same settings, which has checked them, and fills in the defaults that depend on the dataset."""
        shared = ("dataset", "backbone", "backbone_variant", "flip", "strong_operations", "cutout", "image_size")
        others = ("test_fraction", "data_dir", "seed", "device")
        return TrainConfig.from_dict({name: getattr(self, name) for name in (*shared, *others)}).resolved()
