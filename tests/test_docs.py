"""The code in the documents runs as it stands, and the tutorials print what they show.

- Each Python block of the README runs alone, in a fresh namespace: it is what somebody copies first. Its sh blocks run too.
- The blocks of any other page run in order, in one namespace.
- The commands of a tutorial run as well. Its shown output is compared word by word, with any number in a number's place: a
  trained outcome differs from one processor to the next. What a tutorial promises is an `assert` in its own code. Three dots
  stand for anything.
"""

import contextlib
import io
import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import torch

import momatch
from momatch.cli.main import main
from reproduction.paper import paper_grid

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = ("method.md", "data.md", "training.md", "features.md", "predict.md", "export.md", "estimator.md", "labeling.md")
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))
#: Pages whose links are checked.
LINKED = [README, ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md", *sorted(DOCS.rglob("*.md"))]
NUMBER = r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"


def blocks(path):
    """Each fenced block with a language as (language, line of the page where its text starts, text)."""
    text = path.read_text(encoding="utf-8")
    matches = re.finditer(r"^```(\w+)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [(match[1], text.count("\n", 0, match.start(2)) + 1, match[2]) for match in matches]


def python_blocks(path):
    return [(line, code) for kind, line, code in blocks(path) if kind == "python"]


def run_python(code, namespace, *, page, line):
    """Run a block; blank lines in front make a traceback name the line of the page."""
    exec(compile("\n" * (line - 1) + code, str(page), "exec"), namespace)


#: What a user meets: checks of every shape in every step would cost more than the steps.
pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture(autouse=True)
def empty_directory(tmp_path, monkeypatch):
    """Pages write files, and must not find any."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("MOMATCH_CACHE", str(tmp_path / "cache"))
    with torch.random.fork_rng():
        yield


@pytest.mark.parametrize(("line", "code"), python_blocks(README), ids=lambda value: str(value).partition("\n")[0])
def test_each_block_of_the_readme_runs_alone(line, code):
    run_python(code, {}, page=README, line=line)


@pytest.mark.slow
def test_commands_of_the_readme_run():
    """Those of blocks marked sh, with fewer steps; the others install something or take hours."""
    for kind, _, text in blocks(README):
        for command in text.splitlines() if kind == "sh" else ():
            run_command(command.replace("--steps 200", "--steps 20"))


@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_run(page):
    namespace = {}
    assert python_blocks(DOCS / page)
    for line, code in python_blocks(DOCS / page):
        run_python(code, namespace, page=page, line=line)


def commands(text):
    """Each command of a console block with the output that is shown below it; a backslash continues a line."""
    parts = re.split(r"^\$ ", text.replace("\\\n", " "), flags=re.MULTILINE)
    assert not parts[0].strip()
    return [part.partition("\n")[::2] for part in parts[1:]]


def run_command(command):
    """What a command prints; those of momatch run in this process, which saves importing torch for each."""
    words = shlex.split(command, comments=True)
    if words[0] != "momatch":
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert main(words[1:]) == 0, command
    return output.getvalue()


def pattern_of(shown):
    """What matches the same words with any number in a number's place, any space in a space's, anything for three dots."""
    pieces = re.split(rf"({NUMBER}|\.\.\.|\s+)", shown.strip())
    stand_ins = {"...": ".*"}

    def pattern(piece):
        if re.fullmatch(NUMBER, piece):
            return NUMBER
        return r"\s+" if piece.isspace() else stand_ins.get(piece, re.escape(piece))

    return "".join(map(pattern, pieces))


def assert_shown(shown, output):
    """Check that output has the form that a page shows."""
    assert re.fullmatch(pattern_of(shown), output.strip(), flags=re.DOTALL), f"shown:\n{shown}\nprinted:\n{output}"


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.name)
def test_tutorials_do_what_they_show(page):
    namespace, output = {}, ""
    for kind, line, text in blocks(page):
        if kind == "python":
            captured = io.StringIO()
            with contextlib.redirect_stdout(captured):
                run_python(text, namespace, page=page, line=line)
            output = captured.getvalue()
        elif kind == "console":
            for command, shown in commands(text):
                assert_shown(shown or "...", run_command(command))
        else:
            assert kind == "text", f"{page.name}, line {line}: a tutorial has python, console and text blocks"
            assert_shown(text, output)


@pytest.mark.parametrize(
    ("shown", "output", "is_it"),
    [
        ("91% of 500 right", "63% of 500  right\n", True),
        ("91% of 500 right", "91% of 500 wrong", False),
        ("91% of 500 right", "nan% of 500 right", False),
        ("5% of digits", "-0.2e-5% of digits", True),
        ("0.50 and ... 1,200 steps", "0.95 and\nmuch 7 more\n20,000 steps", True),
        ("a line", "a line\nanother", False),
        ("a line ...", "a line\nanother", True),
    ],
)
def test_the_form_of_shown_output_is_compared(shown, output, is_it):
    with contextlib.nullcontext() if is_it else pytest.raises(AssertionError):
        assert_shown(shown, output)


def anchors(page):
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


def test_readme_is_short():
    assert len(README.read_text(encoding="utf-8").split()) <= 900


def test_api_page_lists_every_public_name_once():
    rows = re.findall(r"^\| (.*?) \| (.*?) \|$", (DOCS / "api.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    listed = [name for names, _ in rows for name in re.findall(r"`(\w+)`", names)]
    assert sorted(listed) == sorted(momatch.__all__)


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks" / "results").rglob("*.json")), ids=lambda path: path.name)
def test_records_can_be_read(path):
    assert json.loads(path.read_text(encoding="utf-8"))


def test_every_benchmark_and_record_is_listed():
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    scripts = [path for path in (ROOT / "benchmarks").glob("*.py") if not path.name.startswith("_")]
    for path in [*scripts, *(ROOT / "benchmarks" / "results").glob("*.md")]:
        assert path.name in page, f"{path.name} is missing from benchmarks/README.md"


def test_gpu_page_has_the_estimates_of_the_record():
    record = json.loads((ROOT / "benchmarks" / "results" / "gpu_estimate.json").read_text(encoding="utf-8"))
    page = (DOCS / "gpu.md").read_text(encoding="utf-8")
    hours = {}
    for preset in ("paper-cifar10", "paper-stl10"):
        rows = {row["precision"]: row for row in record["rows"] if row["preset"] == preset}
        assert {row["images a step"] for row in rows.values()} == {960}
        cells = [f"`{preset}`", f"{rows['float32']['operations a step (tera)']} tera"]
        cells += [f"{rows[precision]['hours a run on an A100']} hours" for precision in ("float32", "bfloat16")]
        cells.append(", ".join(str(row["activations (GiB)"]) for row in rows.values()) + " GiB")
        assert f"| {' | '.join(cells)} |" in page
        hours |= {(preset, precision): row["hours a run on an A100"].split(" to ") for precision, row in rows.items()}
    tables = re.findall(r"^\| `(\w+)`.*? \| (\d+) \| (.*) \|$", page, flags=re.MULTILINE)
    assert len(tables) == 5
    for name, runs, cells in tables:
        assert int(runs) == len(paper_grid(name).cells) * len(paper_grid(name).seeds)
        assert cells == " | ".join(" to ".join(f"{int(runs) * int(end):,}" for end in ends) for ends in hours.values())
