"""Parts of the page: pictures on sheets, curves, histograms, words."""

import base64
import io
import json
import re
from dataclasses import replace

import pytest
import torch
from PIL import Image

from momatch.config import TrainConfig
from momatch.console.wording import plural
from momatch.report.charts import BINS, curve_points, density_histograms, histogram_range, thin
from momatch.report.formats import count, is_number, letter, rounded
from momatch.report.page import build_page
from momatch.report.sprites import SIDE, Sprites, Tile
from momatch.report.tables import confused_pairs, headline
from tests.report.made_up_reports import make_densities, make_report, nothing


def sheets(sprites):
    """The sheets of a style sheet, by class."""
    found = re.findall(
        r"\.(sheet-\d+-\d+)\{background-image:url\(data:image/\w+;base64,([^)]+)\)\}", sprites.style_sheet()
    )
    return {name: Image.open(io.BytesIO(base64.b64decode(data))) for name, data in found}


def test_an_integer_too_large_for_a_float_is_no_number():
    assert not is_number(10**400)
    assert is_number(10**12)
    assert not is_number(True)


def test_a_run_at_its_end_without_a_result_is_not_called_unfinished():
    run = replace(nothing(), config=TrainConfig(steps=600), metrics=[{"step": 600}])
    assert headline([run]) == "The result of this run cannot be read"
    assert "All 600 steps were completed, but there is no readable result." in build_page([run])
    assert headline([replace(run, metrics=[{"step": 500}])]) == "This run has not finished"


def test_held_out_classes_are_named():
    run = replace(nothing(), config=TrainConfig(held_out_classes="6,<7>", held_out_in_pool=True))
    assert "Held-out classes: 6,&lt;7&gt; (their images stay in the unlabelled pool)." in build_page([run])


def test_pictures_lie_where_the_element_looks():
    sprites = Sprites()
    images = (3 * torch.arange(SIDE + 3)).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 8, 8)
    tiles = [sprites.add(image.clone(), most=32) for image in images]
    sheet = sheets(sprites)["sheet-0-0"].convert("L")
    assert sheet.size == (8 * SIDE, 16)
    for image, tile in zip(images, tiles, strict=True):
        row, column = divmod(tile.number, SIDE)
        assert abs(sheet.getpixel((8 * column + 4, 8 * row + 4)) - int(image[0, 0, 0])) <= 3
    # Drawn twelve times as large, so that pixels stay square.
    style = sprites.css_style(Tile(0, SIDE + 1))
    assert "width:96px;height:96px" in style
    assert f"background-size:{96 * SIDE}px auto" in style
    assert "background-position:-96px -96px" in style


def test_the_same_picture_is_kept_once():
    sprites = Sprites()
    image = torch.zeros(3, 4, 4, dtype=torch.uint8)
    assert sprites.add(image, most=32) == sprites.add(image.clone(), most=32) == Tile(0, 0)
    assert sprites.add(image[:1], most=32) == Tile(1, 0)
    assert len(sheets(sprites)) == 2


def test_large_pictures_are_made_smaller_in_shape():
    sprites = Sprites()
    sprites.add(torch.zeros(3, 96, 48, dtype=torch.uint8), most=32)
    sprites.add(torch.zeros(4, 3, 2, dtype=torch.uint8), most=32)
    sprites.add(torch.zeros(2, 200, 1, dtype=torch.uint8), most=32)
    assert sprites.layout() == {"side": SIDE, "sizes": [[48, 96], [64, 96], [3, 96]]}


def test_every_picture_names_its_file():
    run = make_report()
    named = tuple(replace(picture, file=f"cat/<{i}>.jpg") for i, picture in enumerate(run.to_label))
    points = replace(run.points, files=("test/cat/1.jpg", *[""] * (len(run.points.labels) - 1)))
    page = build_page([replace(run, to_label=named, points=points)])
    assert '<figure title="cat/&lt;0&gt;.jpg">' in page
    assert '<span class="file">cat/&lt;0&gt;.jpg</span>' in page
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    assert data["runs"][0]["map"]["files"][0] == "test/cat/1.jpg"
    assert '"files":null' in build_page([run])


def test_photographs_are_scaled_smoothly():
    sprites = Sprites()
    sprites.add(torch.zeros(3, 96, 64, dtype=torch.uint8), most=96)
    sprites.add(torch.zeros(3, 224, 224, dtype=torch.uint8), most=64)
    assert sprites.layout()["sizes"] == [[85, 128], [128, 128]]
    assert sprites.style_sheet().count("image-rendering:auto") == 2


def test_many_pictures_take_several_sheets():
    sprites = Sprites()
    for i in range(SIDE * SIDE + 1):
        last = sprites.add(torch.tensor([i % 256, i // 256, 0], dtype=torch.uint8).view(3, 1, 1), most=32)
    assert list(sheets(sprites)) == ["sheet-0-0", "sheet-0-1"]
    assert sprites.css_class(last) == "sheet-0-1"


def test_json_cannot_leave_its_script():
    name = "</script><!-- & ' \u2028"
    page = build_page([replace(nothing(), class_names=(name,))])
    text = page.partition('id="data">')[2].partition("</script>")[0]
    assert not re.search("[<>&]", text)
    assert json.loads(text)["runs"][0]["classes"] == [name]


def test_rounding_keeps_what_is_seen():
    assert rounded([1.23456, float("nan"), -float("inf"), 123456.0, 0.0]) == [1.235, None, None, 123500.0, 0.0]


def test_thinning_keeps_the_last():
    assert thin(range(10), 4) == range(0, 10, 3)
    assert thin([1, 2], 4) == [1, 2]
    assert len(thin(range(1001), 400)) <= 400
    assert thin(range(1001), 400)[-1] == 1000
    assert thin([], 4) == []


def test_a_loss_that_is_always_zero_is_no_curve_but_a_share_is():
    lines = [{"step": 1, "fairness_loss": 0.0, "utilisation": 0.0, "outlier_share": 0.0}]
    assert curve_points(lines, "fairness_loss") is None
    assert curve_points(lines, "outlier_share") is None
    assert curve_points(lines, "utilisation") == {"x": [1.0], "y": [0.0]}


def test_histograms_hold_every_image_once():
    found = density_histograms(make_densities())
    for state in found.values():
        assert len(state["edges"]) == BINS + 1
        for origin in state["origins"]:
            assert sum(origin["share"]) == pytest.approx(1, abs=2e-3)
    # Far outliers are counted in the first bar instead of pressing all else together.
    far = found["refitted"]["origins"][2]
    assert far["beyond"] == far["n"] - round((1 - far["share"][0]) * far["n"])


def test_the_range_of_a_histogram_never_has_no_width():
    same = torch.full((5,), 3.0, dtype=torch.float64)
    for groups in ([same], [same, same - 1e9], [same, same + 1e9]):
        low, high = histogram_range(groups)
        assert low < high
        assert low <= 3.0 <= high
        assert high - low < 1


def test_confused_pairs_come_most_frequent_first():
    confusion = torch.tensor([[5, 1, 0], [2, 3, 0], [1, 0, 9]])
    assert confused_pairs(confusion) == [(2, 1, 0), (1, 0, 1), (1, 2, 0)]


def test_numbers_as_a_person_writes_them():
    assert (count(1234567.0), plural(1, "step"), plural(2000, "step")) == ("1,234,567", "1 step", "2,000 steps")
    assert headline([nothing()]) == "There is no readable run here"


def test_runs_are_lettered():
    assert [letter(number) for number in (0, 25, 26, 27, 701, 702)] == ["A", "Z", "AA", "AB", "ZZ", "AAA"]
