"""Verilog and a manifest for a preset or a config file: `python -m rtl.build --preset smollm2 -o build/rtl`."""

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import EnumMeta
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

from amaranth.hdl import Shape
from amaranth.lib import data, stream, wiring

from golden.errors import UserError, main_guard
from rtl.cache.axi_reader import AxiReader
from rtl.cache.cache import KvCache
from rtl.config import PRESETS, AcceleratorConfig, load_config, preset
from rtl.control.processor import CommandProcessor
from rtl.control.registers import write_header, write_html
from rtl.dsq.dequantizer import Dequantizer
from rtl.dsq.quantizer import Quantizer
from rtl.emit import verilog
from rtl.gemm.core import GemmCore
from rtl.hcap.history import History
from rtl.hcap.selector import RunSelector
from rtl.mha.core import MhaCore
from rtl.mha.mass import MassNormalizer
from rtl.mha.query import QueryPreparer
from rtl.mha.scores import ScoreArray
from rtl.mha.softmax import StreamingSoftmax
from rtl.mha.value_sum import ValueSum
from rtl.top import Accelerator, CachedAttention

__all__ = ["BLOCKS", "Block", "CommandParser", "block_named", "emit", "fix_hashes"]

MANIFEST = "manifest.json"
HEADER = "kvo_registers.h"
REFERENCE = "registers"


@dataclass(frozen=True, kw_only=True)
class Block:
    """A top block: its name gives the file `<name>.v` and the module `kvo_<name>`.

    ``timing`` returns the block's own figures in cycles: fixed ones, and under ``salient_tokens`` those that depend on
    that field, by its value.
    """

    name: str
    summary: str
    create: Callable[[AcceleratorConfig], wiring.Component]
    timing: Callable[[AcceleratorConfig], dict[str, Any]]

    @property
    def module(self) -> str:
        """Name of the Verilog module."""
        return f"kvo_{self.name}"


def _salient_counts(config: AcceleratorConfig) -> list[int]:
    return [*range(1, config.dsq.max_salient + 1), config.dsq.group_tokens]


def _quantizer_timing(config: AcceleratorConfig) -> dict[str, Any]:
    return {
        "salient_tokens": {
            str(n): {
                "group_cycles": Quantizer.group_cycles(config.dsq, n),
                "latency": Quantizer.latency(config.dsq, n),
            }
            for n in _salient_counts(config)
        }
    }


def _dequantizer_timing(config: AcceleratorConfig) -> dict[str, Any]:
    return {
        "latency": Dequantizer.latency,
        "salient_tokens": {
            str(n): {
                "record_cycles": Dequantizer.record_cycles(config.dsq, n),
                "record_words": sum(Dequantizer.section_words(config.dsq, n).values()),
            }
            for n in _salient_counts(config)
        },
    }


def _history_timing(config: AcceleratorConfig) -> dict[str, Any]:
    return {"list_latency": History.latency(config, config.mha.max_groups)}


def _core_timing(config: AcceleratorConfig) -> dict[str, Any]:
    """Of its parts: their latencies, and the most between two queries' codes."""
    return {
        "query_cycles": QueryPreparer.query_cycles(config),
        "score_latency": ScoreArray.latency(config),
        "selection_latency": RunSelector.latency(config),
        "softmax_latency": StreamingSoftmax.latency(config),
        "row_latency": ValueSum.row_latency(config),
        "mass_latency": MassNormalizer.latency,
    }


def _cache_timing(config: AcceleratorConfig) -> dict[str, Any]:
    """Of its parts; strides and sizes of the pools in bytes."""
    layout, word = config.memory_map, config.dsq.bus_bits // 8
    return {
        "read_address_latency": AxiReader.ADDRESS_LATENCY,
        "read_word_latency": AxiReader.WORD_LATENCY,
        "record_page_bytes": layout.stride(False) * word,
        "block_page_bytes": layout.stride(True) * word,
        "record_pool_bytes": layout.pool_words(False) * word,
        "block_pool_bytes": layout.pool_words(True) * word,
    }


BLOCKS = (
    Block(
        name="dsq_quantizer",
        summary="INT16 K/V rows and attention mass of a token group to its packed record",
        create=lambda config: Quantizer(config.dsq),
        timing=_quantizer_timing,
    ),
    Block(
        name="dsq_dequantizer",
        summary="packed records to INT16 K/V elements",
        create=lambda config: Dequantizer(config.dsq),
        timing=_dequantizer_timing,
    ),
    Block(
        name="hcap_history",
        summary="attention histories of groups to the groups that are worth a scan",
        create=History,
        timing=_history_timing,
    ),
    Block(
        name="mha_core",
        summary="queries to attention outputs and masses, on compressed records and INT8 tokens",
        create=MhaCore,
        timing=_core_timing,
    ),
    Block(
        name="gemm_core",
        summary="rows through projections with norm, rotary embedding, SwiGLU and residual",
        create=GemmCore,
        timing=lambda config: {"latency": GemmCore.latency(config)},
    ),
    Block(
        name="kv_cache",
        summary="pages of records and INT8 tokens in DRAM behind AXI4",
        create=KvCache,
        timing=_cache_timing,
    ),
    Block(
        name="cached_attention",
        summary="attention of query after query on caches in DRAM",
        create=CachedAttention,
        timing=lambda config: {**_core_timing(config), **_cache_timing(config)},
    ),
    Block(
        name="accelerator",
        summary="decoder layers on compressed caches in DRAM, as commands in DRAM tell",
        create=Accelerator,
        timing=lambda config: {
            **_core_timing(config),
            **_cache_timing(config),
            "gemm_latency": GemmCore.latency(config),
            "command_latency": CommandProcessor.latency(config),
        },
    ),
)


def block_named(name: str) -> Block:
    """The block called ``name``; raises `UserError` when there is none."""
    for block in BLOCKS:
        if block.name == name:
            return block
    raise UserError(f"block must be one of {', '.join(block.name for block in BLOCKS)}, not '{name}'")


def emit(block: Block, config: AcceleratorConfig) -> tuple[str, dict[str, Any]]:
    """The Verilog of a block and its entry in the manifest.

    The Verilog is the same in every process that runs with `PYTHONHASHSEED=0`.
    """
    try:
        component = block.create(config)
    except ValueError as error:
        raise UserError(str(error)) from None
    text = _plain(verilog(component, name=block.module))
    head = f"// {block.module} of KVO {version('kvo')}: {block.summary}.\n// Config: {json.dumps(config.to_dict())}\n"
    return head + text.lstrip(), _described(block, component, config)


def _plain(text: str) -> str:
    r"""Replace escaped names of submodules, such as `\kvo_x.parser.header `, and leave out wires without any bit."""
    text = re.sub(r"^ *(?:wire|reg) \[-1:0\] .*\n", "", text, flags=re.MULTILINE)
    names: dict[str, str] = {}
    for name in re.findall(r"^module (\S+)", text, re.MULTILINE):
        plain = re.sub(r"\W", "_", re.sub(r"\$\d+", "", name.lstrip("\\")))
        count = sum(other == plain or re.fullmatch(rf"{plain}_\d+", other) is not None for other in names.values())
        names[name] = plain if count == 0 else f"{plain}_{count}"
    escaped = {name: plain for name, plain in names.items() if name.startswith("\\")}
    return re.sub(r"\\\S+ ", lambda match: escaped.get(match[0][:-1], match[0][:-1]) + " ", text)


def _described(block: Block, component: wiring.Component, config: AcceleratorConfig) -> dict[str, Any]:
    members = list(_members((), component.signature))
    ports = [{"name": name, "direction": "input", "width": 1} for name in ("clk", "rst")]
    streams = {}
    for path, member in members:
        name = "__".join(path)
        if member.is_port:
            ports.append(_port(name, member.flow, member.shape))
            continue
        flow, payload = member.flow, member.signature.members["payload"].shape
        back = wiring.In if flow == wiring.Out else wiring.Out
        for part, part_flow in (("payload", flow), ("valid", flow), ("ready", back)):
            shape = payload if part == "payload" else 1
            ports.append({**_port(f"{name}__{part}", part_flow, shape), "stream": name})
        streams[name] = {
            "direction": ports[-3]["direction"],
            "payload_bits": ports[-3]["width"],
            "fields": list(_fields("", 0, payload)),
        }
    return {
        "file": f"{block.name}.v",
        "module": block.module,
        "summary": block.summary,
        "clock": "clk",
        "reset": {"port": "rst", "active": "high", "synchronous": True},
        "ports": ports,
        "streams": streams,
        "cycles": block.timing(config),
    }


def _members(path: tuple[str, ...], signature: wiring.Signature) -> Iterator[tuple[tuple[str, ...], wiring.Member]]:
    """Ports and streams of a signature, those of inner interfaces and of arrays with their path."""
    for name, member in signature.members.items():
        for indices in product(*map(range, member.dimensions)):
            inner = (*path, name, *map(str, indices))
            if member.is_port or isinstance(member.signature, stream.Signature):
                yield inner, member
            else:
                yield from _members(inner, member.signature)


def _port(name: str, flow: wiring.Flow, shape: Any) -> dict[str, Any]:
    direction = "input" if flow == wiring.In else "output"
    port = {"name": name, "direction": direction, "width": Shape.cast(shape).width}
    if isinstance(shape, data.StructLayout) and not name.endswith("__payload"):
        port["fields"] = list(_fields("", 0, shape))
    return port


def _fields(name: str, offset: int, shape: Any) -> Iterator[dict[str, Any]]:
    """The fields of a payload: name, first bit, width; an array of numbers is one field with a count of elements."""
    if isinstance(shape, data.StructLayout):
        for key, member in shape.members.items():
            yield from _fields(f"{name}.{key}" if name else key, offset + shape[key].offset, member)
        return
    count = None
    if isinstance(shape, data.ArrayLayout):
        count, shape = shape.length, shape.elem_shape
    bits = Shape.cast(shape)
    described = {"name": name or "payload", "offset": offset, "width": bits.width, "signed": bits.signed}
    if isinstance(shape, EnumMeta):
        described["values"] = {member.name: member.value for member in shape}
    if count is not None:
        described["count"] = count
    yield described


class CommandParser(argparse.ArgumentParser):
    """Raises `UserError`, one sentence, where the usual one prints its usage."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see --help)")


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="python -m rtl.build",
        description="Write the Verilog of the accelerator, with the C header and the reference of its registers, or of "
        "its blocks, and a manifest of ports, payloads and timing.",
        epilog="The same config gives the same bytes, on every machine, with the same versions of the tools.",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="print the presets and the blocks, write nothing")
    what.add_argument("--preset", metavar="NAME", help="one of " + ", ".join(PRESETS))
    what.add_argument("--config", metavar="FILE", help="TOML file; a key 'preset' in it names what it starts from")
    parser.add_argument("-o", "--output", metavar="DIR", help="directory for the files, made if it does not exist")
    parser.add_argument(
        "--block", metavar="NAME", action="append", help="this block, not the accelerator; may be given several times"
    )
    parser.add_argument("--all", action="store_true", help="all blocks, each in a file of its own")
    return parser


def _listing() -> str:
    lines = ["presets"]
    for name, (summary, config) in PRESETS.items():
        lines.append(f"  {name:16} {summary}")
        for block, values in config.to_dict().items():
            lines.append(f"  {'':16} {block}: " + ", ".join(f"{key} {value}" for key, value in values.items()))
    lines.append("blocks")
    lines += [f"  {block.name:16} {block.summary}" for block in BLOCKS]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    options = _parser().parse_args(arguments)
    if options.list:
        print(_listing())
        return 0
    if options.preset is None and options.config is None:
        raise UserError("give --preset NAME or --config FILE, or --list to see the presets")
    if options.output is None:
        raise UserError("give -o DIR, the directory to write to")
    config = preset(options.preset) if options.preset is not None else load_config(options.config)
    names = dict.fromkeys([block.name for block in BLOCKS] if options.all else options.block or ["accelerator"])
    blocks = [block_named(name) for name in names]
    directory = Path(options.output)
    manifest: dict[str, Any] = {
        "generator": {"name": "kvo", "version": version("kvo")},
        "tools": {name: version(name) for name in ("amaranth", "pyosys")},
        "config": config.to_dict(),
        "blocks": {},
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for block in blocks:
            text, manifest["blocks"][block.name] = emit(block, config)
            (directory / f"{block.name}.v").write_text(text, encoding="utf-8")
            print(f"{directory / block.name}.v: module {block.module}, {len(text.splitlines())} lines", flush=True)
        if "accelerator" in names:
            write_header(config, directory / HEADER)
            write_html(config, directory / REFERENCE)
            print(f"{directory / HEADER}\n{directory / REFERENCE / 'index.html'}")
        (directory / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        print(directory / MANIFEST)
    except OSError as error:
        raise UserError(f"cannot write to '{directory}': {error.strerror}") from None
    return 0


def fix_hashes() -> None:
    """Start this process anew unless its hashes, which decide the order of some names, are fixed."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


if __name__ == "__main__":
    fix_hashes()
    main_guard(main)()
