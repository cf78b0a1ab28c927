"""What training on fresh overlays costs beside training on those of the file.

    python -m benchmarks.fresh [--rounds 40]

A round is 16 training steps of 64 images with batches as the loop gets them, once from the file's images in memory and
once drawn fresh, in an order that turns. Rounds are short and many, so that what else the machine does hits both alike.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch

from benchmarks.measure import Timing, describe_machine, format_markdown, time_interleaved
from benchmarks.step import StepCase, make_step
from data_gen.sources import load_bundled
from data_gen.spec import make_spec
from data_gen.store.write import write_dataset
from overlaycaps.config import SIZES
from overlaycaps.data.loading import load_data
from overlaycaps.data.splits import Split
from overlaycaps.train.feed import draw_batches
from overlaycaps.train.order import BatchPlan

NUM_TRAIN = 40_960
BATCH_SIZE = 64
NUM_STEPS = 16
MODELS = {"caps": ("native", "vector"), "caps-matrix": ("native", "matrix"), "cnn": ("cnn", "vector")}
PRECISIONS = ("fp32", "bf16")


def time_steps(model: str, precision: str, splits: Mapping[str, Split], rounds: int) -> dict[str, Timing]:
    """Time the steps of a model at size small, by where the images come from."""
    implementation, pose = MODELS[model]
    config = SIZES["small"]
    step = make_step(
        StepCase(
            implementation=implementation,
            pose=pose,
            num_channels=config.num_channels,
            num_capsules=config.num_capsules,
            pose_size=config.pose_size,
            batch_size=BATCH_SIZE,
            precision=precision,
        )
    )
    epochs = itertools.count()

    def train_on(split: Split) -> None:
        plan = BatchPlan(len(split), len(split), BATCH_SIZE, next(epochs), split.is_shuffled)
        batches = plan.split_epoch(0)[:NUM_STEPS]
        for _images, _labels in draw_batches(split, plan.seed, batches, torch.device("cpu")):
            step()  # on images of its own, which cost the same

    return time_interleaved({name: partial(train_on, split) for name, split in splits.items()}, rounds, 2)


def format_row(name: str, timings: dict[str, Timing]) -> list[str]:
    """Return a row: images/s in both ways, and how much longer fresh ones take, with quartiles over the rounds."""
    pairs = zip(timings["fresh"].seconds, timings["file"].seconds, strict=True)
    costs = [(fresh / file - 1) * 100 for fresh, file in pairs]
    low, middle, high = statistics.quantiles(costs, n=4)
    speeds = [f"{NUM_STEPS * BATCH_SIZE / timings[source].median_s:.0f}" for source in ("file", "fresh")]
    return [name, *speeds, f"**{middle:+.1f} %** ({low:+.1f} to {high:+.1f})", "+5 %"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    rounds: int = parser.parse_args().rounds
    print(f"{describe_machine()}; {rounds} rounds of {NUM_STEPS} steps of {BATCH_SIZE} images, size small.\n")
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "data.h5")
        write_dataset(path, make_spec(num_train=NUM_TRAIN, num_valid=1, num_test=1), load_bundled())
        splits = {"file": load_data(path).train, "fresh": load_data(path, fresh_seed=0).train}
        rows = [
            format_row(f"{model}, {precision}", time_steps(model, precision, splits, rounds))
            for precision in PRECISIONS
            for model in MODELS
        ]
    header = ["model", "images of the file, images/s", "fresh, images/s", "cost of fresh (quartiles)", "aim"]
    print(format_markdown(header, rows))


if __name__ == "__main__":
    main()
