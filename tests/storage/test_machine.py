"""Machine facts name no place, and the commit is that of the package's own files."""

import json
import subprocess

from momatch.storage.machine import commit, machine_facts


def test_machine_facts_name_no_place(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    arguments = [
        "momatch",
        "sweep",
        "my grid.toml",
        "--data-dir",
        "/secret/place/data",
        "--out=/secret/out",
        "--runs",
        "~/r",
        *(
            "--set",
            "dataset=/secret/x.npz",
            "--set",
            "backbone=onnx:/secret/a.onnx,cnn-tiny",
            "--backbone=onnx:~/b.onnx",
        ),
        "https://host/secrets.html",
    ]
    facts = machine_facts(arguments, workers=3, threads=1)
    assert facts["command"] == (
        "momatch sweep 'my grid.toml' --data-dir .../data --out=.../out --runs .../r --set dataset=.../x.npz "
        "--set backbone=onnx:.../a.onnx,cnn-tiny --backbone=onnx:.../b.onnx https://host/secrets.html"
    )
    assert {"date", "commit", "cpu", "cores", "system", "python", "torch", "numpy", "momatch"} <= facts.keys()
    assert (facts["workers"], facts["threads"]) == (3, 1)
    assert "secret/" not in json.dumps(facts)


def test_commit_is_that_of_tracked_files_only(tmp_path):
    def git(*arguments):
        who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    assert commit(folder) is None
    git("init")
    assert commit(folder) is None
    git("add", ".")
    git("commit", "-m", "x")
    clean = commit(folder)
    assert clean is not None
    assert len(clean) >= 7
    (folder / "__init__.py").write_text("changed")
    assert commit(folder) == f"{clean} (modified)"


def test_commit_without_git(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit(tmp_path) is None
