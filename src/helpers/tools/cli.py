"""The command line, `python -m helpers COMMAND`; `tutorial.py` hands over to it.

All commands stand in data/commands.json, one line each: the function that runs it and its help.
`tutorial.py` reads the same file, so a command is registered once.
"""

import json
import pkgutil
import sys

from helpers.core import files

COMMANDS: dict[str, list[str]] = json.loads((files.DATA / "commands.json").read_text("utf-8"))


def usage() -> str:
    """Return the list of commands as text."""
    lines = [f"  {name:15} {text}" for name, (_, text) in COMMANDS.items()]
    return "usage: python -m helpers COMMAND [options]\n\n" + "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Run one command; its own parser reads what follows its name.

    Returns:
        The exit status, 2 for an unknown command.
    """
    name, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in ("-h", "--help"):
        print(usage())
        return 0
    if name not in COMMANDS:
        print(f"There is no command {name!r}.\n\n{usage()}", file=sys.stderr)
        return 2
    return pkgutil.resolve_name(COMMANDS[name][0])(rest)
