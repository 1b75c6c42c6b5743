"""``momatch data``: list the known datasets, or inspect one."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from momatch.data.dataset import Dataset, Split
    from momatch.data.report import LoadReport


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    arguments = argparse.ArgumentParser(
        prog="momatch data",
        description="List the known datasets and which are downloaded, or inspect one: class counts, sizes, skipped files.",
        epilog="Decoded image files are cached in $MOMATCH_CACHE, or in the user cache directory.",
    )
    arguments.add_argument(
        "dataset", nargs="?", help="a known name, an image folder, a .csv/.parquet manifest or an .npz file"
    )
    arguments.add_argument(
        "--data-dir", type=Path, help="directory of known datasets and downloads (default: $MOMATCH_DATA)"
    )
    arguments.add_argument("--cache-dir", type=Path, help="cache for decoded images (default: $MOMATCH_CACHE)")
    arguments.add_argument("--no-download", dest="download", action="store_false", help="never download")
    arguments.add_argument("--verify", action="store_true", help="check files on disk against the official checksums")
    arguments.add_argument(
        "--size", type=int, help="image side in pixels: files are cropped to a square, arrays are stretched"
    )
    arguments.add_argument(
        "--strict", action="store_true", help="fail on the first unreadable file or row instead of skipping it"
    )
    arguments.add_argument(
        "--max-skipped",
        type=int,
        help="most unreadable files and rows to skip (default: 10 or 1 %%, whichever is more)",
    )
    arguments.add_argument("--test-fraction", type=float, default=0.0, help="hold out this fraction of each class")
    arguments.add_argument("--test-seed", type=int, default=0, help="seed for choosing the held-out images")
    arguments.add_argument("--test-folder", default="test", help="name of the test image folder (default: test)")
    arguments.add_argument(
        "--unlabeled-folder",
        dest="unlabeled_folders",
        action="append",
        help="name of the unlabelled image folder; repeat for several (default: unlabeled, unlabelled)",
    )
    arguments.add_argument("--extra", action="store_true", help="svhn: add the extra training images")
    arguments.add_argument(
        "--drop-test-duplicates", action="store_true", help="stl10: drop unlabelled near-duplicates of test images"
    )
    arguments.add_argument("--workers", type=int, help="decoding processes (default: one per core)")
    arguments.add_argument("--no-progress", dest="progress", action="store_false", help="hide progress bars")
    arguments.add_argument("--contact-sheet", type=Path, metavar="FILE.png", help="draw one row of images per class")
    return arguments


def main(argv: Sequence[str]) -> int:
    """Run ``momatch data``; returns the exit code."""
    arguments = parser().parse_args(argv)
    if arguments.dataset is None and arguments.contact_sheet is not None:
        raise ValueError("--contact-sheet: got no dataset, expected momatch data DATASET --contact-sheet FILE.png")
    if arguments.dataset is None:
        return list_datasets(arguments.data_dir, arguments.cache_dir)
    return inspect(arguments)


def list_datasets(data_dir: Path | None, cache_dir: Path | None) -> int:
    """Print the known datasets and which are present."""
    from momatch.data.catalog import KNOWN
    from momatch.data.locate import cache_root, data_root, find

    root = data_root(data_dir)
    print(f"data directory: {root}\n")
    for name, known in KNOWN.items():
        found = find(name, root)
        megabytes = sum(remote.megabytes for layout in known.layouts for remote in layout.remote)
        state = f"{megabytes} MB to download"
        if not known.layouts:
            state = "embedded"
        elif found:
            state = f"present: {found[1]}"
        print(f"{name:14} {known.title:58} {known.num_train:>7,} + {known.num_test:>6,} test   {state}")
    entries = [
        path for path in (cache_root(cache_dir) / "images").glob("*/images.bin") if path.parent.suffix != ".part"
    ]
    size = sum(path.stat().st_size for path in entries)
    print(
        f"\ncache of decoded images: {cache_root(cache_dir) / 'images'}: {len(entries)} datasets, {size / 1e6:,.1f} MB"
    )
    print(
        "You can also pass the path of an image folder, a .csv or .parquet manifest (path,label[,split]) or an .npz file."
    )
    return 0


def inspect(arguments: argparse.Namespace) -> int:
    """Load one dataset and print what is in it."""
    from momatch.data.load import load_with_report
    from momatch.data.report import DataError, LoadOptions

    given = vars(arguments)
    own = {"dataset", "data_dir", "contact_sheet"}
    options = {key: value for key, value in given.items() if key not in own and value is not None}
    if "unlabeled_folders" in options:
        options["unlabeled_folders"] = tuple(options["unlabeled_folders"])
    if arguments.contact_sheet is not None and arguments.contact_sheet.suffix.lower() != ".png":
        raise ValueError(f"--contact-sheet: got {arguments.contact_sheet}, expected a .png file")
    try:
        dataset, report = load_with_report(arguments.dataset, arguments.data_dir, LoadOptions(**options))
    except DataError as error:
        raise error.renamed({key: "--" + key.replace("_", "-") for key in given}) from error
    for line in describe(dataset, report):
        print(line)
    for warning in report.warnings:
        print(f"momatch data: warning: {warning}", file=sys.stderr)
    if arguments.contact_sheet is not None:
        from momatch.data.contact_sheet import save_contact_sheet

        save_contact_sheet(dataset.train, dataset.class_names, arguments.contact_sheet)
        print(f"contact sheet: {arguments.contact_sheet}")
    return 0


def describe(dataset: "Dataset", report: "LoadReport") -> list[str]:
    """The lines that describe a dataset."""
    size = sum(split.rows.nbytes for split in dataset.splits.values())
    kept = f"memory-mapped from {report.cache}" if report.cache else "in memory"
    lines = [
        f"{dataset.name}: {report.source}",
        f"{dataset.train.rows.describe()}; {size / 1e6:,.1f} MB, {kept}",
        f"train: {len(dataset.train):,} ({_unlabeled(dataset.train):,} unlabelled)",
        f"test: {len(dataset.test):,}" if dataset.test is not None else "test: none",
        f"skipped: {len(report.skipped)}; ignored (no images): {report.ignored}",
        *(f"converted: {count:,} {what}" for what, count in sorted(report.conversions.items())),
        *(f"note: {note}" for note in report.notes),
        "",
        f"{'class':32} {'train':>8} {'test':>8}",
    ]
    train, test = _counts(dataset.train, dataset.num_classes), _counts(dataset.test, dataset.num_classes)
    lines += [f"{name:32} {train[k]:>8,} {test[k]:>8,}" for k, name in enumerate(dataset.class_names)]
    return lines


def _unlabeled(split: "Split") -> int:
    return int((split.labels < 0).sum())


def _counts(split: "Split | None", num_classes: int) -> list[int]:
    if split is None:
        return [0] * num_classes
    counts: list[int] = split.labels[split.labels >= 0].bincount(minlength=num_classes).tolist()
    return counts
