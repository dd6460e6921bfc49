"""`python -m recgrad`: the same as the `recgrad` command."""

from __future__ import annotations

import sys

from recgrad.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
