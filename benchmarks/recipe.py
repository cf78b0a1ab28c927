"""The search for the one recipe that all models share: every model on one grid, chosen by validation.

    python -m benchmarks.recipe [--data data.h5] [--runs runs-recipe]

Runs that are finished are not repeated, so the search can be stopped and started again. It prints the validation exact
match of every model at every setting; the test split plays no part in the choice.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from benchmarks.measure import format_markdown
from benchmarks.runs import read_exact_match, train_once
from overlaycaps.config import DEFAULT_SIZE
from overlaycaps.models import MATCHED_MODELS
from overlaycaps.train.plan import TrainRequest

# (batch size, peak learning rate)
SETTINGS = ((64, 4e-3), (64, 8e-3), (128, 8e-3), (128, 1.6e-2))
NUM_IMAGES = 48_000

Outcome = dict[tuple[str, int, float], float]


def search(data: Path, runs: Path, num_images: int) -> Outcome:
    """Train every model at every setting; return validation exact match, 0 to 1, by model, batch size and rate."""
    base = TrainRequest(model="caps", size=DEFAULT_SIZE, data_path=data, runs_dir=runs, images=num_images)
    found: Outcome = {}
    for batch_size, lr in SETTINGS:
        for model in MATCHED_MODELS:
            name = f"{model}-batch{batch_size}-lr{lr:g}"
            result = train_once(replace(base, model=model, batch_size=batch_size, lr=lr, name=name))
            found[model, batch_size, lr] = read_exact_match(result, "validation")
            print(f"{name}: {found[model, batch_size, lr] * 100:.1f} %", flush=True)
    return found


def format_table(found: Outcome) -> str:
    """Return the outcome as a Markdown table: settings in rows, models in columns."""
    rows = [
        [str(batch_size), f"{lr:g}", *(f"{found[model, batch_size, lr] * 100:.1f}" for model in MATCHED_MODELS)]
        for batch_size, lr in SETTINGS
    ]
    return format_markdown(["batch", "peak rate", *MATCHED_MODELS], rows)


def main() -> None:
    """Search and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data.h5"))
    parser.add_argument("--runs", type=Path, default=Path("runs-recipe"))
    parser.add_argument("--images", type=int, default=NUM_IMAGES)
    arguments = parser.parse_args()
    found = search(arguments.data, arguments.runs, arguments.images)
    print(f"\nvalidation exact match in %, size {DEFAULT_SIZE}, {arguments.images:,} images, seed 0\n")
    print(format_table(found))


if __name__ == "__main__":
    main()
