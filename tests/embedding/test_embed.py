"""What `embed` writes: views against a direct computation, subsets, resumption, full disks, and what it refuses."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import types
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load
from torch import nn

from momatch.augment import StrongAugment, WeakAugment
from momatch.console.signals import Interrupted
from momatch.data.content import draw_keys, pixel_digests
from momatch.data.features import backbone_weights
from momatch.data.load import load_dataset
from momatch.data.rows import FeatureRows, PixelRows
from momatch.data.sampling import draw_subset
from momatch.embedding import embed
from momatch.models.backbones import build_backbone
from momatch.models.normalize import Normalize
from momatch.outliers.stages import StageReader
from tests.embedding.setting import Corners, F, small_options
from tests.training.faults import Killed, failing, no_space
from tests.training.test_processes import environment


def test_views_are_those_of_seed_view_and_content_whatever_the_batch_and_the_limit(tmp_path):
    options = small_options(tmp_path, limit=50, limit_test=7, batch_size=9)
    embedded = embed(options)
    images, features = load_dataset(options.dataset), load_dataset(options.out)
    facts = features.features
    rows = draw_subset(images.train.labels, 50, seed=3)
    assert (embedded.train, embedded.train_of, embedded.test, embedded.passed) == (50, 160, 7, 50 * 5 + 7)
    assert features.train.features.shape == (50, 5, F)
    assert features.train.features.dtype == torch.float16
    assert torch.equal(features.train.labels, images.train.labels[rows])
    assert torch.equal(features.train.rows.pictures.gather(torch.arange(len(rows))), images.train.images[rows])
    network = Corners()
    network.load_state_dict(backbone_weights(facts))
    normalize = Normalize(*facts.normalization)

    def expected(view, row, step):
        image = images.train.images[row][None]
        key = int(draw_keys(pixel_digests(PixelRows([image])))[0])
        seen = image if view is None else view(image, seed=3, step=step, offset=key)
        with torch.no_grad():
            return network(normalize(seen))[0]

    weak, strong = WeakAugment(flip=False), StrongAugment(flip=False)
    views = [(None, 0), (weak, 0), (weak, 1), (strong, 0), (strong, 1)]
    for place in (0, 8, 9, 49):
        for number, (view, step) in enumerate(views):
            wanted = expected(view, int(rows[place]), step)
            torch.testing.assert_close(features.train.features[place, number].float(), wanted, atol=1e-3, rtol=0)
    with torch.no_grad():
        plain = network(normalize(images.test.images[draw_subset(images.test.labels, 7, seed=3)]))
    torch.testing.assert_close(features.test.features[:, 0].float(), plain, atol=1e-3, rtol=0)


def test_stages_are_those_of_the_plain_view(tmp_path):
    options = small_options(tmp_path, backbone="cnn-tiny", untrained=True, limit=20, limit_test=7, batch_size=9)
    spec = embed(options).spec
    images, stored = load_dataset(options.dataset), load_dataset(options.out)
    assert stored.features == spec
    assert spec.stage_names == ("layers.0", "layers.4", "layers.8", "layers.11")
    network = build_backbone("cnn-tiny", 1).eval()
    network.load_state_dict(backbone_weights(spec))
    reader, normalize = StageReader(network, spec.stage_names), Normalize(*spec.normalization)
    for split, n in (("train", 20), ("test", 7)):
        rows = draw_subset(images.splits[split].labels, n, seed=3)
        with torch.no_grad():
            features, stages = reader(normalize(images.splits[split].images[rows]))
        found = stored.splits[split].rows.stages_at(torch.arange(n))
        assert found.shape == (n, spec.num_statistics)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, stages, atol=1e-4, rtol=1e-4)
        plain = stored.splits[split].features[:, 0].float()
        torch.testing.assert_close(plain, features, atol=1e-3, rtol=1e-3)


def test_network_that_declares_no_stages(tmp_path, monkeypatch):
    options = small_options(tmp_path, limit=9)
    assert embed(options).spec.stage_names == ("mix",)
    # Without a layer to look at, the features are the only stage.
    monkeypatch.setattr(Corners, "forward", lambda self, x: nn.functional.adaptive_avg_pool2d(x, 4).flatten(1)[:, :F])
    spec = embed(replace(options, overwrite=True)).spec
    assert (spec.stage_names, spec.num_statistics) == ((), F)
    rows = load_dataset(options.out).train.rows
    every = torch.arange(9)
    torch.testing.assert_close(rows.stages_at(every), rows.gather(every)[:, 0].float(), atol=1e-3, rtol=1e-3)


def test_features_are_mapped_from_the_file_and_not_read(tmp_path):
    options = small_options(tmp_path)
    embed(options)
    dataset = load_dataset(options.out)
    features = dataset.train.features
    assert isinstance(dataset.train.rows, FeatureRows)
    assert features.data_ptr() % 64 == 0
    # A byte that changes in the file changes in the tensor: there is no copy.
    with np.load(options.out) as archive:
        before = archive["train_features"]
    np.testing.assert_array_equal(before, features.numpy())
    at = options.out.read_bytes().index(before.tobytes())
    with open(options.out, "r+b") as file:
        file.seek(at)
        file.write(np.float16(7.5).tobytes())
    assert float(features[0, 0, 0]) == 7.5
    with pytest.raises(ValueError, match=r"train_features.npy is damaged; embed the images again"):
        load_dataset(options.out, verify=True)


def test_images_are_converted_to_the_size_of_the_network_a_few_at_a_time(tmp_path, monkeypatch):
    """All at once would be 7.5 GB of 50,000 small images at 224 pixels."""
    original, converted = PixelRows.converted, []
    monkeypatch.setattr(
        PixelRows, "converted", lambda self, shape: converted.append(len(self)) or original(self, shape)
    )
    monkeypatch.setattr("momatch.embedding.embedding.STANDARDIZED_OVER", 40)
    options = small_options(tmp_path, image_size=24, batch_size=32)
    assert embed(options).train == 160
    assert max(converted) <= 40


def test_labels_come_first_and_classes_keep_their_share():
    labels = torch.tensor([0] * 30 + [1] * 60 + [-1] * 300)
    assert draw_subset(labels, 1000, seed=0).tolist() == list(range(390))
    some = draw_subset(labels, 120, seed=0)
    assert (labels[some] >= 0).sum() == 90
    few = labels[draw_subset(labels, 30, seed=1)]
    assert few.bincount().tolist() == [10, 20]
    assert not torch.equal(draw_subset(labels, 30, seed=1), draw_subset(labels, 30, seed=2))


#: Makes features.npz and kills itself before the twelfth batch; every batch before that is on the disk.
KILLED = """
import os, signal, sys
from pathlib import Path
import pytest
from momatch.embedding import embed
from tests.embedding.setting import small_options
from tests.embedding.test_embed import interrupted_after

with pytest.MonkeyPatch.context() as patch:
    patch.setattr("momatch.data.cache._SYNC_SECONDS", -1.0)
    interrupted_after(patch, 12, lambda: os.kill(os.getpid(), signal.SIGKILL))
    embed(small_options(Path(sys.argv[1]), batch_size=8))
"""


@pytest.mark.slow
def test_killed_embedding_goes_on_where_it_was(tmp_path):
    whole = small_options(tmp_path, out=tmp_path / "whole.npz", batch_size=8)
    embed(whole)
    options = replace(whole, out=tmp_path / "features.npz")
    part = tmp_path / "features.npz.part"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], env=environment(), check=False)
    assert killed.returncode == -signal.SIGKILL
    done = [json.loads(line)["rows"] for line in (part / "done.jsonl").read_text().splitlines()]
    assert done[-1] == 11 * 8
    assert not options.out.exists()
    embedded = embed(options)
    assert embedded.resumed == 5 * done[-1]
    assert not part.exists()
    # The weights are random, and yet those of the first process; the seed makes the views.
    resumed, other = (load_dataset(path) for path in (options.out, whole.out))
    assert torch.equal(resumed.train.features, other.train.features)
    assert torch.equal(resumed.test.features, other.test.features)
    assert_same_stages(resumed, other)


def assert_same_stages(dataset, other):
    for split, expected in zip(dataset.splits.values(), other.splits.values(), strict=True):
        every = torch.arange(len(expected))
        assert torch.equal(split.rows.stages_at(every), expected.rows.stages_at(every))


def interrupted_after(monkeypatch, batches, action):
    """Let `action` happen before the given batch is written."""
    from momatch.embedding.part import RowWriter

    write, calls = RowWriter.write, [0]

    def counted(self, first, **arrays):
        calls[0] += 1
        if calls[0] == batches:
            action()
        write(self, first, **arrays)

    monkeypatch.setattr(RowWriter, "write", counted)


def test_ctrl_c_saves_and_another_command_is_refused(tmp_path, monkeypatch):
    options = small_options(tmp_path)
    with monkeypatch.context() as patch:
        interrupted_after(patch, 2, lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(
            Interrupted, match=r"stopped with 640 of 880 images done and saved; run the same command to resume"
        ):
            embed(options)
    with pytest.raises(
        ValueError, match=r"unfinished embedding with seed 3, got 4; run the original command to resume it"
    ):
        embed(replace(options, seed=4))
    with pytest.raises(ValueError, match=r"unfinished embedding with limit None, got 9"):
        embed(replace(options, limit=9))
    embedded = embed(replace(options, batch_size=32))
    assert (embedded.resumed, embedded.passed) == (640, 240)


def test_interrupted_embedding_gives_the_same_file(tmp_path, monkeypatch):
    whole = small_options(tmp_path, out=tmp_path / "whole.npz")
    embed(whole)
    options = replace(whole, out=tmp_path / "features.npz")
    # First among the training images, then among the test images.
    for _ in range(2):
        with monkeypatch.context() as patch:
            interrupted_after(patch, 2, lambda: os.kill(os.getpid(), signal.SIGINT))
            with pytest.raises(Interrupted):
                embed(options)
    assert embed(options).resumed > 0
    assert options.out.read_bytes() == whole.out.read_bytes()


def test_embedding_of_an_older_format_is_not_resumed(tmp_path, monkeypatch):
    options = small_options(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("momatch.embedding.embedding.VERSION", 1)
        interrupted_after(patch, 2, lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(Interrupted):
            embed(options)
    with pytest.raises(ValueError, match=r"unfinished embedding with format 1, got 3; .* delete the directory"):
        embed(options)


def test_embedding_without_a_row_begins_anew_with_the_weights_of_now(tmp_path, monkeypatch):
    options, part, left = small_options(tmp_path), tmp_path / "features.npz.part", tmp_path / "left"

    def die():
        # What a kill at this moment leaves: the process cannot tidy up.
        shutil.copytree(part, left)
        raise Killed

    with monkeypatch.context() as patch:
        interrupted_after(patch, 1, die)
        patch.setattr("tests.embedding.setting.corners", lambda: changed(Corners(), 0.0))
        with pytest.raises(Killed):
            embed(options)
    assert not part.exists()
    left.rename(part)
    assert (part / "plan.json").exists()
    # Another command is no other embedding either, where none was begun.
    embedded = embed(replace(options, weak_views=1))
    assert embedded.resumed == 0
    assert any(bool(value.any()) for value in backbone_weights(embedded.spec).values())


def changed(network, factor):
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(factor)
    return network


def test_goes_on_with_the_weights_it_was_begun_with_and_says_so(tmp_path, monkeypatch):
    options = small_options(tmp_path)
    with monkeypatch.context() as patch:
        interrupted_after(patch, 2, lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(Interrupted):
            embed(options)
    monkeypatch.setattr("tests.embedding.setting.corners", lambda: changed(Corners(), 2.0))
    stored = load((tmp_path / "features.npz.part" / "backbone.safetensors").read_bytes())
    with pytest.warns(
        UserWarning, match=r"resuming with the original weights; to start over .* delete .*features.npz.part"
    ):
        embedded = embed(options)
    assert embedded.resumed == 640
    assert all(torch.equal(value, stored[name]) for name, value in backbone_weights(embedded.spec).items())


def test_second_process_is_refused_and_takes_nothing_away(tmp_path, monkeypatch):
    options = small_options(tmp_path)

    def second():
        with pytest.raises(ValueError, match=r"another process is making features.npz; wait for it"):
            embed(options)

    interrupted_after(monkeypatch, 1, second)
    assert embed(options).passed == 880


def test_backbone_that_takes_no_float32_is_refused_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.embedding.setting.corners", lambda: Corners().bfloat16())
    with pytest.raises(ValueError, match=r"its weights are torch.bfloat16 but images are float32: have its factory"):
        embed(small_options(tmp_path))
    assert not (tmp_path / "features.npz.part").exists()


def test_full_disk_keeps_what_is_done(tmp_path, monkeypatch):
    options = small_options(tmp_path)
    with monkeypatch.context() as patch:
        interrupted_after(patch, 2, lambda: failing(patch, ("write",), 1, no_space, True))
        with pytest.raises(
            OSError, match=r"No space left on device; finished rows are kept; free some space"
        ) as caught:
            embed(options)
    assert caught.value.errno == errno.ENOSPC
    assert not options.out.exists()
    # At the end, while the file is put together.
    with monkeypatch.context() as patch:
        patch.setattr(
            "momatch.embedding.embedding.write_archive", lambda path, members: (_ for _ in ()).throw(no_space())
        )
        with pytest.raises(OSError, match=r"finished rows are kept"):
            embed(options)
    embedded = embed(options)
    assert (embedded.resumed, embedded.passed) == (880, 0)
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda path: types.SimpleNamespace(free=10))
        with pytest.raises(OSError, match=r"needs 0.00 GB while it works.*got 0.00 GB free; nothing was done yet"):
            embed(replace(options, out=tmp_path / "other.npz"))
    assert not (tmp_path / "other.npz.part").exists()


def test_overwriting_replaces_the_file_and_only_at_the_end(tmp_path, monkeypatch):
    options = small_options(tmp_path)
    embed(options)
    before = options.out.read_bytes()
    again = replace(options, overwrite=True, weak_views=0)
    with monkeypatch.context() as patch:
        interrupted_after(patch, 1, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(Interrupted):
            embed(again)
    assert options.out.read_bytes() == before
    embed(again)
    assert load_dataset(options.out).train.features.shape == (160, 3, F)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strong_views": 0}, "strong_views"),
        ({"weak_views": -1}, "weak_views: got -1, expected 0 or more"),
        ({"limit": 0}, "limit"),
        ({"cutout": 2.0}, "cutout: got 2.0, expected 0 to 1"),
        ({"backbone": "resnet"}, "backbone: got 'resnet'"),
        ({"flip": "maybe"}, "flip: got 'maybe', expected one of"),
    ],
)
def test_options_are_refused(tmp_path, unchecked, changes, message):
    with pytest.raises(ValueError, match=message):
        embed(small_options(tmp_path, **changes))
    assert not (tmp_path / "features.npz.part").exists()


def test_numbers_that_overflow_and_features_of_features_are_refused(tmp_path, monkeypatch):
    options = small_options(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Corners, "forward", lambda self, x: 1e6 * x.mean((1, 2, 3))[:, None].expand(-1, F))
        with pytest.raises(ValueError, match=r"not finite in float16 \(up to 65,504\)"):
            embed(options)
    with monkeypatch.context() as patch:
        patch.setattr(
            Corners, "forward", lambda self, x: self.mix(torch.full((len(x), 16), torch.inf)).nan_to_num(0, 0, 0)
        )
        with pytest.raises(ValueError, match=r"got statistics of its stages \(mix\) that are not finite in float32"):
            embed(options)
    assert not (tmp_path / "features.npz.part").exists()
    other = tmp_path / "other"
    other.mkdir()
    done = embed(small_options(other))
    with pytest.raises(ValueError, match=r"expected images, not features"):
        embed(small_options(tmp_path, dataset=str(done.spec.path), out=tmp_path / "twice.npz"))


@pytest.mark.slow
def test_pretrained_network(tmp_path):
    pytest.importorskip("efficientnet_lite_pytorch")
    embedded = embed(small_options(tmp_path, backbone="efficientnet-lite0", limit=3, limit_test=2, weak_views=0))
    dataset = load_dataset(embedded.spec.path)
    assert dataset.train.features.shape == (3, 3, 1280)
    network = build_backbone("efficientnet-lite0", 1).eval()
    rows = draw_subset(load_dataset(small_options(tmp_path, out=tmp_path / "x.npz").dataset).train.labels, 3, seed=3)
    images = load_dataset(tmp_path / "corners.npz", size=224).train.images[rows]  # the size that it was trained at
    with torch.no_grad():
        wanted = network(Normalize(*network.normalization)(images))
    torch.testing.assert_close(dataset.train.features[:, 0].float(), wanted, atol=5e-3, rtol=1e-3)
