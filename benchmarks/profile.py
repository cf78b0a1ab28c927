"""Where the time of a training step goes, and how fast its convolutions are: what bounds it.

python -m benchmarks.profile [--steps 10]
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.measure import describe_machine, format_markdown, time_interleaved
from benchmarks.routing import GEMM_SIZE, SMALL
from benchmarks.step import make_step

# Parts of a step, by words in the names of torch's operations; the first that fits counts.
PARTS: Mapping[str, tuple[str, ...]] = {
    "convolutions": ("convolution",),
    "matrix products": ("::mm", "::bmm", "::addmm"),
    "routed passes": ("_AttentionPass",),
    "normalisation": ("layer_norm",),
    "update": ("adamw", "AdamW"),
}
REST = "copies, activations, additions, overhead"


def profile_step(steps: int) -> tuple[dict[str, float], float]:
    """Return milliseconds a step by part, and the floating-point operations a second of the convolutions alone."""
    step = make_step(SMALL)
    for _ in range(3):
        step()
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        for _ in range(steps):
            step()
    spent = dict.fromkeys([*PARTS, REST], 0.0)
    for event in recorded.key_averages():
        part = next((name for name, words in PARTS.items() if any(word in event.key for word in words)), REST)
        spent[part] += event.self_cpu_time_total / 1e3 / steps
    with FlopCounterMode(display=False) as counter:
        step()
    flops = sum(
        count for operation, count in counter.get_flop_counts()["Global"].items() if "convolution" in str(operation)
    )
    return spent, flops / (spent["convolutions"] / 1e3)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10)
    steps: int = parser.parse_args().steps
    left, right = (torch.randn(GEMM_SIZE, GEMM_SIZE) for _ in range(2))
    gemm_s = time_interleaved({"gemm": lambda: left @ right}, repeats=7, warm_up=2)["gemm"].median_s
    spent, conv_speed = profile_step(steps)
    total = sum(spent.values())
    print(f"{describe_machine()}; {steps} steps of caps, size small, batch 64, fp32, under torch's profiler.\n")
    rows = [
        [part, f"{milliseconds:.1f}", f"{100 * milliseconds / total:.0f} %"] for part, milliseconds in spent.items()
    ]
    print(format_markdown(["part", "ms a step", "share"], [*rows, ["all", f"{total:.1f}", ""]]))
    gemm_speed = 2 * GEMM_SIZE**3 / gemm_s
    print(
        f"\nThe convolutions run at {conv_speed / 1e9:.0f} GFLOP/s, {conv_speed / gemm_speed:.2f} of the "
        f"{gemm_speed / 1e9:.0f} GFLOP/s of a {GEMM_SIZE}^3 matrix product."
    )


if __name__ == "__main__":
    main()
