"""``python -m mpidl``."""

import sys

from mpidl.cli import main

sys.exit(main())
