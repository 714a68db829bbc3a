"""What tests of targets share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.infra.aws_account import Account, missing_emulator


@pytest.fixture(scope="module")
def account() -> Iterator[Account]:
    """An emulated account at AWS; its tests are skipped where the emulator is not installed."""
    if reason := missing_emulator():
        pytest.skip(reason)
    made = Account()
    yield made
    made.close()
