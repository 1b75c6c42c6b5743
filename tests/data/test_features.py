"""Features files that are damaged, of another version or made otherwise, and rows of features."""

import json
import re
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from momatch.data.batches import BatchStream
from momatch.data.dataset import Examples, Split
from momatch.data.feature_spec import MARKER, read_feature_spec
from momatch.data.features import write_archive
from momatch.data.load import load_dataset
from momatch.data.report import DataError
from momatch.data.rows import FeatureRows, PixelRows, Rows
from momatch.data.statistics import channel_statistics
from momatch.embedding import embed
from tests.embedding.setting import small_options


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    """The content of a features file."""
    path = embed(small_options(tmp_path_factory.mktemp("features"), limit=20, limit_test=5)).spec.path
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def facts_with(members, **changes):
    return json.dumps(json.loads(members[MARKER]) | changes).encode()


def npy(path, array):
    np.save(path, array)
    return path.read_bytes()


def test_file_is_a_plain_npz_whose_members_are_aligned(members, tmp_path):
    path = tmp_path / "f.npz"
    write_archive(path, members)
    with np.load(path) as archive:
        assert archive["train_features"].shape == (20, 5, 12)
        assert archive["train_labels"].dtype == np.int64
        assert archive["train_stages"].shape == (20, 12)
        assert archive["test_stages"].dtype == np.float32
    data = path.read_bytes()
    assert all(data.index(content) % 64 == 0 for content in members.values())
    spec = read_feature_spec(path)
    assert (spec.num_views, spec.stage_names, spec.num_statistics) == (5, ("mix",), 12)
    assert read_feature_spec(tmp_path / "none.npz") is None


def test_damaged_files_are_refused(members, tmp_path):
    path = tmp_path / "f.npz"

    def refused(match, **changes):
        content = {name: value for name, value in {**members, **changes}.items() if value is not None}
        write_archive(path, content)
        with pytest.raises(DataError, match=match):
            load_dataset(path)

    refused(
        r"version 1 of the features format, expected 3; it was written by", **{MARKER: facts_with(members, version=1)}
    )
    refused(r"momatch_features.json cannot be read", **{MARKER: b"{"})
    refused(r"momatch_features.json cannot be read", **{MARKER: facts_with(members, image_size=8)})
    refused(r"momatch_features.json cannot be read", **{MARKER: facts_with(members, stage_names=None)})
    refused(r"without the weights of their backbone .* MoMatchClassifier", **{"backbone.safetensors": None})
    refused(r"cannot be read as a features file", **{"train_features.npy": None})
    wide = npy(tmp_path / "x.npy", np.zeros((20, 5, 12), np.float32))
    refused(
        r"train_features.npy: got float32 \(20, 5, 12\), expected float16 \(20, 5, 12\)", **{"train_features.npy": wide}
    )
    short = npy(tmp_path / "x.npy", np.zeros((19, 5, 12), np.float16))
    refused(r"got float16 \(19, 5, 12\), expected float16 \(20, 5, 12\)", **{"train_features.npy": short})
    cut = members["train_features.npy"][:-100]
    refused(r"train_features.npy", **{"train_features.npy": cut})
    for split, n in (("train", 20), ("test", 5)):
        member = f"{split}_stages.npy"
        refused(rf"cannot be read as a features file .*{member}", **{member: None})
        refused(member, **{member: members[member][:-4]})
        for wrong in (np.zeros((n, 12), np.float64), np.zeros((n - 1, 12), np.float32), np.zeros((n, 11), np.float32)):
            got = re.escape(f"{wrong.dtype} {wrong.shape}")
            refused(rf"{member}: got {got}, expected float32 \({n}, 12\)", **{member: npy(tmp_path / "x.npy", wrong)})
    labels = npy(tmp_path / "x.npy", np.zeros(20, np.int32))
    refused(r"train_labels: got int32 \(20,\), expected int64", **{"train_labels.npy": labels})
    outside = npy(tmp_path / "x.npy", np.full(20, 9))
    refused(r"got labels from 9 to 9, expected -1 \(unlabelled\) to 3", **{"train_labels.npy": outside})
    write_archive(path, members)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DataError, match="cannot be read as"):
        load_dataset(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(DataError, match="compressed or damaged"):
        load_dataset(path)


def test_options_without_meaning_and_plain_vectors_are_refused(members, tmp_path):
    path = tmp_path / "f.npz"
    write_archive(path, members)
    with pytest.raises(DataError, match="size does not apply to this dataset"):
        load_dataset(path, size=8)
    np.savez(path, x_train=np.zeros((4, 3), np.float32), y_train=np.zeros(4, int))
    with pytest.raises(DataError, match=r"for vectors use momatch.MoMatchClassifier"):
        load_dataset(path)


def test_rows_of_features_are_picked_like_images():
    features = torch.arange(6 * 3 * 2, dtype=torch.float16).view(6, 3, 2)
    pictures = torch.arange(6, dtype=torch.uint8).view(6, 1, 1, 1).expand(6, 1, 2, 2)
    examples = Examples.of(Split(FeatureRows([features], pictures=[pictures]), torch.arange(6))).select(
        torch.tensor([4, 1])
    )
    rows = examples.rows.append(FeatureRows([features[:1]], pictures=[pictures[:1]]))
    assert torch.equal(rows.gather(torch.tensor([2, 0, 1])), features[[0, 4, 1]])
    assert torch.equal(rows.plain().gather(torch.arange(3)), features[[4, 1, 0], :1])
    assert rows.pictures.gather(torch.arange(3))[:, 0, 0, 0].tolist() == [4, 1, 0]
    assert rows.nbytes == 3 * 3 * 2 * 2
    assert FeatureRows([features]).pictures is None
    assert torch.equal(rows.to_device(torch.device("cpu")), features[[4, 1, 0]])
    labels = torch.arange(2)
    for budget in (None, 0):
        stream = BatchStream(
            rows.select(labels),
            labels,
            rows,
            labeled_batch_size=2,
            unlabeled_batch_size=3,
            seed=0,
            device_budget=budget,
        )
        batch = stream.batch(0)
        assert batch.unlabeled.dtype == torch.float16
        assert torch.equal(batch.unlabeled, rows.gather(batch.unlabeled_indices))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=3), st.data())
def test_stages_stay_with_their_rows(sizes, data):
    total = sum(sizes)
    features, stages = [torch.zeros(n, 2, 1) for n in sizes], [torch.rand(n, 3) for n in sizes]
    everything = torch.cat(stages)
    index = st.lists(st.integers(0, max(0, total - 1)), max_size=8 if total else 0)
    chosen = torch.tensor(data.draw(index), dtype=torch.int64)
    rows = FeatureRows(features, chosen, stages=stages)
    backward = torch.arange(len(chosen)).flip(0)
    assert torch.equal(rows.stages_at(backward), everything[chosen.flip(0)])
    assert torch.equal(rows.plain().stages_at(backward), everything[chosen.flip(0)])
    half = rows.select(backward[::2])
    assert torch.equal(half.stages_at(torch.arange(len(half))), everything[chosen.flip(0)[::2]])
    both = half.append(FeatureRows(features, stages=stages))
    expected = torch.cat([everything[chosen.flip(0)[::2]], everything])
    assert torch.equal(both.stages_at(torch.arange(len(both))), expected)


def test_stages_are_copied_and_kept_only_if_both_sides_have_the_same():
    features, stages = torch.zeros(2, 3, 4), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    rows = FeatureRows([features], stages=[stages])
    rows.stages_at(torch.tensor([0])).zero_()
    assert stages.tolist() == [[1, 2], [3, 4]]
    first = torch.tensor([0])
    assert rows.append(rows).stages_at(first).tolist() == [[1, 2]]
    assert rows.append(FeatureRows([features])).stages_at(first) is None
    assert FeatureRows([features]).append(rows).stages_at(first) is None
    assert rows.append(FeatureRows([features], stages=[stages[:, :1]])).stages_at(first) is None
    assert PixelRows([torch.zeros(2, 1, 8, 8, dtype=torch.uint8)]).stages_at(first) is None
    with pytest.raises(ValueError, match="stages: got 1, expected 2, one per row"):
        FeatureRows([features], stages=[stages[:1]])
    for wrong in (stages.long(), stages[:, 0], stages[:, :1]):
        with pytest.raises(
            ValueError, match=r"expected statistics, floating \(N, S\), with the same S for each source"
        ):
            FeatureRows([features, features], stages=[stages, wrong])


def test_features_are_not_taken_for_images(unchecked):
    features = torch.zeros(2, 3, 4)
    labels = torch.zeros(2, dtype=torch.int64)
    rows, pixels = FeatureRows([features]), PixelRows([torch.zeros(2, 1, 8, 8, dtype=torch.uint8)])
    with pytest.raises(ValueError, match="got features: 3 views of 4, float32; expected pixels"):
        channel_statistics(rows)
    with pytest.raises(ValueError, match=r"got features \(V, F\) = \(3, 4\) to mix with rows of shape \(1, 8, 8\)"):
        rows.like(pixels)
    with pytest.raises(ValueError, match="got images to mix with features"):
        pixels.like(rows)
    with pytest.raises(ValueError, match=r"got torch.float16 rows of shape \(3, 4\), expected torch.float32"):
        FeatureRows([features, features.half()])
    with pytest.raises(
        ValueError, match=r"expected raw pixels, torch.uint8 \(N, C, H, W\), or features, floating \(N, V, F\)"
    ):
        Split(torch.zeros(2, 3), labels)
    with pytest.raises(ValueError, match="pictures: got 1, expected 2, one per row"):
        FeatureRows([features], pictures=[torch.zeros(1, 1, 2, 2, dtype=torch.uint8)])
    for labeled in (Split(features, labels), Examples(rows, labels)):
        with pytest.raises(ValueError, match="images: got features: 3 views of 4, float32; expected images"):
            _ = labeled.images


def test_each_kind_knows_what_a_model_takes():
    features = FeatureRows([torch.zeros(2, 3, 4)])
    pixels = PixelRows([torch.zeros(2, 1, 8, 8, dtype=torch.uint8)])
    assert features.for_model((3, 16, 16)) is features
    assert pixels.for_model((3, 16, 16)).shape == (3, 16, 16)
    assert isinstance(Rows.of(torch.zeros(2, 3, 4)), FeatureRows)
    assert isinstance(Rows.of(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)), PixelRows)
