"""Dequantizer: geometries, records that golden refuses too, and the start of the simulations."""

from dataclasses import asdict, replace

import pytest

from cocotb_tests.dsq.records import make_calibration, make_record, random_record, record_bytes, with_fault
from cocotb_tests.lib import launch, rng
from golden.dsq.dequantizer import dequantize
from golden.dsq.record import RecordError, RecordLayout
from rtl.config import PRESETS, DsqConfig, preset
from rtl.dsq.dequantizer import Dequantizer


def geometry(head_dim: int, tokens: int, max_salient: int, bus_bits: int, delta_bits: int) -> DsqConfig:
    return DsqConfig(
        head_dim=head_dim,
        group_tokens=tokens,
        max_salient=max_salient,
        lanes=4,
        bus_bits=bus_bits,
        delta_bits=delta_bits,
    )


def run(simulator: str, config: DsqConfig, *, records: int = 8, resets: int = 4, real_groups: int = 0) -> None:
    dequantizer = Dequantizer(config)
    most = config.max_salient
    counts = {1, min(2, most), (most + 1) // 2, max(1, most - 1), most, config.group_tokens}
    launch.run(
        dequantizer,
        name="dsq_dequantizer",
        tb="cocotb_tests.dsq.tb_dequantizer",
        parameters={
            "config": asdict(config),
            "records": records,
            "resets": resets,
            "real_groups": real_groups,
            "latency": Dequantizer.latency,
            "record_cycles": {n: Dequantizer.record_cycles(config, n) for n in sorted(counts)},
            "field_bits": [field.width for name, field in dequantizer.o.payload.shape() if name != "elements"],
        },
        simulators=simulator,
    )


@launch.simulators()
@pytest.mark.parametrize("delta_bits", [2, 4])
def test_matches_golden_in_small_geometries(simulator, delta_bits):
    """The smallest on Icarus; rows of a number of words that is no power of two."""
    if delta_bits == 2:
        run(simulator, geometry(16, 16, 4, 32, 2), records=5, resets=2)
    else:
        run(simulator, geometry(20, 16, 3, 32, 4), records=5, resets=2)


@launch.simulators("verilator")
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(geometry(16, 16, 7, 128, 4), id="several-rows-a-word"),
        pytest.param(geometry(24, 16, 3, 64, 2), id="padded-rows"),
    ],
)
def test_matches_golden_where_rows_and_words_differ(simulator, config):
    run(simulator, config)


@launch.simulators("verilator")
@pytest.mark.parametrize("delta_bits", [2, 4])
def test_matches_golden_on_real_groups(simulator, delta_bits):
    run(simulator, replace(preset("smollm2").dsq, delta_bits=delta_bits), real_groups=27)


@pytest.mark.nightly
@launch.simulators("verilator")
@pytest.mark.parametrize(
    "config",
    [
        *(pytest.param(preset(name).dsq, id=name) for name in PRESETS if name not in ("tiny", "smollm2")),
        pytest.param(geometry(16, 16, 1, 128, 4), id="one-salient"),
        pytest.param(geometry(16, 32, 7, 512, 2), id="16-rows-a-word"),
        pytest.param(geometry(48, 16, 4, 256, 4), id="padded-rows-share-words"),
        pytest.param(geometry(80, 32, 5, 64, 2), id="head-dim-80"),
        pytest.param(geometry(96, 128, 31, 128, 4), id="head-dim-96"),
    ],
)
def test_matches_golden_in_more_geometries(simulator, config):
    run(simulator, config, records=12, resets=8)


@pytest.mark.parametrize("fault", ["salient", "delta_bits", "runs", "k_scale", "v_scale", "short", "long"])
def test_golden_refuses_what_the_hardware_refuses(fault):
    """Apart from salient counts that only this hardware cannot have, and from first and last, which bytes have not."""
    draw = rng("refused", fault)
    for config in (geometry(16, 16, 15, 32, 2), geometry(48, 32, 31, 256, 4)):
        calibration = make_calibration(draw, config.head_dim)
        for salient in (1, config.max_salient // 2, config.group_tokens):
            record = make_record(random_record(draw, config, salient), config, calibration)
            faulty = with_fault(fault, record, config, draw)
            with pytest.raises(RecordError, match=r"^[a-z ]+ must .*, not \d+$"):
                dequantize(
                    record_bytes(faulty, config),
                    calibration,
                    head_dim=config.head_dim,
                    group_tokens=config.group_tokens,
                    delta_bits=config.delta_bits,
                    bus_bits=config.bus_bits,
                )


@pytest.mark.parametrize("name", PRESETS)
def test_no_record_of_usual_size_waits(name):
    """From an eighth of the group salient on, the words of a record are its cycles."""
    config = preset(name).dsq
    for salient in (*range(config.group_tokens // 8, config.max_salient + 1), config.group_tokens):
        words = sum(Dequantizer.section_words(config, salient).values())
        assert Dequantizer.record_cycles(config, salient) == words


@pytest.mark.parametrize("name", PRESETS)
def test_sections_are_those_of_the_layout(name):
    config = preset(name).dsq
    for salient in (1, config.max_salient, config.group_tokens):
        layout = RecordLayout(
            head_dim=config.head_dim,
            group_tokens=config.group_tokens,
            salient_tokens=salient,
            delta_bits=config.delta_bits,
            bus_bits=config.bus_bits,
        )
        words = sum(Dequantizer.section_words(config, salient).values())
        assert words * config.bus_bits == layout.record_bytes * 8
