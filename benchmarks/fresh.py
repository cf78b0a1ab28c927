"""What training on fresh overlays costs beside training on those of the file.

    python -m benchmarks.fresh [--rounds 7]

Every round trains one epoch in both ways through :func:`overlaycaps.train.loop.train`, in turn first and second; the
figure is the training time that the loop itself reports (the benchmark of the loop holds it against the clock).
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.measure import Timing, describe_machine, format_markdown, ratio
from data_gen.sources import load_bundled
from data_gen.spec import make_spec
from data_gen.store.write import write_dataset
from overlaycaps.train.interrupt import StopFlag
from overlaycaps.train.loop import train
from overlaycaps.train.observer import SilentObserver
from overlaycaps.train.plan import TrainRequest, prepare_run

NUM_IMAGES = 60 * 64
MODELS = ("caps", "caps-matrix", "cnn")
PRECISIONS = ("fp32", "bf16")


def time_training(request: TrainRequest, rounds: int) -> dict[bool, Timing]:
    """Return the training times by whether overlays are fresh; one round before them does not count."""
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for number in range(-1, rounds):
        for fresh in (False, True) if number % 2 == 0 else (True, False):
            name = f"{request.model}-{request.precision}-{number}-{fresh}"
            run = prepare_run(replace(request, fresh=fresh, name=name))
            run.folder.create(run.describe(), force=False)
            result = train(run, SilentObserver(), StopFlag())
            if number >= 0:
                seconds[fresh].append(result["training"]["train_time_s"])
    return {fresh: Timing(tuple(values)) for fresh, values in seconds.items()}


def format_row(model: str, precision: str, timings: dict[bool, Timing], num_images: int = NUM_IMAGES) -> list[str]:
    """Return a row: images/s in both ways, and how much longer fresh ones take."""
    cost = ratio(timings[True], timings[False])
    percents = [f"{(share - 1) * 100:+.1f}" for share in (cost.median, cost.low, cost.high)]
    return [
        f"{model}, {precision}",
        *(f"{num_images / timings[fresh].median_s:.0f}" for fresh in (False, True)),
        f"**{percents[0]} %** ({percents[1]} to {percents[2]})",
        "+5 %",
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds: int = parser.parse_args().rounds
    print(f"{describe_machine()}; {rounds} rounds of {NUM_IMAGES:,} images in batches of 64, size small.\n")
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spec = make_spec(num_train=NUM_IMAGES, num_valid=64, num_test=64)
        write_dataset(folder / "data.h5", spec, load_bundled())
        for precision in PRECISIONS:
            for model in MODELS:
                request = TrainRequest(
                    model=model,
                    size="small",
                    data_path=folder / "data.h5",
                    runs_dir=folder / "runs",
                    cpu=True,
                    images=NUM_IMAGES,
                    precision=precision,
                )
                rows.append(format_row(model, precision, time_training(request, rounds)))
    header = ["model", "images of the file, images/s", "fresh, images/s", "cost of fresh", "aim"]
    print(format_markdown(header, rows))


if __name__ == "__main__":
    main()
