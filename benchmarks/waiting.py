"""How OpenMP's threads should wait for work: training steps on free cores, and beside a busy process.

    python -m benchmarks.waiting [--rounds 3]

Every case is a process of its own, as the setting is read when torch is imported.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

from benchmarks.measure import describe_machine, format_markdown, run_child
from benchmarks.step import StepCase, make_step

SETTINGS: dict[str, dict[str, str]] = {
    "default of GNU OpenMP": {},
    "GOMP_SPINCOUNT=1000": {"GOMP_SPINCOUNT": "1000"},
    "GOMP_SPINCOUNT=100000": {"GOMP_SPINCOUNT": "100000"},
    "OMP_WAIT_POLICY=passive": {"OMP_WAIT_POLICY": "passive"},
}
SECONDS = 4.0


def measure_speed() -> float:
    """Return images/s of training steps of ``caps``, size small, over some seconds."""
    step = make_step(StepCase(pose="vector", num_channels=64, num_capsules=8))
    for _ in range(5):
        step()
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < SECONDS:
        step()
        count += 1
    return 64 * count / (time.perf_counter() - started)


def measure_setting(setting: dict[str, str], busy: bool) -> float:
    """Return the speed of a process with a setting, perhaps beside another that never rests."""
    for variable in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        os.environ.pop(variable, None)
    os.environ.update(setting)
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if busy else None
    try:
        return float(run_child("benchmarks.waiting", "--child")["images_per_s"])
    finally:
        if other is not None:
            other.kill()
            other.wait()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps({"images_per_s": measure_speed()}))
        return
    print(f"{describe_machine()}; {arguments.rounds} rounds.\n")
    print("Training steps of caps, size small, images/s: median (range).\n")
    speeds: dict[tuple[str, bool], list[float]] = {(name, busy): [] for name in SETTINGS for busy in (False, True)}
    for _ in range(arguments.rounds):
        for (name, busy), values in speeds.items():
            values.append(measure_setting(SETTINGS[name], busy))
    rows = []
    for name in SETTINGS:
        pair = (speeds[name, False], speeds[name, True])
        rows.append([name, *(f"{statistics.median(v):.0f} ({min(v):.0f} to {max(v):.0f})" for v in pair)])
    print(format_markdown(["setting", "cores free", "beside one busy process"], rows))


if __name__ == "__main__":
    main()
