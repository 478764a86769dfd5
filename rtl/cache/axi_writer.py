"""AXI4 writes of several requesters: words to bursts, one answer for each request (golden `write`, `bursts`)."""

from typing import Any, ClassVar

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from rtl.cache._rotation import Rotation
from rtl.cache._under_way import UnderWay
from rtl.cache._write_port import WritePort, word_shape
from rtl.cache.axi import WRITE, AxiConfig, keep_first_fault
from rtl.common.stage import Stage

__all__ = ["AxiWriter"]


class AxiWriter(wiring.Component):
    """Writes words of the bus for several requesters; each gets one answer per request, in their order.

    Requests become INCR bursts of at most ``max_burst`` beats that never cross 4 KiB; requester k has id k. A burst is
    asked for when all of its words have come, so the bus never waits for a requester. Ports take turns by bursts.

    Latency: ``ADDRESS_LATENCY`` cycles from a request whose words are there, ``WORD_LATENCY`` from the last word of a
    burst, to its address and first word, on a bus that is ready and not otherwise in use; ``ANSWER_LATENCY`` from the
    answer of a request's last burst to ``o``.
    Throughput: a word a cycle, also of successive bursts and requests, if the buffer has two bursts; a burst takes two
    cycles at least while fewer than ``max_burst`` words of its port wait.
    Stalls: ``i`` waits while its buffer is full. While ``outstanding`` answers of a port are due or wait at
    ``o``, it asks for nothing. ``bready`` is always 1.
    Combinational paths: none between streams or channels.

    A reset while bursts are under way has to reset the memory too. The memory must answer what it was asked for.

    Parameters
    ----------
    config : ``depths`` are the words of each port that wait

    Members
    -------
    axi : channels AW, W and B
    i_request : array of streams ``address, count, bad``, in words. ``bad``: the words are dropped, the answer is an
        error. Nothing happens and nothing is answered if ``count`` is 0.
    i : array of streams ``data, strb``: the words of all requests; they may come before theirs
    o : array of streams: 1 when a burst of the request was answered with SLVERR or DECERR
    fault : the first such burst since ``fault_clear``: ``valid, requester, address`` of its first word, ``response``
    words : per port: in the cycle before, a word was written to the bus
    """

    ADDRESS_LATENCY: ClassVar[int] = 6
    WORD_LATENCY: ClassVar[int] = 5
    ANSWER_LATENCY: ClassVar[int] = 3

    def __init__(self, config: AxiConfig) -> None:
        self.config = config
        super().__init__(
            {
                "axi": Out(config.signature(WRITE)),
                "i_request": In(stream.Signature(config.request_shape)).array(config.ports),
                "i": In(stream.Signature(word_shape(config))).array(config.ports),
                "o": Out(stream.Signature(1)).array(config.ports),
                "fault": Out(config.fault_shape),
                "fault_clear": In(1),
                "words": Out(config.ports),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        c, axi = self.config, self.axi
        entry = data.StructLayout({"address": c.word_addr_bits, "last": 1})
        address = data.StructLayout({"port": c.id_bits, "address": c.word_addr_bits, "beats": c.beats_shape})
        m.submodules.rotation = rotation = Rotation(c.ports)
        m.submodules.under_way = under_way = UnderWay(c, entry)
        m.submodules.stage = stage = Stage(address)
        m.submodules.data_stage = data_stage = Stage(address)  # the bursts whose words are next
        ports = [WritePort(c, depth) for depth in c.depths]

        # A burst is granted, then moved: both in one cycle would take too long. Its answer comes the same way.
        chosen, given = Signal(c.ports), Signal()
        ready = stage.i.ready & data_stage.i.ready
        moves = ~given | ready
        may = moves & ~under_way.full
        with m.If(moves):
            m.d.sync += [chosen.eq(Mux(may, rotation.grant, 0)), given.eq(rotation.ask.any() & may)]
        answered, answer, error = Signal(c.ports), Signal(entry), Signal()
        requester, response = Signal.like(axi.bid), Signal.like(axi.bresp)
        m.d.sync += [
            answered.eq(Cat(axi.bvalid & (axi.bid == k) for k in range(c.ports))),
            answer.eq(under_way.oldest),
            requester.eq(axi.bid),
            response.eq(axi.bresp),
        ]
        m.d.comb += error.eq(response[1])
        sending = data_stage.o.payload
        sent = axi.wvalid & axi.wready
        for k, port in enumerate(ports):
            m.submodules[f"port_{k}"] = port
            wiring.connect(m, wiring.flipped(self.i_request[k]), port.i_request)
            wiring.connect(m, wiring.flipped(self.i[k]), port.i)
            wiring.connect(m, port.o, wiring.flipped(self.o[k]))
            granted = rotation.grant[k] & may
            m.d.comb += [
                rotation.ask[k].eq(port.burst.valid),
                port.burst.ready.eq(granted),
                port.taken.eq(sent & (sending.port == k)),
                port.answered.eq(answered[k]),
                port.last.eq(answer.last),
                port.error.eq(error),
            ]
            kept = Signal(c.burst_shape, name=f"kept_{k}")
            with m.If(moves):
                m.d.sync += kept.eq(port.burst.payload)
            with m.If(chosen[k]):
                m.d.comb += [
                    stage.i.payload.port.eq(k),
                    stage.i.payload.address.eq(kept.address),
                    stage.i.payload.beats.eq(kept.beats),
                    under_way.entry.last.eq(kept.last),
                ]
            with m.If(sending.port == k):
                m.d.comb += [axi.wdata.eq(port.word.data), axi.wstrb.eq(port.word.strb)]
            m.d.sync += self.words[k].eq(port.taken)

        m.d.comb += [
            rotation.taken.eq(may),
            stage.i.valid.eq(given & data_stage.i.ready),
            data_stage.i.valid.eq(given & stage.i.ready),
            data_stage.i.payload.eq(stage.i.payload),
            under_way.reserve.eq(rotation.ask.any() & may),
            under_way.begin.eq(given & ready),
            under_way.begin_port.eq(stage.i.payload.port),
            under_way.entry.address.eq(stage.i.payload.address),
            under_way.port.eq(axi.bid),
            under_way.end.eq(axi.bvalid),
        ]
        keep_first_fault(
            m,
            self.fault,
            self.fault_clear,
            answered.any() & error,
            requester=requester,
            address=answer.address,
            response=response,
        )

        asked = stage.o.payload
        fields = c.address_fields(asked.port, asked.address, asked.beats)
        m.d.comb += [getattr(axi, f"aw{name}").eq(value) for name, value in fields.items()]
        m.d.comb += [axi.awvalid.eq(stage.o.valid), stage.o.ready.eq(axi.awready), axi.bready.eq(1)]

        beat = Signal(c.beats_shape)  # words of the burst that have been sent
        m.d.comb += [
            axi.wvalid.eq(data_stage.o.valid),
            axi.wlast.eq(beat == sending.beats - 1),
            data_stage.o.ready.eq(axi.wready & axi.wlast),
        ]
        with m.If(sent):
            m.d.sync += beat.eq(beat + 1)
            with m.If(axi.wlast):
                m.d.sync += beat.eq(0)
        return m
