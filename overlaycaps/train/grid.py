"""Many runs: every model with every seed, one after the other, each in a process of its own.

What is finished is skipped and what is not goes on, so that the same command may be given again at any time. A cell
that fails, even one that is killed, costs no other.
"""

from __future__ import annotations

import multiprocessing
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, Literal, Protocol

from overlaycaps.data.failures import explain_failure
from overlaycaps.errors import Interrupted, ToldElsewhereError, UsageError
from overlaycaps.train.interrupt import StopFlag, catch_stop_signals
from overlaycaps.train.observer import Evaluation, Observer, Progress, Scoring
from overlaycaps.train.plan import (
    PreparedRun,
    ResumeRequest,
    TrainRequest,
    check_request,
    prepare_resumed_run,
    prepare_run,
)
from overlaycaps.train.ranks import ALONE, Ranks
from overlaycaps.train.result import summarize_result
from overlaycaps.train.session import carry_out, find_todo

MAX_CELLS = 10_000
_INTERVAL_S = 0.1
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class CellOutcome:
    """How a cell of the grid ended.

    Attributes:
        model: its name.
        seed: its seed.
        state: finished now; finished before; failed; or interrupted, and not tried at all if there is no message.
        message: its result in one line, or why there is none.
    """

    model: str
    seed: int
    state: Literal["finished", "skipped", "failed", "interrupted"]
    message: str = ""


class GridObserver(Observer, Protocol):
    """Receives what happens in a grid."""

    def on_cell(self, number: int, total: int, label: str) -> None:
        """Before a cell (counted from 1) is begun."""

    def on_outcome(self, outcome: CellOutcome) -> None:
        """After a cell."""


def parse_seeds(text: str) -> list[int]:
    """Return the seeds in a text such as ``0-4`` or ``0,2,5-7``, each once, in order.

    Raises:
        UsageError: if the text has another form, or names too many.
    """
    seeds: dict[int, None] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,18})(?:\s*-\s*(\d{1,18}))?\s*", part, re.ASCII)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise UsageError(f"--seeds {text[:60]}: write numbers and ranges, as in 0-4 or 0,2,5-7.")
        if last - first + len(seeds) >= MAX_CELLS:
            raise UsageError(f"--seeds {text[:60]}: these are more than {MAX_CELLS:,} runs.")
        seeds.update(dict.fromkeys(range(first, last + 1)))
    return list(seeds)


def parse_models(text: str) -> list[str]:
    """Return the models in a text such as ``caps,cnn``, each once, in order.

    Raises:
        UsageError: if a name is empty.
    """
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise UsageError(f"--models {text[:60]!r}: write names with commas between them, as in caps,cnn.")
    return list(dict.fromkeys(names))


def plan_grid(base: TrainRequest, models: Sequence[str], seeds: Sequence[int]) -> list[TrainRequest]:
    """Return the cells of a grid: all models with the first seed, then with the next."""
    return [replace(base, model=model, seed=seed) for seed in seeds for model in models]


def run_grid(
    requests: Sequence[TrainRequest],
    observer: GridObserver,
    stop: StopFlag,
    ranks: Ranks = ALONE,
    *,
    force: bool = False,
) -> list[CellOutcome]:
    """Carry out the cells of a grid; what is finished is skipped unless ``force`` trains it again.

    Of several processes, all go through the grid together and no cell has a process of its own.

    Returns:
        An outcome for every cell, also those that a stop left out.

    Raises:
        UsageError: if an option of any cell does not fit; nothing is begun then, so that a slip costs no hours.
    """

    def check() -> None:
        for request in requests:
            check_request(request, ranks)

    ranks.together(check)
    outcomes: list[CellOutcome] = []
    for number, request in enumerate(requests, start=1):
        if ranks.any(stop.requested):
            outcomes.append(CellOutcome(request.model, request.seed, "interrupted"))
            continue
        observer.on_cell(number, len(requests), f"{request.model} seed {request.seed}")
        run = run_cell if ranks.size > 1 else run_cell_apart
        outcome = run(request, observer, stop, ranks, force)
        observer.on_outcome(outcome)
        outcomes.append(outcome)
    return outcomes


def run_cell(
    request: TrainRequest, observer: Observer, stop: StopFlag, ranks: Ranks = ALONE, force: bool = False
) -> CellOutcome:
    """Do what is left to do of one cell, in this process.

    Errors that the user can mend are the outcome; others are raised.
    """

    def conclude(state: Literal["finished", "skipped", "failed", "interrupted"], message: str) -> CellOutcome:
        return CellOutcome(request.model, request.seed, state, message)

    try:
        run = ranks.together(lambda: prepare_run(request, ranks))
        todo = "start" if force else ranks.on_first(lambda: find_todo(run))
        if todo == "finished":
            return conclude("skipped", f"{run.folder.path} is finished")
        if todo == "resume":
            run = ranks.together(lambda: _prepare_again(request, run, ranks))
        for warning in run.warnings:
            observer.on_warning(warning)
        begin: dict[str, Literal["new", "replace", "resume"]] = {"start": "new", "resume": "resume"}
        result = carry_out(run, observer, stop, "replace" if force else begin[todo])
    except Interrupted as error:
        return conclude("interrupted", str(error))
    except ToldElsewhereError as error:
        return conclude("interrupted" if error.exit_code == Interrupted.exit_code else "failed", str(error))
    except Exception as error:
        explained = explain_failure(error)
        if explained is None:
            raise
        return conclude("failed", str(explained))
    return conclude("finished", summarize_result(result))


def _prepare_again(request: TrainRequest, run: PreparedRun, ranks: Ranks) -> PreparedRun:
    """Return the run as it was begun: with its own precision and, where the request names none, threads."""
    return prepare_resumed_run(
        ResumeRequest(
            path=run.folder.path,
            gpu=request.gpu,
            cpu=request.cpu,
            named={request.model, request.routing},
            data_path=request.data_path,
            threads=request.threads,
            accumulate=request.accumulate,
            tensorboard=request.tensorboard,
            checkpoint_minutes=request.checkpoint_minutes,
        ),
        ranks,
    )


def run_cell_apart(
    request: TrainRequest, observer: Observer, stop: StopFlag, ranks: Ranks = ALONE, force: bool = False
) -> CellOutcome:
    """Do what is left to do of one cell, in a process of its own; whatever becomes of that is the outcome."""
    early = _conclude_early(request, force)
    if early is not None:
        return early
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(request, force, sender), name=f"{request.model}-{request.seed}")
    with _hold_back_signals():  # the process begins with them held back too, until it can heed them
        process.start()
    sender.close()
    outcome: CellOutcome | None = None
    is_told = False
    try:
        while outcome is None:
            if stop.requested and not is_told:
                process.terminate()  # it saves its state; a second signal, as from a terminal, changes nothing
                is_told = True
            try:
                if not receiver.poll(_INTERVAL_S):
                    continue
                message = receiver.recv()
            except (EOFError, OSError):
                break
            if isinstance(message, CellOutcome):
                outcome = message
            else:
                name, event = message
                getattr(observer, name)(event)
        process.join()
    finally:
        if process.is_alive():  # this process is interrupted at once
            process.kill()
            process.join()
        receiver.close()
    if outcome is not None:
        return outcome
    state: Literal["interrupted", "failed"] = "interrupted" if is_told else "failed"
    return CellOutcome(request.model, request.seed, state, _describe_end(process.exitcode))


@contextmanager
def _hold_back_signals() -> Iterator[None]:
    """Let signals that stop a run come only after the block, where the system can (Windows cannot)."""
    if sys.platform == "win32":
        yield
        return
    from multiprocessing import resource_tracker  # noqa: PLC0415 - has no use on Windows

    resource_tracker.ensure_running()  # now: when it starts, Python 3.11 and older let the signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _conclude_early(request: TrainRequest, force: bool) -> CellOutcome | None:
    """Return the outcome of a cell that needs no process: it is finished, or cannot be begun."""
    try:
        run = prepare_run(request)
        if force or find_todo(run) != "finished":
            return None
        return CellOutcome(request.model, request.seed, "skipped", f"{run.folder.path} is finished")
    except Exception as error:
        explained = explain_failure(error)
        if explained is None:
            raise
        return CellOutcome(request.model, request.seed, "failed", str(explained))


def _describe_end(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        number = -exit_code
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        cause = "; was the memory too small?" if name == "SIGKILL" else ""
        return f"its process was ended by {name}{cause}"
    return f"its process ended with exit code {exit_code}; its messages say why"


class _Reporter:
    """Sends what happens to the process that shows it; that this one is gone asks the run to stop."""

    def __init__(self, sender: Connection, stop: StopFlag) -> None:
        self.sender, self.stop, self.sent_s = sender, stop, 0.0

    def on_scoring(self, scoring: Scoring) -> None:
        """Send it."""
        self._send_sometimes("on_scoring", scoring)

    def on_progress(self, progress: Progress) -> None:
        """Send it, if the last one is not of just now."""
        self._send_sometimes("on_progress", progress)

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Send it."""
        self.send(("on_evaluation", evaluation))

    def on_warning(self, message: str) -> None:
        """Send it."""
        self.send(("on_warning", message))

    def send(self, message: Any) -> None:
        """Send anything."""
        try:
            self.sender.send(message)
        except OSError:
            self.stop.requested = True

    def _send_sometimes(self, name: str, event: Any) -> None:
        if time.monotonic() - self.sent_s >= _INTERVAL_S:
            self.sent_s = time.monotonic()
            self.send((name, event))


def _work(request: TrainRequest, force: bool, sender: Connection) -> None:
    """Do a cell, in a process of its own."""
    with catch_stop_signals(patient=True) as stop:
        if sys.platform != "win32":
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
        reporter = _Reporter(sender, stop)
        reporter.send(run_cell(request, reporter, stop, force=force))
    sender.close()
