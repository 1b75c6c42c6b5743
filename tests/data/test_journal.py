"""The journal of a build under way."""

from momatch.data.cache import JOURNAL, Journal, read_journal


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
