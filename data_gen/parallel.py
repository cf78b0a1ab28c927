"""Work spread over threads, its results in the order of the tasks: how many threads there are changes nothing.

Threads, and not processes: NumPy and hashlib let go of the interpreter for most of the work, results need not be copied
between processes (which costs more than making them), and nothing is left behind when the program is killed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from data_gen.errors import DataError

Task = TypeVar("Task")
Result = TypeVar("Result")

MAX_WORKERS = 256
_AHEAD = 2
"""Tasks given out for each worker, so that none waits for the next; results in memory stay that few."""


def map_in_order(
    work: Callable[[Task], Result], tasks: Iterable[Task], num_workers: int
) -> Generator[Result, None, None]:
    """Yield `work(task)` for each task, in order; with one worker, made when it is asked for.

    Raises:
        DataError: `num_workers` is out of range; also whatever `work` raises.
    """
    if not 1 <= num_workers <= MAX_WORKERS:
        raise DataError(f"--workers {num_workers} is out of range; use 1 to {MAX_WORKERS}")
    if num_workers == 1:
        for task in tasks:
            yield work(task)
        return
    executor = ThreadPoolExecutor(num_workers)
    pending: deque[Future[Result]] = deque()
    try:
        for task in tasks:
            pending.append(executor.submit(work, task))
            if len(pending) == _AHEAD * num_workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        executor.shutdown(cancel_futures=True)
