"""What the training loop costs beside the bare step: order of the images, batches, progress, bookkeeping.

    python -m benchmarks.pipeline [--rounds 7]

Every round trains one epoch through :func:`overlaycaps.train.loop.train` and takes as many bare steps on a batch that
lies ready; the loop's own figure of images/s, which the tool reports, is set against the clock as well.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.measure import describe_machine, format_markdown
from benchmarks.step import StepCase, make_step
from data_gen.sources import load_bundled
from data_gen.spec import make_spec
from data_gen.store.write import write_dataset
from overlaycaps.cli.progress import show_training
from overlaycaps.config import SIZES
from overlaycaps.train.interrupt import StopFlag
from overlaycaps.train.loop import train
from overlaycaps.train.plan import TrainRequest, prepare_run

NUM_STEPS = 60
BATCH_SIZE = 64


def compare(model: str, folder: Path, rounds: int) -> list[str]:
    """Return a row: images/s of the loop and of the bare step, and their ratio."""
    config = SIZES["small"]
    case = StepCase(
        implementation="cnn" if model == "cnn" else "native",
        pose="vector",
        num_channels=config.num_channels,
        num_capsules=config.num_capsules,
        pose_size=config.pose_size,
        batch_size=BATCH_SIZE,
    )
    step = make_step(case)
    base = TrainRequest(
        model=model,
        size="small",
        data_path=folder / "data.h5",
        runs_dir=folder / "runs",
        cpu=True,
        images=NUM_STEPS * BATCH_SIZE,
        batch_size=BATCH_SIZE,
        precision="fp32",
    )
    loop_speeds, bare_speeds, shares = [], [], []
    for number in range(-1, rounds):
        run = prepare_run(replace(base, name=f"{model}{number}"))
        run.folder.create(run.describe(), force=False)
        with show_training("benchmark") as view:
            result: dict[str, Any] = train(run, view, StopFlag())
        started = time.perf_counter()
        for _ in range(NUM_STEPS):
            step()
        bare = NUM_STEPS * BATCH_SIZE / (time.perf_counter() - started)
        if number >= 0:
            loop_speeds.append(result["training"]["images_per_s"])
            bare_speeds.append(bare)
            shares.append(loop_speeds[-1] / bare)
    medians = [statistics.median(values) for values in (loop_speeds, bare_speeds, shares)]
    return [
        model,
        f"{medians[0]:.0f}",
        f"{medians[1]:.0f}",
        f"**{medians[2]:.2f}** ({min(shares):.2f} to {max(shares):.2f})",
        "0.9",
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds: int = parser.parse_args().rounds
    print(f"{describe_machine()}; {rounds} rounds of {NUM_STEPS} steps of {BATCH_SIZE} images, size small, fp32.\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spec = make_spec(num_train=NUM_STEPS * BATCH_SIZE, num_valid=64, num_test=64)
        write_dataset(folder / "data.h5", spec, load_bundled())
        rows = [compare(model, folder, rounds) for model in ("caps", "cnn")]
    print(format_markdown(["model", "loop, images/s", "bare step, images/s", "loop / bare step", "aim"], rows))


if __name__ == "__main__":
    main()
