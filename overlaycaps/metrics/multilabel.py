"""How well ten independent logits name the digits of an image: each rule under its own name, never mixed up.

N samples, 10 classes. A class is predicted when its sigmoid exceeds 0.5, that is when its logit exceeds 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.uint8]
Logits = NDArray[np.floating[Any]]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Proportion:
    """So many of so many."""

    correct: int
    total: int

    @property
    def ratio(self) -> float:
        """correct / total; NaN of nothing."""
        return self.correct / self.total if self.total else float("nan")

    def to_dict(self) -> dict[str, int]:
        """Return the counts as plain data."""
        return {"correct": self.correct, "total": self.total}


@dataclass(frozen=True)
class ClassScore:
    """Precision, recall and number of true samples of one class; a ratio over nothing counts as 0."""

    label: int
    precision: float
    recall: float
    support: int

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall; 0 when both are."""
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0

    def to_dict(self) -> dict[str, float]:
        """Return the fields as plain data."""
        return {"class": self.label, "precision": self.precision, "recall": self.recall, "support": self.support}


@dataclass(frozen=True)
class MultilabelScores:
    """Every score of one set of predictions.

    Attributes:
        exact_match: samples whose predicted set equals the label set (subset accuracy): *the* accuracy of this task.
        exact_match_single: the same over samples with one digit.
        exact_match_overlaid: the same over samples with more than one.
        top_k: samples whose k highest logits are the label set, k known: the easier rule of the evaluation that
            Sabour et al. 2017 released.
        half_credit: mean over samples of the share of the label set among the k highest logits: the still easier rule
            of the evaluation that Efficient-CapsNet (arXiv 2101.12491) released.
        hamming_loss: share of wrong decisions over all samples and classes.
        macro_f1: mean of the classes' F1; a class that is neither there nor predicted counts as 0, as in scikit-learn
            with ``zero_division=0``.
        per_class: precision, recall, support of each class.
    """

    exact_match: Proportion
    exact_match_single: Proportion
    exact_match_overlaid: Proportion
    top_k: Proportion
    half_credit: float
    hamming_loss: float
    macro_f1: float
    per_class: tuple[ClassScore, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the ``test`` object of a run's result."""
        return {
            "num_samples": self.exact_match.total,
            "exact_match": self.exact_match.to_dict(),
            "exact_match_single": self.exact_match_single.to_dict(),
            "exact_match_overlaid": self.exact_match_overlaid.to_dict(),
            "top_k": self.top_k.to_dict(),
            "half_credit": {"mean": self.half_credit, "total": self.exact_match.total},
            "hamming_loss": self.hamming_loss,
            "macro_f1": self.macro_f1,
            "per_class": [score.to_dict() for score in self.per_class],
        }


def score(logits: Logits, labels: Labels) -> MultilabelScores:
    """Score logits (N, 10) against multi-hot labels (N, 10) by every rule.

    A sample with a logit that is not a finite number is wrong by every rule and in all its decisions, whatever its
    other logits say: a model that diverged must not win by chance or by the order of the classes.

    Raises:
        ValueError: if the shapes differ, there is no sample, or a sample has no label.
    """
    if logits.shape != labels.shape or logits.ndim != 2 or not len(logits):
        raise ValueError(f"logits {logits.shape} and labels {labels.shape} do not make N x classes")
    truth = labels.astype(bool)
    if not truth.any(1).all():
        raise ValueError(f"sample {int(np.argmin(truth.any(1)))} has no label; an image shows at least one digit")
    broken = np.isfinite(logits).sum(1) < logits.shape[1]
    predicted = np.where(broken[:, None], ~truth, logits > 0)
    exact = match_exactly(predicted, truth)
    overlaid = truth.sum(1) > 1
    credit = np.where(broken, 0.0, share_among_highest(logits, truth))
    classes = tuple(_score_class(label, predicted[:, label], truth[:, label]) for label in range(truth.shape[1]))
    return MultilabelScores(
        exact_match=_count(exact),
        exact_match_single=_count(exact[~overlaid]),
        exact_match_overlaid=_count(exact[overlaid]),
        top_k=_count(credit == 1),
        half_credit=float(credit.mean()),
        hamming_loss=float((predicted != truth).mean()),
        macro_f1=float(np.mean([entry.f1 for entry in classes])),
        per_class=classes,
    )


def match_exactly(predicted: Flags, truth: Flags) -> Flags:
    """Return for each sample whether all classes are right, bool (N,)."""
    matches: Flags = (predicted == truth).all(1)
    return matches


def share_among_highest(logits: Logits, truth: Flags) -> NDArray[np.float64]:
    """Return |top k of the logits, cut with the label set| / k for each sample, k = size of its label set, float (N,).

    Of equal logits the lower class counts as higher. Every sample has at least one label.
    """
    rank = np.argsort(np.argsort(-logits, axis=1, kind="stable"), axis=1, kind="stable")
    num_labels = truth.sum(1)
    shares: NDArray[np.float64] = ((rank < num_labels[:, None]) & truth).sum(1) / num_labels
    return shares


def _score_class(label: int, predicted: Flags, truth: Flags) -> ClassScore:
    both = int((predicted & truth).sum())
    num_predicted, support = int(predicted.sum()), int(truth.sum())
    return ClassScore(
        label=label,
        precision=both / num_predicted if num_predicted else 0.0,
        recall=both / support if support else 0.0,
        support=support,
    )


def _count(flags: Flags) -> Proportion:
    return Proportion(int(flags.sum()), len(flags))
