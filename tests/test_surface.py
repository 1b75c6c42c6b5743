"""What a user touches first: the public names, and a command line that answers without importing torch."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import momatch

PUBLIC_NAMES = {
    "TrainConfig", "fit", "Run", "evaluate_run", "report_run", "SavedModel", "export_model", "suggest", "Suggestions",
    "MoMatchClassifier", "NetworkOptions",
    "AAGMM", "KMeans", "Linear", "log_posterior", "log_density",
    "MomentConstraint", "MMDConstraint", "KLConstraint",
    "OutlierDetector", "StageJudge", "Judge", "benjamini_hochberg",
    "FixMatchPolicy", "FlexMatchPolicy", "FreeMatchPolicy", "SoftMatchPolicy",
    "Algorithm", "Wants", "Targets",
    "load_dataset", "from_torch_dataset", "Dataset", "Split",
    "split_by_seed", "split_by_rows", "split_by_files", "split_as_labeled",
    "Examples", "contaminate", "hold_out_classes", "BatchStream",
    "WeakAugment", "StrongAugment", "Normalize", "build_backbone", "Classifier",
}  # fmt: skip


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


def test_public_names_import_and_are_listed():
    assert set(momatch.__all__) == PUBLIC_NAMES
    for name in momatch.__all__:
        assert getattr(momatch, name).__name__ == name
    assert set(dir(momatch)) >= set(momatch.__all__)


def test_type_checker_sees_the_same_names():
    source = Path(momatch.__file__).read_text()
    declared = set(re.findall(r"import (\w+) as \1", source)) - {"__version__"}
    assert declared == set(momatch.__all__)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nothing"):
        _ = momatch.nothing


def test_help_and_version_say_what_they_should():
    shown = run("-m", "momatch", "--help")
    assert shown.returncode == 0
    assert "momatch" in shown.stdout
    shown = run("-m", "momatch", "--version")
    assert shown.stdout.strip() == f"momatch {momatch.__version__}"


def test_command_line_does_not_import_torch():
    code = (
        "import sys, contextlib\n"
        "from momatch.cli.main import main\n"
        "for arguments in (['--help'], ['--version']):\n"
        "    with contextlib.suppress(SystemExit):\n"
        "        main(arguments)\n"
        "assert not {'torch', 'numpy'} & set(sys.modules), 'a heavy module was imported'\n"
    )
    shown = run("-c", code)
    assert shown.returncode == 0, shown.stderr


def test_unknown_flag_fails_without_a_traceback():
    shown = run("-m", "momatch", "--nonsense")
    assert shown.returncode != 0
    assert "nonsense" in shown.stderr
    assert "Traceback" not in shown.stderr
