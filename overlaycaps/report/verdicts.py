"""What a comparison says in words, and what keeps it from saying more."""

from __future__ import annotations

import shlex

from overlaycaps.config import DEFAULT_DATA_FILE, DEFAULT_EPOCHS, DEFAULT_SIZE
from overlaycaps.metrics.intervals import wilson_interval
from overlaycaps.models import MATCHED_MODELS
from overlaycaps.report.format import format_count, format_percent
from overlaycaps.report.results import RunCollection, RunResult

# Below this many images even the ranking of the models is still changing.
_SMALL_BUDGET_IMAGES = 100_000


def judge_pairs(runs: tuple[RunResult, ...]) -> list[str]:
    """Say who reads better, for every capsule run and every matched CNN run under the same conditions."""
    pairs = [
        (capsule, cnn)
        for capsule in runs
        for cnn in runs
        if capsule.is_capsule and capsule.is_matched_to(cnn) and capsule.shares_conditions_with(cnn)
    ]
    sentences = [_judge(capsule, cnn) for capsule, cnn in pairs]
    if sentences:
        sentences.append(
            "Intervals are binomial (Wilson) over the test samples of one training run; how much a model varies from "
            "seed to seed is not in them."
        )
    return sentences


def _judge(capsule: RunResult, cnn: RunResult) -> str:
    difference = (capsule.exact.ratio - cnn.exact.ratio) * 100
    shares = [f"{_name(run)} {format_percent(run.exact.ratio)}" for run in (capsule, cnn)]
    figures = f"{' against '.join(shares)} exact match"
    (low_a, high_a), (low_b, high_b) = (wilson_interval(run.exact.correct, run.exact.total) for run in (capsule, cnn))
    if low_a <= high_b and low_b <= high_a:
        return f"{figures}: {difference:+.2f} points, but the 95 % intervals overlap: this cannot tell who is better."
    verdict = "capsules win" if difference > 0 else "capsules lose"
    return f"{figures}: {verdict} by {abs(difference):.2f} points; the 95 % intervals do not overlap."


def _name(run: RunResult) -> str:
    # The routing belongs to the name only where it is not the model's usual one.
    routing = f" ({run.routing} x {run.iterations})" if run.routing else ""
    return f"{run.model}{routing}"


def suggest_next(runs: tuple[RunResult, ...]) -> list[str]:
    """Name the commands that train missing matched partners; a reference model has none."""
    missing: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        has_partner = any(run.is_matched_to(other) and run.shares_conditions_with(other) for other in runs)
        if run.model in MATCHED_MODELS and not has_partner:
            partner, model = ("baseline", "cnn") if run.is_capsule else ("capsule run", "caps")
            missing.setdefault((partner, _make_train_command(model, run)), []).append(run.name)
    return [
        f"No matched {partner} on the same data, images and seed yet for {', '.join(names)}; train it with `{command}`."
        for (partner, command), names in missing.items()
    ]


def _make_train_command(model: str, run: RunResult) -> str:
    parts = ["overlaycaps", "train", "--model", model]
    for option, value, default in (
        ("--images", run.images_planned, DEFAULT_EPOCHS * run.num_train),
        ("--patience", run.patience, None),
        ("--size", run.size, DEFAULT_SIZE),
        ("--data", run.data_path, DEFAULT_DATA_FILE),
        ("--seed", run.seed, 0),
    ):
        if value != default:
            parts += [option, str(value)]
    if run.fresh:
        parts.append("--fresh")
    return shlex.join(parts)


def describe_conditions(runs: tuple[RunResult, ...]) -> list[str]:
    """Say what forbids comparing rows with each other, and when the budget is too small to conclude from."""
    notes = []
    for what, values in (
        ("data", [run.data_digest for run in runs]),
        ("training images (those of the file, or fresh ones)", [run.fresh for run in runs]),
        ("images to see (--images, --patience)", [run.budget for run in runs]),
        ("recipe", [run.recipe for run in runs]),
        ("size", [run.size for run in runs]),
        ("seed", [run.seed for run in runs]),
    ):
        if len(set(values)) > 1:
            groups = [
                ", ".join(run.name for run, value in zip(runs, values, strict=True) if value == distinct)
                for distinct in dict.fromkeys(values)
            ]
            notes.append(f"Different {what}: compare only within {'; within '.join(groups)}.")
    small = [run.name for run in runs if run.images_seen < _SMALL_BUDGET_IMAGES]
    if small:
        notes.append(
            f"The budget is small (under {format_count(_SMALL_BUDGET_IMAGES)} images): {', '.join(small)}. Such "
            "models are still far from what they reach, and their ranking may change."
        )
    return notes


def describe_leftovers(collection: RunCollection) -> list[str]:
    """Name what stands in the folder but is not in the tables."""
    notes = []
    if collection.unfinished:
        notes.append(
            f"Unfinished, not in the tables: {', '.join(collection.unfinished)}; "
            "continue one with `overlaycaps train --resume RUN`."
        )
    if collection.skipped:
        notes.append(f"Not runs, skipped: {', '.join(collection.skipped)}.")
    return notes


def describe_origin(runs: tuple[RunResult, ...], command: str) -> list[str]:
    """Say how the figures were made: command, hardware, versions, seeds, n."""
    machines = dict.fromkeys(
        f"{run.device_name}, {run.threads} threads, " + ", ".join(f"{name} {version}" for name, version in run.versions)
        for run in runs
    )
    seeds = ", ".join(str(seed) for seed in sorted({run.seed for run in runs}))
    sizes = ", ".join(format_count(total) for total in sorted({run.exact.total for run in runs}))
    return [f"Made by `{command}`; trained on {'; '.join(machines)}; seeds {seeds}; n = {sizes} test samples."]
