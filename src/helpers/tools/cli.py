"""The command line, `python -m helpers COMMAND`; `tutorial.py` hands over to it.

All commands stand in data/commands.json, one line each: what runs it, a function or a script,
and its help. `tutorial.py` reads the same file, so a command is registered once.
"""

import json
import pkgutil
import sys

from helpers.core import files
from helpers.models import catalogue
from helpers.tools import commands

COMMANDS: dict[str, list[str]] = json.loads((files.DATA / "commands.json").read_text("utf-8"))
_LINES = [f"  {name:15} {text}" for name, (_, text) in COMMANDS.items()]
USAGE = "usage: python -m helpers COMMAND [options]\n\n" + "\n".join(_LINES)


def main(argv: list[str] | None = None) -> int:
    """Run one command, whose parser reads what follows its name; return the exit status."""
    name, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in ("-h", "--help"):
        print(USAGE)
        return 0
    if name not in COMMANDS:
        print(f"There is no command {name!r}.\n\n{USAGE}", file=sys.stderr)
        return 2
    function = COMMANDS[name][0]
    try:
        if function.startswith("docs/"):
            return commands.run_of_docs(function, rest)
        return pkgutil.resolve_name(function)(rest)
    except catalogue.AssetError as error:  # it says what cannot be had, and the way out
        print(error, file=sys.stderr)
        return 1
