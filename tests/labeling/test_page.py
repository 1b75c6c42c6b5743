"""The page in a real browser, by keyboard; the server killed and started again meanwhile."""

import contextlib
import csv
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from momatch.data.load import load_dataset
from momatch.labeling.answers import Answer
from momatch.labeling.server import LabelServer, listen
from tests.labeling.setting import embed_photographs, kind, open_session, write_photographs

#: Filters of warnings belong to the process, not to a thread. A picture that is made while the model is fitted can end the
#: fit's own filter early.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
#: Milliseconds; a machine may be busy with other things.
PATIENCE = 120_000
EVIL = "</script><img src=x onerror=\"document.title='evil'\"> \"quoted\" & 'single'"


@contextlib.contextmanager
def visited(chromium, address, **options):
    """An open page without complaints or requests to anywhere else."""
    context = chromium.new_context(viewport={"width": 1200, "height": 800}, **options)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    complaints, requests = [], []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(address)
    look(page)
    yield page
    context.close()
    assert not complaints
    assert all(url.startswith((address, "data:")) for url in requests)


@contextlib.contextmanager
def served(folder: Path, classes=()):
    """The address of a server in this process."""
    session = open_session(folder, classes)
    server = LabelServer(session, listen())
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server.address
    finally:
        server.stop()
        thread.join()
        session.close()


def look(page):
    """Wait until all images on the page have loaded: before that no answer counts."""
    page.wait_for_function(
        """() => {
          const images = [...document.querySelectorAll('figure img')];
          return images.length && images.every((image) => image.complete && image.naturalWidth);
        }"""
    )


def hold(page, address):
    """Leave requests without an answer; returns them as they come."""
    held = []

    def keep(route):
        held.append(route)

    page.route(address, keep)
    return held


def release(page, address, held):
    """End requests that were held back: the browser may wait for one that is never answered."""
    for route in held:
        route.abort()
    page.unroute(address)


def shown(page) -> tuple[str, str]:
    """Row and file name of the image on the page."""
    figure = page.locator("figure").first
    return figure.get_attribute("data-row"), figure.locator("img").get_attribute("alt")


def press(page, key):
    """Press a key and wait for the next image."""
    look(page)
    row, name = shown(page)
    page.keyboard.press(key)
    page.wait_for_function(
        "row => !document.querySelector('figure') || document.querySelector('figure').dataset.row !== row", arg=row
    )
    return name


def key_of(page, name):
    """The key of a class."""
    button = page.locator("#classes button", has=page.locator(".name", has_text=re.compile(f"^{re.escape(name)}$")))
    return button.locator("kbd").inner_text()


def label_one(page):
    """Give the image its true label; returns its name."""
    _, name = shown(page)
    return press(page, key_of(page, kind(name)))


def labels(folder: Path) -> dict[str, dict[str, str]]:
    with open(folder / "labels.csv", newline="", encoding="utf-8") as file:
        return {row["path"]: row for row in csv.DictReader(file)}


def answered(folder: Path) -> set[str]:
    """Files that were answered."""
    return {name for name, row in labels(folder).items() if row["answered"]}


def test_labels_by_keyboard_undo_reload_and_the_end(chromium, photos):
    with served(photos) as address, visited(chromium, address, color_scheme="dark") as page:
        named = [label_one(page) for _ in range(6)]
        assert [labels(photos)[name]["label"] for name in named] == [kind(name) for name in named]
        page.wait_for_function("() => document.querySelector('#progress').textContent.startsWith('10 of 28')")
        # Undo shows the last one again.
        page.keyboard.press("u")
        page.wait_for_selector(f"figure img[alt='{named[-1]}']")
        assert labels(photos)[named[-1]]["label"] == ""
        assert label_one(page) == named[-1]
        skipped, none = press(page, "s"), press(page, "n")
        assert [labels(photos)[name]["status"] for name in (skipped, none)] == ["skipped", "none"]
        # Reload in the middle: nothing is lost, nothing is asked again.
        page.reload()
        look(page)
        assert shown(page)[1] not in {*named, skipped, none}
        assert "10 of 28 labelled, 1 none of these, 1 skipped" in page.inner_text("#progress")
        page.wait_for_function("() => document.querySelector('#accuracy').textContent.includes('right before it knew')")
        # The guess is preselected, and Enter accepts it.
        page.wait_for_selector("#classes button[aria-pressed='true']")
        guess = page.locator("#classes button[aria-pressed='true'] .name").inner_text()
        accepted = press(page, "Enter")
        assert labels(photos)[accepted]["label"] == guess
        page.keyboard.press(".")
        commands = page.locator("dialog code").all_inner_texts()
        assert [command.split()[1] for command in commands[1:]] == ["train", "predict", "export"]


def test_forty_labels_by_keyboard(chromium, tmp_path):
    folder = write_photographs(tmp_path / "photos", each=24)
    embed_photographs(folder)
    with served(folder) as address, visited(chromium, address) as page:
        named = []
        for _ in range(40):
            named.append(label_one(page))
            assert labels(folder)[named[-1]]["label"] == kind(named[-1]), "on disk before the next image shows"
        page.wait_for_function("() => document.querySelector('#progress').textContent.startsWith('44 of 52')")
        # The model followed: it guessed before it knew.
        page.wait_for_function("() => document.querySelector('#accuracy').textContent.includes('right before it knew')")
    assert len(set(named)) == 40
    found = labels(folder)
    assert [found[name]["label"] for name in named] == [kind(name) for name in named]
    assert sum(row["guess"] != "" for row in found.values()) >= 10
    dataset = load_dataset(folder / "features.npz", labels=folder / "labels.csv")
    assert ((dataset.train.labels >= 0).sum(), len(dataset.train)) == (44, 52)


def test_a_whole_grid_at_once_on_a_phone(chromium, photos):
    with served(photos) as address, visited(chromium, address) as page:
        page.set_viewport_size({"width": 390, "height": 800})
        page.keyboard.press("g")
        page.wait_for_selector("figure >> nth=11")
        look(page)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "it fits the screen"
        names = [image.get_attribute("alt") for image in page.locator("figure img").all()]
        for position, name in enumerate(names[:5]):
            page.wait_for_function(
                "n => document.querySelectorAll('figure')[n].getAttribute('aria-current') === 'true'", arg=position
            )
            page.keyboard.press(key_of(page, kind(name)))
        for _ in names[5:]:
            page.keyboard.press("Backspace")
            page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        page.wait_for_function("() => document.querySelector('#progress').textContent.startsWith('9 of 28')")
        found = labels(photos)
        assert [found[name]["label"] for name in names[:5]] == [kind(name) for name in names[:5]]
        assert not any(found[name]["label"] for name in names[5:])
        assert [found[name]["status"] for name in names[5:]] == ["skipped"] * 7, "left out"
        # Others came in their place.
        page.wait_for_function("() => document.querySelectorAll('figure').length === 12")
        look(page)
        assert not {image.get_attribute("alt") for image in page.locator("figure img").all()} & set(names)
        # Taken back, a grid keeps its answers: mostly one of them was wrong.
        page.keyboard.press("u")
        page.wait_for_function("() => document.querySelector('#progress').textContent.startsWith('4 of 28')")
        look(page)
        page.keyboard.press("Enter")
        page.wait_for_function("() => document.querySelector('#progress').textContent.startsWith('9 of 28')")
        page.wait_for_function("() => document.querySelectorAll('figure').length === 12")
        look(page)
        assert [labels(photos)[name]["label"] for name in names[:5]] == [kind(name) for name in names[:5]]
        # Undone one at a time, the grid shows one image, and Enter answers no other.
        page.keyboard.press("g")
        page.wait_for_function("() => document.querySelectorAll('figure').length === 1")
        page.keyboard.press("u")
        page.wait_for_function("() => document.querySelector('#progress').textContent.startsWith('4 of 28')")
        assert page.locator("figure").count() == 1
        look(page)
        before = answered(photos)
        page.keyboard.press("Enter")
        page.wait_for_timeout(500)
        assert len(answered(photos) - before) <= 1


def test_a_key_that_is_held_or_comes_before_the_image_answers_nothing(chromium, photos):
    with served(photos) as address, visited(chromium, address) as page:
        name, key = shown(page)[1], key_of(page, "red")
        large = re.compile(r"/images/\d+$")
        held = hold(page, large)  # the next image does not arrive
        page.keyboard.down(key)
        page.wait_for_function("name => document.querySelector('figure img').alt !== name", arg=name)
        for _ in range(3):
            page.keyboard.down(key)  # a repeat, as the key was not released
        page.keyboard.up(key)
        page.keyboard.press(key)
        page.keyboard.press("Enter")
        page.keyboard.press("n")
        page.wait_for_timeout(500)
        assert answered(photos) == {name}
        release(page, large, held)
        page.reload()
        press(page, key)
        assert len(answered(photos)) == 2


def test_an_error_stays_until_the_next_action_even_if_it_is_not_json(chromium, photos):
    with served(photos) as address, visited(chromium, address) as page:
        page.route("**/answers", lambda route: route.fulfill(status=502, body="Bad Gateway"))
        page.keyboard.press(key_of(page, "red"))
        page.wait_for_function("() => document.querySelector('#problem').textContent.includes('status 502')")
        with page.expect_response("**/state?*"):
            pass
        with page.expect_response("**/state?*"):
            pass
        assert "status 502" in page.inner_text("#problem")
        page.unroute("**/answers")
        press(page, key_of(page, "red"))
        assert page.locator("#problem").is_hidden()


def test_names_are_text_and_classes_are_added_while_labelling(chromium, photos):
    with served(photos, (EVIL,)) as address, visited(chromium, address) as page:
        page.keyboard.press("a")
        page.keyboard.type("<b>two</b>")
        page.keyboard.press("Enter")
        page.wait_for_function("() => document.querySelectorAll('#classes button').length === 6")
        for name in (EVIL, "<b>two</b>"):
            pressed = press(page, key_of(page, name))
            assert labels(photos)[pressed]["label"] == name
        assert page.title() == "momatch label"
        page.keyboard.press("a")
        page.keyboard.type("red")
        page.keyboard.press("Enter")
        page.wait_for_function("() => document.querySelector('#problem').textContent.includes('there already')")


def test_keys_work_when_nothing_is_left(chromium, photos):
    session = open_session(photos)
    session.answer({row: Answer("", "skipped") for row in range(4, session.state()["images"])})
    session.answer({session.state()["images"] - 1: Answer("red", "labelled")})
    session.close()
    with served(photos) as address:
        context = chromium.new_context()
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.goto(address)
        page.wait_for_function("() => document.querySelector('#hint').textContent.startsWith('Nothing is left')")
        focused = "() => document.activeElement.id"
        page.keyboard.press("a")
        assert page.evaluate(focused) == "name"
        page.keyboard.press("Escape")
        assert page.evaluate(focused) == ""
        page.keyboard.press("a")
        page.keyboard.type("zebra")
        page.keyboard.press("Enter")
        page.wait_for_function("() => document.activeElement.id === ''")
        # A key counts while the page looks what happened meanwhile, however long that takes.
        with page.expect_request("**/offers?*"):
            held = hold(page, "**/offers?*")
        page.keyboard.press("u")
        look(page)
        release(page, "**/offers?*", held)
        context.close()
    assert "zebra" in (photos / "labels.classes.txt").read_text().split()


def test_two_tabs_do_not_overwrite_each_other(chromium, photos):
    with served(photos) as address, visited(chromium, address) as one, visited(chromium, address) as two:
        assert shown(one) == shown(two)
        name = shown(two)[1]
        two.route("**/state?*", lambda route: route.abort())  # it does not learn of the other
        press(one, key_of(one, "red"))
        two.unroute("**/state?*")
        press(two, key_of(two, "blue"))
        assert labels(photos)[name]["label"] == "red"
        assert "answered elsewhere" in two.inner_text("#problem")


def test_two_tabs_do_not_ask_the_same_twice(chromium, photos):
    with served(photos) as address, visited(chromium, address) as one, visited(chromium, address) as two:
        assert shown(one) == shown(two)
        before = shown(two)[0]
        first = label_one(one)
        two.bring_to_front()
        two.wait_for_function("row => document.querySelector('figure').dataset.row !== row", arg=before)
        second = label_one(two)
        assert first != second
        assert answered(photos) == {first, second}


def test_a_file_that_is_gone_or_damaged_can_be_skipped(chromium, photos):
    with served(photos) as address:
        for number, path in enumerate(sorted((photos / "unlabeled").iterdir())):
            if number % 2:
                path.unlink()
            else:
                path.write_bytes(b"damaged")
        context = chromium.new_context()
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.goto(address)
        for _ in range(2):
            page.wait_for_selector("figure .gone")
            row = page.locator("figure").get_attribute("data-row")
            assert re.search("gone|cannot be decoded", page.inner_text("figure .gone"))
            for key in (key_of(page, "red"), "Enter"):
                page.keyboard.press(key)  # nobody can have seen its class
            page.keyboard.press("s")
            page.wait_for_function("row => document.querySelector('figure').dataset.row !== row", arg=row)
        assert not any(row["label"] for name, row in labels(photos).items() if name.startswith("unlabeled"))
        assert sum(row["status"] == "skipped" for row in labels(photos).values()) == 2
        context.close()


def start(folder: Path) -> tuple[subprocess.Popen[str], str]:
    """The command itself in a process of its own, and its address."""
    command = [sys.executable, "-m", "momatch", "label", str(folder), "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_a_killed_server_loses_nothing(chromium, photos):
    process, address = start(photos)
    with visited(chromium, address) as page:
        named = [label_one(page) for _ in range(3)]
        process.kill()
        process.communicate()
        page.keyboard.press(key_of(page, "red"))
        page.wait_for_function("() => document.querySelector('#problem').textContent.includes('on disk')")
    process, address = start(photos)
    with visited(chromium, address) as page:
        assert shown(page)[1] not in named
        assert page.inner_text("#progress").startswith("7 of 28 labelled")
        named.append(label_one(page))
    process.send_signal(signal.SIGINT)
    said, complaints = process.communicate(timeout=60)
    assert process.returncode == 0, complaints
    assert "8 of 28 images are labelled" in said
    assert "momatch train" in said
    assert [labels(photos)[name]["label"] for name in named] == [kind(name) for name in named]
