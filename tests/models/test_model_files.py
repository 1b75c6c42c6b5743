import json
import pickle
import sys
from contextlib import suppress
from dataclasses import replace

import pytest
import torch

from momatch.heads import AAGMM, HEADS, Head, KMeans, Linear
from momatch.models import model_files
from momatch.models.model_files import build_classifier, load_model, save_model
from momatch.models.outputs import run_classifier
from momatch.models.saved_model import OutlierCalibration
from momatch.models.scorer import Scorer, score_images
from momatch.models.spec import ModelSpec
from momatch.outliers import Judge
from tests.training.faults import CHANGING, WRITING, Killed, every_moment, fill, no_space, small_disk

FACTS = ModelSpec(
    backbone="cnn-small",
    head="aagmm",
    embedding_dim=5,
    class_names=("Käfer", "b", "\udc80"),
    in_channels=1,
    image_size=(9, 8),
    normalization=((0.1 + 0.2,), (1 / 3,)),
    dataset="digits",
)


def trained(facts, **options):
    """A classifier whose buffers and parameters are all unlike those of a new one."""
    classifier = build_classifier(facts, trust_code=True, **options)
    for tensor in classifier.state_dict().values():
        if tensor.is_floating_point():
            tensor.add_(torch.rand_like(tensor) / 10)
        else:
            tensor.add_(3)
    return classifier.eval()


def assert_same(a, b):
    assert a.state_dict().keys() == b.state_dict().keys()
    for name, tensor in a.state_dict().items():
        other = b.state_dict()[name]
        assert other.dtype == tensor.dtype
        assert torch.equal(other, tensor), name


def images(facts, n=4):
    return torch.randint(0, 256, (n, facts.in_channels, *facts.image_size), dtype=torch.uint8)


NETWORKS = [
    *[{"head": head, "embedding_dim": size} for head in HEADS for size in (0, 5)],
    {"backbone": "mlp", "image_size": (6, 5)},
    {"backbone": "wrn-10-1", "head": "kmeans"},
    {"backbone": "wrn-28-2", "backbone_variant": "published", "embedding_dim": 0},
    {"backbone": "tests.training.networks:tied", "head": "linear"},
]


@pytest.mark.parametrize("network", NETWORKS, ids=str)
def test_the_loaded_network_is_the_saved_one(tmp_path, network):
    facts = replace(FACTS, **network)
    classifier = trained(facts)
    save_model(tmp_path, classifier, facts)
    random_state = torch.get_rng_state()
    saved = load_model(tmp_path, trust_code=True)
    loaded, got, refitted = saved.classifier, saved.spec, saved.refitted_head
    assert torch.equal(torch.get_rng_state(), random_state), "loading draws no random numbers of the process"
    assert (got, refitted) == (facts, None)
    assert not any(module.training for module in loaded.modules())
    assert_same(loaded, classifier)
    x = images(facts)
    assert torch.equal(loaded(x), classifier(x))


def test_the_published_variant_is_another_network(tmp_path):
    facts = replace(FACTS, backbone="wrn-28-2", backbone_variant="published", image_size=(8, 8))
    assert (
        build_classifier(facts).state_dict().keys()
        != build_classifier(replace(facts, backbone_variant="default")).state_dict().keys()
    )
    with pytest.raises(ValueError, match="variant"):
        build_classifier(replace(FACTS, backbone_variant="published"))


@pytest.mark.parametrize("kind", [AAGMM, KMeans])
@pytest.mark.parametrize("learn_prior", [False, True])
def test_the_refitted_head_comes_along(tmp_path, kind, learn_prior):
    classifier = trained(FACTS, head_options={"learn_prior": learn_prior})
    head = kind(5, 3, learn_prior=learn_prior)
    head.refit(torch.randn(30, 5), torch.arange(30) % 3)
    save_model(tmp_path, classifier, FACTS, head)
    saved = load_model(tmp_path)
    loaded, refitted = saved.classifier, saved.refitted_head
    assert_same(loaded, classifier)
    assert type(refitted) is kind
    assert not refitted.training
    assert_same(refitted, head)


def test_the_calibration_comes_along(tmp_path):
    classifier = trained(FACTS)
    head = AAGMM(5, 3)
    calibration = OutlierCalibration(torch.rand(17).sort().values, "nearest", "seventeen images")
    save_model(tmp_path, classifier, FACTS, head, calibration)
    saved = load_model(tmp_path)
    assert torch.equal(saved.calibration.scores, calibration.scores)
    assert (saved.calibration.score, saved.calibration.source) == ("nearest", "seventeen images")
    z = torch.randn(6, 5)
    expected = Scorer(classifier.head, head, calibration_scores=calibration.scores)(z)
    torch.testing.assert_close(saved.scorer(z).p_value, expected.p_value)
    torch.testing.assert_close(saved.scorer(z).posterior, expected.posterior)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("missing", "answers"), [(False, True), (True, True), (False, False)])
def test_the_judge_comes_along_bit_for_bit(tmp_path, dtype, missing, answers):
    classifier = trained(FACTS)
    names = classifier.backbone.stage_names
    outputs = run_classifier(classifier, images(FACTS, 40), stage_names=names)
    stages, posterior = outputs.stages.to(dtype), outputs.log_joint.to(dtype).softmax(1)
    # Without samples a class is at an infinite distance, which is stored as well.
    labels = torch.arange(40) % (2 if missing else 3)
    # Models of older versions have judges without answers.
    judge = Judge(stages.shape[1], 3, names, judges_answers=answers).to(dtype)
    judge.fit([(stages, labels, posterior) if answers else (stages, labels)])
    save_model(tmp_path, classifier, FACTS, judge=judge)
    saved = load_model(tmp_path)
    assert_same(saved.judge, judge)
    assert saved.stage_names == saved.judge.stage_names == names
    assert saved.scorer.score_name == "judge"
    x = images(FACTS, 6)
    expected = score_images(classifier, Scorer(classifier.head, judge=judge), x)
    assert torch.equal(saved.predict(x).outlier_score, expected.outlier_score)
    assert torch.equal(saved.predict(x).log_density, expected.log_density)


def test_the_temperature_comes_along_and_changes_posteriors_alone(tmp_path):
    classifier, x = trained(FACTS), images(FACTS, 6)
    save_model(tmp_path, classifier, FACTS, temperature=2.5)
    plain = score_images(classifier, Scorer(classifier.head), x)
    found = load_model(tmp_path).predict(x)
    torch.testing.assert_close(found.posterior, torch.softmax(plain.posterior.log() / 2.5, 1))
    assert torch.equal(found.labels, plain.labels)
    assert torch.equal(found.outlier_score, plain.outlier_score)


@pytest.mark.parametrize("wrong", [0, -1.0, float("inf"), "2", True, None])
def test_an_impossible_temperature_is_refused(wrong):
    with pytest.raises(ValueError, match="expected a number above 0; the model is damaged"):
        model_files._temperature(wrong)


def test_an_unknown_score_of_the_calibration_is_refused(tmp_path):
    with pytest.raises(ValueError, match="got the score 'best', expected one of judge, nearest"):
        model_files._calibration({"score": "best"}, torch.rand(3))


def test_a_model_in_other_layouts_and_dtypes(tmp_path):
    classifier = trained(FACTS).to(torch.float64).to(memory_format=torch.channels_last)
    classifier.backbone.to(torch.bfloat16)
    save_model(tmp_path, classifier, FACTS)
    loaded = load_model(tmp_path).classifier
    assert_same(loaded, classifier)


def test_a_pretrained_backbone_is_loaded_without_its_own_weights(tmp_path, monkeypatch):
    """Those come as a pickle, and ours replace them."""
    pytest.importorskip("efficientnet_lite_pytorch")
    facts = replace(FACTS, backbone="efficientnet-lite0", in_channels=3, image_size=(32, 32), normalization=None)
    classifier = trained(facts)
    save_model(tmp_path, classifier, facts)
    for module, name in ((torch, "load"), (pickle, "load"), (pickle, "loads")):
        monkeypatch.setattr(module, name, lambda *args, **options: pytest.fail("a pickle was read"))
    assert_same(load_model(tmp_path).classifier, classifier)


def test_tied_weights_stay_tied(tmp_path):
    facts = replace(FACTS, backbone="tests.training.networks:tied", image_size=(8, 8))
    save_model(tmp_path, trained(facts), facts)
    backbone = load_model(tmp_path, trust_code=True).classifier.backbone
    assert backbone.first.weight is backbone.second.weight


def test_the_description_is_readable_strict_json(tmp_path):
    save_model(
        str(tmp_path), trained(replace(FACTS, class_names=("Käfer", "b"))), replace(FACTS, class_names=("Käfer", "b"))
    )
    text = (tmp_path / "model.json").read_text("utf-8")
    assert "Käfer" in text
    content = json.loads(text)
    assert (content["format"], content["version"]) == ("momatch model", 1)
    assert content["facts"]["normalization"] == [[0.1 + 0.2], [1 / 3]]
    assert content["facts"]["created_by"].startswith("momatch ")
    assert text.count("\n") > 20
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "model.json", "model.safetensors"]


def test_facts_without_statistics(tmp_path):
    facts = replace(FACTS, normalization=None)
    save_model(tmp_path, trained(facts), facts)
    saved = load_model(tmp_path)
    loaded, got = saved.classifier, saved.spec
    assert got == facts
    assert loaded.preprocess is None


@pytest.mark.parametrize("file", ["model.json", "model.safetensors"])
@pytest.mark.parametrize("damage", ["delete", "empty", "flip", "truncate", "other"])
def test_damage_is_named(tmp_path, file, damage):
    save_model(tmp_path, trained(FACTS), FACTS)
    path = tmp_path / file
    data = bytearray(path.read_bytes())
    match damage:
        case "delete":
            path.unlink()
        case "empty":
            path.write_bytes(b"")
        case "flip":
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        case "truncate":
            path.write_bytes(data[: len(data) // 2])
        case "other":
            path.write_bytes(b'{"format": "momatch checkpoint", "version": 1}')
    with pytest.raises(ValueError, match=rf"{file}: .*(damaged|no such file|another kind)"):
        load_model(tmp_path)


def test_an_empty_or_missing_folder(tmp_path):
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ValueError, match=r"model.json: there is no such file"):
            load_model(folder)


def test_a_description_of_another_release(tmp_path):
    save_model(tmp_path, trained(FACTS), FACTS)
    text = (tmp_path / "model.json").read_text("utf-8")
    (tmp_path / "model.json").write_text(text.replace('"version": 1', '"version": 2'), "utf-8")
    with pytest.raises(ValueError, match="got format version 2, expected 1"):
        load_model(tmp_path)


def test_weights_of_another_network(tmp_path):
    save_model(tmp_path, trained(FACTS), replace(FACTS, embedding_dim=6))
    with pytest.raises(
        ValueError, match=r"the weights do not match the network that model.json describes; .*size mismatch"
    ):
        load_model(tmp_path)
    save_model(tmp_path, trained(FACTS), replace(FACTS, backbone="mlp"))
    with pytest.raises(ValueError, match="the weights do not match the network"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("backbone", "message"),
    [
        ("no_such_package.networks:tied", "no module 'no_such_package'"),
        ("tests.training.networks:nothing", "no attribute 'nothing'"),
        ("broken_network:build", "backbone 'broken_network:build': No module named 'something_missing'"),
    ],
)
def test_a_backbone_that_cannot_be_imported(tmp_path, monkeypatch, backbone, message):
    (tmp_path / "broken_network.py").write_text("import something_missing\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    save_model(tmp_path, trained(FACTS), replace(FACTS, backbone=backbone))
    with pytest.raises(ValueError, match=message):
        load_model(tmp_path, trust_code=True)


class OwnHead(Head):
    pass


def test_what_cannot_be_saved(tmp_path, monkeypatch):
    classifier = trained(FACTS)
    with pytest.raises(ValueError, match="refitted_head: got a OwnHead, expected one of aagmm, kmeans, linear"):
        save_model(tmp_path, classifier, FACTS, OwnHead())
    monkeypatch.setattr(type(classifier.backbone), "get_extra_state", lambda self: {"a": 1})
    with pytest.raises(ValueError, match=r"backbone\._extra_state: got a dict in the state, expected tensors only"):
        save_model(tmp_path, classifier, FACTS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [
        {"image_size": 3},
        {"unknown": 1},
        {"normalization": [1]},
        {"class_names": None},
        {"backbone": 5},
        {"backbone": ["payload:build"]},
        {"in_channels": "1"},
        {"head": None},
    ],
)
def test_facts_that_are_none(change):
    with pytest.raises(ValueError, match="model spec: got"):
        ModelSpec.from_dict({**FACTS.to_dict(), **change})
    with pytest.raises(ValueError, match="model spec: got"):
        ModelSpec.from_dict({})


def test_a_diverged_head_is_named(tmp_path):
    classifier = trained(FACTS)
    with torch.no_grad():
        classifier.head.centers[0] = torch.nan
    save_model(tmp_path, classifier, FACTS)
    with pytest.raises(ValueError, match="centers: got 5 of 15 values in the checkpoint that are not finite"):
        load_model(tmp_path)


@pytest.mark.parametrize("error", [Killed, no_space])
def test_saving_may_fail_at_any_moment(tmp_path, error):
    old, new = trained(FACTS), trained(FACTS)
    whole = attempts = 0
    for attempt in every_moment(WRITING if error is no_space else CHANGING, error, for_good=True):
        attempts += 1
        save_model(tmp_path, old, FACTS)
        raised = attempt(lambda: save_model(tmp_path, new, FACTS))
        if isinstance(raised, OSError):
            assert "saving the model failed: No space left on device; there is no checkpoint yet; free some" in str(
                raised
            )
        with suppress(ValueError):  # between the two renames: the run is not finished, and saves its model again
            found = load_model(tmp_path).classifier.projection.bias
            assert torch.equal(found, old.projection.bias) or torch.equal(found, new.projection.bias)
            whole += 1
        save_model(tmp_path, new, FACTS)
        assert_same(load_model(tmp_path).classifier, new)
    assert whole >= attempts - 2 > 5, "only between the renames do the two files not belong together"


def test_a_full_disk_for_real(tmp_path):
    facts = replace(FACTS, head="linear")
    classifier = trained(facts)
    with small_disk(tmp_path) as disk:
        save_model(disk, classifier, facts, Linear(5, 3))
        ballast = fill(disk)
        with pytest.raises(OSError, match="saving the model failed: No space left on device"):
            save_model(disk, trained(facts), facts)
        assert_same(load_model(disk).classifier, classifier)
        ballast.unlink()
        assert sorted(path.name for path in disk.iterdir()) == ["README.md", "model.json", "model.safetensors"]
