"""Part of the attention core and of the cache: which items of a scan list are scanned."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data

from rtl.config import AcceleratorConfig
from rtl.mha._requests import Fault

__all__ = ["ScanJudge"]


class ScanJudge:
    """Judges the item at hand of a scan list, given those that were taken before it in the same list.

    The first two items have a mass for each token if they are INT8 blocks; other items count as a group each, and no
    more than ``max_groups`` of them are scanned.

    Attributes: ``good`` to be scanned; ``empty`` a block without tokens, passed over; ``fault`` of any other item.
    """

    def __init__(self, m: Module, config: AcceleratorConfig, scan: data.View) -> None:
        self._config, self._scan = config, scan
        self.good, self.empty, self.fault = Signal(), Signal(), Signal(Fault)
        self._groups = Signal(range(config.mha.max_groups + 1))
        self._leading, self._blocks = Signal(init=1), Signal(range(3))
        self._counted = ~(scan.dense & self._leading & (self._blocks != 2))
        limit = Mux(scan.dense, config.dsq.group_tokens, config.dsq.max_salient)
        m.d.comb += self.empty.eq(scan.dense & (scan.count == 0))
        with m.If(self.empty):
            pass
        with m.Elif((scan.count == 0) | (scan.count > limit)):
            m.d.comb += self.fault.eq(Fault.SALIENT_COUNT)
        with m.Elif(self._counted & (self._groups == config.mha.max_groups)):
            m.d.comb += self.fault.eq(Fault.TOO_MANY_GROUPS)
        with m.Else():
            m.d.comb += self.good.eq(1)

    def take(self, m: Module, taken: Value) -> None:
        """In a cycle with ``taken`` the item at hand is gone."""
        with m.If(taken & self.good):
            m.d.sync += self._groups.eq(self._groups + self._counted)
            with m.If(~self._scan.dense):
                m.d.sync += self._leading.eq(0)
            with m.Elif(self._blocks != 2):
                m.d.sync += self._blocks.eq(self._blocks + 1)
        with m.If(taken & self._scan.last):
            m.d.sync += [self._groups.eq(0), self._leading.eq(1), self._blocks.eq(0)]
