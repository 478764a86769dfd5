"""Settings: TOML round trip, and each refusal's sentence."""

import re
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.errors import UserError
from golden.settings import KvoSettings, default_settings

KNOWN = ", ".join(asdict(KvoSettings()))


@st.composite
def any_settings(draw) -> KvoSettings:
    """All fields over their whole ranges."""
    tokens = draw(st.integers(16, 128))
    margin = st.floats(0, 64)
    return KvoSettings(
        group_tokens=tokens,
        salient_tokens=draw(st.integers(1, tokens)),
        sink_tokens=draw(st.integers(0, tokens)),
        delta_bits=draw(st.sampled_from([2, 4])),
        bus_bits=draw(st.sampled_from([32, 64, 128, 256, 512])),
        prune=draw(st.booleans()),
        history_drop=draw(st.floats(0, 1, exclude_max=True)),
        tile_groups=1 << draw(st.integers(0, 10)),
        keep_fraction=draw(st.floats(0, 1)),
        run_margin=draw(margin),
        estimate_margin=draw(margin),
        value_margin=draw(margin),
    )


@pytest.fixture
def written(tmp_path):
    """Write a settings file and read it."""

    def read(text: str | bytes) -> KvoSettings:
        path = tmp_path / "settings.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return KvoSettings.from_toml(path)

    return read


@given(settings=any_settings())
def test_toml_round_trip(tmp_path_factory, settings):
    path = tmp_path_factory.getbasetemp() / "round-trip.toml"
    path.write_text(settings.to_toml())
    assert KvoSettings.from_toml(path) == settings


def test_absent_keys_keep_their_defaults(written):
    assert written("") == KvoSettings()
    assert written("salient_tokens = 9") == replace(KvoSettings(), salient_tokens=9)


def test_whole_numbers_pass_for_fractions(written):
    settings = written("value_margin = 7\nkeep_fraction = 1")
    assert settings.value_margin == 7.0 and type(settings.value_margin) is float
    assert settings.keep_fraction == 1.0


def test_default_settings_are_valid_and_complete():
    settings = default_settings()
    assert settings == replace(settings)
    assert settings.prune


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("group_tokens", 15, "group_tokens must be 16 to 128, not 15"),
        ("group_tokens", 129, "group_tokens must be 16 to 128, not 129"),
        ("salient_tokens", 0, "salient_tokens must be 1 to group_tokens=64, not 0"),
        ("salient_tokens", 65, "salient_tokens must be 1 to group_tokens=64, not 65"),
        ("sink_tokens", -1, "sink_tokens must be 0 to group_tokens=64, not -1"),
        ("sink_tokens", 65, "sink_tokens must be 0 to group_tokens=64, not 65"),
        ("delta_bits", 3, "delta_bits must be 2 or 4, not 3"),
        ("bus_bits", 16, "bus_bits must be a power of two from 32 to 512, not 16"),
        ("bus_bits", 96, "bus_bits must be a power of two from 32 to 512, not 96"),
        ("bus_bits", 1024, "bus_bits must be a power of two from 32 to 512, not 1024"),
        ("bus_bits", -64, "bus_bits must be a power of two from 32 to 512, not -64"),
        ("history_drop", -0.1, "history_drop must be at least 0 and below 1, not -0.1"),
        ("history_drop", 1.0, "history_drop must be at least 0 and below 1, not 1.0"),
        ("tile_groups", 0, "tile_groups must be a power of two from 1 to 1024, not 0"),
        ("tile_groups", -4, "tile_groups must be a power of two from 1 to 1024, not -4"),
        ("tile_groups", 48, "tile_groups must be a power of two from 1 to 1024, not 48"),
        ("tile_groups", 2048, "tile_groups must be a power of two from 1 to 1024, not 2048"),
        ("keep_fraction", 1.01, "keep_fraction must be 0 to 1, not 1.01"),
        ("keep_fraction", -1.0, "keep_fraction must be 0 to 1, not -1.0"),
        ("run_margin", 64.5, "run_margin must be 0 to 64 nats, not 64.5"),
        ("estimate_margin", -1.0, "estimate_margin must be 0 to 64 nats, not -1.0"),
        ("value_margin", 65.0, "value_margin must be 0 to 64 nats, not 65.0"),
        ("value_margin", float("nan"), "value_margin must be 0 to 64 nats, not nan"),
    ],
)
def test_rejects_values_out_of_range(written, field, value, sentence):
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        KvoSettings(**{field: value})
    with pytest.raises(UserError, match=rf"^settings '.*settings\.toml': {re.escape(sentence)}$"):
        written(f"{field} = {value}")


def test_rejects_unknown_keys(written):
    with pytest.raises(UserError, match=rf"^settings '.*\.toml' have the unknown key 'window'; known: {KNOWN}$"):
        written("window = 4")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("group_tokens = 64.0", "group_tokens must be of type int, not 64.0"),
        ("group_tokens = true", "group_tokens must be of type int, not True"),
        ("tile_groups = 64.0", "tile_groups must be of type int, not 64.0"),
        ("prune = 1", "prune must be of type bool, not 1"),
        ("value_margin = 'wide'", "value_margin must be of type float, not 'wide'"),
        ("keep_fraction = false", "keep_fraction must be of type float, not False"),
        ("delta_bits = [2]", r"delta_bits must be of type int, not [2]"),
    ],
)
def test_rejects_values_of_another_type(written, line, sentence):
    with pytest.raises(UserError, match=rf"^settings '.*\.toml': {re.escape(sentence)}$"):
        written(line)


@pytest.mark.parametrize("content", ["group_tokens = ", "= 3", b"\xff\xfe", "a = 1\na = 2"])
def test_rejects_what_is_no_toml(written, content):
    with pytest.raises(UserError, match=r"^settings '.*settings\.toml' are not valid TOML: .+$"):
        written(content)


def test_rejects_files_that_cannot_be_read(tmp_path):
    missing = tmp_path / "absent.toml"
    with pytest.raises(UserError, match=r"^cannot read settings '.*absent\.toml': No such file or directory$"):
        KvoSettings.from_toml(missing)
    with pytest.raises(UserError, match=r"^cannot read settings '.*': Is a directory$"):
        KvoSettings.from_toml(tmp_path)


@pytest.mark.parametrize(("nats", "register"), [(0, 0), (1, 369), (7, 2585), (8.5, 3139), (64, 23637)])
def test_margins_are_base_2_with_8_fraction_bits(nats, register):
    assert KvoSettings.fixed_point(nats) == register
