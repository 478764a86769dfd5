"""AXI4 reads of several requesters: requests to words, in bursts (golden `read`, `bursts`, `grant`)."""

from typing import Any, ClassVar

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from golden.cache.arbiter import ATTENTION
from rtl.cache._read_port import ReadPort, word_shape
from rtl.cache._under_way import UnderWay
from rtl.cache.arbiter import SHARE_BITS, UNDER_WAY_BITS, Arbiter, ArbiterConfig
from rtl.cache.axi import READ, AxiConfig, keep_first_fault
from rtl.common.stage import Stage

__all__ = ["AxiReader"]


class AxiReader(wiring.Component):
    """Reads words of the bus for several requesters, each of which gets them in the order of its requests.

    Requests become INCR bursts of at most ``max_burst`` beats that never cross 4 KiB; requester k has id k. A burst is
    asked for only when the requester's buffer has room for all of it, so words never wait on the bus, and a requester
    that takes none holds up nobody else. `Arbiter` chooses among the bursts that wait.

    Latency: ``ADDRESS_LATENCY`` cycles from a request to its first address on a bus that is ready and not otherwise in
    use, ``WORD_LATENCY`` from a word on the bus to the same at ``o``. A bad request: ``BAD_LATENCY`` to its first word.
    Throughput: an address a cycle; a word a cycle, if a buffer has room for the words of its latency and ``max_burst``
    more and ``outstanding`` bursts cover that time.
    Stalls: while ``o`` is not taken its buffer fills, then the port asks for nothing.
    Combinational paths: none between streams or channels.

    A reset while bursts are under way has to reset the memory too. The memory must answer what it was asked for.

    Parameters
    ----------
    config : port 0 is attention, port 1 prefetch, the others GEMM, at least one; ``depths`` are their buffers

    Members
    -------
    axi : channels AR and R; ``rready`` is always 1
    i_request : array of streams ``address, count, bad``, in words. ``bad``: the bus is not used, all words are errors
        and have data without meaning. None if ``count`` is 0.
    o : array of streams ``data, error``; ``error`` marks the words that came with SLVERR or DECERR
    share, pressure : see `Arbiter`
    asking : per port: a burst waits for its grant
    fault : the first word with SLVERR or DECERR since ``fault_clear``: ``valid, requester, address, response``
    words : per port: in the cycle before, a word was read from the bus
    waits : per port: in the cycle before, a burst with room in the buffer was not granted
    """

    ADDRESS_LATENCY: ClassVar[int] = 5
    WORD_LATENCY: ClassVar[int] = 2
    BAD_LATENCY: ClassVar[int] = 5

    def __init__(self, config: AxiConfig) -> None:
        self.config = config
        self._arbiter_config = ArbiterConfig(ports=config.ports, max_burst=config.max_burst)
        super().__init__(
            {
                "axi": Out(config.signature(READ)),
                "i_request": In(stream.Signature(config.request_shape)).array(config.ports),
                "o": Out(stream.Signature(word_shape(config))).array(config.ports),
                "share": In(SHARE_BITS),
                "pressure": In(UNDER_WAY_BITS),
                "asking": Out(config.ports),
                "fault": Out(config.fault_shape),
                "fault_clear": In(1),
                "words": Out(config.ports),
                "waits": Out(config.ports),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        c, axi = self.config, self.axi
        m.submodules.arbiter = arbiter = Arbiter(self._arbiter_config)
        m.submodules.under_way = under_way = UnderWay(c, unsigned(c.word_addr_bits))
        address = data.StructLayout({"port": c.id_bits, "address": c.word_addr_bits, "beats": c.beats_shape})
        m.submodules.stage = stage = Stage(address)
        ports = [ReadPort(c, depth, self._arbiter_config.gain_bits) for depth in c.depths]

        # A burst is granted, then moved: both in one cycle would take too long.
        chosen, given = Signal(c.ports), Signal()
        moves = ~given | stage.i.ready
        with m.If(moves):
            m.d.sync += [chosen.eq(arbiter.grant), given.eq(arbiter.grant.any())]

        arrives = axi.rvalid
        faulty = axi.rresp[1]
        beat_indices = data.ArrayLayout(unsigned(ceil_log2(max(2, c.max_burst))), c.ports)
        beat_index = Signal(beat_indices)  # of the word that comes next in a port's oldest burst
        for k, port in enumerate(ports):
            m.submodules[f"port_{k}"] = port
            wiring.connect(m, wiring.flipped(self.i_request[k]), port.i_request)
            wiring.connect(m, port.o, wiring.flipped(self.o[k]))
            granted = arbiter.grant[k]
            beats = port.burst.payload.beats
            m.d.comb += [
                arbiter.ask[k].eq(port.burst.valid),
                self.asking[k].eq(port.burst.valid),
                arbiter.beats[k].eq(beats),
                arbiter.gains[k].eq(port.gain),
                port.share.eq(self.share),
                port.burst.ready.eq(granted),
                port.beat.eq(arrives & (axi.rid == k)),
                port.word.data.eq(Mux(arrives, axi.rdata, 0)),  # unknown bits would go to words of bad requests
                port.word.error.eq(faulty),
            ]
            kept = Signal(data.StructLayout({"address": c.word_addr_bits, "beats": c.beats_shape}), name=f"kept_{k}")
            with m.If(moves):
                m.d.sync += [kept.address.eq(port.burst.payload.address), kept.beats.eq(beats)]
            with m.If(chosen[k]):
                m.d.comb += [
                    stage.i.payload.port.eq(k),
                    stage.i.payload.address.eq(kept.address),
                    stage.i.payload.beats.eq(kept.beats),
                ]
            with m.If(port.beat):
                m.d.sync += beat_index[k].eq(beat_index[k] + 1)
                with m.If(axi.rlast):
                    m.d.sync += beat_index[k].eq(0)
            m.d.sync += [self.words[k].eq(port.beat), self.waits[k].eq(port.burst.valid & ~granted)]

        m.d.comb += [
            arbiter.en.eq(moves & ~under_way.full),
            arbiter.pressure.eq(self.pressure),
            arbiter.under_way.eq(ports[ATTENTION].under_way),
            stage.i.valid.eq(given),
            under_way.reserve.eq(arbiter.grant.any()),
            under_way.begin.eq(given & stage.i.ready),
            under_way.begin_port.eq(stage.i.payload.port),
            under_way.entry.eq(stage.i.payload.address),
            under_way.port.eq(axi.rid),
            under_way.end.eq(arrives & axi.rlast),
        ]
        failed, first, index = Signal(), Signal(c.word_addr_bits), Signal.like(beat_index[0])
        requester, response = Signal.like(axi.rid), Signal.like(axi.rresp)
        m.d.sync += [
            failed.eq(arrives & faulty),
            first.eq(under_way.oldest),
            index.eq(beat_index[axi.rid]),
            requester.eq(axi.rid),
            response.eq(axi.rresp),
        ]
        keep_first_fault(
            m, self.fault, self.fault_clear, failed, requester=requester, address=first + index, response=response
        )

        asked = stage.o.payload
        fields = c.address_fields(asked.port, asked.address, asked.beats)
        m.d.comb += [getattr(axi, f"ar{name}").eq(value) for name, value in fields.items()]
        m.d.comb += [axi.arvalid.eq(stage.o.valid), stage.o.ready.eq(axi.arready), axi.rready.eq(1)]
        return m
