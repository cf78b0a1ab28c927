"""How many votes a pass makes at a time."""

from __future__ import annotations

import pytest
from torch import Tensor

from overlaycaps.kernels import torch_backend


def note_sizes(monkeypatch: pytest.MonkeyPatch, allowed: int) -> list[int]:
    """Allow so many votes at a time; return the list of those made at once, to be filled."""
    sizes: list[int] = []
    form_votes = torch_backend._form_votes

    def note(children: Tensor, weight: Tensor) -> Tensor:
        votes = form_votes(children, weight)
        sizes.append(votes.numel())
        return votes

    monkeypatch.setattr(torch_backend, "_form_votes", note)
    monkeypatch.setattr(torch_backend, "_MAX_VOTES_IN_FLIGHT", allowed)
    return sizes
