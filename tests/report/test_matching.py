"""Matching tables hold only what matches."""

from __future__ import annotations

import pytest

from overlaycaps.report.inventory import list_models
from overlaycaps.report.matching import make_matching_table
from overlaycaps.report.results import Layer


class Model:
    """A model as the inventory sees it."""

    def __init__(self, name: str, layers: list[Layer]) -> None:
        self.name, self.summary, self.reference, self.layers = name, f"about {name}", "nowhere", layers
        self.parameters = sum(layer.parameters for layer in layers)


A = [Layer("conv", (2, 3, 3), 18, 20), Layer("logits", (10,), 10, 190)]
B = [Layer("conv", (2, 3, 3), 18, 1020), Layer("logits", (10,), 10, 5)]
C = [Layer("conv", (3, 3, 3), 27, 30), Layer("logits", (10,), 10, 280)]


def test_layers_stand_beside_each_other_and_add_up() -> None:
    table = make_matching_table("t", [("a", A), ("b", B)])
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["conv", "2x3x3", "18", "20", "1,020"],
        ["logits", "10", "10", "190", "5"],
        ["total", "", "28", "210", "1,025"],
    ]


def test_models_that_do_not_match_are_refused() -> None:
    with pytest.raises(ValueError, match="not matched"):
        make_matching_table("t", [("a", A), ("c", C)])


def test_the_inventory_lists_all_and_matches_only_what_matches() -> None:
    report = list_models("small", [Model("a", A), Model("b", B), Model("c", C)])
    assert [row[0].text for row in report.tables[0].rows] == ["a", "b", "c"]
    assert [row[1].text for row in report.tables[0].rows] == ["210", "1,025", "310"]
    assert len(report.tables) == 2
    assert [column.key for column in report.tables[1].columns[3:]] == ["parameters_a", "parameters_b"]
