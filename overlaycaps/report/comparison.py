"""The comparison of finished runs, as one neutral report."""

from __future__ import annotations

from overlaycaps.metrics.intervals import wilson_interval
from overlaycaps.metrics.multilabel import Proportion
from overlaycaps.report.format import format_count, format_duration, format_percent, format_range
from overlaycaps.report.matching import make_matching_table
from overlaycaps.report.results import RunCollection, RunResult
from overlaycaps.report.table import Cell, Column, Report, Table
from overlaycaps.report.verdicts import (
    describe_conditions,
    describe_leftovers,
    describe_origin,
    judge_pairs,
    suggest_next,
)

_MAIN_COLUMNS = (
    Column("run", "run"),
    Column("model", "model"),
    Column("pose", "pose"),
    Column("routing", "routing x iterations"),
    Column("size", "size"),
    Column("parameters", "parameters", "right"),
    Column("matched_to", "matched to"),
    Column("images_seen", "images seen", "right"),
    Column("exact_match", "exact match (95 % interval)", "right"),
    Column("exact_match_single", "on singles", "right"),
    Column("exact_match_overlaid", "on overlays", "right"),
    Column("hamming_loss", "Hamming loss", "right"),
    Column("train_time_s", "training time", "right"),
    Column("images_per_s", "images/s", "right"),
    Column("device", "device"),
)
_RULE_COLUMNS = (
    Column("run", "run"),
    Column("validation_exact_match", "validation exact match", "right"),
    Column("exact_match", "test exact match", "right"),
    Column("top_k", "top-k (count known)", "right"),
    Column("half_credit", "half-credit", "right"),
    Column("macro_f1", "macro-F1", "right"),
)


def compare_runs(collection: RunCollection, command: str) -> Report:
    """Compare finished runs.

    Args:
        collection: what stands in the folder of runs.
        command: that makes this report, to be named in it.
    """
    runs = collection.runs
    matching = _make_matching_tables(runs)
    notes = [
        *judge_pairs(runs),
        *suggest_next(runs),
        *describe_conditions(runs),
        *describe_leftovers(collection),
        *describe_origin(runs, command),
    ]
    return Report(
        title="Capsules and CNNs on overlaid digits",
        tables=(
            Table("Runs", _MAIN_COLUMNS, tuple(_make_main_row(run, runs) for run in runs)),
            Table("The same runs by other rules", _RULE_COLUMNS, tuple(_make_rule_row(run) for run in runs)),
            *matching,
        ),
        notes=tuple(notes),
        sources=tuple(run.source for run in runs),
    )


def _make_main_row(run: RunResult, runs: tuple[RunResult, ...]) -> tuple[Cell, ...]:
    low, high = wilson_interval(run.exact.correct, run.exact.total)
    matched = list(dict.fromkeys(other.model for other in runs if run.is_matched_to(other)))
    exact = {"correct": run.exact.correct, "total": run.exact.total, "low": low, "high": high}
    return (
        Cell(run.name, run.name),
        Cell(run.model, run.model),
        Cell(run.pose or "-", run.pose),
        Cell(f"{run.routing} x {run.iterations}" if run.routing else "-", [run.routing, run.iterations]),
        Cell(run.size, run.size),
        Cell(format_count(run.parameters), run.parameters),
        Cell(", ".join(matched) or "no run yet", matched),
        Cell(format_count(run.images_seen), run.images_seen),
        Cell(f"{format_percent(run.exact.ratio)} ({format_range(low, high)})", exact),
        _make_proportion_cell(run.exact_single),
        _make_proportion_cell(run.exact_overlaid),
        Cell(f"{run.hamming_loss:.4f}", run.hamming_loss),
        Cell(format_duration(run.train_time_s), run.train_time_s),
        Cell(f"{run.images_per_s:.0f}", run.images_per_s),
        Cell(f"{run.device} {run.precision}", {"device": run.device, "precision": run.precision}),
    )


def _make_rule_row(run: RunResult) -> tuple[Cell, ...]:
    return (
        Cell(run.name, run.name),
        _make_proportion_cell(run.validation_exact),
        _make_proportion_cell(run.exact),
        _make_proportion_cell(run.top_k),
        Cell(format_percent(run.half_credit), run.half_credit),
        Cell(f"{run.macro_f1:.4f}", run.macro_f1),
    )


def _make_proportion_cell(proportion: Proportion) -> Cell:
    # A test split may hold no single digit at all (or nothing else): then there is nothing to state.
    text = format_percent(proportion.ratio) if proportion.total else "-"
    return Cell(text, proportion.to_dict())


def _make_matching_tables(runs: tuple[RunResult, ...]) -> list[Table]:
    tables = []
    for neurons in dict.fromkeys(run.neurons for run in runs):
        models = {(run.model, run.size): run for run in runs if run.neurons == neurons}
        sizes = sorted({size for _, size in models})
        named = {(model if len(sizes) == 1 else f"{model} {size}"): run for (model, size), run in models.items()}
        title = f"Matching, layer by layer ({', '.join(sizes)})"
        tables.append(make_matching_table(title, [(name, run.layers) for name, run in named.items()]))
    return tables
