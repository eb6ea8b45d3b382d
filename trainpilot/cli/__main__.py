"""``python -m trainpilot.cli`` is the same program as ``trainpilot``."""

import sys

from trainpilot.cli.main import main

sys.exit(main())
