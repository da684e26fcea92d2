"""`python -m continua` is the command `continua`."""

import sys

from continua.cli.main import main

sys.exit(main())
