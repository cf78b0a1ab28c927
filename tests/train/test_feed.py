"""Batches reach the loop in order, whether they are drawn in turn or ahead."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor

from overlaycaps.train.feed import draw_batches


class CountingSplit:
    """Draws its positions, and remembers in which thread."""

    is_shuffled = True

    def __init__(self, is_instant: bool) -> None:
        self.is_instant = is_instant
        self.threads: set[int] = set()
        self.num_drawn = 0

    def __len__(self) -> int:
        return 100

    def draw(self, epoch: int, positions: Tensor) -> tuple[Tensor, Tensor]:
        if 32 in positions:
            raise ValueError("position 32")
        self.threads.add(threading.get_ident())
        self.num_drawn += 1
        return positions + 1000 * epoch, positions

    def to(self, device: torch.device) -> CountingSplit:
        return self


# "meta" stands for a device that computes beside the processor: what is drawn for it is drawn ahead.
@pytest.mark.parametrize(
    ("is_instant", "device", "is_ahead"), [(True, "meta", False), (False, "cpu", False), (False, "meta", True)]
)
def test_batches_come_in_order_and_are_drawn_where_it_pays(is_instant: bool, device: str, is_ahead: bool) -> None:
    split = CountingSplit(is_instant)
    positions = torch.arange(1000, 3000).split(8)
    shapes = [images.shape for images, _ in draw_batches(split, 3, positions, torch.device(device))]
    assert shapes == [part.shape for part in positions]
    assert (threading.get_ident() not in split.threads) == is_ahead
    assert len(split.threads) == 1
    assert split.num_drawn == (250 if is_instant else 2)


def test_a_batch_larger_than_a_group_is_drawn_whole() -> None:
    split = CountingSplit(False)
    sizes = [
        len(images) for images, _ in draw_batches(split, 0, torch.arange(100, 6100).split(2500), torch.device("cpu"))
    ]
    assert sizes == [2500, 2500, 1000]
    assert split.num_drawn == 3


def test_what_is_drawn_is_what_was_asked_for() -> None:
    split = CountingSplit(False)
    batches = list(draw_batches(split, 3, torch.arange(20).split(6), torch.device("cpu")))
    assert torch.equal(torch.cat([images for images, _ in batches]), torch.arange(3000, 3020))
    assert torch.equal(torch.cat([labels for _, labels in batches]), torch.arange(20))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_failure_reaches_the_loop_and_drawing_ends(device: str) -> None:
    split = CountingSplit(False)
    batches = draw_batches(split, 0, torch.arange(33).split(8), torch.device(device))
    with pytest.raises(ValueError, match="position 32"):
        list(batches)


def test_a_loop_that_stops_draws_no_more_than_a_few_ahead() -> None:
    split = CountingSplit(False)
    batches = draw_batches(split, 0, torch.arange(100, 100_000).split(512), torch.device("meta"))
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert 1 <= split.num_drawn <= 4
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("draw")]
