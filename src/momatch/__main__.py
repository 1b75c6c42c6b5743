"""``python -m momatch`` is the command line."""

from momatch.cli import main

raise SystemExit(main())
