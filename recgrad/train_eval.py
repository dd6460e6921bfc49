"""`python -m recgrad.train_eval`: the train command as TorchEasyRec's users type it, also under torchrun."""

from __future__ import annotations

if __name__ == "__main__":
    import sys

    from recgrad.cli.main import main

    sys.exit(main(["train", *sys.argv[1:]]))
