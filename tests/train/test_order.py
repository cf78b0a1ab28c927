"""The order of the images: every image once an epoch, a new order each time, the same again for the same seed."""

from __future__ import annotations

import pytest
import torch

from overlaycaps.train.order import BatchPlan


def test_each_epoch_shows_every_image_once_in_an_order_of_its_own() -> None:
    plan = BatchPlan(num_train=13, num_images=26, batch_size=4, seed=0)
    first, second = (torch.cat(plan.split_epoch(epoch)) for epoch in (0, 1))
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(13))
    assert first.tolist() != second.tolist()


def test_the_same_seed_gives_the_same_order() -> None:
    orders = [BatchPlan(50, 100, 8, seed).order_epoch(1).tolist() for seed in (3, 3, 4)]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]


@pytest.mark.parametrize(
    ("num_images", "num_epochs", "num_steps", "last_size"),
    [(13, 1, 4, 1), (26, 2, 8, 1), (20, 2, 6, 3), (5, 1, 2, 1), (39, 3, 12, 1), (30, 3, 9, 4)],
)
def test_the_budget_is_met_exactly(num_images: int, num_epochs: int, num_steps: int, last_size: int) -> None:
    plan = BatchPlan(num_train=13, num_images=num_images, batch_size=4, seed=0)
    batches = [batch for epoch in range(plan.num_epochs) for batch in plan.split_epoch(epoch)]
    assert plan.num_epochs == num_epochs
    assert len(batches) == plan.num_steps == plan.last_step(num_epochs - 1) == num_steps
    assert sum(len(batch) for batch in batches) == num_images
    assert len(batches[-1]) == last_size


@pytest.mark.parametrize("num_images", [*range(1, 30), 39])
@pytest.mark.parametrize("batch_size", [1, 4, 13, 20])
def test_the_sizes_of_all_batches_are_known_beforehand(num_images: int, batch_size: int) -> None:
    plan = BatchPlan(num_train=13, num_images=num_images, batch_size=batch_size, seed=0)
    sizes = {len(batch) for epoch in range(plan.num_epochs) for batch in plan.split_epoch(epoch)}
    assert plan.batch_sizes == sorted(sizes, reverse=True)
