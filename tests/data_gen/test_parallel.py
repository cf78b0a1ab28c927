"""Work over threads: in order, no further ahead than it must be, ended by an error or by its reader."""

from __future__ import annotations

import threading
import time

import pytest

from data_gen.errors import DataError
from data_gen.parallel import map_in_order


def work(task: int) -> int:
    time.sleep(0.002 * (task % 3))  # later tasks are often done first
    if task == 40:
        raise DataError("task 40; leave it out")
    return task * task


@pytest.mark.parametrize("num_workers", [1, 2, 5, 40])
def test_results_come_in_the_order_of_the_tasks(num_workers: int) -> None:
    assert list(map_in_order(work, range(30), num_workers)) == [task * task for task in range(30)]
    assert list(map_in_order(work, [], num_workers)) == []


def test_tasks_run_beside_each_other() -> None:
    barrier = threading.Barrier(3, timeout=10)
    assert list(map_in_order(lambda task: barrier.wait() >= 0, range(6), 3)) == [True] * 6


@pytest.mark.parametrize("num_workers", [1, 3])
def test_an_error_reaches_the_reader_and_ends_the_work(num_workers: int) -> None:
    results = []
    with pytest.raises(DataError, match="task 40"):
        for result in map_in_order(work, range(100), num_workers):
            results.append(result)
    assert results == [task * task for task in range(40)]


@pytest.mark.parametrize("num_workers", [1, 3])
def test_a_reader_that_stops_ends_the_work(num_workers: int) -> None:
    started: list[int] = []
    results = map_in_order(started.append, range(1000), num_workers)
    next(results)
    results.close()
    assert len(started) <= 2 * num_workers
    assert not [thread for thread in threading.enumerate() if "ThreadPool" in thread.name]


@pytest.mark.parametrize("num_workers", [0, -1, 257])
def test_numbers_of_workers_out_of_range_are_refused(num_workers: int) -> None:
    with pytest.raises(DataError, match=f"--workers {num_workers} is out of range; use 1 to 256"):
        list(map_in_order(work, range(3), num_workers))
