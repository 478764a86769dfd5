"""Published ways to shrink a KV cache, in float32 NumPy behind one interface, to compare DSQ+HCAP with."""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from golden.errors import UserError
from golden.peers.evicting import H2o, SnapKv
from golden.peers.protocol import BLOCK_TOKENS, CacheMethod, LayerCache
from golden.peers.quantized import Fp16, Int4, Int8, Kivi2
from golden.peers.quest import Quest

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["BLOCK_TOKENS", "METHODS", "CacheMethod", "LayerCache", "Peer", "make_peer", "override"]

Parameters = TypeVar("Parameters", bound="DataclassInstance")

BOOLEANS = {"true": True, "false": False}

Peer = Fp16 | Int8 | Int4 | Kivi2 | H2o | SnapKv | Quest

METHODS: Mapping[str, Callable[[], Peer]] = {
    "fp16": Fp16,
    "int8": Int8,
    "int4": Int4,
    "kivi2": Kivi2,
    "h2o": H2o,
    "snapkv": SnapKv,
    "quest": Quest,
}
"""Name -> method with the parameters of its docstring."""


def make_peer(spec: str) -> Peer:
    """The method `name` or `name:field=value[:field=value...]`, such as `quest:fraction=0.1:dense_layers=2`.

    Raises `UserError` when the name, a field or a value is not possible.
    """
    name = spec.partition(":")[0]
    if name not in METHODS:
        raise UserError(f"unknown method {name!r}: the peers are {', '.join(METHODS)}")
    return replace(override(METHODS[name](), spec), name=spec)


def override(method: Parameters, spec: str) -> Parameters:
    """The dataclass `method` with the fields that `name:field=value[:field=value...]` assigns."""
    name, *assignments = spec.split(":")
    types = {part.name: type(getattr(method, part.name)) for part in fields(method) if part.name != "name"}
    values: dict[str, Any] = {}
    for assignment in assignments:
        field, _, text = assignment.partition("=")
        if field not in types:
            known = f"has {', '.join(types)}" if types else "has none"
            raise UserError(f"method {name!r} has no parameter {field!r}: it {known}")
        try:
            values[field] = BOOLEANS[text] if types[field] is bool else types[field](text)
        except (KeyError, ValueError):
            raise UserError(
                f"{field} of method {name!r} must be a value of type {types[field].__name__}, not {text!r}"
            ) from None
    try:
        return replace(method, **values)
    except ValueError as error:
        raise UserError(f"method {spec!r} is not possible: {error}") from error
