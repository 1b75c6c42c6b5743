"""``python -m momatch`` is the command line."""

import sys

if __name__ == "__main__":
    # Python puts the current directory first on the import path; a file there must not shadow a module that we import.
    if not sys.flags.safe_path:
        del sys.path[0]
    from momatch.cli.main import main

    raise SystemExit(main())
