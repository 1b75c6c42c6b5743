"""The command line.

Nothing heavy is imported here: ``momatch --help`` must answer at once, and Ctrl-C is answered only once this file is read. A
command imports what it needs when it runs.
"""

import os
import sys
from collections.abc import Callable, Sequence

from momatch._version import __version__
from momatch.console.signals import command_signals, speaks


def _data(argv: Sequence[str]) -> int:
    """List datasets, say what is present, inspect one."""
    from momatch.cli.data import main as run

    return run(argv)


def _embed(argv: Sequence[str]) -> int:
    """Run images once through a backbone, so that training takes seconds."""
    from momatch.cli.embed import main as run

    return run(argv)


def _train(argv: Sequence[str]) -> int:
    """Train a classifier with few labels."""
    from momatch.cli.train import main as run

    return run(argv)


def _evaluate(argv: Sequence[str]) -> int:
    """Measure a trained classifier: accuracy, calibration, compactness, outliers."""
    from momatch.cli.evaluate import main as run

    return run(argv)


def _predict(argv: Sequence[str]) -> int:
    """Label images with a trained classifier, and flag those that it does not know."""
    from momatch.cli.predict import main as run

    return run(argv)


def _sweep(argv: Sequence[str]) -> int:
    """Carry out grids of settings and seeds in parallel: the paper's experiments, or your own."""
    from momatch.cli.sweep import main as run

    return run(argv)


def _report(argv: Sequence[str]) -> int:
    """Show a run, or several side by side, on one HTML page."""
    from momatch.cli.report import main as run

    return run(argv)


def _export(argv: Sequence[str]) -> int:
    """Write a trained model as one ONNX graph, or as a folder with its card."""
    from momatch.cli.export import main as run

    return run(argv)


#: Subcommand -> what it does with the arguments that follow; the docstring is its help.
COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "data": _data,
    "embed": _embed,
    "train": _train,
    "evaluate": _evaluate,
    "predict": _predict,
    "sweep": _sweep,
    "report": _report,
    "export": _export,
}


def _help(words: Sequence[str]) -> int:
    """Answer --help, --version, nothing at all, and what is no command."""
    import argparse

    parser = argparse.ArgumentParser(
        prog="momatch",
        description="Classification with very few labels that knows when it does not know.",
        epilog="momatch COMMAND --help tells more. The library: from momatch import AAGMM, MomentConstraint. See README.md.",
    )
    parser.add_argument("--version", action="version", version=f"momatch {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, run in COMMANDS.items():
        # The command's own parser reads its arguments, --help included.
        commands.add_parser(name, help=run.__doc__, add_help=False, prefix_chars="\0")
    parser.parse_args(words)
    parser.print_help()
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``momatch``; returns the exit code: 0, 1 for unusable input, 2 for wrong arguments, 130 or 143 when stopped.

    Args:
        argv: the arguments; None for those of this process, which ends with the command.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    name = words[0] if words else None
    if name not in COMMANDS:
        return _help(words)
    try:
        with command_signals(name, ends_process=argv is None):
            return _run(name, words[1:])
    except KeyboardInterrupt as error:
        # A command that saved its work says how to go on, and by which signal it was stopped.
        if speaks():
            print(f"momatch {name}: {str(error) or 'interrupted'}", file=sys.stderr)
        return int(getattr(error, "exit_code", 130))


def _run(name: str, argv: Sequence[str]) -> int:
    try:
        return COMMANDS[name](argv)
    except (ValueError, OSError) as error:
        return _fail(name, error)
    except ImportError as error:
        # A package that is not installed is the user's matter, a module of our own is a bug.
        if (error.name or "").startswith("momatch"):
            raise
        return _fail(name, error)


def _fail(name: str, error: Exception) -> int:
    if isinstance(error, BrokenPipeError):
        # The reader (head, less) has seen enough; keep Python from complaining again while it shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    # Of several processes all refuse wrong input; what happens to a disk happens to one.
    if speaks() or isinstance(error, OSError):
        print(f"momatch {name}: error: {error}", file=sys.stderr)
    return int(getattr(error, "exit_code", 1))
