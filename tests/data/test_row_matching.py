"""Which image a row of a manifest means: content, whole paths, parts of paths; stale rows mean nothing."""

from pathlib import Path

import pytest

from momatch.data.report import DataError
from momatch.data.row_matching import KnownImage, ListedRow, match_rows


def matched(rows, images, *, manifest="elsewhere/labels.csv", folder=None):
    """Image -> row, by name, and the rows that mean none. Rows: path, or path and content."""
    listed = [
        ListedRow(line, row, None) if isinstance(row, str) else ListedRow(line, row[0], row[1].encode())
        for line, row in enumerate(rows, 2)
    ]
    known = [
        KnownImage(image, image, image.encode())
        if isinstance(image, str)
        else KnownImage(image[0], image[1], image[2].encode())
        for image in images
    ]
    found = match_rows(listed, known, manifest=Path(manifest), folder=folder)
    meant = {known[image].file: listed[row].file for image, row in found.rows.items()}
    return meant, sorted(listed[row].file for row in found.unknown)


@pytest.mark.parametrize("stale_first", [False, True])
def test_the_label_of_a_deleted_image_goes_to_no_other_of_that_name(stale_first):
    rows = ["unlabeled/day1/IMG_012.jpg", "unlabeled/day2/IMG_012.jpg"]
    images = ["unlabeled/day1/IMG_012.jpg"]
    found = matched(rows[::-1] if stale_first else rows, images)
    assert found == ({rows[0]: rows[0]}, [rows[1]])
    # Nor without a row of its own.
    assert matched(rows[1:], images) == ({}, [rows[1]])


@pytest.mark.parametrize("stale", ["day2/a.jpg", "other/day2/a.jpg"])
def test_a_longer_path_beside_whole_paths_means_another_place(stale):
    assert matched(["b.jpg", stale], ["b.jpg", "a.jpg"]) == ({"b.jpg": "b.jpg"}, [stale])


def test_part_of_a_path_is_enough_if_nothing_else_fits():
    assert matched(["a.jpg"], ["day1/a.jpg", "day1/b.jpg"]) == ({"day1/a.jpg": "a.jpg"}, [])
    assert matched(["x/photos/a.jpg"], ["a.jpg", "b.jpg"]) == ({"a.jpg": "x/photos/a.jpg"}, [])
    assert matched(["x/day1/a.jpg"], ["a.jpg", "day1/a.jpg"]) == ({"day1/a.jpg": "x/day1/a.jpg"}, [])
    # Two rows for one image: neither.
    assert matched(["x/a.jpg", "y/a.jpg"], ["a.jpg"]) == ({}, ["x/a.jpg", "y/a.jpg"])
    with pytest.raises(DataError, match=r"line 2: got a.jpg, which fits 2 embedded images, expected more of its path"):
        matched(["a.jpg"], ["day1/a.jpg", "day2/a.jpg"])
    # A stale row stops nobody who writes whole paths.
    assert matched(["b.jpg", "a.jpg"], ["day1/a.jpg", "day2/a.jpg", "b.jpg"]) == ({"b.jpg": "b.jpg"}, ["a.jpg"])


def test_content_decides_where_the_file_is_there():
    images = [("cat/a.jpg", "a.jpg", "one"), ("b.jpg", "b.jpg", "two"), ("copy/b.jpg", "copy/b.jpg", "two")]
    rows = [("copy/b.jpg", "two"), ("b.jpg", "two"), ("elsewhere.jpg", "one"), ("a.jpg", "three")]
    assert matched(rows, images) == (
        {"copy/b.jpg": "copy/b.jpg", "b.jpg": "b.jpg", "cat/a.jpg": "elsewhere.jpg"},
        ["a.jpg"],
    )


def test_an_image_is_found_by_the_name_it_was_embedded_with():
    assert matched(["a.jpg"], [("cat/new.jpg", "a.jpg", "one")]) == ({"cat/new.jpg": "a.jpg"}, [])
    # But the one that has the name now comes first.
    images = [("cat/new.jpg", "a.jpg", "one"), ("a.jpg", "b.jpg", "two")]
    assert matched(["a.jpg"], images) == ({"a.jpg": "a.jpg"}, [])


def test_a_row_that_names_a_place_in_the_folder_means_that_place(tmp_path):
    manifest = tmp_path / "photos/day2/labels.csv"
    rows = ["a.jpg", ("b.jpg", "two")]
    images = [("a.jpg", "a.jpg", "one"), ("day2/b.jpg", "day2/b.jpg", "two"), ("day1/a.jpg", "day1/a.jpg", "three")]
    found = matched(rows, images, manifest=manifest, folder=tmp_path / "photos")
    assert found == ({"day2/b.jpg": "b.jpg"}, ["a.jpg"])
