"""Every model of the table: parameter counts, matching, behaviour at the edges."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from overlaycaps.config import SIZES, CapsuleConfig
from overlaycaps.errors import UsageError
from overlaycaps.models import MATCHED_MODELS, MODELS, build_model
from overlaycaps.models.matching import summarize_model, summarize_models
from overlaycaps.routing import ROUTINGS
from overlaycaps.routing.base import Capsules

# Derived by hand from the layer table of the design; they round to the published counts.
PAPER_PARAMETERS = {"caps": 42_478_017, "caps-matrix": 9_963_969, "cnn": 42_486_666, "cnn-pool": 19_549_066}
PAPER_NEURONS = (324 * 1024, 64 * 16 * 64, 36 * 16 * 64, 10 * 64, 10)

REFERENCE_MODELS = [name for name in MODELS if name not in MATCHED_MODELS]

ALL_MODELS = pytest.mark.parametrize("name", MODELS)

Shape = tuple[int, ...]


def list_variants() -> list[tuple[str, str]]:
    """Every model with every routing that makes a difference to it."""
    variants = []
    for name in MODELS:
        with torch.device("meta"):
            model = build_model(name, replace(SIZES["tiny"], routing="uniform"))
        follows = model.describe_routing()["routing"] == "uniform"
        variants += [(name, routing) for routing in (ROUTINGS if follows else ["attention"])]
    return variants


def list_canvases() -> list[tuple[str, int]]:
    """Every model with canvases at the edges of what it takes and in between."""
    narrow = {"efficient-capsnet": (29, 36)}
    return [(name, canvas_px) for name in MODELS for canvas_px in narrow.get(name, (13, 28, 36, 41))]


def draw_configs(number: int) -> list[CapsuleConfig]:
    """Random configurations that every matched model accepts; the same at every call."""
    generator = random.Random(0)
    return [
        CapsuleConfig(
            num_channels=generator.randint(1, 96),
            num_capsules=generator.randint(1, 24),
            pose_size=generator.randint(1, 6) ** 2,
            canvas_px=generator.randint(13, 48),
            num_classes=generator.randint(1, 20),
        )
        for _ in range(number)
    ]


def record_shapes(model: torch.nn.Module) -> list[Shape]:
    """Return a list that fills, in a forward pass, with the shape of every module's output, without the batch."""
    seen: list[Shape] = []

    def record(_module: torch.nn.Module, _inputs: object, output: torch.Tensor | Capsules) -> None:
        tensor = output.pose if isinstance(output, Capsules) else output
        if tensor.dim() == 6:  # poses (n, R, C, B, H, W)
            seen.append((math.prod(tensor.shape[:3]), *tensor.shape[4:]))
        else:
            seen.append(tuple(tensor.shape[1:]))

    for module in model.modules():
        module.register_forward_hook(record)
    return seen


def is_layout_of(stated: Shape, seen: Shape) -> bool:
    """Whether an output is the stated one; what has no place in space may be laid out in one axis or in two."""
    without_space = len(stated) < 3 and all(size == 1 for size in seen[1:])
    return stated == seen or (without_space and math.prod(stated) == seen[0])


@pytest.mark.parametrize("name", PAPER_PARAMETERS)
def test_parameters_at_paper_size(name: str) -> None:
    summary = summarize_model(name, SIZES["paper"])
    assert summary.parameters == PAPER_PARAMETERS[name]
    assert summary.neurons == PAPER_NEURONS


@pytest.mark.parametrize("size", SIZES)
def test_layers_add_up(size: str) -> None:
    summaries = summarize_models(SIZES[size])
    assert {summary.name for summary in summaries} == set(MODELS)
    for summary in summaries:
        assert sum(layer.parameters for layer in summary.layers) == summary.parameters
        assert all(layer.neurons == math.prod(layer.shape) for layer in summary.layers)


@pytest.mark.parametrize("size", SIZES)
def test_models_to_compare_are_matched_and_references_are_not(size: str) -> None:
    neurons = {summary.name: summary.neurons for summary in summarize_models(SIZES[size])}
    assert len({neurons[name] for name in MATCHED_MODELS}) == 1
    for name in REFERENCE_MODELS:
        assert neurons[name] != neurons["caps"]
        assert "matched to nothing" in MODELS[name].summary


@pytest.mark.parametrize("config", draw_configs(25), ids=str)
def test_matching_holds_for_any_configuration(config: CapsuleConfig) -> None:
    first, *others = [summarize_model(name, config) for name in MATCHED_MODELS]
    for other in others:
        assert [layer.layer for layer in other.layers] == [layer.layer for layer in first.layers]
        assert [layer.shape for layer in other.layers] == [layer.shape for layer in first.layers]
        assert other.neurons == first.neurons


@pytest.mark.parametrize(("name", "canvas_px"), list_canvases())
def test_stated_shapes_are_the_real_ones(name: str, canvas_px: int) -> None:
    model = build_model(name, replace(SIZES["tiny"], canvas_px=canvas_px, iterations=1))
    seen = record_shapes(model)
    assert model(torch.zeros(2, canvas_px, canvas_px, dtype=torch.uint8)).shape == (2, 10)
    stated = [layer.shape for layer in model.describe_layers()]
    assert stated[-1] == (10,)
    later = iter(seen)
    for shape in stated:
        assert any(is_layout_of(shape, output) for output in later), f"{shape} is not, or not in this order, in {seen}"


@pytest.mark.parametrize(("name", "routing"), list_variants())
@pytest.mark.parametrize("pixel", [0, 255])
@pytest.mark.parametrize("batch_size", [1, 2, 7])
def test_loss_and_gradients_stay_finite_on_blank_images(name: str, routing: str, pixel: int, batch_size: int) -> None:
    torch.manual_seed(0)
    model = build_model(name, replace(SIZES["tiny"], routing=routing, iterations=3))
    images = torch.full((batch_size, 36, 36), pixel, dtype=torch.uint8)
    labels = torch.zeros(batch_size, 10)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(model(images), labels)
    loss.backward()
    assert torch.isfinite(loss)
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert torch.isfinite(parameter.grad).all(), key


@ALL_MODELS
def test_images_may_be_bytes_or_floats_with_or_without_a_channel(name: str) -> None:
    torch.manual_seed(0)
    model = build_model(name, SIZES["tiny"])
    images = torch.randint(0, 256, (2, 36, 36), dtype=torch.uint8)
    expected = model(images)
    torch.testing.assert_close(model(images[:, None]), expected)
    torch.testing.assert_close(model(images[:, None].float() / 255), expected)


@ALL_MODELS
def test_samples_do_not_see_each_other(name: str) -> None:
    """Of the models with BatchNorm this holds in evaluation; in training they are made to see the whole batch."""
    torch.manual_seed(0)
    model = build_model(name, SIZES["tiny"]).eval()
    images = torch.randint(0, 256, (5, 36, 36), dtype=torch.uint8)
    alone = torch.cat([model(image[None]) for image in images])
    torch.testing.assert_close(model(images), alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "routing"), list_variants())
def test_state_survives_saving(name: str, routing: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = replace(SIZES["tiny"], routing=routing)
    model, other = build_model(name, config), build_model(name, config)
    images = torch.randint(0, 256, (2, 36, 36), dtype=torch.uint8)
    model(images)  # In training mode, so that BatchNorm's running statistics are part of the state.
    model.eval()
    other.eval()
    assert not torch.equal(model(images), other(images))
    torch.save(model.state_dict(), tmp_path / "state.pt")
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    torch.testing.assert_close(other(images), model(images), rtol=0, atol=0)


@pytest.mark.parametrize(("name", "routing"), list_variants())
def test_the_keys_of_saved_weights_stay(name: str, routing: str) -> None:
    """A change of these names would make every saved run unreadable; it must be made on purpose."""
    golden = json.loads((Path(__file__).parent / "state_keys.json").read_text())
    with torch.device("meta"):
        model = build_model(name, replace(SIZES["tiny"], routing=routing))
    assert {key: list(value.shape) for key, value in model.state_dict().items()} == golden[f"{name} {routing}"]


def test_ten_logits_are_independent() -> None:
    """No softmax over the classes: all ten logits can be driven up together."""
    torch.manual_seed(0)
    model = build_model("caps", SIZES["tiny"])
    images = torch.randint(0, 256, (4, 36, 36), dtype=torch.uint8)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(20):
        optimizer.zero_grad()
        torch.nn.functional.binary_cross_entropy_with_logits(model(images), torch.ones(4, 10)).backward()
        optimizer.step()
    assert (model(images) > 0).all()


def test_uniform_routing_is_attention_with_one_iteration() -> None:
    torch.manual_seed(0)
    attention = build_model("caps", replace(SIZES["tiny"], iterations=1))
    uniform = build_model("caps", replace(SIZES["tiny"], routing="uniform", iterations=3))
    uniform.load_state_dict(attention.state_dict())
    images = torch.randint(0, 256, (2, 36, 36), dtype=torch.uint8)
    torch.testing.assert_close(uniform(images), attention(images), rtol=0, atol=0)


def test_routing_iterations_change_the_logits() -> None:
    torch.manual_seed(0)
    two = build_model("caps", SIZES["tiny"])
    three = build_model("caps", replace(SIZES["tiny"], iterations=3))
    three.load_state_dict(two.state_dict())
    images = torch.randint(0, 256, (2, 36, 36), dtype=torch.uint8)
    assert (two(images) - three(images)).abs().max() > 1e-5


def test_unknown_model_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"--model cap: .*Did you mean caps\?"):
        build_model("cap", SIZES["tiny"])


def test_matrix_pose_needs_a_square() -> None:
    with pytest.raises(UsageError, match=r"square pose size, not 8; use 4 or 9"):
        build_model("caps-matrix", CapsuleConfig(num_channels=4, num_capsules=2, pose_size=8))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"iterations": 0}, "--routing-iterations 0"),
        ({"routing": "magic"}, "--routing magic"),
        ({"canvas_px": 12}, "too small for the three 3x3 layers"),
        ({"num_capsules": 0}, "num_capsules is 0"),
    ],
)
def test_configurations_that_do_not_fit_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        replace(SIZES["tiny"], **change)  # type: ignore[arg-type]
