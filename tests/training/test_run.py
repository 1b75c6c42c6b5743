import pytest
import torch

from momatch.config import TrainConfig
from momatch.heads import AAGMM
from momatch.models.model_files import build_classifier, save_model
from momatch.models.spec import ModelSpec
from momatch.storage.run_directory import RunDirectory
from momatch.training.run import Run

CONFIG = TrainConfig(seed=3).resolved()
FACTS = ModelSpec(
    backbone="mlp",
    head="aagmm",
    embedding_dim=2,
    class_names=("cat", "dog"),
    in_channels=1,
    image_size=(4, 4),
    normalization=((0.5,), (0.25,)),
    dataset="pets",
)


def make(path, *, finished=True):
    classifier, head = build_classifier(FACTS), AAGMM(2, 2)
    with RunDirectory.create(path, CONFIG) as directory:
        directory.append_metrics({"step": 20, "loss": 0.25})
        save_model(path, classifier, FACTS, head)
        if finished:
            directory.write_result({"test_accuracy": 0.75})
    return classifier, head


def test_a_finished_run(tmp_path):
    classifier, head = make(tmp_path / "a")
    run = Run.load(str(tmp_path / "a"))
    assert run.directory == tmp_path / "a"
    assert run.config == CONFIG
    assert run.result == {"test_accuracy": 0.75}
    assert run.metrics() == [{"step": 20, "loss": 0.25}]
    assert run.spec == FACTS
    assert run.class_names == ("cat", "dog")
    assert run.classifier is run.classifier
    assert not run.classifier.training
    assert torch.equal(run.classifier.projection.weight, classifier.projection.weight)
    assert torch.equal(run.refitted_head.centers, head.centers)
    assert repr(run) == f"Run('{tmp_path / 'a'}', finished)"


def test_an_unfinished_run_is_readable_but_has_no_model(tmp_path):
    make(tmp_path / "a b", finished=False)
    run = Run.load(tmp_path / "a b")
    assert (run.config, run.result, run.metrics()) == (CONFIG, None, [{"step": 20, "loss": 0.25}])
    for name in ("classifier", "spec", "refitted_head", "class_names"):
        with pytest.raises(
            ValueError, match=r"not finished.* resume it with: momatch train --resume --run-dir '.*a b'$"
        ):
            getattr(run, name)
    assert repr(run).endswith("not finished)")


def test_reading_needs_no_lock_and_leaves_nothing(tmp_path):
    make(tmp_path / "a")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with RunDirectory.open(tmp_path / "a"):
        assert Run.load(tmp_path / "a").classifier is not None
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}


def test_what_is_no_run(tmp_path):
    (tmp_path / "file").touch()
    for name in ("missing", "file"):
        with pytest.raises(ValueError, match="there is no such directory, expected a run directory"):
            Run.load(tmp_path / name)
    with pytest.raises(ValueError, match=r"no config.json, expected a run directory"):
        Run.load(tmp_path)


@pytest.mark.parametrize("file", ["config.json", "result.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe"])
def test_damaged_json_is_named(tmp_path, file, content):
    make(tmp_path)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{file}: .*damaged"):
        Run.load(tmp_path)


def test_a_damaged_model_leaves_the_rest_readable(tmp_path):
    make(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    run = Run.load(tmp_path)
    assert run.result == {"test_accuracy": 0.75}
    with pytest.raises(ValueError, match=r"model.safetensors: got 0 bytes, expected \d+; the file is damaged"):
        _ = run.classifier
