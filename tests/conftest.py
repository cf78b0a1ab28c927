"""Small data for tests that need a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from data_gen.sources import load_bundled
from data_gen.spec import make_spec
from data_gen.store.write import write_dataset

# At tiny sizes a second thread only waits, and with more test processes than cores it waits long.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data file of 96 training, 40 validation and 48 test samples; tests must not change it."""
    path = tmp_path_factory.mktemp("data") / "tiny.h5"
    write_dataset(path, make_spec(num_train=96, num_valid=40, num_test=48), load_bundled())
    return path
