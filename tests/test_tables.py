"""Tables of names: every row loads, unknown and duplicate names are refused."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from overlaycaps.errors import UsageError
from overlaycaps.models import MODELS
from overlaycaps.routing import ROUTINGS, SCHEDULES
from overlaycaps.tables import Row, look_up, make_table


@pytest.mark.parametrize("table", [MODELS, ROUTINGS, SCHEDULES], ids=["models", "routings", "schedules"])
def test_every_row_loads_and_explains_itself(table: Mapping[str, Row]) -> None:
    for name, row in table.items():
        assert row.name == name
        assert callable(row.load())
        assert row.load().__doc__
        assert row.summary
        assert row.reference


def test_duplicate_names_are_refused() -> None:
    row = Row("a", "first", "nowhere", "math:pi")
    with pytest.raises(ValueError, match=r"duplicate names: \['a'\]"):
        make_table(row, row)


def test_an_unknown_name_gets_the_choices_and_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"--routing atention: .*attention, uniform, .*\. Did you mean attention\?"):
        look_up(ROUTINGS, "atention", "--routing")
