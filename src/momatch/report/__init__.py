"""The report of a run, or of several: one self-contained HTML page that needs no network."""

from momatch.report.page import report_run as report_run
from momatch.report.page import write_page as write_page
