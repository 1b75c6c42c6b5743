"""The report of a run: one self-contained HTML page, without scripts and without network."""

from momatch.report.write import report_run as report_run
from momatch.report.write import write_report as write_report
