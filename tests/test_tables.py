"""Tables of names: every row loads, unknown and duplicate names are refused."""

from __future__ import annotations

import math
import sys
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

import pytest

from overlaycaps.errors import UsageError
from overlaycaps.models import MODELS
from overlaycaps.routing import ROUTINGS, SCHEDULES
from overlaycaps.tables import Row, Table, look_up


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
        Table(row, row)


def test_an_unknown_name_gets_the_choices_and_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"--routing atention: .*attention, uniform, .*\. Did you mean attention\?"):
        look_up(ROUTINGS, "atention", "--routing")


def test_a_target_stands_for_a_row_where_other_packages_may_add_rows() -> None:
    row = look_up(MODELS, "collections:OrderedDict.fromkeys", "--model")
    assert row.load() == OrderedDict.fromkeys
    with pytest.raises(UsageError, match="--schedule math:pi: no such name"):
        look_up(SCHEDULES, "math:pi", "--schedule")


@pytest.mark.parametrize("name", ["math", "math:", ":pi", "a b:c", "../x:y", "math:pi()", "math:pi\n"])
def test_what_is_no_target_is_no_name(name: str) -> None:
    with pytest.raises(UsageError, match="no such name"):
        look_up(MODELS, name, "--model")


@pytest.mark.parametrize("target", ["no_such_module:thing", "math:no_such_thing"])
def test_a_target_that_is_not_there_is_named(target: str) -> None:
    with pytest.raises(UsageError, match=f"{target} could not be loaded: .*no_such"):
        look_up(MODELS, target, "--model").load()


def test_a_target_in_the_present_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_thing.py").write_text("answer = 42")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    assert look_up(MODELS, "my_own_thing:answer", "--model").load() == 42


def test_an_installed_package_adds_rows_but_takes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dist = tmp_path / "extra_models-1.0.dist-info"
    dist.mkdir()
    (dist / "METADATA").write_text("Metadata-Version: 2.1\nName: extra-models\nVersion: 1.0\n")
    (dist / "entry_points.txt").write_text("[extra.group]\nnovel = math:pi\nown = math:e\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    table = Table(Row("own", "ours", "nowhere", "math:tau"), group="extra.group")
    assert list(table) == ["own", "novel"]
    assert len(table) == 2
    assert table["novel"].load() == math.pi
    assert table["novel"].summary == "from extra-models"
    assert table["own"].load() == math.tau
