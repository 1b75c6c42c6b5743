"""The command line.

Nothing heavy is imported here, so that ``momatch --help`` is fast and Ctrl-C is handled early. Each command imports what it
needs when it runs.
"""

import os
import sys
from collections.abc import Callable, Sequence

from momatch._version import __version__
from momatch.console.signals import command_signals, speaks


def _data(argv: Sequence[str]) -> int:
    """List datasets, show which are present, inspect one."""
    from momatch.cli.data import main as run

    return run(argv)


def _embed(argv: Sequence[str]) -> int:
    """Cache a backbone's features of all images, so that training takes seconds."""
    from momatch.cli.embed import main as run

    return run(argv)


def _suggest(argv: Sequence[str]) -> int:
    """Suggest which images to label next."""
    from momatch.cli.suggest import main as run

    return run(argv)


def _label(argv: Sequence[str]) -> int:
    """Label images on a page in your browser."""
    from momatch.cli.label import main as run

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
    """Label images with a trained classifier and flag outliers."""
    from momatch.cli.predict import main as run

    return run(argv)


def _sweep(argv: Sequence[str]) -> int:
    """Run a grid of settings and seeds in parallel: the paper's experiments, or your own."""
    from momatch.cli.sweep import main as run

    return run(argv)


def _report(argv: Sequence[str]) -> int:
    """Write an HTML report of one run, or of several side by side."""
    from momatch.cli.report import main as run

    return run(argv)


def _export(argv: Sequence[str]) -> int:
    """Export a trained model: ONNX, torch.export, or a model folder."""
    from momatch.cli.export import main as run

    return run(argv)


#: Subcommand -> function that takes the remaining arguments; its docstring is the help text.
COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "data": _data,
    "embed": _embed,
    "suggest": _suggest,
    "label": _label,
    "train": _train,
    "evaluate": _evaluate,
    "predict": _predict,
    "sweep": _sweep,
    "report": _report,
    "export": _export,
}


def _help(words: Sequence[str]) -> int:
    """Handle --help, --version, no arguments, and unknown commands."""
    import argparse

    parser = argparse.ArgumentParser(
        prog="momatch",
        description="Classification with very few labels that knows when it does not know.",
        epilog="Run momatch COMMAND --help for its options.",
    )
    parser.add_argument("--version", action="version", version=f"momatch {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, run in COMMANDS.items():
        # The command parses its own arguments, --help included.
        commands.add_parser(name, help=run.__doc__, add_help=False, prefix_chars="\0")
    parser.parse_args(words)
    parser.print_help()
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``momatch``; returns the exit code: 0, 1 for unusable input, 2 for wrong arguments, 130 or 143 when stopped.

    Args:
        argv: the arguments; None for those of the process, which is assumed to end with the command.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    name = words[0] if words else None
    if name not in COMMANDS:
        return _help(words)
    _let_threads_sleep()
    try:
        with command_signals(name, ends_process=argv is None):
            return _run(name, words[1:])
    except KeyboardInterrupt as error:
        # The error says how to resume, if the command saved its work, and which signal stopped it.
        if speaks():
            print(f"momatch {name}: {str(error) or 'interrupted'}", file=sys.stderr)
        return int(getattr(error, "exit_code", 130))


def _let_threads_sleep() -> None:
    """Have torch's threads wait a millisecond at most before they sleep; they read it once, when torch is imported.

    By default they spin much longer. Beside another busy process a small network then takes ten times as long, because the
    thread that it waits for is not the one that runs.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def _run(name: str, argv: Sequence[str]) -> int:
    try:
        return COMMANDS[name](argv)
    except (ValueError, OSError) as error:
        return _fail(name, error)
    except ImportError as error:
        # A missing third-party package is for the user to install; a missing module of ours is a bug.
        if (error.name or "").startswith("momatch"):
            raise
        return _fail(name, error)


def _fail(name: str, error: Exception) -> int:
    if isinstance(error, BrokenPipeError):
        # The reader (head, less) is gone; keep Python from complaining again at shutdown.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    # With several processes, all raise the same ValueError, but an OSError may come from just one.
    if speaks() or isinstance(error, OSError):
        print(f"momatch {name}: error: {error}", file=sys.stderr)
    return int(getattr(error, "exit_code", 1))
