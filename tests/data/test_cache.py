import os
import threading
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from momatch.data import decode_pool
from momatch.data.cache import (
    JOURNAL,
    Journal,
    cache_key,
    map_images,
    open_or_build,
    read_journal,
    require_space,
    write_rows,
)
from momatch.data.report import DataError
from momatch.data.sources.folder import load_folder


def build(part):
    return write_rows(part, [np.ones((2, 1, 2, 2), np.uint8)], (2, 1, 2, 2), progress=False)


def test_built_once_and_memory_mapped(tmp_path):
    entry = open_or_build("key", tmp_path, build)
    assert entry.images.sum() == 8
    again = open_or_build("key", tmp_path, lambda part: pytest.fail("built twice"))
    assert torch.equal(again.images, entry.images)


def test_writing_to_the_tensor_leaves_the_file_alone(tmp_path):
    entry = open_or_build("key", tmp_path, build)
    entry.images.zero_()
    assert open_or_build("key", tmp_path, build).images.sum() == 8


def test_a_build_that_fails_leaves_no_entry(tmp_path):
    def broken(part):
        build(part)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_or_build("key", tmp_path, broken)
    assert open_or_build("key", tmp_path, build).images.shape == (2, 1, 2, 2)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc to name what is synced")
def test_an_entry_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    synced, rename = [], os.replace
    fsync = os.fsync

    def watched(descriptor):
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def renamed(source, target):
        part = str(tmp_path / "images" / "key.part")
        assert (str(source), str(target)) == (part, part.removesuffix(".part"))
        assert {f"{part}/images.bin", f"{part}/meta.json", part} <= set(synced)
        rename(source, target)

    monkeypatch.setattr("momatch.storage.durable.os.fsync", watched)
    monkeypatch.setattr("momatch.storage.durable.os.replace", renamed)
    open_or_build("key", tmp_path, build)
    assert synced[-1] == str(tmp_path / "images")


def test_a_damaged_entry_is_refused(tmp_path):
    entry = open_or_build("key", tmp_path, build)
    (entry.folder / "images.bin").write_bytes(b"12")
    with pytest.raises(DataError, match="is damaged; delete that directory"):
        open_or_build("key", tmp_path, build)


def test_a_second_builder_waits_for_the_first(tmp_path):
    builds = []

    def slow(part):
        builds.append(part)
        threading.Event().wait(0.2)
        return build(part)

    threads = [threading.Thread(target=open_or_build, args=("key", tmp_path, slow)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1


def test_a_file_larger_than_memory_is_mapped(tmp_path):
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    row = 1 << 20
    rows = 2 * memory // row
    path = tmp_path / "huge"
    with open(path, "wb") as file:
        file.truncate(rows * row)
    images = map_images(path, (rows, 1, 1024, 1024))
    assert int(images[-1].sum()) == 0


def test_no_space_is_said_before_anything_is_written(tmp_path):
    with pytest.raises(DataError, match=r"the cache needs .* GB in .*\$MOMATCH_CACHE"):
        require_space(tmp_path, 10**18)


def test_rows_must_make_up_the_shape(tmp_path):
    with pytest.raises(DataError, match="got 2 images, expected 3"):
        write_rows(tmp_path, [np.ones((2, 1, 2, 2), np.uint8)], (3, 1, 2, 2), progress=False)
    with pytest.raises(DataError, match=r"expected \(1, 2, 2\) like the first"):
        write_rows(tmp_path, [np.ones((2, 1, 2, 3), np.uint8)], (2, 1, 2, 2), progress=False)


def test_keys_differ():
    assert len({cache_key("a", 1), cache_key("a", 2), cache_key("b", 1), cache_key("a1")}) == 4


@pytest.fixture
def many(tmp_path, save_image):
    """Enough files for several chunks and for parallel processes; some are broken, among them the first and the last."""
    root = tmp_path / "many"
    for i in range(600):
        save_image(root / "ab"[i % 2] / f"{i:03}.png", value=i % 256)
    broken = (0, 62, 63, 64, 65, 200, 599)
    for i in broken:
        (root / "ab"[i % 2] / f"{i:03}.png").write_bytes(b"broken")
    expected = [i % 256 for k in (0, 1) for i in range(k, 600, 2) if i not in broken]
    return root, expected


def test_parallel_and_serial_give_the_same(many, options, tmp_path):
    root, expected = many
    for workers in (1, 2):
        chosen = replace(options, workers=workers, cache_dir=tmp_path / f"cache{workers}")
        dataset, report = load_folder("many", root, chosen)
        assert dataset.train.images[:, 0, 0, 0].tolist() == expected
        assert len(report.skipped) == 7


def test_workers_of_another_directory(many, options, tmp_path, monkeypatch):
    root, expected = many
    # The workers that the first round leaves behind stay in its directory, where another path leads to the images.
    for folder in (tmp_path / "a" / "b", tmp_path / "c"):
        folder.mkdir(parents=True)
        monkeypatch.chdir(folder)
        chosen = replace(options, workers=2, cache_dir=Path("cache"))
        dataset, _ = load_folder("many", Path(os.path.relpath(root)), chosen)
        assert dataset.train.images[:, 0, 0, 0].tolist() == expected


def test_workers_do_not_import_from_the_current_directory(many, options, tmp_path, monkeypatch):
    seen = []
    honest = decode_pool.DecodePool._run_parallel

    def watched(self, tasks, workers):
        seen.append(os.environ.get("PYTHONSAFEPATH"))
        return honest(self, tasks, workers)

    monkeypatch.setattr(decode_pool.DecodePool, "_run_parallel", watched)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    load_folder("many", many[0], replace(options, workers=2))
    assert seen == ["1"]
    assert "PYTHONSAFEPATH" not in os.environ


def test_parallel_refusals_end_cleanly(many, save_image, options):
    root, _ = many
    with pytest.raises(DataError, match="expected at most 3"):
        load_folder("many", root, replace(options, workers=2, max_skipped=3))
    save_image(root / "a/999.png", size=(9, 9))
    with pytest.raises(DataError, match="mixed sizes"):
        load_folder("many", root, replace(options, workers=2))


def test_an_interrupted_build_goes_on(many, options, monkeypatch):
    root, expected = many
    serial = replace(options, workers=1)
    honest, calls = decode_pool.decode_chunk, []

    def interrupted(task):
        calls.append(task.first)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return honest(task)

    monkeypatch.setattr(decode_pool, "decode_chunk", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load_folder("many", root, serial)
    assert len(calls) == 4
    dataset, report = load_folder("many", root, serial)
    assert sorted(calls) == sorted([*range(0, 600, 64), 192])
    assert dataset.train.images[:, 0, 0, 0].tolist() == expected
    assert len(report.skipped) == 7


def test_a_journal_cut_off_in_a_line_is_read_up_to_there(tmp_path):
    (tmp_path / "done.jsonl").write_text('{"first": 0}\n{"fir')
    assert decode_pool.read_journal(tmp_path) == [{"first": 0}]


def test_a_process_that_dies_is_said_and_what_is_decoded_kept(many, options, monkeypatch):
    root, expected = many
    honest = decode_pool.DecodePool._run

    def dies(self, tasks):
        results = honest(self, tasks)
        yield next(results)
        raise BrokenProcessPool

    with monkeypatch.context() as patch:
        patch.setattr(decode_pool.DecodePool, "_run", dies)
        with pytest.raises(ChildProcessError, match="decoded images are kept: run again"):
            load_folder("many", root, replace(options, workers=1))
    dataset, _ = load_folder("many", root, replace(options, workers=1))
    assert dataset.train.images[:, 0, 0, 0].tolist() == expected


def test_torn_note_is_cut_off_before_the_next_one(tmp_path):
    whole, torn = '{"first": 0, "why": "é"}\n', '{"first": 1, "wh'
    (tmp_path / JOURNAL).write_text(whole + torn, "utf-8")
    assert read_journal(tmp_path) == [{"first": 0, "why": "é"}]
    journal = Journal(tmp_path, ())
    journal.add({"first": 2})
    journal.sync()
    journal.add({"first": 3})
    journal.sync()
    assert read_journal(tmp_path) == [{"first": 0, "why": "é"}, {"first": 2}, {"first": 3}]
