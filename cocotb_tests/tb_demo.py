"""Drivers of the demonstration: groups through the Quantizer, its records through the Dequantizer.

Nothing is compared here: both read what to send from `input.npz` in the folder that the parameters name, write what
came out to `output.npz`, and keep the number of finished groups in `progress`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cocotb
import numpy as np
from numpy.typing import NDArray

from cocotb_tests.lib import params
from cocotb_tests.lib.bench import start
from cocotb_tests.lib.stream import StreamSink, StreamSource
from rtl.config import DsqConfig
from rtl.dsq.dequantizer import Dequantizer, Section
from rtl.dsq.quantizer import Quantizer

FOLDER = Path(params()["folder"])
CONFIG = DsqConfig(**params()["config"])
SALIENT = params()["salient_tokens"]


def _source(dut: Any, component: Any, name: str) -> StreamSource:
    return StreamSource(dut, name, shape=getattr(component, name).payload.shape())


def _calibrations(inputs: Any) -> Iterator[dict[str, int]]:
    """The transfers of `i_calibration`: the channels of each group that loads one."""
    for group in np.flatnonzero(inputs["load_calibration"]):
        for k, v, mean in zip(*(inputs[name][group] for name in ("k_shape", "v_shape", "v_mean")), strict=True):
            yield {"k_shape": int(k), "v_shape": int(v), "v_mean": int(mean)}


def _report(finished: int) -> None:
    (FOLDER / "progress").write_text(str(finished))


@cocotb.test()
async def compresses(dut):
    inputs, quantizer = np.load(FOLDER / "input.npz"), Quantizer(CONFIG)
    count = len(inputs["k_rows"])
    groups, calibrations = _source(dut, quantizer, "i_group"), _source(dut, quantizer, "i_calibration")
    masses, rows, words = StreamSource(dut, "i_mass"), StreamSource(dut, "i_row"), StreamSink(dut, "o")
    await start(dut)
    for group in range(count):
        setting = {name: int(inputs[name][group]) for name in ("first_group", "load_calibration", "k_norm", "v_norm")}
        setting |= {"salient_tokens": SALIENT, "sink_tokens": int(params()["sink_tokens"])}
        groups.send_nowait([setting])
        masses.send_nowait(int(mass) for mass in inputs["mass"][group])
        pairs = np.stack([inputs["k_rows"][group], inputs["v_rows"][group]], axis=1)  # a token's K row, then its V row
        beats = pairs.reshape(-1, CONFIG.lanes).astype("<i2")
        rows.send_nowait(int.from_bytes(beat.tobytes(), "little") for beat in beats)
    calibrations.send_nowait(_calibrations(inputs))
    taken: list[int] = []
    for group in range(count):
        taken += await words.recv(params()["record_words"])
        _report(group + 1)
    await words.expect_nothing()
    assert dut.error.value == 0
    size, mask = CONFIG.bus_bits // 8, (1 << CONFIG.bus_bits) - 1
    np.savez(
        FOLDER / "output.npz",
        words=np.array([list((word & mask).to_bytes(size, "little")) for word in taken], np.uint8),
        first=np.array([word >> CONFIG.bus_bits & 1 for word in taken], bool),
        last=np.array([word >> CONFIG.bus_bits + 1 for word in taken], bool),
        cycles=np.array(words.transfers),
        begin=rows.transfers[0],
    )


@cocotb.test()
async def rebuilds(dut):
    inputs, dequantizer = np.load(FOLDER / "input.npz"), Dequantizer(CONFIG)
    records = inputs["records"]  # [groups, words, bytes]
    commands, calibrations = _source(dut, dequantizer, "i_record"), _source(dut, dequantizer, "i_calibration")
    words, beats = StreamSource(dut, "i"), StreamSink(dut, "o")
    await start(dut)
    commands.send_nowait({"load_calibration": int(load)} for load in inputs["load_calibration"])
    calibrations.send_nowait(_calibrations(inputs))
    for record in records:
        values = [int.from_bytes(word.tobytes(), "little") for word in record]
        values[0] |= 1 << CONFIG.bus_bits
        values[-1] |= 2 << CONFIG.bus_bits
        words.send_nowait(values)
    shape = dequantizer.o.payload.shape()
    rows = np.zeros((len(records), 2, CONFIG.group_tokens, CONFIG.head_dim), "<i2")
    for group in range(len(records)):
        seen, last = 0, False
        while not last:
            (beat,) = await beats.recv(1)
            count, last = _place(rows[group], shape, beat)
            seen += count
        assert seen == rows[group].size, f"record {group} gave {seen} elements, not {rows[group].size}"
        _report(group + 1)
    await beats.expect_nothing()
    first_words = np.array(words.transfers).reshape(records.shape[:2])[:, 0]
    np.savez(FOLDER / "output.npz", rows=rows, first_words=first_words, end=beats.transfers[-1])


def _place(rows: NDArray[np.int16], shape: Any, beat: int) -> tuple[int, bool]:
    """Write a beat's elements where they belong in `rows[2, group_tokens, head_dim]`; their count, and `last`."""
    fields, offset = {}, 0
    for name in ("section", "row", "channel", "count", "last", "error"):
        field = shape[name]
        fields[name] = beat >> field.offset & ((1 << field.width) - 1)
        offset = field.offset + field.width
    assert not fields["error"], "the Dequantizer rejects a record"
    elements = np.frombuffer((beat >> offset).to_bytes(CONFIG.bus_bits, "little"), "<i2")[: fields["count"]]
    is_value = fields["section"] in (Section.V_SALIENT.value, Section.V_DELTA.value)
    is_delta = fields["section"] in (Section.K_DELTA.value, Section.V_DELTA.value)
    first = (fields["row"] + SALIENT * is_delta) * CONFIG.head_dim + fields["channel"]
    rows[int(is_value)].reshape(-1)[first : first + len(elements)] = elements
    return len(elements), bool(fields["last"])
