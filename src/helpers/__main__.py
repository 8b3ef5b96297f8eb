"""`python -m helpers COMMAND`: see helpers.tools.cli."""

import sys

from helpers.tools import cli

if __name__ == "__main__":
    sys.exit(cli.main())
