import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from momatch.cli.main import main


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MOMATCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("MOMATCH_DATA", raising=False)


@pytest.fixture
def pets(tmp_path):
    for k, name in enumerate(("cat", "dog", "unlabeled")):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for i in range(3):
            Image.new("L", (6, 6), 40 * k + i).save(tmp_path / f"pets/{name}/{i}.png")
    return tmp_path / "pets"


def test_lists_what_is_there(tmp_path, capsys):
    folder = tmp_path / "mnist"
    folder.mkdir()
    for split in ("train", "t10k"):
        for kind in ("images-idx3", "labels-idx1"):
            (folder / f"{split}-{kind}-ubyte").touch()
    assert main(["data", "--data-dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    states = {line.split()[0]: line for line in lines if line}
    assert "embedded" in states["digits"]
    assert f"present: {folder}" in states["mnist"]
    assert "161 MB to download" in states["cifar100"]


def test_inspects_digits(capsys):
    assert main(["data", "digits"]) == 0
    out = capsys.readouterr().out
    assert "images: 8x8, gray, uint8" in out
    assert "train: 1,297 (0 unlabelled)" in out
    assert "test: 500" in out


def test_inspects_a_folder_and_draws_it(pets, tmp_path, capsys):
    (pets / "dog/2.png").write_bytes(b"broken")
    sheet = tmp_path / "out/sheet.png"
    assert main(["data", str(pets), "--no-progress", "--contact-sheet", str(sheet)]) == 0
    out, err = capsys.readouterr()
    assert "train: 8 (3 unlabelled)" in out
    assert "skipped: 1" in out
    assert "dog/2.png" in err
    assert [line.split() for line in out.splitlines() if line.startswith(("cat", "dog"))] == [
        ["cat", "3", "0"],
        ["dog", "2", "0"],
    ]
    with Image.open(sheet) as drawn:
        pixels = np.asarray(drawn)
    # Rows in class order, at the level of their images; the unlabelled last.
    assert [int(pixels[2 + row * 66 + 32, 170 + 32, 0]) for row in range(3)] == [0, 40, 80]
    assert sorted(path.name for path in sheet.parent.iterdir()) == ["sheet.png"]


def test_many_classes_make_a_sheet_of_bounded_height(tmp_path, capsys):
    labels = np.arange(240) % 120
    np.savez(tmp_path / "a.npz", images=np.zeros((240, 8, 8), np.uint8), labels=labels)
    assert main(["data", str(tmp_path / "a.npz"), "--contact-sheet", str(tmp_path / "s.png")]) == 0
    with Image.open(tmp_path / "s.png") as drawn:
        assert drawn.height < 5100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "neither a known dataset"),
        (["mnits"], "did you mean 'mnist'"),
        (["mnist", "--no-download"], "download is off"),
        (["digits", "--strict"], "does not apply"),
        (["digits", "--contact-sheet", "a.txt"], "expected a .png file"),
    ],
)
def test_bad_input_is_a_message_and_an_exit_code(arguments, message, capsys):
    assert main(["data", *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("momatch data: error: ")
    assert message in err
    assert "Traceback" not in err


def test_strict_refuses(pets, capsys):
    (pets / "dog/2.png").write_bytes(b"broken")
    assert main(["data", str(pets), "--strict", "--no-progress"]) == 1
    assert "dog/2.png" in capsys.readouterr().err


def test_wrong_usage(capsys):
    for arguments in (["dta"], ["data", "digits", "--sise", "3"]):
        with pytest.raises(SystemExit, match="2"):
            main(arguments)
    assert main([]) == 0
    assert "data" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--help"], ["data", "--help"]])
def test_help_loads_nothing_heavy(arguments):
    code = (
        "import sys\nfrom momatch.cli.main import main\ntry:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'numpy', 'PIL', 'sklearn', 'scipy', 'pooch'} & set(sys.modules)\nassert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    assert "usage: momatch" in done.stdout
