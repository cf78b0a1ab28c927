"""The table of protocols. To add one: a new module with a `Protocol`, and its row here."""

from __future__ import annotations

from data_gen.errors import name_error
from data_gen.protocols.base import Protocol
from data_gen.protocols.diverse import DIVERSE
from data_gen.protocols.multimnist import MULTIMNIST

__all__ = ["PROTOCOLS", "Protocol", "get_protocol"]

PROTOCOLS: dict[str, Protocol] = {protocol.name: protocol for protocol in (DIVERSE, MULTIMNIST)}


def get_protocol(name: str) -> Protocol:
    """Return the protocol called `name`.

    Raises:
        DataError: no protocol has this name; the message lists those that exist and suggests the nearest.
    """
    if name not in PROTOCOLS:
        raise name_error("--protocol", name, PROTOCOLS)
    return PROTOCOLS[name]
