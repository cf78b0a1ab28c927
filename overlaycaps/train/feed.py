"""Bringing batches to the loop: drawn many at a time where drawing takes time, and ahead where that pays."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from overlaycaps.data.splits import Split

Batch = tuple[Tensor, Tensor]
"""Images (B, H, W) and labels (B, classes), uint8, on the device."""

_GROUP_SIZE = 1024
"""Images drawn at a time, or one batch if that is more: drawing has a cost for each call as well as for each image."""

_AHEAD = 2
"""Groups that are ready before they are asked for."""


def draw_batches(split: Split, epoch: int, batches: Iterable[Tensor], device: torch.device) -> Iterator[Batch]:
    """Yield the images and labels at each batch of positions, in order.

    How they are grouped, and the thread that draws ahead, change nothing in what is drawn: an image is a function of
    its position.
    """
    if split.is_instant:
        for positions in batches:
            images, labels = split.draw(epoch, positions)
            yield images.to(device), labels.to(device)
        return

    def draw(group: Sequence[Tensor]) -> list[Batch]:
        images, labels = split.draw(epoch, torch.cat(list(group)))
        sizes = [len(positions) for positions in group]
        return list(zip(images.to(device).split(sizes), labels.to(device).split(sizes), strict=True))

    groups = _group(batches)
    if device.type == "cpu":  # its cores are busy with the step: a thread beside it would only take turns with it
        for group in groups:
            yield from draw(group)
        return
    executor = ThreadPoolExecutor(1, thread_name_prefix="draw")
    pending: deque[Future[list[Batch]]] = deque()
    try:
        for group in groups:
            pending.append(executor.submit(draw, group))
            if len(pending) > _AHEAD:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()
    finally:
        executor.shutdown(cancel_futures=True)


def _group(batches: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    group: list[Tensor] = []
    for positions in batches:
        if group and sum(map(len, group)) + len(positions) > _GROUP_SIZE:
            yield group
            group = []
        group.append(positions)
    if group:
        yield group
