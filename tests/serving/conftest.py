"""What the tests of serving share; `serving_fake` is imported by them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from serving_fake import Running, fake_holder, running


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    """A server of the model that is a formula."""
    with running(fake_holder()) as found:
        yield found
