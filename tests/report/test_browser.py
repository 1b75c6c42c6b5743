"""The page in a real browser: it draws everything, asks for nothing, and shows the image under the mouse."""

import io
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from PIL import Image, ImageStat

from momatch.report import write_page
from tests.report.made_up_reports import make_evaluation, make_judged, make_metrics, make_points, make_report, nothing

#: Milliseconds; a machine may be busy with other things.
PATIENCE = 180_000
#: In so many parts it is spent where a movement may be lost.
TRIES = 20
COMPLAINTS: list[str] = []
REQUESTS: list[str] = []
EVIL = '</script><img src=x onerror="alert(1)"><b>%{x}</b> & $a$'


@pytest.fixture(scope="module")
def visit(chromium, tmp_path_factory):
    """Open a page about runs; its console messages and requests are recorded."""
    contexts = []

    def open_page(*runs, **options):
        path = write_page(runs, tmp_path_factory.mktemp("page") / "report.html")
        contexts.append(chromium.new_context(**({"viewport": {"width": 1280, "height": 900}} | options)))
        page = contexts[-1].new_page()
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda message: COMPLAINTS.append(message.text))
        page.on("pageerror", lambda error: COMPLAINTS.append(str(error)))
        page.on("request", lambda request: REQUESTS.append(request.url))
        page.goto(path.as_uri())
        drawn(page)
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture(autouse=True)
def silence():
    """No test may make the page complain or ask for anything but itself."""
    yield
    assert COMPLAINTS == []
    assert [
        url for url in REQUESTS if not url.startswith(("data:", "blob:")) and not url.endswith("/report.html")
    ] == []


def drawn(page):
    """Wait until every chart is."""
    page.wait_for_selector("html[data-drawn=yes]", state="attached")


def grid(n=36):
    """RunReport whose images lie apart from each other, as shades of their number."""
    points = make_points(3, n=n, strangers=6)
    total = len(points.labels)
    places = torch.stack([torch.arange(total) % 8 * 10.0, torch.arange(total) // 8 * 10.0], 1)
    far = torch.full((3, 2), -40.0) + 10 * torch.eye(3)[:, :2]
    return make_report(
        points=replace(
            points,
            maps={"t-SNE": places, "PCA": places.flip(1)},
            centers={"t-SNE": far, "PCA": far},
            images=(5 * torch.arange(total)).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 8, 8).clone(),
        )
    )


@pytest.fixture(scope="module")
def page(visit):
    """A page about one whole run, which tests leave as they found it."""
    return visit(grid())


def hover(page, place):
    """Rest the mouse on the point that was drawn as number `place` of the test images."""
    page.locator("#map").scroll_into_view_if_needed()
    point = page.locator("[data-chart=map] .scatterlayer .trace").nth(0).locator("path.point").nth(place)

    def move():
        box = point.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2 - 3, box["y"] - 3)
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=4)

    until_shown(page, move)


def until_shown(page, act):
    """Repeat `act` until the card is there: a busy machine may lose a movement, as a user's hand does."""
    from playwright import sync_api

    for _ in range(TRIES):
        act()
        with suppress(sync_api.TimeoutError):
            page.wait_for_selector(".card:not([hidden])", timeout=PATIENCE / TRIES)
            return
        page.mouse.move(5, 5)
    raise AssertionError(f"the card was not shown in {TRIES} tries")


def shade(page):
    """Mean shade of the picture on the card."""
    picture = Image.open(io.BytesIO(page.locator(".card .tile").screenshot())).convert("L")
    inside = picture.crop((6, 6, picture.width - 6, picture.height - 6))
    low, high = inside.getextrema()
    assert high - low <= 4
    return ImageStat.Stat(inside).mean[0]


def first_trace(page):
    return page.evaluate(
        "() => (({ x, y, marker }) => [x[5], y[5], marker.color[5]])(document.querySelector('.chart[data-chart=map]').data[0])"
    )


def test_every_chart_is_drawn(page):
    kinds = page.eval_on_selector_all(".chart", "all => all.map(chart => chart.dataset.chart)")
    assert set(kinds) == {
        *("curves", "thresholds", "map", "moments", "cells", "quantiles", "confusion", "calibration", "densities")
    }
    assert page.locator(".chart .main-svg").count() >= len(kinds)
    assert page.locator(".chart:empty").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") == 1280


def test_the_image_under_the_mouse_is_shown(page):
    points = make_points(3, n=36)
    for place in (3, 17, 30):
        hover(page, place)
        assert shade(page) == pytest.approx(5 * place, abs=3)
        text = page.locator(".card").inner_text()
        assert ("cat", "dog", "owl")[int(points.labels[place])] in text
        assert "% confidence" in text
        assert "test images" in text
    hover(page, 0)  # taken for the second class
    text = page.locator(".card").inner_text()
    assert text.startswith("cat\npredicted\ndog, 50.0")
    assert "misclassified" in text
    page.mouse.move(5, 5)
    page.wait_for_selector(".card", state="hidden")


def test_the_other_map_and_other_colours(page):
    x, y, color = first_trace(page)
    page.locator("#map").get_by_text("PCA", exact=True).click()
    assert first_trace(page) == [y, x, color]
    hover(page, 12)
    assert shade(page) == pytest.approx(60, abs=3)
    page.locator("#map").get_by_text("mistakes", exact=True).click()
    assert first_trace(page)[2] != color
    page.locator("#map").get_by_text("distance", exact=True).click()
    assert isinstance(first_trace(page)[2], float)
    page.locator("#map").get_by_text("t-SNE", exact=True).click()
    page.locator("#map").get_by_text("class", exact=True).click()
    assert first_trace(page) == [x, y, color]


def test_keys_show_and_hide(page):
    state = "() => { const t = document.querySelector('[data-chart=map]').data; return [t[1].visible, t[0].marker.opacity]; }"
    visible, before = page.evaluate(state)
    assert visible
    page.locator("#map .key", has_text="held-out classes").click()
    assert not page.evaluate(state)[0]
    page.locator("#map .key", has_text="dog").click()
    after = page.evaluate(state)[1]
    assert [a == b for a, b in zip(after, before, strict=True)] == [i % 3 == 1 for i in range(len(before))]
    page.locator("#map .key", has_text="dog").click()
    page.locator("#map .key", has_text="held-out classes").click()
    assert page.evaluate(state) == [visible, before]


def test_a_class_is_chosen_for_its_moments(page):
    # At first the class that is farthest from a Gaussian; here all are alike, so the first.
    assert page.locator("#gaussianity select").input_value() == "0"
    page.locator("#gaussianity select").select_option("owl")
    assert "owl" in page.locator("[data-chart=quantiles] + .keys").inner_text()


def test_densities_as_trained_and_refitted(page):
    start = "() => document.querySelector('[data-chart=densities]').data[0].x[0]"
    refitted = page.evaluate(start)
    page.locator("#outliers .choice").get_by_text("as trained", exact=True).click()
    assert page.evaluate(start) < refitted


def test_the_judge_is_shown_first(visit):
    page = visit(replace(make_judged(), points=grid().points))
    start = "() => document.querySelector('[data-chart=densities]').data[0].x[0]"
    judge = page.evaluate(start)
    assert judge < -90
    choice = page.locator("#outliers .choice")
    assert choice.locator("span").all_inner_texts() == ["judge", "head as trained", "head refitted"]
    choice.get_by_text("head refitted", exact=True).click()
    assert page.evaluate(start) > judge
    hover(page, 3)
    assert "from the nearest class, by the judge" in page.locator(".card").inner_text()
    assert page.locator("#outlying .listed tbody tr").count() == 20
    assert page.evaluate("document.documentElement.scrollWidth") == 1280


def test_charts_follow_a_change_to_dark(page):
    ink = "() => document.querySelector('[data-chart=map]').layout.font.color"
    before = page.evaluate(ink)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"({ink})() !== {before!r}")
    drawn(page)


def test_several_runs_are_shown_and_hidden(visit):
    names = (EVIL, "{style}", "caf\udce9")
    page = visit(grid(), make_report(names, name=EVIL, metrics=make_metrics()), nothing("c"))
    lines = "() => document.querySelector('[data-chart=curves]').data.length"
    assert page.evaluate(lines) == 2
    assert page.locator("#map .panel:visible").count() == 3
    hover(page, 9)
    assert shade(page) == pytest.approx(45, abs=3)
    # Names are text, in charts as well.
    assert page.locator("img").count() == 0
    assert "</script><img…" in page.locator("[data-chart=confusion]").nth(1).inner_text()
    assert page.locator("#map .key", has_text=EVIL).count() == 1
    for shown in (False, True):
        page.locator("nav .badge", has_text="B").click()
        drawn(page)
        assert page.evaluate(lines) == 1 + shown
        assert page.locator("#map .panel:visible").count() == 2 + shown
    page.set_viewport_size({"width": 390, "height": 800})  # charts follow a moment later
    page.wait_for_function("document.documentElement.scrollWidth === 390")


def test_a_page_without_anything(visit):
    page = visit(nothing())
    assert page.locator(".chart").count() == 0
    assert "The directory is empty." in page.locator("header").inner_text()
    assert page.locator("#map .missing").inner_text() == "There is no model to show."


def test_a_narrow_dark_screen_of_a_phone(visit):
    page = visit(grid(), viewport={"width": 390, "height": 800}, color_scheme="dark", has_touch=True, is_mobile=True)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert sum(map(int, background[4:-1].split(","))) < 150
    page.locator("#map .chart").scroll_into_view_if_needed()
    box = page.locator("[data-chart=map] .scatterlayer .trace").nth(0).locator("path.point").nth(20).bounding_box()
    until_shown(page, lambda: page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2))
    assert shade(page) == pytest.approx(100, abs=3)


def test_a_hundred_classes(visit):
    names = [f"class number {k}" for k in range(100)]
    page = visit(make_report(names, n=400, evaluation=make_evaluation(100), metrics=make_metrics(K=100)))
    assert page.locator("#map select option").count() == 101
    page.locator("#map select").select_option("class number 7")
    opacity = page.evaluate("() => document.querySelector('[data-chart=map]').data[0].marker.opacity")
    assert [value > 0.5 for value in opacity] == [i % 100 == 7 for i in range(400)]


def test_odd_shapes_draw(visit):
    """Two classes, one image, a head without centers, a score that is nowhere finite, one dimension."""
    points = make_points(2, n=1, strangers=0)
    bare = replace(
        points,
        centers={name: torch.zeros(0, 2) for name in points.maps},
        distance=torch.full((1,), torch.nan),
        log_density=torch.full((1,), -torch.inf),
    )
    one = make_report(("a", "b"), points=bare, metrics=make_metrics(20))
    densities = replace(one.densities, log_density={"as trained": {"test images": torch.ones(3)}}, separation={})
    none = replace(one.densities, log_density={"as trained": {"test images": torch.zeros(0)}}, separation={})
    clusters = tuple(replace(each, moments=each.moments[:2]) for each in one.clusters)
    page = visit(
        replace(one, densities=densities, clusters=clusters[:1], mistakes=(), outlying=()),
        replace(one, densities=none, name="n"),
    )
    assert "No test image was misclassified." in page.locator("#mistakes").inner_text()
