"""``momatch train``: flags, layers, messages and exit codes. Training itself is replaced; tests/training has it."""

import json
import re
import resource
import subprocess
import sys
import types
from dataclasses import fields

import pytest

from momatch.cli import main as cli
from momatch.cli.train import summary
from momatch.cli.train_flags import parse_flags
from momatch.config import TrainConfig
from momatch.config.presets import DESCRIPTIONS, PRESETS
from momatch.config.settings import GROUPS

RESULT = {
    "test_accuracy": 0.9725,
    "best_test_accuracy": 0.98,
    "pseudo_label_accuracy": 0.99,
    "utilisation": 0.9,
    "compactness": 0.8213,
    "seconds": 75.2,
    "images_per_second": 12345.6,
    "peak_memory_mb": 512.3,
    "skipped_steps": 0,
}


@pytest.fixture
def fitted(monkeypatch):
    """The configs that training was called with; it returns at once."""
    configs = []

    def fit(config, **options):
        configs.append(config)
        return types.SimpleNamespace(result=RESULT)

    monkeypatch.setitem(sys.modules, "momatch.training.fit", types.SimpleNamespace(fit=fit))
    monkeypatch.setitem(sys.modules, "momatch.report", types.SimpleNamespace(report_run=lambda run: "R/report.html"))
    monkeypatch.delenv("RANK", raising=False)
    return configs


def printed_config(capsys, *arguments):
    assert cli.main(["train", "--print-config", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_no_flags_are_the_defaults(fitted, capsys):
    assert cli.main(["train"]) == 0
    assert fitted == [TrainConfig().resolved()]


def test_ends_in_words(fitted, capsys):
    assert cli.main(["train", "--run-dir", "my runs/a"]) == 0
    out = capsys.readouterr().out
    for line in (
        "digits: 4 labels per class, seed 0",
        "cnn-tiny backbone, aagmm head on 8-dimensional embeddings, constraint: moments up to order 1",
        "flexmatch, 1,200 steps of 32 labelled + 96 unlabelled images",
        "report: R/report.html",
        "model:  my runs/a",
        "Next: momatch evaluate 'my runs/a'",
    ):
        assert line in out.splitlines()
    values = dict(re.findall(r"^(\S.*?)  +(\S.*)$", out, flags=re.MULTILINE))
    assert values["test accuracy (EMA model, last step)"] == "97.25 %"
    assert values["best test accuracy (oracle: chosen on the test set)"] == "98.00 %"
    assert values["pseudo-labels used"] == "90.00 %"
    assert values["training time"] == "1 min 15 s"
    assert values["images per second"] == "12,346"
    assert "skipped" not in out


@pytest.mark.parametrize(
    ("outliers", "words"),
    [("auto", ", pool weighted by P(inlier)"), ("percentile", ", outlier threshold: percentile")],
    ids=["auto", "percentile"],
)
def test_the_rule_for_outliers_is_named(fitted, capsys, outliers, words):
    assert cli.main(["train", "--run-dir", "a", "--outliers", outliers]) == 0
    assert (
        f"flexmatch{words}, 1,200 steps of 32 labelled + 96 unlabelled images" in capsys.readouterr().out.splitlines()
    )


@pytest.mark.parametrize(
    ("seconds", "text"), [(3.14, "3.1 s"), (59.7, "1 min 00 s"), (3599.9, "1 h 00 min"), (400_000.0, "4 d 15 h")]
)
def test_time_in_words(seconds, text):
    assert any(line.endswith(f"  {text}") for line in summary(TrainConfig().resolved(), {"seconds": seconds}))


def test_a_report_that_cannot_be_written_does_not_hide_the_result(fitted, capsys, monkeypatch):
    def fail(run):
        raise OSError("no space left")

    monkeypatch.setitem(sys.modules, "momatch.report", types.SimpleNamespace(report_run=fail))
    assert cli.main(["train"]) == 0
    said = capsys.readouterr()
    assert "test accuracy" in said.out
    assert "report:" not in said.out
    assert "the run is finished, but the report failed: no space left; retry with: momatch report" in said.err


def test_summary_of_other_settings():
    config = TrainConfig(
        algorithm="supervised", head="linear", embedding_dim=0, labels_per_class=0, outliers="none"
    ).resolved()
    text = "\n".join(
        summary(
            config,
            {
                "test_accuracy": None,
                "test_accuracy_note": "there are no test images",
                "skipped_steps": 7,
                "evidence": {"linear, strong": 0.754, "lead of neighbours": 0.0},
            },
        )
    )
    assert "guided by linear, strong 75%; lead of neighbours 0%" in text
    assert "digits: all labels, seed 0" in text
    assert "linear head on the backbone's features, no constraint" in text
    assert "supervised, 1,200 steps of 32 labelled images" in text
    assert "no test accuracy: there are no test images" in text
    assert re.search(r"steps skipped .* 7$", text, flags=re.MULTILINE)


def test_other_processes_are_silent(fitted, capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert cli.main(["train"]) == 0
    assert len(fitted) == 1
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("RANK", "0")
    assert cli.main(["train"]) == 0
    assert "test accuracy" in capsys.readouterr().out


def test_every_setting_is_a_flag_that_is_read_back():
    others = {str: "other", int: 3, float: 0.5, bool: None}
    words, expected = [], {}
    for field in fields(TrainConfig):
        if field.name == "preset_name":  # --preset sets it
            continue
        flag = f"--{field.name.replace('_', '-')}"
        if field.name == "resume":
            words, expected["resume"] = [*words, flag, "auto"], "auto"
            continue
        if field.type is bool:
            expected[field.name] = not field.default
            words += [flag if expected[field.name] else f"--no-{flag[2:]}"]
            continue
        kind = next((kind for kind in others if kind in (getattr(field.type, "__args__", None) or (field.type,))), None)
        expected[field.name] = field.type.__args__[-1] if kind is None else others[kind]
        words += [flag, str(expected[field.name])]
    flags = parse_flags(words)
    assert flags.settings == expected
    assert (flags.preset, flags.config, flags.print_config) == (None, None, False)


@pytest.mark.parametrize(
    ("words", "value"), [([], True), (["auto"], "auto"), (["no"], False), (["auto", "--run-dir", "x"], "auto")]
)
def test_resume_stands_alone_or_with_a_word(words, value):
    assert parse_flags(["--resume", *words]).settings["resume"] == value


def test_only_what_was_given_counts():
    assert parse_flags([]).settings == {}
    assert parse_flags(["--steps", "600"]).settings == {"steps": 600}
    assert parse_flags(["--image-size", "None"]).settings == {"image_size": None}


def test_precedence(tmp_path, capsys):
    path = tmp_path / "my.toml"
    path.write_text("steps = 7\nlabels_per_class = 9\nseed = 5\n")
    config = printed_config(capsys, "--preset", "mnist-cpu", "--config", str(path), "--labels-per-class", "4")
    assert (config["dataset"], config["steps"], config["labels_per_class"], config["seed"]) == ("mnist", 7, 4, 5)


def test_printed_config_is_a_config_file(tmp_path, capsys):
    path = tmp_path / "my.json"
    first = printed_config(capsys, "--preset", "paper-stl10", "--lr", "1", "--no-refit")
    path.write_text(json.dumps(first))
    assert printed_config(capsys, "--config", str(path)) == first
    assert (first["lr"], first["refit"]) == (1.0, False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--label-per-class", "4"], "--labels-per-class"),
        (["--steps", "many"], "got 'many', expected an integer"),
        (["--lr", "much"], "got 'much', expected a number"),
        (["--algorithm", "flexmach"], "flexmatch"),
        (["--steps"], "--steps"),
        (["stray"], "stray"),
        (["--steps", "-1"], "--steps: got -1, expected at least 1"),
        (["--lr", "nan"], "--lr: got nan, expected a finite number"),
        (["--head", "linear", "--moment-order", "2"], "--moment-order: got 2 with head 'linear', expected 0"),
        (["--resume", "--overwrite"], "--resume and --overwrite: got both"),
        (["--resume", "always"], "got 'always', expected nothing, 'auto' or 'no'"),
        *(
            ([flag, "1e300"], f"{flag}: got 1e+300, expected at most 1,000,000")
            for flag in ("--lr", "--head-lr-factor", "--weight-decay", "--clip-norm", "--moment-weight")
        ),
        (["--steps", "99999999999"], "--steps: got 99999999999, expected at most 2,147,483,647"),
        (["--labeled-batch-size", "9999999"], "--labeled-batch-size: got 9999999, expected at most 1,048,576"),
        (["--preset", "mnist"], "did you mean 'mnist-cpu'?"),
    ],
)
def test_wrong_arguments(arguments, message, fitted, capsys):
    try:
        code = cli.main(["train", *arguments])
    except SystemExit as error:
        code = error.code
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert message in err
    assert fitted == []


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("my.toml", "labels-per-class = 4", "got the unknown key 'labels-per-class'; did you mean 'labels_per_class'?"),
        ("my.toml", "steps = -1", "steps: got -1, expected at least 1"),
        ("my.toml", "steps = [", "not valid TOML"),
        ("my.yaml", "steps: 3", "expected a config file that ends in .toml or .json"),
        ("my.json", None, "file not found"),
    ],
)
def test_wrong_file(tmp_path, name, content, message, fitted, capsys):
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    assert cli.main(["train", "--config", str(path)]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"momatch train: error: {path}: ")
    assert message in err
    assert fitted == []


@pytest.fixture
def stored(tmp_path):
    """The directory of a run that was started with 50 steps."""
    from momatch.storage.run_directory import RunDirectory

    path = tmp_path / "run"
    with RunDirectory.create(path, TrainConfig(steps=50, run_dir=str(path), overwrite=True).resolved()):
        pass
    return path


def test_resume_takes_the_stored_settings(stored, fitted, capsys):
    assert cli.main(["train", "--resume", "--run-dir", str(stored), "--keep-checkpoints", "3"]) == 0
    assert (fitted[0].steps, fitted[0].keep_checkpoints, fitted[0].resume, fitted[0].overwrite) == (50, 3, True, False)


def test_resume_refuses_other_settings(stored, fitted, capsys):
    assert cli.main(["train", "--resume", "--run-dir", str(stored), "--steps", "600"]) == 2
    assert f"--steps: got 600, expected 50, as when the run in {stored} was started" in capsys.readouterr().err
    assert fitted == []


def test_nothing_to_resume(tmp_path, fitted, capsys):
    assert cli.main(["train", "--resume", "--run-dir", str(tmp_path / "none")]) == 1
    assert "no run to resume; pass --resume auto to start one here" in capsys.readouterr().err
    assert cli.main(["train", "--resume", "--run-dir", str(tmp_path)]) == 1
    assert fitted == []


def test_resume_auto_starts_a_features_run_with_the_features_preset(tmp_path, fitted, capsys):
    from momatch.embedding import embed
    from tests.embedding.setting import small_options

    features = str(embed(small_options(tmp_path)).spec.path)
    run_dir = str(tmp_path / "run")
    assert cli.main(["train", "--dataset", features, "--resume", "auto", "--run-dir", run_dir]) == 0
    (config,) = fitted
    assert {key: getattr(config, key) for key in PRESETS["features"]} == PRESETS["features"]
    assert (config.preset_name, config.resume) == ("features", "auto")


def test_resume_auto_starts_or_takes_the_stored_settings(stored, tmp_path, fitted, capsys):
    assert cli.main(["train", "--resume", "auto", "--run-dir", str(tmp_path / "none"), "--steps", "7"]) == 0
    assert cli.main(["train", "--resume", "auto", "--run-dir", str(stored), "--keep-checkpoints", "3"]) == 0
    assert [(config.steps, config.resume) for config in fitted] == [(7, "auto"), (50, True)]
    assert cli.main(["train", "--resume", "auto", "--run-dir", str(stored), "--steps", "600"]) == 2
    assert "--steps: got 600, expected 50" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "momatch train: interrupted\n"),
        (KeyboardInterrupt("saved; go on with x"), 130, "momatch train: saved; go on with x\n"),
        (type("Stopped", (KeyboardInterrupt,), {"exit_code": 143})("saved"), 143, "momatch train: saved\n"),
        (ImportError("install it", name="efficientnet"), 1, "momatch train: error: install it\n"),
        (OSError(28, "No space left on device"), 1, "momatch train: error: [Errno 28] No space left on device\n"),
    ],
)
def test_how_training_ends(error, code, message, fitted, capsys, monkeypatch):
    def fit(config, **options):
        raise error

    monkeypatch.setattr(sys.modules["momatch.training.fit"], "fit", fit)
    assert cli.main(["train"]) == code
    assert capsys.readouterr() == ("", message)


def test_a_bug_keeps_its_traceback(fitted, monkeypatch):
    def fit(config, **options):
        raise ImportError("no", name="momatch.nothing")

    monkeypatch.setattr(sys.modules["momatch.training.fit"], "fit", fit)
    with pytest.raises(ImportError, match="no"):
        cli.main(["train"])


def run(*arguments):
    return subprocess.run([sys.executable, "-m", "momatch", *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("columns", [80, 120])
def test_help_shows_every_flag_and_preset_and_fits(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = run("train", "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    for field in fields(TrainConfig):
        assert f"--{field.name.replace('_', '-').removesuffix('-name')}" in shown.stdout
    words = re.sub(r"[│\s]+", " ", shown.stdout)
    for name, text in DESCRIPTIONS.items():
        assert f"{name}: {text}" in words
    assert "labelled images per class" in words
    assert "None" not in words
    assert max(map(len, shown.stdout.splitlines())) <= columns
    assert re.findall(r"─ (\w+) options ─", shown.stdout) == list(GROUPS)


def test_wrong_arguments_of_the_real_command():
    shown = run("train", "--labels_perclass", "4")
    assert shown.returncode == 2
    assert "--labels-per-class" in shown.stderr
    assert "Traceback" not in shown.stderr


def test_help_and_printed_config_load_nothing_heavy():
    code = (
        "import sys, contextlib\nfrom momatch.cli.main import main\n"
        "for words in (['--help'], ['--print-config']):\n"
        "    with contextlib.suppress(SystemExit):\n        main(['train', *words])\n"
        "with contextlib.suppress(SystemExit):\n    main(['evaluate', '--help'])\n"
        "heavy = {'torch', 'numpy', 'PIL', 'sklearn', 'scipy', 'pooch'} & set(sys.modules)\nassert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)


def test_help_answers_in_under_a_second():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert run("train", "--help").returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Processor time: the machine may be busy, the program may not be slow.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0


@pytest.mark.parametrize("words", [["--policy", "freematch"], ["--policy=freematch"]])
def test_former_name_of_the_algorithm_works_with_a_note(words, capsys):
    assert cli.main(["train", "--print-config", *words]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["algorithm"] == "freematch"
    assert "note: flags: policy is now called algorithm" in shown.err


def test_both_names_of_the_algorithm_are_refused(capsys):
    assert cli.main(["train", "--print-config", "--policy", "uda", "--algorithm=mixmatch"]) == 1
    assert "got both --algorithm and --policy, which is its former name" in capsys.readouterr().err


def test_former_name_works_in_a_config_file(tmp_path, capsys):
    (tmp_path / "old.toml").write_text('policy = "softmatch"')
    assert cli.main(["train", "--print-config", "--config", str(tmp_path / "old.toml")]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["algorithm"] == "softmatch"
    assert "old.toml: policy is now called algorithm" in shown.err


def test_a_preset_has_the_algorithms_published_values(capsys):
    assert cli.main(["train", "--print-config", "--preset", "paper-stl10", "--algorithm", "comatch"]) == 0
    config = json.loads(capsys.readouterr().out)
    assert (config["contrast_weight"], config["contrast_dim"], config["unlabeled_batch_size"]) == (5.0, 64, 448)


def test_a_setting_of_another_algorithm_is_refused(capsys):
    assert cli.main(["train", "--algorithm", "uda", "--mix-alpha", "0.5"]) == 2
    assert (
        "--mix-alpha: got 0.5 with algorithm 'uda', expected it not to be set: it is a setting of mixmatch, remixmatch"
        in (capsys.readouterr().err)
    )
