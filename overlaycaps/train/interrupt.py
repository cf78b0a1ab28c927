"""Stopping at a safe point: a signal is noted, the loop looks for it between two steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopFlag:
    """Whether someone asked the run to stop."""

    def __init__(self) -> None:
        self.requested = False


@contextmanager
def catch_stop_signals(*, patient: bool = False) -> Iterator[StopFlag]:
    """Turn SIGINT (Ctrl-C) and SIGTERM into a flag; a second signal interrupts at once, unless ``patient``.

    A process among others has to be patient: it gets the terminal's signal and that of the process that started it.

    Outside the main thread, where Python allows no signal handlers, the flag is simply never set.
    """
    flag = StopFlag()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return

    def note(_number: int, _frame: FrameType | None) -> None:
        if flag.requested and not patient:
            raise KeyboardInterrupt
        flag.requested = True

    previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield flag
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
