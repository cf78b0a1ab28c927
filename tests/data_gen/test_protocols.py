from __future__ import annotations

import pytest

from data_gen.digits import DigitSource, split_digits
from data_gen.errors import DataError
from data_gen.merging import MERGES
from data_gen.protocols import PROTOCOLS, get_protocol
from data_gen.spec import make_spec
from data_gen.synthesis import synthesize


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_protocol_makes_samples(name: str, mnist: DigitSource) -> None:
    protocol = get_protocol(name)
    assert protocol.name == name
    assert protocol.summary and protocol.reference
    assert protocol.merge in MERGES
    samples = synthesize(make_spec(name), split_digits(mnist, 0)["valid"], "valid", 0, 200)
    assert samples.images.shape == (200, protocol.canvas_px, protocol.canvas_px)
    assert (samples.labels.sum(axis=1) == 1).any() == (protocol.single_fraction > 0)


def test_an_unknown_protocol_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        DataError, match=r"--protocol 'multi-mnist' is unknown; did you mean multimnist\? Choose from: "
    ):
        get_protocol("multi-mnist")
