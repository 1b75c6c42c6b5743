import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, TensorDataset

from momatch.data.report import DataError
from momatch.data.sources.torch_dataset import from_torch_dataset, to_uint8


class Listed(TorchDataset):
    def __init__(self, items, classes=None):
        self.items = items
        if classes:
            self.classes = classes

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index % len(self.items)]


class Stream(IterableDataset):
    def __iter__(self):
        yield from ((torch.full((1, 4, 4), k, dtype=torch.uint8), k % 2) for k in range(6))


@pytest.fixture
def images(rng):
    return torch.from_numpy(rng.integers(0, 256, (10, 3, 4, 4), dtype=np.uint8))


def test_tensors_and_labels(images):
    labels = torch.arange(10) % 2
    dataset = from_torch_dataset(
        TensorDataset(images, labels), test=TensorDataset(images[:3], labels[:3]), progress=False
    )
    assert torch.equal(dataset.train.images, images)
    assert dataset.class_names == ("0", "1")
    assert dataset.test is not None
    assert dataset.test.labels.tolist() == [0, 1, 0]


def test_every_kind_of_image_gives_the_same(images):
    array = images[0].numpy().transpose(1, 2, 0)
    kinds = [images[0], images[0].float() / 255, array, Image.fromarray(array), images[0].double() / 255]
    for kind in kinds:
        assert (to_uint8(kind) == images[0].numpy()).all()
    assert to_uint8(Image.new("L", (4, 4), 7)).shape == (1, 4, 4)


def test_unlabelled_samples_and_class_names(images):
    labeled = Listed(
        [(images[0], 1), (images[1], None), (images[2], -1), (images[3],), (images[4], np.int64(0))], ["a", "b"]
    )
    dataset = from_torch_dataset(labeled, unlabeled=Listed([(images[5], 1), images[6]]), progress=False)
    assert dataset.train.labels.tolist() == [1, -1, -1, -1, 0, -1, -1]
    assert dataset.class_names == ("a", "b")
    assert torch.equal(dataset.train.images, images[:7])


def test_iterable_datasets(tmp_path):
    dataset = from_torch_dataset(Stream(), progress=False)
    assert dataset.train.labels.tolist() == [0, 1, 0, 1, 0, 1]
    with pytest.raises(DataError, match="got an iterable-style dataset"):
        from_torch_dataset(Stream(), cache_key="s", cache_dir=tmp_path, progress=False)


def test_cache_keeps_images_and_labels(images, tmp_path):
    source = Listed([(image, k % 2) for k, image in enumerate(images)])
    first = from_torch_dataset(source, cache_key="mine", cache_dir=tmp_path, progress=False)
    other = Listed([(images[0], 0)] * len(images))  # as long, so the key decides
    second = from_torch_dataset(other, cache_key="mine", cache_dir=tmp_path, progress=False)
    assert torch.equal(first.train.images, images)
    assert torch.equal(second.train.images, images)
    assert second.train.labels.tolist() == first.train.labels.tolist()


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (("text", 0), "sample 1: got str"),
        ((torch.zeros(2, 4, 4, dtype=torch.uint8), 0), "expected .* with C = 1 or 3"),
        ((torch.randn(3, 4, 4), 0), "remove the normalisation"),
        ((torch.zeros(3, 4, 4, dtype=torch.int64), 0), "got dtype int64"),
        ((torch.zeros(3, 5, 4, dtype=torch.uint8), 0), "mixed sizes: sample 1"),
        ((torch.zeros(3, 4, 4, dtype=torch.uint8), 0.5), "got the label 0.5"),
        ((torch.zeros(3, 4, 4, dtype=torch.uint8), "cat"), "got the label 'cat'"),
        ((torch.zeros(3, 4, 4, dtype=torch.uint8), -3), "got the label -3"),
        ((Image.new("RGBA", (4, 4)), 0), "RGBA, expected a Pillow image"),
    ],
)
def test_samples_that_do_not_fit_are_refused(images, item, message):
    with pytest.raises(DataError, match=message):
        from_torch_dataset(Listed([(images[0], 1), item]), progress=False)


def test_empty_and_one_class_are_refused(images):
    with pytest.raises(DataError, match="got an empty dataset"):
        from_torch_dataset(Listed([]), progress=False)
    with pytest.raises(DataError, match="got 1 class"):
        from_torch_dataset(Listed([(images[0], 0)]), progress=False)
