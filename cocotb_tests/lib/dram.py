"""A timed DRAM behind an AXI4 port, in HDL beside the design under test. docs/dram.md tells what it models."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, ceil_log2, exact_log2

from cocotb_tests.lib._dram_rules import Rule, watch_rules
from cocotb_tests.lib._dram_timer import CYCLE_BITS, DramTimer
from cocotb_tests.lib._dram_words import DRAM_SOURCES, ERROR_RANGES, DramWords, error_of, stalls
from cocotb_tests.lib.dram_config import TICKS, DramConfig
from rtl.cache.axi import AxiSignature

__all__ = ["CHANNELS", "COUNTERS", "DRAM_SOURCES", "ERROR_RANGES", "DramModel", "DramSignature", "Rule", "attach"]

CHANNELS = ("ar", "aw", "w", "r", "b")
#: since ``clear``
COUNTERS = (
    "cycles",
    "busy",  # cycles in which the data bus moves data
    "row_hits",  # bursts that find their row open
    "row_misses",  # those that find another row open
    "row_opens",  # those that find no row open
    "refreshes",
    "read_bytes",  # of whole bursts
    "write_bytes",
    "read_useful",  # of the words that are asked for
    "write_useful",
)

_COUNT_BITS = 40
#: bursts that wait for being written, how many or how long start it
_WRITE_BURSTS = 16
_DRAIN_BURSTS = 12
_DRAIN_CYCLES = 255
#: responses of writes that wait
_RESPONSES = 16


class DramSignature(wiring.Signature):
    """What a test bench sets and reads, as it sees it. Addresses count words."""

    def __init__(self, config: DramConfig) -> None:
        word = bits_for(config.words - 1)
        members = {
            "load": Out(1),  # words of <name>.load become content, in each cycle
            "dump": Out(1),  # words first to last go to <name>.dump, in each cycle
            "first": Out(word),
            "last": Out(word),
            "clear": Out(1),  # counters and violations start anew
            "seed": Out(32),  # a new value restarts the pseudo-random stalls
            **{f"stall_{channel}": Out(8) for channel in CHANNELS},  # share of stalled cycles, in 1/256
            **{name: In(_COUNT_BITS) for name in COUNTERS},
            "violations": In(len(Rule)),  # broken rules of AXI, a bit for each `Rule`
            "idle": In(1),  # nothing is under way
        }
        for n in range(ERROR_RANGES):  # words first to last answer resp; 0: none
            members |= {f"error_first_{n}": Out(word), f"error_last_{n}": Out(word), f"error_resp_{n}": Out(2)}
        super().__init__(members)


def attach(m: Module, axi: Any, *ports: Any) -> None:
    """Connect the port of a memory to masters, by names of members; each of these has some of the channels."""
    for port in ports:
        for name, member in port.signature.members.items():
            source, target = (port, axi) if member.flow is Out else (axi, port)
            m.d.comb += getattr(target, name).eq(getattr(source, name))


class _Queue:
    """A `SyncFIFO` of structs."""

    def __init__(self, m: Module, name: str, fields: dict[str, int], depth: int) -> None:
        shape = data.StructLayout(fields)
        m.submodules[name] = self.fifo = SyncFIFO(width=shape.size, depth=depth)
        self.put, self.head = data.View(shape, self.fifo.w_data), data.View(shape, self.fifo.r_data)
        self.has_room, self.push = self.fifo.w_rdy, self.fifo.w_en
        self.has_data, self.pop = self.fifo.r_rdy, self.fifo.r_en


class _Direction:
    """Bursts of one direction on their way to the timer."""

    def __init__(self, name: str, burst_bits: int) -> None:
        self.valid = Signal(name=f"{name}_valid")
        self.burst = Signal(burst_bits, name=f"{name}_burst")
        self.planned = Signal(name=f"{name}_planned")
        self.words = Signal(9, name=f"{name}_words")  # a read: of the burst; a write: that come in this cycle
        self.level = Signal(range(_WRITE_BURSTS + 1), name=f"{name}_level")
        self.idle = Signal(name=f"{name}_idle")


class DramModel(wiring.Component):
    """AXI4 memory with the timing of a DRAM part.

    Transactions are cut into aligned bursts of the part. `DramTimer` plans each of them once, in the order of its
    direction, up to ``look_ahead`` ahead of the data that are given. Writes wait while there are reads, until three
    quarters of their queue are full or none was planned for 255 cycles. Data come in the order of the requests.

    Latency: the first word of a read that is alone is valid ``config.read_latency(kind)`` cycles after the transfer of
    its address, the response of a write ``config.write_latency(kind)`` cycles after that of its last word.
    Throughput: a word per cycle and direction, as far as the data bus of the part gives them. A burst is given when it
    is whole.
    Combinational paths: none between channels; ``ready`` depends on registers alone.
    A reset drops all transactions and closes all rows; content and time stay.

    Parameters
    ----------
    config: the memory.

    Members
    -------
    axi : the port: INCR bursts of whole words; an address within a word counts as that of the word.
    bench : what a test bench sets and reads.
    """

    def __init__(self, config: DramConfig) -> None:
        self.config = config
        self._word_bits = config.addr_bits - exact_log2(config.word_bytes)
        self._burst_words = config.burst_bytes // config.word_bytes
        axi = AxiSignature(data_bits=config.data_bits, addr_bits=config.addr_bits, id_bits=config.id_bits)
        super().__init__({"axi": In(axi), "bench": In(DramSignature(config))})

    def elaborate(self, platform):
        m = Module()
        config, bench = self.config, self.bench
        m.submodules.timer = timer = DramTimer(config)
        m.submodules.words = words = DramWords(words=config.words, word_bytes=config.word_bytes, name=config.name)
        m.d.comb += [getattr(words, name).eq(getattr(bench, name)) for name in ("load", "dump", "first", "last")]
        stalled = stalls(m, bench, CHANNELS, config.seed)

        read, write = _Direction("read", len(timer.burst)), _Direction("write", len(timer.burst))
        self._reads(m, timer, words, stalled, read)
        wrong_last = self._writes(m, timer, words, stalled, write)
        draining, waited = Signal(), Signal(range(_DRAIN_CYCLES + 1))
        m.d.comb += [
            timer.valid.eq(read.valid | write.valid),
            timer.write.eq(write.valid & (draining | ~read.valid)),
            timer.burst.eq(Mux(timer.write, write.burst, read.burst)),
            read.planned.eq(timer.ready & timer.valid & ~timer.write),
            write.planned.eq(timer.ready & timer.write),
            bench.idle.eq(read.idle & write.idle),
        ]
        with m.If((write.level == 0) | write.planned):
            m.d.sync += waited.eq(0)
        with m.Elif(waited != _DRAIN_CYCLES):
            m.d.sync += waited.eq(waited + 1)
        with m.If(write.level == 0):
            m.d.sync += draining.eq(0)
        with m.Elif((write.level >= _DRAIN_BURSTS) | (waited == _DRAIN_CYCLES)):
            m.d.sync += draining.eq(1)

        broken = watch_rules(m, self.axi, config.word_bytes) | (wrong_last << Rule.LAST)
        m.d.sync += bench.violations.eq(Mux(bench.clear, 0, bench.violations) | broken)
        self._count(m, timer, read, write)
        return m

    def _split(self, word: Value) -> tuple[Value, Value]:
        """The burst of a word, and its place in it."""
        bits = exact_log2(self._burst_words)
        return word[bits:], word[:bits]

    def _reads(self, m: Module, timer: Any, words: Any, stalled: dict[str, Signal], read: _Direction) -> None:
        """Cuts reads into bursts; gives the words of each one that is planned when its time has come."""
        axi, config = self.axi, self.config
        request = {"id": config.id_bits, "word": self._word_bits, "left": 9}
        planned = {"id": config.id_bits, "word": self._word_bits, "left": 9, "last": 1, "release": CYCLE_BITS}
        requests = _Queue(m, "read_requests", request, config.queue)
        plan = _Queue(m, "read_plan", planned, config.look_ahead + config.latency)
        active, current = Signal(), Signal(data.StructLayout(request))
        burst, place = self._split(current.word)
        last = current.left <= self._burst_words - place
        m.d.comb += [
            axi.arready.eq(requests.has_room & ~stalled["ar"]),
            requests.push.eq(axi.arvalid & axi.arready),
            requests.put.id.eq(axi.arid),
            requests.put.word.eq(axi.araddr >> exact_log2(config.word_bytes)),
            requests.put.left.eq(axi.arlen + 1),
            requests.pop.eq(~active | (read.planned & last)),
            read.valid.eq(active & plan.has_room),
            read.burst.eq(burst),
            read.words.eq(Mux(last, current.left, self._burst_words - place)),
            plan.push.eq(read.planned),
            plan.put.id.eq(current.id),
            plan.put.word.eq(current.word),
            plan.put.left.eq(read.words),
            plan.put.last.eq(last),
            plan.put.release.eq(timer.end + config.latency),
        ]
        with m.If(requests.pop):
            m.d.sync += [active.eq(requests.has_data), current.eq(requests.head)]
        with m.Elif(read.planned):
            m.d.sync += [current.word.eq(current.word + read.words), current.left.eq(current.left - read.words)]

        given = Signal(range(self._burst_words + 1))
        word = Signal(self._word_bits)
        response = error_of(m, self.bench, word, config.words)
        give = plan.has_data & (timer.now >= plan.head.release) & (~axi.rvalid | axi.rready) & ~stalled["r"]
        final = given + 1 == plan.head.left
        m.d.comb += [word.eq(plan.head.word + given), words.r_addr.eq(word), plan.pop.eq(give & final)]
        with m.If(give):
            m.d.sync += [
                given.eq(Mux(final, 0, given + 1)),
                axi.rvalid.eq(1),
                axi.rid.eq(plan.head.id),
                axi.rdata.eq(Mux(response == 0, words.r_data, ~words.r_data)),
                axi.rresp.eq(response),
                axi.rlast.eq(plan.head.last & final),
            ]
        with m.Elif(axi.rready):
            m.d.sync += axi.rvalid.eq(0)
        m.d.comb += read.idle.eq(~(requests.has_data | active | plan.has_data | axi.rvalid))

    def _writes(self, m: Module, timer: Any, words: Any, stalled: dict[str, Signal], write: _Direction) -> Value:
        """Writes words as they come, answers when the last burst of a write has its time; tells a wrong ``wlast``."""
        axi, config = self.axi, self.config
        request = {"id": config.id_bits, "word": self._word_bits, "left": 8}
        answer = {"id": config.id_bits, "resp": 2}
        requests = _Queue(m, "write_requests", request, config.queue)
        bursts = _Queue(m, "write_bursts", {**answer, "burst": len(write.burst), "last": 1}, _WRITE_BURSTS)
        answers = _Queue(m, "write_answers", {**answer, "release": CYCLE_BITS}, _RESPONSES)
        count, worst = Signal(8), Signal(2)
        word = Signal(self._word_bits)
        burst, place = self._split(word)
        response = error_of(m, self.bench, word, config.words)
        taken = axi.wvalid & axi.wready
        final = count == requests.head.left
        m.d.comb += [
            axi.awready.eq(requests.has_room & ~stalled["aw"]),
            requests.push.eq(axi.awvalid & axi.awready),
            requests.put.id.eq(axi.awid),
            requests.put.word.eq(axi.awaddr >> exact_log2(config.word_bytes)),
            requests.put.left.eq(axi.awlen),
            axi.wready.eq(requests.has_data & bursts.has_room & ~stalled["w"]),
            word.eq(requests.head.word + count),
            words.w_en.eq(taken & (response == 0)),
            words.w_addr.eq(word),
            words.w_data.eq(axi.wdata),
            words.w_strb.eq(axi.wstrb),
            write.words.eq(taken),
            requests.pop.eq(taken & final),
            bursts.push.eq(taken & (final | (place == self._burst_words - 1))),
            bursts.put.id.eq(requests.head.id),
            bursts.put.burst.eq(burst),
            bursts.put.last.eq(final),
            bursts.put.resp.eq(Mux(worst == 0, response, worst)),
        ]
        with m.If(taken):
            m.d.sync += [count.eq(Mux(final, 0, count + 1)), worst.eq(Mux(final, 0, bursts.put.resp))]

        m.d.comb += [
            write.level.eq(bursts.fifo.level),
            write.valid.eq(bursts.has_data & answers.has_room & ~timer.far),
            write.burst.eq(bursts.head.burst),
            bursts.pop.eq(write.planned),
            answers.push.eq(write.planned & bursts.head.last),
            answers.put.id.eq(bursts.head.id),
            answers.put.resp.eq(bursts.head.resp),
            answers.put.release.eq(timer.end + config.latency),
        ]
        give = answers.has_data & (timer.now >= answers.head.release) & (~axi.bvalid | axi.bready) & ~stalled["b"]
        m.d.comb += answers.pop.eq(give)
        with m.If(give):
            m.d.sync += [axi.bvalid.eq(1), axi.bid.eq(answers.head.id), axi.bresp.eq(answers.head.resp)]
        with m.Elif(axi.bready):
            m.d.sync += axi.bvalid.eq(0)
        m.d.comb += write.idle.eq(~(requests.has_data | bursts.has_data | answers.has_data | axi.bvalid))
        return taken & (axi.wlast != final)

    def _count(self, m: Module, timer: Any, read: _Direction, write: _Direction) -> None:
        bench, config = self.bench, self.config
        busy = Signal(_COUNT_BITS + ceil_log2(TICKS))
        m.d.comb += bench.busy.eq(busy >> ceil_log2(TICKS))
        counts = [
            (bench.cycles, 1),
            (busy, Mux(read.planned | write.planned, config.data_ticks, 0)),
            (bench.row_hits, timer.hit),
            (bench.row_misses, timer.miss),
            (bench.row_opens, timer.open),
            (bench.refreshes, timer.refresh),
            (bench.read_bytes, Mux(read.planned, config.burst_bytes, 0)),
            (bench.write_bytes, Mux(write.planned, config.burst_bytes, 0)),
            (bench.read_useful, Mux(read.planned, read.words * config.word_bytes, 0)),
            (bench.write_useful, write.words * config.word_bytes),
        ]
        for counter, amount in counts:
            m.d.sync += counter.eq(Mux(bench.clear, 0, counter + amount))
