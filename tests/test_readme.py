"""What the README shows is run, and what it states is so."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from overlaycaps.cli import app
from overlaycaps.config import DEFAULT_BATCH_SIZE, SIZES
from overlaycaps.models import MODELS
from overlaycaps.models.matching import summarize_model
from overlaycaps.train.optimizers import DEFAULT_OPTIMIZER, OPTIMIZERS

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def find_example(part: str) -> str:
    """Return the one Python example with this in it."""
    (found,) = (code for code in re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL) if part in code)
    return str(found)


def test_the_example_loader_gives_batches(tiny_data: Path, tmp_path: Path) -> None:
    # A script of its own, as a user would write it: the workers are processes.
    shutil.copy(tiny_data, tmp_path / "data.h5")
    lines = [*find_example("DataLoader").splitlines(), "    print(*images.shape, float(images.max()), *labels.shape)"]
    (tmp_path / "loop.py").write_text("\n".join(lines))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "loop.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "64 36 36 1.0 64 10\n32 36 36 1.0 32 10\n"


def test_the_example_routing_trains(tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = find_example("class LengthRouting(Routing)")
    (tmp_path / "my_routing.py").write_text(example)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    shown = "overlaycaps train --model caps --routing my_routing:LengthRouting"
    assert shown in README
    options = ["--size", "tiny", "--data", str(tiny_data), "--images", "64", "--batch-size", "32", "--cpu"]
    result = CliRunner().invoke(app, [*shown.split()[1:], *options])
    assert result.exit_code == 0, result.output
    assert "caps-my_routing.LengthRouting-tiny-64-batch32-seed0: test exact match" in result.output


def test_the_stated_counts_and_defaults_are_so() -> None:
    for name in ("caps", "caps-matrix", "cnn", "cnn-pool"):
        assert f"{summarize_model(name, SIZES['paper']).parameters:,}" in README
    assert f"a peak of {OPTIMIZERS[DEFAULT_OPTIMIZER].lr:g}" in README
    assert f"batches of {DEFAULT_BATCH_SIZE}" in README


def test_every_model_is_explained() -> None:
    for name in MODELS:
        assert f"| `{name}` |" in README


def test_links_lead_to_files() -> None:
    targets = re.findall(r"\]\((?!https?://)([^)#]+)\)", README)
    assert targets
    for target in targets:
        assert (Path(__file__).parent.parent / target).exists(), target
