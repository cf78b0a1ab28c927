"""How idle threads wait, decided before torch is imported."""

from __future__ import annotations

import os

import pytest

from overlaycaps import cli


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "1000"),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "active"}, None),
    ],
)
def test_idle_threads_yield_unless_the_user_decides(
    given: dict[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(variable, raising=False)
        # Set and deleted again, so that monkeypatch knows it and takes away what the program sets.
        monkeypatch.setenv(variable, "x")
        monkeypatch.delenv(variable)
    for variable, value in given.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(cli, "app", lambda: None)
    cli.main()
    assert os.environ.get("GOMP_SPINCOUNT") == expected
