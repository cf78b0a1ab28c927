"""Every score on one example of seven samples, worked out by hand; each rule gives a value of its own."""

from __future__ import annotations

import numpy as np
import pytest

from overlaycaps.metrics.multilabel import MultilabelScores, Proportion, score
from overlaycaps.report.format import format_percent

LOW = -5.0

# labels; logits by class (all others are LOW). Predicted: above 0. Top k: the k highest, k = number of labels.
SAMPLES: list[tuple[set[int], dict[int, float]]] = [
    ({0, 1}, {0: 2, 1: 1}),  # exact; top 2 = {0, 1}
    ({0, 2}, {0: 2, 2: -1}),  # misses 2; top 2 = {0, 2} all the same
    ({1, 3}, {1: 3, 4: 2, 3: -2}),  # misses 3, adds 4; top 2 = {1, 4}: half
    ({5}, {5: 1}),  # exact; top 1 = {5}
    ({6}, {6: -1, 7: -2}),  # predicts nothing; top 1 = {6}
    ({8}, {9: 2, 8: 1}),  # adds 9; top 1 = {9}: none, although 8 is among the two highest
    ({2, 9}, {2: 1, 9: 1}),  # exact
]


def make_example() -> tuple[np.ndarray, np.ndarray]:
    logits = np.full((7, 10), LOW)
    labels = np.zeros((7, 10), np.uint8)
    for row, (true, values) in enumerate(SAMPLES):
        labels[row, sorted(true)] = 1
        for label, value in values.items():
            logits[row, label] = value
    return logits, labels


@pytest.fixture(scope="module")
def scores() -> MultilabelScores:
    return score(*make_example())


def test_exact_match_and_its_two_parts(scores: MultilabelScores) -> None:
    assert scores.exact_match == Proportion(3, 7)
    assert scores.exact_match_single == Proportion(1, 3)
    assert scores.exact_match_overlaid == Proportion(2, 4)
    assert format_percent(scores.exact_match.ratio) == "42.86 %"


def test_top_k_knows_the_count_of_every_sample(scores: MultilabelScores) -> None:
    # All but the third (top 2 = {1, 4}) and the sixth, a single: its one highest is 9. With k = 2 it would count.
    assert scores.top_k == Proportion(5, 7)


def test_half_credit_is_the_share_of_labels_found(scores: MultilabelScores) -> None:
    assert scores.half_credit == pytest.approx((1 + 1 + 0.5 + 1 + 1 + 0 + 1) / 7)


def test_hamming_loss_counts_every_decision(scores: MultilabelScores) -> None:
    # Wrong: 2 in the second; 3 and 4 in the third; 6 in the fifth; 9 in the sixth.
    assert scores.hamming_loss == pytest.approx(5 / 70)


def test_per_class_precision_recall_and_support(scores: MultilabelScores) -> None:
    found = {entry.label: (entry.precision, entry.recall, entry.support) for entry in scores.per_class}
    assert found == {
        0: (1, 1, 2),
        1: (1, 1, 2),
        2: (1, 1 / 2, 2),
        3: (0, 0, 1),
        4: (0, 0, 0),
        5: (1, 1, 1),
        6: (0, 0, 1),
        7: (0, 0, 0),
        8: (1, 1, 1),
        9: (1 / 2, 1, 1),
    }


def test_macro_f1_is_the_mean_of_the_classes(scores: MultilabelScores) -> None:
    assert scores.macro_f1 == pytest.approx((1 + 1 + 2 / 3 + 0 + 0 + 1 + 0 + 0 + 1 + 2 / 3) / 10)


def test_each_rule_has_a_value_of_its_own(scores: MultilabelScores) -> None:
    values = [scores.exact_match.ratio, scores.top_k.ratio, scores.half_credit, scores.hamming_loss, scores.macro_f1]
    assert len({round(value, 6) for value in values}) == 5


def test_the_report_gets_all_of_it(scores: MultilabelScores) -> None:
    data = scores.to_dict()
    assert data["num_samples"] == 7
    assert data["exact_match"] == {"correct": 3, "total": 7}
    assert data["top_k"] == {"correct": 5, "total": 7}
    assert data["half_credit"] == {"mean": scores.half_credit, "total": 7}
    assert data["per_class"][2] == {"class": 2, "precision": 1.0, "recall": 0.5, "support": 2}


def test_a_logit_of_zero_is_not_predicted() -> None:
    labels = np.eye(10, dtype=np.uint8)[:1]
    logits = np.full((1, 10), LOW)
    logits[0, 0] = 0
    assert score(logits, labels).exact_match == Proportion(0, 1)
    logits[0, 0] = 1e-6
    assert score(logits, labels).exact_match == Proportion(1, 1)


def test_of_equal_logits_the_lower_class_is_higher() -> None:
    labels = np.eye(10, dtype=np.uint8)[[3, 4]]
    logits = np.full((2, 10), LOW)
    logits[:, [3, 4]] = 1
    assert score(logits, labels).top_k == Proportion(1, 2)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_sample_with_a_logit_that_is_no_number_is_wrong_by_every_rule(value: float) -> None:
    labels = np.eye(10, dtype=np.uint8)[:2]
    logits = np.where(labels > 0, 1.0, -1.0)
    logits[0, 9] = value
    scores = score(logits, labels)
    assert scores.exact_match == scores.top_k == Proportion(1, 2)
    assert scores.half_credit == 0.5
    assert scores.hamming_loss == 0.5


def test_a_test_split_may_lack_singles() -> None:
    labels = np.array([[1, 1, 0, 0, 0, 0, 0, 0, 0, 0]], np.uint8)
    scores = score(np.where(labels > 0, 1.0, -1.0), labels)
    assert scores.exact_match_single == Proportion(0, 0)
    assert np.isnan(scores.exact_match_single.ratio)


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        (np.zeros((2, 10)), np.ones((3, 10), np.uint8), "do not make"),
        (np.zeros(10), np.ones(10, np.uint8), "do not make"),
        (np.zeros((0, 10)), np.ones((0, 10), np.uint8), "do not make"),
        (np.zeros((2, 10)), np.eye(10, dtype=np.uint8)[:2] * [[1], [0]], "sample 1 has no label"),
    ],
)
def test_what_is_no_prediction_is_refused(logits: np.ndarray, labels: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        score(logits, labels)
