"""metrics.jsonl: what can be read of a file that a kill or a disk has damaged."""

import pytest

from momatch.storage.metrics_file import MetricsFile


def test_intact_lines_of_a_damaged_file(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": tru\n{"step": true}\n[]\n{"step": 2}\n{"step": 3')
    file = MetricsFile(path)
    assert file.read_intact() == ([{"step": 1}, {"step": 2}], [2, 3, 4])
    with pytest.raises(ValueError, match="line 2 is damaged"):
        file.read()


def test_a_missing_file_has_no_lines(tmp_path):
    assert MetricsFile(tmp_path / "metrics.jsonl").read_intact() == ([], [])
