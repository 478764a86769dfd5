"""Seeds and parameters of a run."""

import pytest

from cocotb_tests.lib import environment


def test_seed_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("SEED", "0x10")
    assert environment.seed() == 16


def test_seed_is_fixed_in_continuous_integration(monkeypatch):
    monkeypatch.delenv("SEED", raising=False)
    monkeypatch.setenv("CI", "true")
    assert environment.seed() == environment.CI_SEED


def test_random_seed_stays_for_the_process(monkeypatch):
    monkeypatch.setenv("SEED", "")
    monkeypatch.delenv("CI", raising=False)
    assert environment.seed() == environment.seed()


def test_rejects_seed_that_is_no_integer(monkeypatch):
    monkeypatch.setenv("SEED", "seven")
    with pytest.raises(ValueError, match=r"^SEED must be an integer, not 'seven'$"):
        environment.seed()


def test_generators_differ_by_label(monkeypatch):
    monkeypatch.setenv("SEED", "1")
    assert environment.rng("a").random() == environment.rng("a").random()
    assert environment.rng("a").random() != environment.rng("b").random()


def test_parameters_are_empty_without_launcher(monkeypatch):
    monkeypatch.delenv(environment.PARAMETERS_VARIABLE, raising=False)
    assert environment.params() == {}
