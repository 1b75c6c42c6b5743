"""A model as a folder: what is in it, what loads it, what it leaves alone, and the hub's way of calling it."""

import hashlib
import inspect
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from momatch import SavedModel
from momatch.config import TrainConfig
from momatch.models.card import model_card
from momatch.models.saved_model import model_settings
from momatch.storage.durable import may_replace
from momatch.storage.run_directory import RunDirectory
from momatch.training.run import Run
from tests.training.faults import CHANGING, Killed, every_moment
from tests.training.small_models import random_images, small_model

FIGURES = {
    "test_accuracy": 0.8125,
    "test_accuracy_note": "the averaged (EMA) model at the last step",
    "best_test_accuracy": 0.875,
    "best_test_accuracy_note": "an oracle",
    "ece": None,
    "compactness": float("nan"),
    "labeled_images": 12,
    "unlabeled_images": 3400,
    "test_images": 800,
    "steps": 1200,
    "seed": 7,
    "versions": {"momatch": "0.0.1", "torch": "2.6"},
}
FILES = ["README.md", "model.json", "model.safetensors"]


@pytest.fixture(scope="module")
def model():
    plain = small_model()
    settings = model_settings(TrainConfig(lr=0.25, run_dir="somewhere/else", data_dir="/data").resolved(), plain.spec)
    return replace(plain, settings=settings, result=FIGURES)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def assert_same_predictions(one, other):
    images = random_images(one.spec, 5)
    for name, value in vars(one.predict(images)).items():
        torch.testing.assert_close(
            value, getattr(other.predict(images), name), rtol=0, atol=0, equal_nan=True, msg=name
        )


def test_a_folder_holds_all_there_is(model, tmp_path):
    assert model.save_pretrained(tmp_path / "new" / "folder") is None
    folder = tmp_path / "new" / "folder"
    assert names(folder) == FILES
    loaded = SavedModel.from_pretrained(str(folder))
    assert_same_predictions(model, loaded)
    assert loaded.spec == model.spec
    assert loaded.settings == model.settings
    assert loaded.result == FIGURES | {"compactness": None}
    assert (loaded.calibration.score, loaded.calibration.source) == ("judge", "30 test images")
    content = json.loads((folder / "model.json").read_text("utf-8"))
    assert content["versions"]["torch"] == torch.__version__
    loaded.save_pretrained(tmp_path / "again")
    for name in FILES:
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


def test_settings_name_no_place_of_the_machine(model):
    assert model.settings["lr"] == 0.25
    assert model.settings["dataset"] == "pets"
    assert not {"run_dir", "data_dir", "device", "resume", "overwrite"} & set(model.settings)


def test_it_loads_in_another_process_at_another_place(model, tmp_path):
    model.save_pretrained(tmp_path / "here")
    shutil.move(tmp_path / "here", tmp_path / "there")
    images = random_images(model.spec, 2)
    torch.save(images, tmp_path / "images.pt")
    code = (
        "import torch, momatch\n"
        "model = momatch.SavedModel.from_pretrained('there')\n"
        "print(model.predict(torch.load('images.pt')).log_density.tolist())\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout) == pytest.approx(model.predict(images).log_density.tolist(), rel=1e-6)


def rewrite(folder, change):
    """Change model.json as another release could have written it, with its checksum."""
    path = folder / "model.json"
    content = json.loads(path.read_text("utf-8"))
    content.pop("sha256")
    change(content)
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps(content | {"sha256": hashlib.sha256(text.encode()).hexdigest()}), "utf-8")


def test_a_folder_of_the_first_release_loads(tmp_path):
    """Without judge, calibration, settings, figures, versions and card, and with facts that had fewer entries."""
    model = small_model(judged=False, calibrated=0)
    model.save_pretrained(tmp_path)

    def older(content):
        for key in ("judge", "calibration", "settings", "figures", "versions"):
            del content[key]
        del content["facts"]["backbone_variant"]
        content["facts"]["created_by"] = "momatch 0.0.1"

    rewrite(tmp_path, older)
    (tmp_path / "README.md").unlink()
    loaded = SavedModel.from_pretrained(tmp_path)
    assert (loaded.judge, loaded.calibration, loaded.settings, loaded.result) == (None,) * 4
    assert_same_predictions(model, loaded)
    card = model_card(loaded, {})
    assert card.count("Not recorded.") == 2
    assert "Trained with momatch 0.0.1" in card


def test_a_folder_without_a_judge_is_scored_by_its_head(tmp_path):
    """As the release before the judge wrote them, with p-values of the head."""
    model = small_model(judged=False)
    model.save_pretrained(tmp_path)
    rewrite(tmp_path, lambda content: content.pop("judge"))
    loaded = SavedModel.from_pretrained(tmp_path)
    assert (loaded.judge, loaded.stage_names, loaded.scorer.score_name) == (None, None, "nearest")
    assert_same_predictions(model, loaded)
    scores = loaded.predict(random_images(model.spec, 5))
    assert torch.equal(scores.outlier_score, scores.distance)
    assert scores.p_value.isfinite().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda judge: "stages", "judge: got 'stages', expected stage_names and num_features"),
        (lambda judge: [judge], "expected stage_names and num_features"),
        (lambda judge: {}, "expected stage_names and num_features"),
        (lambda judge: judge | {"stage_names": "layers.0"}, "expected stage_names and num_features"),
        (
            lambda judge: judge | {"stage_names": ["layers.99"]},
            "stage_names: got 'layers.99', expected names of modules",
        ),
        (lambda judge: judge | {"stage_names": [None]}, "stage_names: got 'None'"),
        (lambda judge: judge | {"num_features": 0}, "expected stage_names and num_features"),
        (lambda judge: judge | {"num_features": 10**9}, "expected stage_names and num_features"),
        (lambda judge: judge | {"num_features": "12"}, "expected stage_names and num_features"),
        (lambda judge: judge | {"num_features": True}, "expected"),
        (lambda judge: judge | {"num_features": judge["num_features"] + 1}, "do not match the network"),
        (lambda judge: None, "calibration: got the score 'judge' of a model without a judge"),
    ],
)
def test_a_damaged_judge_is_refused(model, tmp_path, change, message):
    model.save_pretrained(tmp_path)
    rewrite(tmp_path, lambda content: content.update(judge=change(content["judge"])))
    with pytest.raises(ValueError, match=message):
        SavedModel.from_pretrained(tmp_path)


def test_a_folder_of_a_later_release_is_refused(model, tmp_path):
    model.save_pretrained(tmp_path)
    rewrite(tmp_path, lambda content: content.update(version=2))
    with pytest.raises(ValueError, match="got format version 2, expected 1; it was written by another release"):
        SavedModel.from_pretrained(tmp_path)


def test_a_backbone_that_is_not_here(model, tmp_path):
    model.save_pretrained(tmp_path)
    rewrite(tmp_path, lambda content: content["facts"].update(backbone="their_package.networks:net"))
    with pytest.raises(
        ValueError, match="no module 'their_package'; install the package or put its folder on PYTHONPATH"
    ):
        SavedModel.from_pretrained(tmp_path, trust_code=True)


def test_what_lies_in_the_folder_stays(model, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "README.md").write_text("# My project\n")
    (tmp_path / "config.json").write_text('{"model_type": "of another library"}')
    model.save_pretrained(tmp_path)
    assert names(tmp_path) == sorted([*FILES, "config.json", "notes.txt"])
    assert (tmp_path / "README.md").read_text() == "# My project\n"
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert_same_predictions(model, SavedModel.from_pretrained(tmp_path))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"model.safetensors": b"theirs"}, "got a model.safetensors that is not a momatch model"),
        ({"model.json": b'{"layers": 3}', "model.safetensors": b"theirs"}, "that is not a momatch model"),
    ],
)
def test_a_model_of_another_library_is_not_replaced(model, tmp_path, files, message):
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=message):
        model.save_pretrained(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files


def test_a_run_or_a_file_is_not_replaced(model, tmp_path):
    RunDirectory.create(tmp_path / "run", TrainConfig().resolved()).close()
    with pytest.raises(ValueError, match="got a run directory"):
        model.save_pretrained(tmp_path / "run")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="got a file, expected a folder"):
        model.save_pretrained(tmp_path / "file")
    assert names(tmp_path / "run") == ["config.json", "run.lock"]


def test_a_model_that_is_replaced_is_old_or_new_at_any_moment(model, tmp_path):
    other = small_model(embedding_dim=6)
    found = []
    for attempt in every_moment(CHANGING, Killed, for_good=True):
        other.save_pretrained(tmp_path)
        attempt(lambda: model.save_pretrained(tmp_path))
        try:
            found.append(SavedModel.from_pretrained(tmp_path).spec.embedding_dim)
        except ValueError as error:  # killed between two renames: said, not guessed
            found.append(str(error))
    assert {one for one in found if isinstance(one, int)} == {4, 6}
    assert all("damaged" in one for one in found if isinstance(one, str))
    assert len(found) > 6


def test_the_card(model, tmp_path):
    text = model_card(model, {"license": "mit"})
    head, body = re.fullmatch(r"---\n(.*?)\n---\n(.*)", text, re.DOTALL).groups()
    entries = {key: json.loads(value) for key, value in (line.split(": ", 1) for line in head.splitlines())}
    assert (entries["library_name"], entries["license"]) == ("momatch", "mit")
    assert entries["model-index"][0]["results"][0]["metrics"] == [{"type": "accuracy", "value": 0.8125}]
    assert re.findall("^## (.*)", body, re.MULTILINE) == ["Use", "Data", "Settings", "Metrics", "Limits"]
    for line in (
        "| dataset | pets |",
        "| classes | cat, dog, Käfer |",
        "| images | 9 x 8 pixels, gray, uint8 |",
        "| unlabelled images | 3,400 |",
        "| outlier p-values | calibrated on 30 scores (judge) of 30 test images |",
        "| `lr` | 0.25 |",
        "| test accuracy | 81.25% | the averaged (EMA) model at the last step |",
        "| best test accuracy | 87.50% | an oracle |",
        "| versions | momatch 0.0.1, torch 2.6 |  |",
    ):
        assert line in body.splitlines(), line
    # What a default comes to is not listed as a choice.
    assert "`moment_order`" not in body
    assert "`outlier_score`" not in body
    assert "12 labels, 4 per class" in body
    assert "The smallest possible p-value is 0.032" in body
    assert "outlier scores come from a judge of the network's stages" in body
    assert "mixture" not in body
    assert "| calibration error" not in body
    assert "| compactness" not in body


def test_the_card_of_other_models():
    linear = model_card(small_model(head="linear", judged=False, calibrated=0), {})
    assert "The head has no centers" in linear
    assert "There are no outlier p-values" in linear
    assert "p_value <= 0.05" not in linear
    # With a judge it has distances.
    assert "The head has no centers" not in model_card(small_model(head="linear"), {})
    assert "from a mixture refitted to the embeddings" in model_card(small_model(judged=False), {})
    plain = small_model(refitted=False, judged=False)
    assert "no mixture was refitted" in model_card(plain, {})
    pool = replace(plain, calibration=replace(plain.calibration, source="30 images of the pool, kept out of training"))
    assert "come from the unlabelled pool" in model_card(pool, {})
    many = small_model(class_names=tuple(map(str, range(60))))
    assert "48, 49 and 10 more (see model.json)" in model_card(many, {})
    odd = small_model(class_names=("a|b\nc", "\udc80"), calibrated=0)
    assert "| classes | a\\|b c, \udc80 |" in model_card(odd, {})


@pytest.mark.parametrize("head", ["aagmm", "linear"])
@pytest.mark.parametrize("calibrated", [0, 30])
def test_the_card_says_what_the_judge_was_fitted_to(head, calibrated):
    model = small_model(head=head, calibrated=calibrated)
    row = (
        "| outlier scores | by a judge of the network's stages, fitted to 60 images (covariance shrunk by "
        f"{float(model.judge.shrinkage):.2g}) |"
    )
    assert row in model_card(model, {}).splitlines()
    # p-values that were calibrated on a score of the head are not the judge's.
    of_head = small_model(head=head, judged=False)
    for other in (of_head, replace(of_head, judge=model.judge)):
        assert "judge" not in model_card(other, {})


def test_the_code_of_the_card_runs(model, tmp_path, monkeypatch, capsys):
    model.save_pretrained(tmp_path)
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", Path("README.md").read_text("utf-8"), re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    assert re.match(r"\['(cat|dog|Käfer)'\] tensor", capsys.readouterr().out)


def test_a_card_is_replaced_until_it_is_edited(model, tmp_path):
    path = tmp_path / "README.md"
    assert may_replace(path)
    model.save_pretrained(tmp_path, model_card_kwargs={"license": "mit"})
    assert may_replace(path)
    assert 'license: "mit"' in path.read_text("utf-8")
    model.save_pretrained(tmp_path)
    assert "license" not in path.read_text("utf-8")
    path.write_text(path.read_text("utf-8").replace("# cnn-tiny", "# My own"), "utf-8")
    assert not may_replace(path)
    model.save_pretrained(tmp_path)
    assert "# My own" in path.read_text("utf-8")
    odd = small_model(class_names=("a", "\udc80"), calibrated=0)
    odd.save_pretrained(tmp_path / "odd")
    assert may_replace(tmp_path / "odd" / "README.md")


def test_run_directories_are_model_folders(model, tmp_path):
    """Also those of a release that kept settings and figures beside the model only."""
    config = TrainConfig(seed=3).resolved()
    with RunDirectory.create(tmp_path, config) as directory:
        replace(model, settings=None, result=None).save_pretrained(tmp_path.parent / "bare")
        for name in ("model.json", "model.safetensors"):
            shutil.copy(tmp_path.parent / "bare" / name, tmp_path / name)
        directory.write_result({"test_accuracy": 0.75})
    run = Run.load(tmp_path)
    assert run.model.settings["seed"] == 3
    assert run.model.result == {"test_accuracy": 0.75}
    assert_same_predictions(run.model, SavedModel.from_pretrained(tmp_path))
    run.model.save_pretrained(tmp_path.parent / "saved")
    assert SavedModel.from_pretrained(tmp_path.parent / "saved").result == {"test_accuracy": 0.75}


def test_overwriting_a_run_deletes_its_card_and_exports_but_no_page_of_the_user(model, tmp_path):
    config = TrainConfig().resolved()
    for card, stays in ((model_card(model, {}), False), ("# Mine\n", True)):
        with RunDirectory.create(tmp_path, config, overwrite=True):
            (tmp_path / "README.md").write_text(card, "utf-8")
            (tmp_path / "model.onnx").touch()
            (tmp_path / "model.pt2").touch()
        RunDirectory.create(tmp_path, config, overwrite=True).close()
        assert names(tmp_path) == ["README.md"] * stays + ["config.json", "run.lock"]


@pytest.mark.parametrize("name", [Path("nowhere/at-all"), "./nowhere", "/nowhere", "a/b/c", "~nobody/x", "..", "a b"])
def test_what_can_be_no_repository_is_a_missing_folder(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"no such (folder|file)"):
        SavedModel.from_pretrained(name)


def test_without_the_hubs_package(model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.chdir(tmp_path)
    model.save_pretrained("folder")
    assert_same_predictions(model, SavedModel.from_pretrained("folder"))
    remedy = r"pip install 'momatch\[hub\]'"
    with pytest.raises(ImportError, match=rf"owner/name: no such folder; to download it .* {remedy}"):
        SavedModel.from_pretrained("owner/name")
    with pytest.raises(ImportError, match=remedy):
        model.push_to_hub("owner/name")


def test_arguments_without_a_meaning_are_refused(model, tmp_path):
    with pytest.raises(ValueError, match=r"got \['size'\], expected no model arguments"):
        SavedModel.from_pretrained(tmp_path, size=3)
    with pytest.raises(ValueError, match="got a config, expected none"):
        model.save_pretrained(tmp_path / "a", config={"size": 3})
    with pytest.raises(ValueError, match=r"got \['private'\], expected them with push_to_hub=True"):
        model.save_pretrained(tmp_path / "a", private=True)
    assert list(tmp_path.iterdir()) == []


class TestWithTheHub:
    """Against the real package; the network stays out."""

    hub = pytest.importorskip("huggingface_hub")

    def test_methods_take_what_the_mixins_take(self):
        for name in ("save_pretrained", "from_pretrained", "push_to_hub"):
            theirs = inspect.signature(getattr(self.hub.ModelHubMixin, name)).parameters
            ours = inspect.signature(getattr(SavedModel, name)).parameters
            # Theirs, and whether to trust code.
            assert list(theirs) == [key for key in ours if key != "trust_code"]
            for key, parameter in theirs.items():
                assert parameter.kind == ours[key].kind, key
                if key != "commit_message":
                    assert parameter.default == ours[key].default, key

    def test_the_hub_reads_the_card(self, model, tmp_path):
        model.save_pretrained(tmp_path)
        card = self.hub.ModelCard.load(tmp_path / "README.md")
        assert (card.data.library_name, card.data.pipeline_tag) == ("momatch", "image-classification")
        assert card.data.license is None
        (result,) = card.data.eval_results
        assert (result.dataset_name, result.metric_type, result.metric_value) == ("pets", "accuracy", 0.8125)
        assert self.hub.ModelCard(str(card)).data.to_dict() == card.data.to_dict()

    def test_fetching(self, model, tmp_path, monkeypatch):
        model.save_pretrained(tmp_path / "cache")
        asked = {}

        def snapshot_download(repo_id, **options):
            asked.update(options, repo_id=repo_id)
            return str(tmp_path / "cache")

        monkeypatch.setattr(self.hub, "snapshot_download", snapshot_download)
        monkeypatch.chdir(tmp_path)
        assert_same_predictions(model, SavedModel.from_pretrained("owner/name", revision="v1", local_files_only=True))
        assert (asked["repo_id"], asked["revision"], asked["local_files_only"]) == ("owner/name", "v1", True)
        assert sorted(asked["allow_patterns"]) == FILES

    def test_what_the_hub_does_not_give(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(
            OSError, match="owner/name: no such folder, and the download from the Hugging Face hub failed"
        ):
            SavedModel.from_pretrained("owner/name", local_files_only=True, cache_dir=tmp_path / "cache")

    def test_sending(self, model, tmp_path, monkeypatch):
        sent = {}

        class Api:
            def __init__(self, token):
                sent["token"] = token

            def create_repo(self, repo_id, private, exist_ok):
                return type("Repo", (), {"repo_id": f"me/{repo_id}"})

            def upload_folder(self, folder_path, **options):
                sent.update(options, files=names(folder_path))
                return "https://address"

        monkeypatch.setattr(self.hub, "HfApi", Api)
        address = model.save_pretrained(tmp_path / "pets", push_to_hub=True, token="secret", branch="new")
        assert address == "https://address"
        assert (sent["repo_id"], sent["token"], sent["revision"], sent["files"]) == ("me/pets", "secret", "new", FILES)

    def test_a_class_with_the_real_mixin(self, model, tmp_path):
        """Whoever inherits from the mixin can hand saving and loading to us, and folders go both ways."""

        class Classifier(self.hub.ModelHubMixin):
            # Not an argument of the constructor: the mixin would take a dataclass for the settings to save.
            saved: SavedModel

            @classmethod
            def of(cls, saved):
                one = cls()
                one.saved = saved
                return one

            def _save_pretrained(self, save_directory):
                self.saved.save_pretrained(save_directory)

            @classmethod
            def _from_pretrained(cls, *, model_id, **options):
                known = inspect.signature(SavedModel.from_pretrained).parameters
                return cls.of(SavedModel.from_pretrained(model_id, **{k: v for k, v in options.items() if k in known}))

        Classifier.of(model).save_pretrained(tmp_path / "a")
        assert_same_predictions(model, Classifier.from_pretrained(str(tmp_path / "a")).saved)
        assert_same_predictions(model, SavedModel.from_pretrained(tmp_path / "a"))
        model.save_pretrained(tmp_path / "b")
        assert_same_predictions(model, Classifier.from_pretrained(str(tmp_path / "b")).saved)
