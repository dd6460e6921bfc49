"""`python -m recgrad.predict`: the predict command as TorchEasyRec's users type it."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from recgrad.cli.main import main

    sys.exit(main(["predict", *sys.argv[1:]]))

# Imported by name, `recgrad.predict` is the function: a module of that name must not stand in its way.
from recgrad.export.predict import predict

sys.modules[__name__] = predict  # type: ignore[assignment]
