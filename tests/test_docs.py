"""The Python blocks of the documents run as they stand, in order and in one namespace a page.

Of the tutorials, the commands run as well, and what a page shows as output is what comes out: the same words, and numbers that
are near (other versions of a library may train a little differently). Three dots stand for anything.
"""

import contextlib
import io
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import torch

from momatch.cli.main import main

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = ("method.md", "data.md", "training.md", "features.md", "predict.md", "export.md", "estimator.md")
WITH_CODE = [ROOT / "README.md", *(DOCS / page for page in PAGES)]
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))
NUMBER = r"\d[\d,]*(?:\.\d+)?"


def python_blocks(path):
    """Each block as (line in the file where its code starts, code)."""
    text = path.read_text(encoding="utf-8")
    matches = re.finditer(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, match.start(1)) + 1, match[1]) for match in matches]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = python_blocks(page)
    assert blocks
    namespace = {}
    with torch.random.fork_rng():
        for line, code in blocks:
            # Blank lines in front make a traceback name the line of the page.
            exec(compile("\n" * (line - 1) + code, str(page), "exec"), namespace)


def blocks(path):
    """Each block of a tutorial as (kind, line in the file where it starts, text)."""
    text = path.read_text(encoding="utf-8")
    matches = re.finditer(r"^```(\w+)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [(match[1], text.count("\n", 0, match.start(2)) + 1, match[2]) for match in matches]


def commands(text):
    """Each command of a console block with the output that is shown below it; a backslash continues a line."""
    parts = re.split(r"^\$ ", text.replace("\\\n", " "), flags=re.MULTILINE)
    assert not parts[0].strip()
    return [part.partition("\n")[::2] for part in parts[1:]]


def run_command(command):
    """What a command prints; those of momatch run in this process, where the shapes of tensors are checked."""
    words = shlex.split(command, comments=True)
    if words[0] != "momatch":
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert main(words[1:]) == 0, command
    return output.getvalue()


def pattern_of(shown):
    """What matches the same words with any numbers and any space between them."""
    words, numbers = re.split(NUMBER, shown), re.findall(NUMBER, shown)
    escaped = [re.sub(r"(?:\\?\s)+", r"\\s+", re.escape(part)) for part in words]
    return "".join(part + (f"({NUMBER})" if place < len(numbers) else "") for place, part in enumerate(escaped))


def assert_shown(shown, output):
    """Whether output is what a page shows: word by word, numbers to a fifth or five (a tenth, if they have a decimal point)."""
    pieces, output = shown.strip().split("..."), output.strip()
    begin = 0
    for place, piece in enumerate(pieces):
        # The first piece stands at the beginning, the last at the end, the others where they are found next.
        first, last = place == 0, place == len(pieces) - 1
        pattern = re.compile(pattern_of(piece) + (r"\Z" if last else ""))
        match = (pattern.match if first else pattern.search)(output, begin)
        assert match, f"shown:\n{piece}\ncame:\n{output[begin:]}"
        begin = match.end()
        for came, number in zip(match.groups(), re.findall(NUMBER, piece), strict=True):
            near = 0.1 if "." in number else 5.0
            wanted = pytest.approx(float(number.replace(",", "")), rel=0.2, abs=near)
            assert float(came.replace(",", "")) == wanted, f"shown:\n{piece}\ncame:\n{output}"


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.name)
def test_tutorials_do_what_they_show(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("MOMATCH_CACHE", str(tmp_path / "cache"))
    namespace, output = {}, ""
    with torch.random.fork_rng():
        for kind, line, text in blocks(page):
            if kind == "python":
                captured = io.StringIO()
                with contextlib.redirect_stdout(captured):
                    exec(compile("\n" * (line - 1) + text, str(page), "exec"), namespace)
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
        ("91% of 500 right", "93% of 500  right\n", True),
        ("91% of 500 right", "71% of 500 right", False),
        ("91% of 500 right", "91% of 500 wrong", False),
        ("0.50 and ... 1,200 steps", "0.55 and\nmuch 7 more\n1,201 steps", True),
        ("0.50", "0.65", False),
        ("a line", "a line\nanother", False),
    ],
)
def test_shown_output_is_compared(shown, output, is_it):
    with contextlib.nullcontext() if is_it else pytest.raises(AssertionError):
        assert_shown(shown, output)


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), flags=re.MULTILINE)
            anchors = [re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings]
            assert anchor in anchors, target
