"""Named DRAM parts: geometry and timing, for the model in `cocotb_tests.lib.dram`.

A comment names the table a figure was read in. `unchecked` marks figures that are usual for the part's speed grade, or
that follow from its protocol, and that have not been compared with its data sheet.
"""

import math
from dataclasses import dataclass

__all__ = ["PARTS", "Part"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """All devices behind one data bus. Times in nanoseconds; 0 leaves a rule out."""

    name: str
    source: str
    #: data bus of all devices together, and its transfers per microsecond; infinite: the bus limits nothing
    data_bits: int = 64
    rate: float = math.inf
    #: what one access moves, at least, aligned to its size
    burst_bytes: int = 64
    #: banks in all; bank groups matter for `ccd_l` alone
    banks: int = 1
    groups: int = 1
    #: a row of one bank in all devices together
    row_bytes: int = 8192
    #: fields of an address from its highest bits on; below them are the bytes of a burst
    mapping: str = "row:bank:column"
    rcd: float = 0.0  # ACTIVATE to READ or WRITE
    rp: float = 0.0  # PRECHARGE to ACTIVATE
    ras: float = 0.0  # ACTIVATE to PRECHARGE
    rrd: float = 0.0  # ACTIVATE to ACTIVATE of another bank
    faw: float = 0.0  # in which at most four ACTIVATE commands are given
    cl: float = 0.0  # READ to its first data
    cwl: float = 0.0  # WRITE to its first data
    ccd_l: float = 0.0  # between bursts of one bank group, start to start
    rtp: float = 0.0  # READ to PRECHARGE
    wr: float = 0.0  # last data written to PRECHARGE
    wtr: float = 0.0  # last data written to READ
    rtw: float = 0.0  # last data read to first data written
    rfc: float = 0.0  # REFRESH to ACTIVATE
    refi: float = 0.0  # REFRESH to REFRESH

    @property
    def peak(self) -> float:
        """Bytes per microsecond (megabytes per second) of the data bus."""
        return self.rate * self.data_bits / 8


_DDR4_CK = 2000 / 2400
_LPDDR4_CK = 2000 / 3200
_SDR_CK = 7.5

PARTS = {
    part.name: part
    for part in (
        # A rank of eight MT40A512M8RH-083 (4 Gb x8, speed grade DDR4-2400 17-17-17).
        Part(
            name="ddr4-2400",
            source="Micron MT40A512M8RH-083, 4Gb DDR4 SDRAM data sheet (4gb_ddr4_dram, Rev. G)",
            data_bits=64,
            rate=2400,
            burst_bytes=64,  # BL8
            # As the SPD of modules of such devices says: 4 bank groups of 4 banks, page 1 KB
            banks=16,
            groups=4,
            row_bytes=8 * 1024,
            mapping="row:bank:column:group",
            # Table 152 "DDR4-2400 Speed Bins and Operating Conditions", -083
            rcd=14.16,
            rp=14.16,
            cl=14.16,
            ras=32,
            cwl=12 * _DDR4_CK,  # 12 or 16
            # Table 157 "Electrical Characteristics and AC Timing Parameters", DDR4-2400
            ccd_l=6 * _DDR4_CK,  # greater of 4CK or 5 ns; whole clocks
            rtp=7.5,  # greater of 4CK or 7.5 ns
            # SPD of a DDR4-2400 module of 4 Gb x8 devices: tRRD_S 3.3 ns, here 4CK; tRFC1
            rrd=4 * _DDR4_CK,
            rfc=260,
            # unchecked
            faw=21,
            wr=15,
            wtr=7.5,  # tWTR_L
            rtw=2 * _DDR4_CK,  # a clock between, a clock of write preamble
            refi=7800,
        ),
        # One die with two channels of 16 bits, run in lock-step: both get the same commands.
        Part(
            name="lpddr4-3200",
            source="Micron MT53B128M32D1NP-062, 4Gb LPDDR4 SDRAM data sheet (200b_z00n_lpddr4, Rev. C)",
            data_bits=32,
            rate=3200,
            burst_bytes=64,  # BL16
            # First page, "Features" and table 1 "Key Timing Parameters", -062: 8 banks per channel, READ latency 28,
            # WRITE latency set A 14
            banks=8,
            cl=28 * _LPDDR4_CK + 3.5,  # and tDQSCK, unchecked
            cwl=14 * _LPDDR4_CK + _LPDDR4_CK,  # and tDQSS, unchecked
            # NXP's page "Timing parameters" of its DDR tool, after JEDEC's LPDDR4 standard, 3200 MT/s
            rp=18,
            ras=42,
            refi=3904,
            # unchecked
            row_bytes=2 * 2048,  # page 2 KB per channel
            rcd=18,
            rrd=10,
            faw=40,
            rtp=7.5,
            wr=18,
            wtr=10,
            rtw=3.5 + 2 * _LPDDR4_CK,  # tDQSCK and the write preamble
            rfc=130,  # tRFCab, 2 Gb per channel; 180 with 4 Gb
        ),
        # One device, of the kind that ULX3S boards carry (they differ in the maker).
        Part(
            name="sdr-133",
            source="Micron MT48LC16M16A2-75, 256Mb SDRAM data sheet",
            data_bits=16,
            rate=1000 / _SDR_CK,
            burst_bytes=16,  # BL8
            banks=4,
            row_bytes=512 * 2,  # 512 columns, as LiteDRAM has it
            # Table 12 "Electrical Characteristics and Recommended AC Operating Conditions", -75
            rcd=20,
            rp=20,
            ras=44,
            rrd=15,
            wr=15,
            rfc=66,
            refi=64e6 / 8192,  # tREF 64 ms, 8192 rows
            # CAS latency 3; the rest follows from the protocol, unchecked
            cl=3 * _SDR_CK,
            rtp=8 * _SDR_CK,  # PRECHARGE CL - 1 clocks before the last data
            rtw=_SDR_CK,  # one clock of high impedance
        ),
        Part(name="ideal", source="none: a fixed latency and a word in each cycle, to see other limits"),
    )
}
