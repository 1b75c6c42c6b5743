"""The command line.

Nothing heavy is imported here: ``momatch --help`` must answer at once, so a command imports what it needs when it runs.
"""

import argparse
from collections.abc import Sequence

from momatch._version import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``momatch``; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="momatch",
        description="Classification with very few labels that knows when it does not know.",
        epilog="The product so far is the library: from momatch import AAGMM, MomentConstraint. See README.md.",
    )
    parser.add_argument("--version", action="version", version=f"momatch {__version__}")
    parser.parse_args(argv)
    parser.print_help()
    return 0
