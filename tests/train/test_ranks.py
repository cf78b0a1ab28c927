"""Several processes that train one run: who computes what, how they agree, what they come to together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import overlaycaps.train.evaluate
from overlaycaps.config import SIZES
from overlaycaps.errors import LostRankError, UsageError
from overlaycaps.models import build_model
from overlaycaps.train.batch_norm import SynchronizedBatchNorm2d, find_batch_norm, synchronize_batch_norm
from overlaycaps.train.checkpoint import load_checkpoint
from overlaycaps.train.evaluate import predict_logits
from overlaycaps.train.order import BatchPlan, split_sizes
from overlaycaps.train.plan import TrainRequest, prepare_run
from overlaycaps.train.ranks import ALONE, Ranks, explain_lost_ranks, read_ranks
from overlaycaps.train.runtime import Runtime

ROOT = Path(__file__).parents[2]
MASTER = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}  # where the processes meet


@dataclass(frozen=True)
class Job:
    """How the processes that torchrun started ended."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def errors(self) -> list[str]:
        """The lines that say what is wrong, of all processes."""
        return [line for line in self.stderr.splitlines() if line.startswith("error: ")]


def launch(num_processes: int, *words: str | Path, cwd: Path, timeout_s: float = 60) -> Job:
    """Start a script, or a module after ``-m``, in several processes, and wait until all of them have ended.

    Each has a plain environment, in which the package is found, and one thread.
    """
    environment = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [environment.get("PYTHONPATH")])])
    environment["OMP_NUM_THREADS"] = "1"
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_processes))
    with subprocess.Popen(
        [sys.executable, *launcher, *map(str, words)],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        finally:
            process.terminate()  # torchrun ends what it started, which it could not if it were killed
    return Job(process.returncode, stdout, stderr)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 13, 15])
def test_shares_are_all_rows_in_order_and_as_equal_as_can_be(num_rows: int, size: int) -> None:
    rows = torch.arange(num_rows) * 7
    shares = [Ranks(rank, size, rank, size).share(rows) for rank in range(size)]
    assert torch.equal(torch.cat(shares), rows)
    lengths = [len(share) for share in shares]
    assert max(lengths) - min(lengths) <= 1
    assert lengths == split_sizes(num_rows, size)


def test_processes_together_show_every_image_once_an_epoch() -> None:
    plan = BatchPlan(num_train=13, num_images=26, batch_size=4, seed=0)
    orders = []
    for epoch in (0, 1):
        shares = [
            [Ranks(rank, 3, rank, 3).share(batch).tolist() for batch in plan.split_epoch(epoch)] for rank in range(3)
        ]
        assert [len(share) for share in shares[2]] == [1, 1, 1, 0]  # the last batch is one image
        seen = [index for share in shares for batch in share for index in batch]
        assert sorted(seen) == list(range(13))
        orders.append(shares)
    assert orders[0] != orders[1]


class WatchedSplit:
    """Images that are as bright as their position, and which positions were drawn."""

    is_instant = is_shuffled = True

    def __init__(self, num: int) -> None:
        self.num = num
        self.drawn: list[int] = []

    def __len__(self) -> int:
        return self.num

    def draw(self, epoch: int, positions: Tensor) -> tuple[Tensor, Tensor]:
        self.drawn += positions.tolist()
        images = positions[:, None, None].expand(-1, 36, 36).to(torch.uint8) * 10
        return images, positions[:, None].eq(torch.arange(10)).to(torch.uint8)

    def to(self, device: torch.device) -> WatchedSplit:
        return self


class UnconnectedRanks(Ranks):
    """A process whose sums are its own part of them."""

    def sum(self, values: Tensor) -> Tensor:
        return values


def test_processes_together_score_every_image_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlaycaps.train.evaluate, "_BATCH_SIZE", 4)
    model = build_model("cnn", SIZES["tiny"])

    def predict(ranks: Ranks) -> tuple[list[int], Tensor, Tensor]:
        split = WatchedSplit(13)
        logits, labels = predict_logits(model, split, Runtime(torch.device("cpu"), "fp32", 1, ranks))
        return split.drawn, torch.from_numpy(logits), torch.from_numpy(labels)

    _, expected, truth = predict(ALONE)
    parts = [predict(UnconnectedRanks(rank, 3, rank, 3)) for rank in range(3)]
    assert sorted(position for drawn, _, _ in parts for position in drawn) == list(range(13))
    assert torch.equal(torch.stack([labels for _, _, labels in parts]).sum(0), truth)
    assert truth.sum() == 10
    # The order of sums within a convolution may depend on the size of the batch.
    torch.testing.assert_close(torch.stack([logits for _, logits, _ in parts]).sum(0), expected, rtol=1e-5, atol=1e-6)
    assert len(expected.unique(dim=0)) == 13


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ALONE),
        ({"WORLD_SIZE": "2"}, ALONE),  # set by some clusters for whatever they start
        ({"RANK": "0"}, ALONE),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, ALONE),
        ({"RANK": "1", "WORLD_SIZE": "2", **MASTER}, Ranks(1, 2, 1, 2)),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", **MASTER}, Ranks(5, 8, 1, 4)),
    ],
    ids=str,
)
def test_a_process_finds_its_place_in_the_environment(environment: dict[str, str], expected: Ranks) -> None:
    assert read_ranks(environment) == expected
    assert expected.is_first == (expected.rank == 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"RANK": "2"},
        {"RANK": "-1"},
        {"RANK": ""},
        {"RANK": "one"},
        {"WORLD_SIZE": "0"},
        {"WORLD_SIZE": "two"},
        {"LOCAL_RANK": "2"},
        {"LOCAL_RANK": "-1"},
        {"LOCAL_WORLD_SIZE": "1"},
        {"LOCAL_WORLD_SIZE": "3"},
        {"LOCAL_WORLD_SIZE": "1.5"},
    ],
    ids=str,
)
def test_an_environment_that_names_no_process_is_refused(changes: dict[str, str]) -> None:
    environment = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", **MASTER, **changes}
    with pytest.raises(UsageError, match="do not name a process of a job; unset them, or use torchrun") as caught:
        read_ranks(environment)
    for name, value in environment.items():
        assert f"{name}={value!r}" in str(caught.value)


def test_a_connection_that_broke_is_explained_and_other_errors_are_not() -> None:
    broken = "[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1234\nmore"
    told = r"of the 2 processes .* is gone, so that rank 1 ends too"
    with pytest.raises(LostRankError, match=told) as caught, explain_lost_ranks(Ranks(1, 2, 1, 2)):
        raise RuntimeError(broken)
    assert "\n" not in str(caught.value)
    with pytest.raises(RuntimeError, match=r"^shapes differ$"), explain_lost_ranks(Ranks(1, 2, 1, 2)):
        raise RuntimeError("shapes differ")
    with pytest.raises(RuntimeError, match="closed by peer"), explain_lost_ranks(ALONE):
        raise RuntimeError(broken)


def make_request(data: Path, **changes: Any) -> TrainRequest:
    words = {"model": "caps", "size": "tiny", "data_path": data, "runs_dir": Path("runs"), "cpu": True, **changes}
    return TrainRequest(**words)


def test_a_batch_with_fewer_images_than_processes_is_refused(tiny_data: Path) -> None:
    with pytest.raises(UsageError, match=r"^3 processes have nothing to share in batches of 2; raise --batch-size"):
        prepare_run(make_request(tiny_data, batch_size=2), Ranks(0, 3, 0, 3))
    assert prepare_run(make_request(tiny_data, batch_size=3), Ranks(0, 3, 0, 3)).execution.processes == 3


@pytest.mark.parametrize("model", ["resnet18", "efficient-capsnet"])
def test_parts_of_a_batch_are_refused_where_the_whole_is_normalised(model: str, tiny_data: Path) -> None:
    network = build_model(model, SIZES["tiny"])
    layer = find_batch_norm(network)
    assert layer is not None
    assert isinstance(network.get_submodule(layer), nn.BatchNorm2d)
    with pytest.raises(UsageError, match=rf"^--accumulate 2: {model} normalises over each batch \(in {layer}\)"):
        prepare_run(make_request(tiny_data, model=model, batch_size=20, accumulate=2))
    assert find_batch_norm(build_model("caps", SIZES["tiny"])) is None


def test_batch_norm_that_is_synchronised_keeps_its_names_and_computes_alone_as_before() -> None:
    torch.manual_seed(0)
    plain, model = (nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)) for _ in range(2))
    model.load_state_dict(plain.state_dict())
    synchronize_batch_norm(model, 1)
    assert isinstance(model[1], SynchronizedBatchNorm2d)
    assert list(model.state_dict()) == list(plain.state_dict())
    images = torch.rand(5, 1, 8, 8)
    assert torch.equal(model(images), plain(images))
    synchronize_batch_norm(model, 2)
    assert torch.equal(model.eval()(images), plain.eval()(images))  # asks no other process


# What two processes find, written to a file of each. Nine images: one process has five of them, the other four.
SCRIPT = """
import copy
import dataclasses
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from overlaycaps.errors import UserError
from overlaycaps.train.batch_norm import synchronize_batch_norm
from overlaycaps.train.interrupt import StopFlag
from overlaycaps.train.observer import SilentObserver
from overlaycaps.train.plan import TrainRequest, prepare_run
from overlaycaps.train.ranks import join_ranks
from overlaycaps.train.session import carry_out


class Refused(UserError):
    exit_code = 7


def compare_norm(ranks, layer):
    torch.manual_seed(0)
    whole = nn.Sequential(
        nn.Conv2d(1, 8, 3), layer, nn.ReLU(), nn.Conv2d(8, 8, 3), copy.deepcopy(layer), nn.ReLU(), nn.Flatten(),
        nn.Linear(128, 5),
    ).double()
    shared = copy.deepcopy(whole)
    synchronize_batch_norm(shared, ranks.size)
    differences = dict.fromkeys(["outputs", "inputs", "parameters", "statistics", "evaluated"], 0.0)

    def note(name, ours, theirs):
        differences[name] = max(differences[name], (ours - theirs).abs().max().item())

    mine = ranks.share(torch.arange(9))
    for _ in range(3):
        images = (torch.randn(9, 1, 8, 8, dtype=torch.float64) * 3 + 1).requires_grad_()
        own = images.detach()[mine].requires_grad_()
        factors = torch.randn(9, 5, dtype=torch.float64)
        expected, found = whole(images), shared(own)
        (expected.square() * factors).sum().backward()
        (found.square() * factors[mine]).sum().backward()
        note("outputs", found, expected[mine])
        note("inputs", own.grad, images.grad[mine])
        for ours, theirs in zip(shared.parameters(), whole.parameters(), strict=True):
            dist.all_reduce(ours.grad)
            note("parameters", ours.grad, theirs.grad)
        for ours, theirs in zip(shared.buffers(), whole.buffers(), strict=True):
            note("statistics", ours, theirs)
        shared.zero_grad()
        whole.zero_grad()
    with torch.no_grad():
        note("evaluated", shared.eval()(images[mine]), whole.eval()(images[mine]))
    return differences


def try_out(call):
    try:
        return call()
    except UserError as error:
        return [type(error).__name__, error.exit_code, str(error)]


def fail():
    raise Refused("no")


with join_ranks() as ranks:
    found = {
        "norms": {
            "plain": compare_norm(ranks, nn.BatchNorm2d(8)),
            "average of all": compare_norm(ranks, nn.BatchNorm2d(8, momentum=None)),
            "bare": compare_norm(ranks, nn.BatchNorm2d(8, affine=False)),
        },
        "sum": ranks.sum(torch.tensor([ranks.rank, 1])).tolist(),
        "any": [ranks.any(ranks.rank == 1), ranks.any(False)],
        "gather": ranks.gather({"rank": ranks.rank}),
        "on_first": ranks.on_first(lambda: ranks.rank + 10),
        "on_first, failing": try_out(lambda: ranks.on_first(fail)),
        "together": ranks.together(lambda: ranks.rank),
        "together, one failing": try_out(lambda: ranks.together(fail if ranks.rank == 1 else lambda: 0)),
        "together, all failing": try_out(lambda: ranks.together(fail)),
    }
    data, folder = map(Path, sys.argv[1:])
    request = TrainRequest(
        model="resnet18", size="tiny", data_path=data, runs_dir=folder, cpu=True, images=40, batch_size=20,
        name="run", precision="fp32",
    )
    # 96 images: five batches of 19, and one image.
    uneven = dataclasses.replace(request, images=96, batch_size=19)
    found["uneven"] = try_out(lambda: ranks.together(lambda: prepare_run(uneven, ranks)))
    run = ranks.together(lambda: prepare_run(request, ranks))
    found["losses"] = []
    observer = SilentObserver()
    observer.on_evaluation = lambda evaluation: found["losses"].append(evaluation.train_loss)
    found["result"] = carry_out(run, observer, StopFlag(), "new")
    (folder / f"{ranks.rank}.json").write_text(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """What two real processes found, by rank, and the folder where they left it; tests must not change it."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "script.py").write_text(SCRIPT)
    job = launch(2, folder / "script.py", tiny_data, folder, cwd=folder)
    assert job.exit_code == 0, job.stderr
    return folder, [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


Found = tuple[Path, list[dict[str, Any]]]


@pytest.mark.parametrize("what", ["outputs", "inputs", "parameters", "statistics", "evaluated"])
@pytest.mark.parametrize("norm", ["plain", "average of all", "bare"])
def test_batch_norm_over_processes_is_that_of_the_whole_batch(norm: str, what: str, found: Found) -> None:
    for one in found[1]:
        assert one["norms"][norm][what] < 1e-12


def test_processes_agree(found: Found) -> None:
    first, second = found[1]
    for one in (first, second):
        assert one["sum"] == [1, 2]
        assert one["any"] == [True, False]
        assert one["gather"] == [{"rank": 0}, {"rank": 1}]
        assert one["on_first"] == 10
    assert [first["together"], second["together"]] == [0, 1]


def test_a_failure_in_one_process_is_one_in_all_and_told_by_one(found: Found) -> None:
    first, second = found[1]
    told, elsewhere = ["Refused", 7, "no"], ["ToldElsewhereError", 7, "another process of the job says why"]
    assert [first["on_first, failing"], second["on_first, failing"]] == [told, elsewhere]
    assert [first["together, one failing"], second["together, one failing"]] == [elsewhere, told]
    assert [first["together, all failing"], second["together, all failing"]] == [told, elsewhere]


def test_a_batch_too_small_to_be_normalised_by_all_is_refused_and_told_by_one(found: Found) -> None:
    first, second = (one["uneven"] for one in found[1])
    assert first[:2] == ["UsageError", 2]
    assert first[2].startswith("--batch-size 19: resnet18 normalises over each batch, and one of 1 images is too small")
    assert second[:2] == ["ToldElsewhereError", 2]


def test_a_model_that_normalises_over_the_batch_trains_in_several_processes(found: Found) -> None:
    folder, (first, second) = found
    assert len(first["losses"]) == 1
    assert second["losses"] == []  # only the first process speaks
    result = json.loads((folder / "run/result.json").read_text())
    assert first["result"] == result
    assert second["result"]["test"] == result["test"]
    assert result["environment"]["processes"] == 2
    plain = build_model("resnet18", SIZES["tiny"])
    for name in ("best.pt", "last.pt"):
        weights = load_checkpoint(folder / "run" / name)["model"]
        assert list(weights) == list(plain.state_dict())
    plain.load_state_dict(weights)
    assert weights["stem_norm.num_batches_tracked"] == 2  # in training only: two batches
