"""The figures in a result agree with measurements that the run knows nothing of."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from data_gen.spec import make_spec
from data_gen.store.write import write_dataset
from overlaycaps.train import loop
from overlaycaps.train.feed import draw_batches
from overlaycaps.train.interrupt import StopFlag
from overlaycaps.train.observer import SilentObserver
from overlaycaps.train.plan import TrainRequest, prepare_run
from overlaycaps.train.session import carry_out
from tests.cli.test_processes import COMMAND, make_environment
from tests.data_gen.sources import make_source

# Other work on the machine may fall into the moments in which only one of the two clocks runs.
ATTEMPTS = 3


@pytest.mark.parametrize("fresh", [False, True], ids=["stored", "fresh"])
def test_time_and_throughput_are_those_of_another_clock(
    fresh: bool, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds: list[float] = []

    def watch(*given: Any) -> Iterator[Any]:
        started_s = time.monotonic()
        yield from draw_batches(*given)
        seconds.append(time.monotonic() - started_s)

    monkeypatch.setattr(loop, "draw_batches", watch)
    ratios = []
    for attempt in range(ATTEMPTS):
        seconds.clear()
        run = prepare_run(
            TrainRequest(
                model="cnn",
                size="tiny",
                data_path=tiny_data,
                runs_dir=tmp_path,
                cpu=True,
                epochs=12,
                batch_size=8,
                fresh=fresh,
                checkpoint_minutes=1000.0,
                name=f"run-{attempt}",
            )
        )
        training = carry_out(run, SilentObserver(), StopFlag(), "new")["training"]
        assert len(seconds) == 12
        assert training["images_seen"] == 12 * 96
        ratios.append(training["train_time_s"] / sum(seconds))
        speed = 12 * 96 / sum(seconds)
        assert training["images_per_s"] == pytest.approx(speed / ratios[-1])
        if abs(ratios[-1] - 1) <= 0.1 and abs(training["images_per_s"] / speed - 1) <= 0.1:
            return
    pytest.fail(f"the times of {ATTEMPTS} runs differ from those of another clock: {ratios}")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="there is no /proc here")
def test_peak_memory_is_what_the_system_saw(tmp_path: Path) -> None:
    data = tmp_path / "data.h5"
    write_dataset(data, make_spec(num_train=512, num_valid=20, num_test=20), make_source(digit_px=28))
    # One step with a large batch: its memory is needed for a moment only.
    words = ["train", "--size", "small", "--cpu", "--threads", "1", "--images", "512", "--batch-size", "512"]
    with subprocess.Popen(
        [*COMMAND, *words, "--name", "run"],
        cwd=tmp_path,
        env=make_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        peak_mib = 0.0
        while process.poll() is None:
            peak_mib = max(peak_mib, read_peak_mib(process.pid))
            time.sleep(0.005)
    assert process.returncode == 0
    training = json.loads((tmp_path / "runs/run/result.json").read_text())["training"]
    # Both come from the same counter of the system, the run's from a moment before its end.
    assert training["peak_memory_mib"] == pytest.approx(peak_mib, rel=0.03)


def read_peak_mib(process: int) -> float:
    """Return the largest resident size that a process has had; 0 once it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), 0.0)
