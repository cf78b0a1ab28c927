"""Digit sources for the tests: a tiny made-up one, and the bundled MNIST, loaded once."""

from __future__ import annotations

import pytest

from data_gen.digits import DigitSource
from data_gen.sources import load_bundled
from tests.data_gen.sources import make_source


@pytest.fixture(scope="session")
def tiny() -> DigitSource:
    return make_source()


@pytest.fixture(scope="session")
def mnist() -> DigitSource:
    return load_bundled()
