"""When each burst of a DRAM has its place on the data bus: banks, rows, refresh, turn-around. For `DramModel`."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from cocotb_tests.lib.dram_config import TICKS, DramConfig
from cocotb_tests.lib.dram_parts import PARTS

__all__ = ["CYCLE_BITS", "DramTimer"]

CYCLE_BITS = 32
_FRACTION_BITS = exact_log2(TICKS)
_TIME = unsigned(CYCLE_BITS + _FRACTION_BITS)


class DramTimer(wiring.Component):
    """Gives each burst, in the order they come, the earliest times of its commands and data that the rules allow.

    A burst is planned in one cycle, as far ahead as it may lie: the commands of a burst do not wait for the data of
    those before. Combinational from the burst to ``end``.

    Parameters
    ----------
    config: the memory.

    Members
    -------
    valid, ready : a burst is planned when both are high; ready is low in the cycle that plans a refresh.
    write, burst : its direction, and its address in bursts.
    end : the cycle in which its last data have passed the data bus.
    far : more than ``look_ahead`` bursts are planned ahead.
    now : this cycle. A reset does not change it.
    hit, miss, open : strobes: what the planned burst found: its row open, another row open, no open row.
    refresh : strobe: a refresh is planned.
    """

    def __init__(self, config: DramConfig) -> None:
        self.config = config
        super().__init__(
            {
                "valid": In(1),
                "ready": Out(1),
                "write": In(1),
                "burst": In(config.burst_bits),
                "end": Out(CYCLE_BITS),
                "far": Out(1),
                "now": Out(CYCLE_BITS),
                "hit": Out(1),
                "miss": Out(1),
                "open": Out(1),
                "refresh": Out(1),
            }
        )

    def _latest(self, m: Module, *times: Value) -> Value:
        found = times[0]
        for n, time in enumerate(times[1:]):
            later = Signal(_TIME, name=f"later_{n}")
            m.d.comb += later.eq(Mux(found > time, found, time))
            found = later
        return found

    def elaborate(self, platform):
        m = Module()
        config, part, ticks = self.config, PARTS[self.config.part], self.config.ticks
        # Times before the first cycle are in the past, also those that rules count from.
        now = Signal(CYCLE_BITS, init=1 << 20, reset_less=True)
        here = Cat(Const(0, _FRACTION_BITS), now)
        m.d.sync += now.eq(now + 1)

        row, group = self.burst[config.fields["row"]], self.burst[config.fields["group"]]
        bank = Cat(group, self.burst[config.fields["bank"]])
        state_shape = data.StructLayout({"row": max(1, len(row)), "cas": _TIME, "precharge": _TIME})
        m.submodules.banks = banks = Memory(shape=state_shape, depth=part.banks, init=[])
        read, write = banks.read_port(domain="comb"), banks.write_port()
        is_open = Signal(part.banks)
        state, moved = read.data, write.data
        m.d.comb += [read.addr.eq(bank), write.addr.eq(bank)]

        last_read, written = Signal(), Signal(_TIME)  # direction of the last burst, end of the last written one
        free, closed, all_precharge = Signal(_TIME), Signal(_TIME), Signal(_TIME)
        slots = [Signal(_TIME, name=f"slot_{n}") for n in range(4)]
        found_open = is_open.bit_select(bank, 1)
        hit = Signal()
        slot, activate, cas = Signal(_TIME), Signal(_TIME), Signal(_TIME)
        first, end = Signal(_TIME), Signal(_TIME)
        # An ACTIVATE has its slot in the order of bursts; one that waits for its bank longer delays no other.
        slot_bounds = (here, closed, slots[0] + ticks(part.rrd), slots[3] + ticks(part.faw))
        after_precharge = self._latest(m, here, state.precharge) + ticks(part.rp)
        m.d.comb += [
            hit.eq(found_open & (state.row == row)),
            slot.eq(self._latest(m, *slot_bounds)),
            activate.eq(self._latest(m, slot, Mux(found_open, after_precharge, 0))),
            cas.eq(Mux(hit, self._latest(m, here, state.cas), activate + ticks(part.rcd))),
        ]
        starts = [
            self._latest(m, cas, written + ticks(part.wtr)) + ticks(part.cl),
            cas + ticks(part.cwl),
        ]
        turn = Mux(self.write & last_read, ticks(part.rtw), 0)
        due = Signal()
        planned = self.valid & self.ready
        bounds = [Mux(self.write, starts[1], starts[0]), free + turn]
        if part.ccd_l:
            m.submodules.groups = groups = Memory(shape=_TIME, depth=part.groups, init=[])
            group_read, group_write = groups.read_port(domain="comb"), groups.write_port()
            m.d.comb += [group_read.addr.eq(group), group_write.addr.eq(group)]
            m.d.comb += [group_write.en.eq(planned), group_write.data.eq(first)]
            bounds.append(group_read.data + ticks(part.ccd_l))
        m.d.comb += first.eq(self._latest(m, *bounds))
        m.d.comb += [
            end.eq(first + config.data_ticks),
            self.end.eq((end + TICKS - 1) >> _FRACTION_BITS),
            self.now.eq(now),
            self.far.eq(free > here + config.look_ahead * max(TICKS, config.data_ticks)),
            moved.row.eq(row),
            moved.cas.eq(Mux(hit, state.cas, activate + ticks(part.rcd))),
            moved.precharge.eq(
                self._latest(
                    m,
                    Mux(hit, state.precharge, activate + ticks(part.ras)),
                    Mux(self.write, end + ticks(part.wr), first - ticks(part.cl) + ticks(part.rtp)),
                )
            ),
        ]

        m.d.comb += [self.ready.eq(~due), self.refresh.eq(due), write.en.eq(planned)]
        m.d.comb += [
            self.hit.eq(planned & hit),
            self.miss.eq(planned & ~hit & found_open),
            self.open.eq(planned & ~hit & ~found_open),
        ]
        with m.If(planned):
            m.d.sync += [last_read.eq(~self.write), free.eq(end), is_open.bit_select(bank, 1).eq(1)]
            m.d.sync += all_precharge.eq(self._latest(m, all_precharge, moved.precharge))
            with m.If(self.write):
                m.d.sync += written.eq(end)
            with m.If(~hit):
                m.d.sync += Cat(slots).eq(Cat(slot, slots[:3]))
        if part.refi:
            refresh = Signal(_TIME, init=((1 << 20) * TICKS) + ticks(part.refi), reset_less=True)
            m.d.comb += due.eq(here >= refresh)
            with m.If(due):
                m.d.sync += [
                    refresh.eq(refresh + ticks(part.refi)),
                    is_open.eq(0),
                    closed.eq(self._latest(m, here, all_precharge) + ticks(part.rp) + ticks(part.rfc)),
                ]
        return m
