"""Storage is the bottom of the package: whoever lists runs and reads their settings does not wait for torch."""

import subprocess
import sys
from pathlib import Path

import momatch.storage


def test_storage_does_not_import_torch():
    names = sorted(path.stem for path in Path(momatch.storage.__file__).parent.glob("*.py") if path.stem != "__init__")
    modules = ", ".join(f"momatch.storage.{name}" for name in names)
    code = f"import sys, {modules}\nassert not {{'torch', 'numpy'}} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
