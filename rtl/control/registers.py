"""The host's registers on AXI4-Lite, with their C header and reference, all from `registers.rdl`."""

from collections.abc import Callable, Iterator
from functools import cache, reduce
from importlib.metadata import version
from operator import or_
from pathlib import Path
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2
from peakrdl_cheader.exporter import CHeaderExporter
from peakrdl_html import HTMLExporter
from systemrdl import RDLCompiler
from systemrdl.node import AddrmapNode, FieldNode, Node, RegNode

from golden.control.commands import FIXED_QUEUES
from rtl.cache.cache import KvCache
from rtl.config import AcceleratorConfig
from rtl.control._counters import Counters

__all__ = [
    "ADDRESS_BITS",
    "AxiLiteSignature",
    "Registers",
    "addresses",
    "register_tree",
    "settings_layout",
    "status_layout",
    "write_header",
    "write_html",
]

_SOURCE = Path(__file__).with_suffix(".rdl")
ADDRESS_BITS = 16
_DATA_BITS = 32
_WORD_BYTES = _DATA_BITS // 8
_OKAY, _SLVERR, _DECERR = 0, 2, 3


class AxiLiteSignature(wiring.Signature):
    """AXI4-Lite as its manager (master) sees it: flat members ``awaddr``, ``awvalid``, ... ``rready``; 32 bits."""

    def __init__(self) -> None:
        channels = {
            "aw": (Out, {"addr": ADDRESS_BITS}),
            "w": (Out, {"data": _DATA_BITS, "strb": _WORD_BYTES}),
            "b": (In, {"resp": 2}),
            "ar": (Out, {"addr": ADDRESS_BITS}),
            "r": (In, {"data": _DATA_BITS, "resp": 2}),
        }
        members = {}
        for channel, (flow, fields) in channels.items():
            members |= {f"{channel}{name}": flow(shape) for name, shape in (fields | {"valid": 1}).items()}
            members[f"{channel}ready"] = flow.flip()(1)
        super().__init__(members)


def _parameters(config: AcceleratorConfig) -> dict[str, int]:
    """Of the address map."""
    reads, writes = KvCache.axi_configs(config)
    major, minor, patch = (int(part) for part in version("kvo").split(".")[:3])
    return {
        "QUEUES": FIXED_QUEUES + config.gemm.cores,
        "READERS": reads.ports,
        "WRITERS": writes.ports,
        "MAJOR": major,
        "MINOR": minor,
        "PATCH": patch,
        "SEMAPHORES": config.control.semaphores,
        "BUS_LOG2": exact_log2(config.dsq.bus_bits // 8),
        "QUEUE_DEPTH": config.control.queue_depth,
        "ROW_LANES_LOG2": exact_log2(config.gemm.row_lanes),
        "HEAD_DIM": config.dsq.head_dim,
        "GROUP_TOKENS": config.dsq.group_tokens,
        "Q_HEADS": config.mha.q_heads,
        "DELTA_BITS": config.dsq.delta_bits,
        "MAX_SALIENT": config.dsq.max_salient,
    }


@cache
def register_tree(config: AcceleratorConfig) -> AddrmapNode:
    """The elaborated address map."""
    compiler = RDLCompiler()
    compiler.compile_file(str(_SOURCE))
    top = compiler.elaborate(parameters=_parameters(config)).top
    assert top.size <= 1 << ADDRESS_BITS, top.size
    return top


def _is_setting(field: FieldNode) -> bool:
    """Whether the host writes it for the hardware."""
    return field.is_sw_writable and field.is_hw_readable


def _is_status(field: FieldNode) -> bool:
    """Whether the hardware drives it, or the events that it counts."""
    return field.is_hw_writable or _is_counter(field)


def _is_counter(field: FieldNode) -> bool:
    """Whether it counts, cycles or what may happen once in a cycle."""
    return bool(field.get_property("counter"))


def _layout(node: Node, wanted: Callable[[FieldNode], bool]) -> tuple[data.StructLayout, dict[str, Any]]:
    """The wanted fields of a part of the tree, and their values after reset."""
    members, init = {}, {}
    for child in node.children():
        if isinstance(child, FieldNode):
            if wanted(child):
                members[child.inst_name] = unsigned(1 if _is_counter(child) else child.width)
                init[child.inst_name] = child.get_property("reset") or 0
            continue
        inner, inner_init = _layout(child, wanted)
        if inner.members:
            (count,) = child.array_dimensions or (None,)
            members[child.inst_name] = inner if count is None else data.ArrayLayout(inner, count)
            init[child.inst_name] = inner_init if count is None else [inner_init] * count
    return data.StructLayout(members), init


def settings_layout(config: AcceleratorConfig) -> data.StructLayout:
    """What the host writes: ``register.field``, ``queue[n].register.field``."""
    return _layout(register_tree(config), _is_setting)[0]


def status_layout(config: AcceleratorConfig) -> data.StructLayout:
    """What the hardware reports: ``register.field``, ``array[n].field``, ``queue[n].register.field``.

    Of a counter it reports in each cycle whether to count.
    """
    return _layout(register_tree(config), _is_status)[0]


def addresses(config: AcceleratorConfig) -> dict[str, int]:
    """Byte address of each register by its name, such as ``control``, ``read_words[3]``, ``queue[0].head``."""
    top = register_tree(config)
    registers = (node for node in top.descendants(unroll=True) if isinstance(node, RegNode))
    return {node.get_path().removeprefix(f"{top.inst_name}."): node.absolute_address for node in registers}


def write_header(config: AcceleratorConfig, path: Path) -> None:
    """Write the C header: a struct of the registers, masks and positions of their fields."""
    CHeaderExporter().export(register_tree(config), str(path), reuse_typedefs=False)


def write_html(config: AcceleratorConfig, directory: Path) -> None:
    """Write the reference; it begins with ``index.html``."""
    exporter = HTMLExporter(generate_source_links=False, user_context={"build_ts": 0})
    exporter.export(register_tree(config), str(directory))


class Registers(wiring.Component):
    """The registers of `registers.rdl` behind an AXI4-Lite port.

    A write changes what ``settings`` shows in the cycle after the later one of its address and its data was taken; a
    pulse lasts one cycle. Reading the lower word of a register of 64 bits keeps the upper one for the next read of it.
    The two low bits of an address do not count. DECERR where no register is, with data that mean nothing; SLVERR for
    writes to one that cannot be written, which change nothing.

    Counters are 0 after ``control.clear_counters`` and ``control.soft_reset``; they wrap after 32 bits.

    Latency: 2 cycles from an address, or the later one of address and data, to the response; of a counter up to
    ``counters(config) + 4``. Throughput: a read and a write every 2 cycles. Combinational paths: none.

    Members
    -------
    axil : AXI4-Lite, as subordinate
    settings : struct, see `settings_layout`
    status : struct, see `status_layout`; interrupts are set when theirs rises
    irq : an interrupt that is let through has not been cleared
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = config
        settings, init = _layout(register_tree(config), _is_setting)
        super().__init__(
            {
                "axil": In(AxiLiteSignature()),
                "settings": Out(settings, init=init),
                "status": In(status_layout(config)),
                "irq": Out(1),
            }
        )

    @staticmethod
    def counters(config: AcceleratorConfig) -> int:
        """How many there are."""
        registers = (node for node in register_tree(config).descendants(unroll=True) if isinstance(node, RegNode))
        return sum(_is_counter(field) for register in registers for field in register.fields())

    def _registers(self, node: Node, views: tuple[Any, ...]) -> Iterator[tuple[RegNode, tuple[Any, ...]]]:
        """Each register, with its part of ``settings`` and of ``status``, None where it has none."""
        for child in node.children(unroll=True):
            inner = []
            for view in views:
                part = None
                if view is not None and child.inst_name in view.shape().members:
                    part = view[child.inst_name]
                    part = part[child.current_idx[0]] if child.current_idx else part
                inner.append(part)
            if isinstance(child, RegNode):
                yield child, tuple(inner)
            else:
                yield from self._registers(child, tuple(inner))

    def _fields(self, registers: list[tuple[RegNode, tuple[Any, ...]]]) -> dict[str, Value]:
        """What the host reads, or has written, by path."""
        values = {}
        for register, (settings, status) in registers:
            for field in register.fields():
                name, path = field.inst_name, field.get_path()
                if _is_setting(field):
                    values[path] = settings[name]
                elif field.is_sw_writable:
                    values[path] = Signal(field.width, init=field.get_property("reset"), name=path.replace(".", "_"))
                elif _is_status(field):
                    values[path] = status[name]
                else:
                    values[path] = Const(field.get_property("reset"), field.width)
        return values

    def _writes(self, m: Module, registers: list[tuple[RegNode, tuple[Any, ...]]], values: dict[str, Value]) -> None:
        """Takes writes, answers them."""
        axil = self.axil
        address, word, strobes = Signal(ADDRESS_BITS), Signal(_DATA_BITS), Signal(_WORD_BYTES)
        addressed, given, write = Signal(), Signal(), Signal()
        response = Signal(2)
        m.d.comb += [axil.awready.eq(~addressed), axil.wready.eq(~given)]
        m.d.comb += write.eq(addressed & given & (~axil.bvalid | axil.bready))
        with m.If(axil.awvalid & axil.awready):
            m.d.sync += [addressed.eq(1), address.eq(axil.awaddr)]
        with m.If(axil.wvalid & axil.wready):
            m.d.sync += [given.eq(1), word.eq(axil.wdata), strobes.eq(axil.wstrb)]
        with m.If(axil.bready):
            m.d.sync += axil.bvalid.eq(0)
        with m.If(write):
            m.d.sync += [addressed.eq(0), given.eq(0), axil.bvalid.eq(1), axil.bresp.eq(response)]

        for register, _ in registers:
            m.d.sync += [values[f.get_path()].eq(0) for f in register.fields() if f.get_property("singlepulse")]
        with m.Switch(address[2:]):
            for register, _ in registers:
                fields = [field for field in register.fields() if field.is_sw_writable]
                assert not fields or register.size == _WORD_BYTES, register.get_path()
                with m.Case(*_word_addresses(register)):
                    m.d.comb += response.eq(_OKAY if fields else _SLVERR)
                    for field in fields:
                        self._write_field(m, field, values[field.get_path()], write, strobes, word)
            with m.Default():
                m.d.comb += response.eq(_DECERR)

    def _write_field(
        self, m: Module, field: FieldNode, value: Value, write: Value, strobes: Value, word: Value
    ) -> None:
        """Bytes of a field that are written: each with an enable of its own, which flip-flops have."""
        clears = field.get_property("onwrite") is not None
        for byte in range(field.low // 8, field.high // 8 + 1):
            low, high = max(field.low, 8 * byte), min(field.high + 1, 8 * byte + 8)
            given, kept = word[low:high], value[low - field.low : high - field.low]
            with m.If(write & strobes[byte]):
                m.d.sync += kept.eq(kept & ~given if clears else given)

    def _reads(self, m: Module, registers: list[tuple[RegNode, tuple[Any, ...]]], values: dict[str, Value]) -> None:
        """Takes reads, answers them.

        Each word has a select bit of its own: a lookup table of four inputs has room for two bits and their selects.
        """
        axil = self.axil
        addresses = [address for register, _ in registers for address in _word_addresses(register)]
        selected = Signal(len(addresses))
        addressed, word, above = Signal(), Signal(_DATA_BITS), Signal(_DATA_BITS)
        counters, of_counter = m.submodules.counters, Signal()
        read = addressed & (~axil.rvalid | axil.rready) & (~of_counter | counters.shown)
        m.d.comb += axil.arready.eq(~addressed)
        with m.If(axil.arvalid & axil.arready):
            chosen = [axil.araddr[2:] == address for address in addresses]
            counted = Cat(chosen[addresses.index(address)] for address in _counter_addresses(registers))
            m.d.sync += [addressed.eq(1), selected.eq(Cat(chosen)), of_counter.eq(counted.any())]
        with m.If(axil.rready):
            m.d.sync += axil.rvalid.eq(0)
        with m.If(read):
            m.d.sync += [addressed.eq(0), axil.rvalid.eq(1), axil.rdata.eq(word)]
            m.d.sync += axil.rresp.eq(Mux(selected.any(), _OKAY, _DECERR))
        words: list[Value] = []
        for register, _ in registers:
            if any(map(_is_counter, register.fields())):
                words.append(Const(0, _DATA_BITS))
                continue
            fields = [(f.low, values[f.get_path()]) for f in register.fields() if f.is_sw_readable]
            low, *high = _words(fields, register.size // _WORD_BYTES)
            with m.If(read & selected[len(words)]):
                m.d.sync += [above.eq(upper) for upper in high]
            words += [low, *(above for _ in high)]
        choices = (value & select.replicate(_DATA_BITS) for value, select in zip(words, selected, strict=True))
        m.d.comb += [
            word.eq(reduce(or_, choices, counters.value & of_counter.replicate(_DATA_BITS))),
            counters.wanted.eq(Cat(selected[addresses.index(address)] for address in _counter_addresses(registers))),
        ]

    def _counters(self, m: Module, registers: list[tuple[RegNode, tuple[Any, ...]]]) -> None:
        """What is counted, and when it is forgotten."""
        events = [
            status[field.inst_name]
            for register, (_, status) in registers
            for field in register.fields()
            if _is_counter(field)
        ]
        m.submodules.counters = counters = Counters(len(events))
        control = self.settings.control
        m.d.comb += [counters.events.eq(Cat(events)), counters.clear.eq(control.clear_counters | control.soft_reset)]

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        registers = list(self._registers(register_tree(self.config), (self.settings, self.status)))
        values = self._fields(registers)
        self._counters(m, registers)
        self._writes(m, registers, values)
        self._reads(m, registers, values)

        interrupts = []
        for register, (_, status) in registers:
            for field in register.fields():
                value = values[field.get_path()]
                if field.get_property("intr"):
                    level = status[field.inst_name]
                    before = Signal(init=1, name=f"{field.inst_name}_before")
                    m.d.sync += before.eq(level)
                    with m.If(level & ~before):
                        m.d.sync += value.eq(1)
                    interrupts.append(value & values[field.get_property("enable").get_path()])
                clear = field.get_property("hwclr")
                if clear:
                    with m.If(values[clear.get_path()]):
                        m.d.sync += value.eq(0)
        m.d.sync += self.irq.eq(Cat(interrupts).any())
        return m


def _counter_addresses(registers: list[tuple[RegNode, tuple[Any, ...]]]) -> list[int]:
    """Of counters, a word each: addresses in words."""
    counters = [register for register, _ in registers if any(map(_is_counter, register.fields()))]
    return [address for register in counters for address in _word_addresses(register)]


def _word_addresses(register: RegNode) -> list[int]:
    """Of a register: addresses in words."""
    first = register.absolute_address // _WORD_BYTES
    return list(range(first, first + register.size // _WORD_BYTES))


def _words(fields: list[tuple[int, Value]], count: int) -> list[Value]:
    """``count`` words with fields at their first bits."""
    parts: list[Value] = []
    for low, value in sorted(fields, key=lambda item: item[0]):
        parts += [Const(0, low - sum(map(len, parts))), value]
    packed = Cat(*parts, Const(0, _DATA_BITS * count - sum(map(len, parts))))
    return [packed.word_select(n, _DATA_BITS) for n in range(count)]
