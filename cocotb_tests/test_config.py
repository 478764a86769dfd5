"""Configs of the hardware: geometries that are refused, presets, TOML files."""

import re
from dataclasses import FrozenInstanceError, replace

import pytest

from golden.errors import UserError
from golden.settings import default_settings
from rtl.config import (
    PRESETS,
    AcceleratorConfig,
    CacheConfig,
    ControlConfig,
    DsqConfig,
    MhaConfig,
    load_config,
    preset,
)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"lanes": 5}, "lanes must be a power of two from 4 to 64, not 5"),
        ({"lanes": 2}, "lanes must be a power of two from 4 to 64, not 2"),
        ({"lanes": 128}, "lanes must be a power of two from 4 to 64, not 128"),
        ({"head_dim": 12, "lanes": 4}, "head_dim must be from 16 to 128, not 12"),
        ({"head_dim": 144}, "head_dim must be from 16 to 128, not 144"),
        ({"head_dim": 72}, "head_dim must be a multiple of lanes=16, not 72"),
        ({"group_tokens": 48}, "group_tokens must be a power of two from 16 to 128, not 48"),
        ({"group_tokens": 8}, "group_tokens must be a power of two from 16 to 128, not 8"),
        ({"group_tokens": 256}, "group_tokens must be a power of two from 16 to 128, not 256"),
        ({"max_salient": 0}, "max_salient must be from 1 to group_tokens-1=63, not 0"),
        ({"max_salient": 64}, "max_salient must be from 1 to group_tokens-1=63, not 64"),
        ({"delta_bits": 3}, "delta_bits must be 2 or 4, not 3"),
        ({"bus_bits": 16}, "bus_bits must be a power of two from 32 to 512, not 16"),
        ({"bus_bits": 96}, "bus_bits must be a power of two from 32 to 512, not 96"),
        ({"bus_bits": 1024}, "bus_bits must be a power of two from 32 to 512, not 1024"),
    ],
    ids=str,
)
def test_rejects_impossible_geometry(values, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        DsqConfig(**values)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"q_heads": 0}, "q_heads must be from 1 to 8, not 0"),
        ({"q_heads": 9}, "q_heads must be from 1 to 8, not 9"),
        ({"tile_groups": 0}, "tile_groups must be a power of two from 1 to 1024, not 0"),
        ({"tile_groups": 48}, "tile_groups must be a power of two from 1 to 1024, not 48"),
        ({"tile_groups": 2048}, "tile_groups must be a power of two from 1 to 1024, not 2048"),
        ({"max_groups": 0}, "max_groups must be from 1 to 1048576, not 0"),
        ({"max_groups": (1 << 20) + 1}, "max_groups must be from 1 to 1048576, not 1048577"),
    ],
    ids=str,
)
def test_rejects_impossible_attention(values, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        MhaConfig(**values)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"addr_bits": 15}, "addr_bits must be from 16 to 64, not 15"),
        ({"max_sequences": 0}, "max_sequences must be from 1 to 256, not 0"),
        ({"streams": (1 << 16) + 1}, "streams must be from 1 to 65536, not 65537"),
        ({"record_pages": 48}, "record_pages must be a power of two from 2 to 65536, not 48"),
        ({"block_pages": 1}, "block_pages must be a power of two from 2 to 65536, not 1"),
        ({"max_burst": 257}, "max_burst must be from 1 to 256, not 257"),
        ({"outstanding": 0}, "outstanding must be from 1 to 256, not 0"),
        ({"read_ports": 17}, "read_ports must be from 0 to 16, not 17"),
        ({"l1_words": 8}, "l1_words must be a power of two from 16 to 65536, not 8"),
        ({"l2_words": 100}, "l2_words must be a power of two from 16 to 65536, not 100"),
    ],
    ids=str,
)
def test_rejects_impossible_caches(values, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        CacheConfig(**values)


def test_rejects_pages_beyond_the_address_space():
    message = "cache.addr_bits must be enough for 113725440 bytes of pages, not 26"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        AcceleratorConfig(dsq=DsqConfig(delta_bits=4), cache=CacheConfig(addr_bits=26))


def test_rejects_a_bus_wider_than_a_delta_row():
    message = "dsq.bus_bits must be at most 2*head_dim=128, not 256"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        AcceleratorConfig(dsq=DsqConfig(bus_bits=256))


def test_rows_take_whole_words():
    config = DsqConfig(head_dim=80, bus_bits=128)
    assert [config.row_words(bits) for bits in (2, 4, 8)] == [2, 3, 5]
    assert [DsqConfig().row_words(bits) for bits in (2, 4, 8)] == [1, 2, 4]


def test_accepts_ends_of_the_ranges():
    DsqConfig(head_dim=16, group_tokens=16, max_salient=1, lanes=4, bus_bits=32)
    DsqConfig(head_dim=128, group_tokens=128, max_salient=127, lanes=64, bus_bits=512, delta_bits=4)
    MhaConfig(q_heads=1, tile_groups=1, max_groups=1)
    MhaConfig(q_heads=8, tile_groups=1024, max_groups=1 << 20)
    CacheConfig(addr_bits=16, max_sequences=1, streams=1, record_pages=2, block_pages=2, max_burst=1, outstanding=1)
    CacheConfig(addr_bits=64, max_sequences=256, streams=1 << 16, max_burst=256, outstanding=256, read_ports=16)


def test_configs_are_frozen_and_keyword_only():
    with pytest.raises(FrozenInstanceError):
        DsqConfig().lanes = 8
    with pytest.raises(TypeError):
        DsqConfig(64)


def test_presets_have_their_geometry():
    assert list(PRESETS) == ["tiny", "smollm2", "ulx3s", "llama2-7b", "dac25"]
    geometry = {name: preset(name).dsq for name in PRESETS}
    assert (geometry["tiny"].head_dim, geometry["tiny"].group_tokens) == (16, 16)
    assert (geometry["smollm2"].head_dim, geometry["smollm2"].bus_bits) == (64, 128)
    assert (geometry["ulx3s"].head_dim, geometry["ulx3s"].bus_bits) == (64, 32)
    assert (geometry["llama2-7b"].head_dim, geometry["llama2-7b"].bus_bits) == (128, 256)
    assert geometry["dac25"].head_dim == 128


def test_default_settings_fit_the_presets_of_the_default_model():
    settings = default_settings()
    for name in ("smollm2", "ulx3s"):
        dsq = preset(name).dsq
        assert dsq.delta_bits == settings.delta_bits
        assert dsq.group_tokens == settings.group_tokens
        assert settings.salient_tokens <= dsq.max_salient
    assert preset("smollm2").dsq.bus_bits == settings.bus_bits


def test_rejects_unknown_preset():
    with pytest.raises(UserError, match=r"^preset must be one of tiny, smollm2, ulx3s, llama2-7b, dac25, not 'huge'$"):
        preset("huge")


def written(tmp_path, text):
    path = tmp_path / "c.toml"
    path.write_text(text)
    return path


def test_file_changes_what_it_names(tmp_path):
    config = load_config(written(tmp_path, "[dsq]\nhead_dim = 32\nlanes = 8\nbus_bits = 64\n"))
    assert config == AcceleratorConfig(dsq=DsqConfig(head_dim=32, lanes=8, bus_bits=64))
    assert load_config(written(tmp_path, "")) == AcceleratorConfig()


def test_file_may_start_from_a_preset(tmp_path):
    config = load_config(written(tmp_path, 'preset = "tiny"\n[dsq]\nmax_salient = 5\n'))
    assert config.dsq == DsqConfig(head_dim=16, group_tokens=16, max_salient=5, lanes=4, bus_bits=32)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_read_back_from_toml(tmp_path, name):
    tables = preset(name).to_dict()
    lines = [f"[{block}]\n" + "".join(f"{k} = {v}\n" for k, v in table.items()) for block, table in tables.items()]
    assert load_config(written(tmp_path, "\n".join(lines))) == preset(name)


@pytest.mark.parametrize(
    "text, message",
    [
        ("[dsq]\nwidth = 3\n", "unknown key 'dsq.width', the keys of dsq are head_dim, group_tokens, max_salient, "),
        ("[power]\n", "unknown key 'power', the keys are preset, dsq, mha, cache, gemm, control"),
        ("[mha]\nq_heads = 9\n", "mha: q_heads must be from 1 to 8, not 9"),
        ("[dsq]\nbus_bits = 512\n", "dsq.bus_bits must be at most 2*head_dim=128, not 512"),
        ("dsq = 3\n", "dsq must be a table, not 3"),
        ("[dsq]\nlanes = 'x'\n", "dsq.lanes must be of type int, not 'x'"),
        ("[dsq]\nlanes = 4.0\n", "dsq.lanes must be of type int, not 4.0"),
        ("[dsq]\nlanes = true\n", "dsq.lanes must be of type int, not True"),
        ("[dsq]\nlanes = 5\n", "dsq: lanes must be a power of two from 4 to 64, not 5"),
        ("[dsq]\nhead_dim = 72\n", "dsq: head_dim must be a multiple of lanes=16, not 72"),
        ("preset = 3\n", "preset must be a string, not 3"),
        ("preset = 'x'\n", "preset must be one of tiny, smollm2, ulx3s, llama2-7b, dac25, not 'x'"),
    ],
    ids=str,
)
def test_file_faults_are_named(tmp_path, text, message):
    path = written(tmp_path, text)
    with pytest.raises(UserError, match=f"^{re.escape(f'config {str(path)!r}: {message}')}"):
        load_config(path)


def test_unreadable_files_are_named(tmp_path):
    with pytest.raises(UserError, match=r"^cannot read config '.*none.toml': No such file or directory$"):
        load_config(tmp_path / "none.toml")
    with pytest.raises(UserError, match=r"^config '.*' is not valid TOML: Expected '=' after a key"):
        load_config(written(tmp_path, "dsq dsq"))
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"^config '.*' is not valid TOML: "):
        load_config(path)


@pytest.mark.parametrize(
    ("table", "changes", "message"),
    [
        ("cache", {"read_ports": 4}, "cache.read_ports must be gemm.cores+4=6, not 4"),
        ("cache", {"write_ports": 2}, "cache.write_ports must be 3, not 2"),
        ("gemm", {"columns": 8}, "gemm.columns must be from bus_bits/64=2 to bus_bits/8=4, not 8"),
        ("gemm", {"row_lanes": 1}, "gemm.row_lanes must be at least 2*gemm.pairs=2, not 1"),
        ("gemm", {"row_lanes": 32}, "gemm.row_lanes must divide dsq.head_dim=16, not 32"),
        ("mha", {"max_groups": 65536}, "mha.max_groups must be at most 65535, not 65536"),
    ],
)
def test_parts_of_the_accelerator_must_fit(table, changes, message):
    base = preset("tiny")
    changed = replace(base, **{table: replace(getattr(base, table), **changes)})
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        changed.check_accelerator()


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_accelerators(name):
    preset(name).check_accelerator()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scratch_words": 15}, "scratch_words must be from 16 to 1048576, not 15"),
        ({"scratch_rows": 0}, "scratch_rows must be from 1 to 65536, not 0"),
        ({"semaphores": 257}, "semaphores must be from 1 to 256, not 257"),
        ({"queue_depth": 1}, "queue_depth must be from 2 to 16, not 1"),
        ({"event_depth": 3}, "event_depth must be a power of two from 2 to 4096, not 3"),
    ],
)
def test_control_refuses_impossible_sizes(changes, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        ControlConfig(**changes)
