"""``python -m momatch`` is the command line."""

from momatch.cli.main import main

raise SystemExit(main())
