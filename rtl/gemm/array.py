"""Products of activation codes and INT8 weights, summed where they are made (golden `multiply`)."""

from amaranth.hdl import Cat, Module, Signal, Value, signed, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from rtl.config import GemmConfig
from rtl.gemm._multiplier import Multiplier

__all__ = ["PeArray"]

WEIGHT_BITS = 8
#: cycles from a step's transfer to the one in which its products join the sums
_STAGES = 3
#: beats on their way to ``o``, a power of two and at least ``latency`` for one a cycle
_QUEUE = 16


class PeArray(wiring.Component):
    """``rows`` x ``columns`` multipliers and sums: a step of a tile adds code times weight to each of them.

    A tile's sums are copied when its last step joins them, and drained row by row while the next tile's steps come.

    Latency: ``latency`` cycles from a tile's last step to its first beat.
    Throughput: a step a cycle, and a beat a cycle. No cycle is lost between tiles as long as a tile has at least as
    many steps as the one before it has beats.
    Stalls: while beats of the tile before are left, the last step of a tile waits; the others do not.
    Combinational paths: from ``last`` of ``i`` to its ``ready``; none between streams.

    Nothing stalls between ``i`` and ``o``. Where beats are to be read is decided when a tile's last step is taken; the
    places then go beside the products, only as many of them as `o` has room for.

    Sums are exact, for no more than ``max_k`` steps and weights above -128; otherwise they wrap. After a reset a tile
    begins.

    Parameters
    ----------
    config: rows, columns, act_bits, pairs, and acc_bits that follows from max_k.

    Members
    -------
    i : stream, a step: ``codes``, one a row, ``weights``, one a column; ``last`` of its tile, which then says that rows
        0 to ``row_last`` (below rows) and of them beats 0 to ``beat_last`` (below `config.beats`) are wanted.
    o : stream: ``sums`` of ``row`` and the ``2 * pairs`` columns from ``2 * pairs * beat`` on; ``last`` of its tile.
    """

    latency = _STAGES + 4

    def __init__(self, config: GemmConfig) -> None:
        self.config = config
        row_shape = unsigned(max(1, ceil_log2(config.rows)))
        beat_shape = unsigned(max(1, ceil_log2(config.beats)))
        self.place_shape = data.StructLayout({"row": row_shape, "beat": beat_shape})
        self.i_shape = data.StructLayout(
            {
                "codes": data.ArrayLayout(signed(config.act_bits), config.rows),
                "weights": data.ArrayLayout(signed(WEIGHT_BITS), config.columns),
                "last": 1,
                "row_last": row_shape,
                "beat_last": beat_shape,
            }
        )
        self.o_shape = data.StructLayout(
            {
                "sums": data.ArrayLayout(signed(config.acc_bits), 2 * config.pairs),
                "row": row_shape,
                "beat": beat_shape,
                "last": 1,
            }
        )
        super().__init__({"i": In(stream.Signature(self.i_shape)), "o": Out(stream.Signature(self.o_shape))})

    def _sums(self, m: Module, taken: Value) -> list[list[Signal]]:
        """The copied sums of each row: of the tile whose last step was taken ``_STAGES + 1`` cycles before."""
        config, payload = self.config, self.i.payload
        codes, weights = Signal.like(payload.codes, reset_less=True), Signal.like(payload.weights)
        m.d.sync += [codes.eq(payload.codes), weights.eq(0)]
        with m.If(taken):
            m.d.sync += weights.eq(payload.weights)
        # A cycle without a step adds zero, so nothing but the last steps has to go along. A reset clears the sums as
        # long as steps from before it arrive.
        copies, clears = Signal(_STAGES), Signal(_STAGES, init=-1)
        m.d.sync += [pipe.eq(Cat(taken & payload.last, pipe)) for pipe in (copies, clears)]
        copied = []
        for row in range(config.rows):
            copied.append([])
            for column in range(config.columns):
                name = f"{row}_{column}"
                multiplier = Multiplier(config.act_bits, WEIGHT_BITS)
                m.submodules[f"multiplier_{name}"] = multiplier
                total = Signal(signed(config.acc_bits), name=f"total_{name}")
                running = Signal.like(total, name=f"running_{name}", reset_less=True)
                copy = Signal.like(total, name=f"copy_{name}", reset_less=True)
                m.d.comb += [
                    multiplier.a.eq(codes[row]),
                    multiplier.b.eq(weights[column]),
                    total.eq(running + multiplier.product),
                ]
                m.d.sync += running.eq(total)
                with m.If(clears[-1]):
                    m.d.sync += running.eq(0)
                with m.If(copies[-1]):
                    m.d.sync += copy.eq(total)
                copied[-1].append(copy)
        return copied

    def elaborate(self, platform):
        m = Module()
        config, step = self.config, self.i.payload
        m.submodules.queue = queue = SyncFIFOBuffered(width=self.o_shape.size, depth=_QUEUE)

        # Places of the beats to be read, each as soon as the queue has room for it.
        draining, place, final = Signal(), Signal(self.place_shape), Signal(self.place_shape)
        room = Signal(range(_QUEUE + 1), init=_QUEUE)
        row_ends = place.beat == final.beat
        last = row_ends & (place.row == final.row)
        issue, taken = Signal(), Signal()
        m.d.comb += [
            issue.eq(draining & (room != 0)),
            self.i.ready.eq(~step.last | ~draining | (issue & last)),
            taken.eq(self.i.valid & self.i.ready),
        ]
        m.d.sync += room.eq(room - issue + (queue.r_rdy & queue.r_en))
        with m.If(issue):
            m.d.sync += [draining.eq(~last), place.beat.eq(place.beat + 1)]
            with m.If(row_ends):
                m.d.sync += [place.beat.eq(0), place.row.eq(place.row + 1)]
        with m.If(taken & step.last):
            m.d.sync += [draining.eq(1), place.eq(0), final.row.eq(step.row_last), final.beat.eq(step.beat_last)]

        # Two multiplexers, a row's sums between them.
        copied = self._sums(m, taken)
        places = [Signal(self.place_shape, name=f"place_{n}") for n in range(_STAGES + 1)]
        valid, lasts = Signal(_STAGES + 1), Signal(_STAGES + 1)
        m.d.sync += [Cat(places).eq(Cat(place, places)), valid.eq(Cat(issue, valid)), lasts.eq(Cat(last, lasts))]
        width = config.acc_bits
        row_sums = Signal(config.columns * width)
        m.d.sync += row_sums.eq(data.ArrayLayout(len(row_sums), config.rows)(Cat(copied))[places[-2].row])
        beats = data.ArrayLayout(2 * config.pairs * width, config.beats)(row_sums)
        m.d.comb += [
            queue.w_data.eq(Cat(beats[places[-1].beat], places[-1], lasts[-1])),
            queue.w_en.eq(valid[-1]),
            self.o.payload.eq(queue.r_data),
            self.o.valid.eq(queue.r_rdy),
            queue.r_en.eq(self.o.ready),
        ]
        return m
