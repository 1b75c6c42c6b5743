"""A Chromium for the browser test: found on this machine, or installed by ``make browser`` where that can be done.

Never fails and never waits for an answer: without a browser the test is skipped and says so.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: Seconds after which an installer is given up.
PATIENCE = 240


def find() -> str | None:
    """The path of a Chromium that starts: the system's, else Playwright's own."""
    candidates = [path for path in map(shutil.which, NAMES) if path is not None]
    try:
        from playwright.sync_api import sync_playwright

        with sync_playwright() as driver:
            candidates.append(driver.chromium.executable_path)
    except ImportError:
        return None
    # A name may belong to a script that only says how to get the browser.
    return next((path for path in candidates if Path(path).exists() and _runs([path, "--version"])), None)


def install() -> str | None:
    """Install one: as root from the system's packages without a question, else Playwright's own."""
    if os.name == "posix" and os.geteuid() == 0 and shutil.which("apt-get"):
        get = ["apt-get", "-y", "-o", "DPkg::Lock::Timeout=60", "install", "--no-install-recommends", "chromium"]
        if not _runs(get):
            _runs(["apt-get", "update"])
            _runs(get)
        if (found := find()) is not None:
            return found
    _runs([sys.executable, "-m", "playwright", "install", "chromium"])
    return find()


def _runs(command: Sequence[str]) -> bool:
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=PATIENCE,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


if __name__ == "__main__":
    path = find() or install()
    print(
        f"browser: {path}"
        if path
        else "browser: there is no Chromium and none could be installed; its test will not run"
    )
