"""`python -m recgrad.export`: `recgrad export`, by the name that TorchEasyRec's users know."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command with the words of the line."""
    # Found by name, since rooms do not import from above.
    from importlib import import_module

    return int(import_module("recgrad.cli.main").main(["export", *sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(main())
