"""What bfloat16 autocast changes: accuracy over seeds in fp32 and in bf16.

    overlaycaps generate --out data.h5
    python -m benchmarks.precision [--data data.h5] [--runs runs-precision] [--images 40000] [--seeds 3]

Runs that are finished are not repeated. Within a seed both precisions begin with the same weights and see the same
images in the same order, so differences are taken by pairs.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.measure import describe_machine, format_markdown
from benchmarks.runs import read_exact_match, train_once
from overlaycaps.config import DEFAULT_SIZE
from overlaycaps.models import MATCHED_MODELS
from overlaycaps.train.plan import TrainRequest

PRECISIONS = ("fp32", "bf16")


def compare(request: TrainRequest, models: Sequence[str], seeds: int) -> list[list[str]]:
    """Train each model in both precisions with every seed; return rows of a table."""
    rows = []
    for model in models:
        accuracy: dict[str, list[float]] = {precision: [] for precision in PRECISIONS}
        for seed in range(seeds):
            for precision in PRECISIONS:
                name = f"{model}-{precision}-seed{seed}"
                result = train_once(replace(request, model=model, seed=seed, precision=precision, name=name))
                accuracy[precision].append(100 * read_exact_match(result, "validation"))
                print(f"{name}: {accuracy[precision][-1]:.2f} %", flush=True)
        differences = [bf16 - fp32 for fp32, bf16 in zip(accuracy["fp32"], accuracy["bf16"], strict=True)]
        rows.append(
            [
                model,
                *(_describe(accuracy[precision]) for precision in PRECISIONS),
                f"{_describe(differences)} ({min(differences):+.1f} to {max(differences):+.1f})",
            ]
        )
    return rows


def _describe(values: list[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{deviation}"


def main() -> None:
    """Train, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data.h5"))
    parser.add_argument("--runs", type=Path, default=Path("runs-precision"))
    parser.add_argument("--images", type=int, default=40_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--models", default=",".join(MATCHED_MODELS))
    arguments = parser.parse_args()
    base = TrainRequest(
        model="caps", size=DEFAULT_SIZE, data_path=arguments.data, runs_dir=arguments.runs, images=arguments.images
    )
    rows = compare(base, arguments.models.split(","), arguments.seeds)
    print(f"\n{describe_machine()}.\n")
    print(
        f"Validation exact match in %, mean ± standard deviation over {arguments.seeds} seeds, size {DEFAULT_SIZE}, "
        f"{arguments.images:,} images.\n"
    )
    header = ["model", "fp32", "bf16", "bf16 - fp32 by seed (range)"]
    print(format_markdown(header, rows))


if __name__ == "__main__":
    main()
