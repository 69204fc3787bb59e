"""The device comes from the argument, else from the environment, else from what the machine has."""

import pytest
import torch

from prima_bench.metrics import InputError, resolve_device

FREE = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")


def test_the_argument_wins_over_the_environment(monkeypatch):
    monkeypatch.setenv("PRIMA_BENCH_DEVICE", "meta")
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device(torch.device("cpu")) == torch.device("cpu")


def test_the_environment_wins_over_the_machine(monkeypatch):
    monkeypatch.setenv("PRIMA_BENCH_DEVICE", " cpu ")
    assert resolve_device() == torch.device("cpu")


@pytest.mark.parametrize("value", [None, "", "  "])
def test_without_either_the_machine_decides(monkeypatch, value):
    monkeypatch.delenv("PRIMA_BENCH_DEVICE", raising=False)
    if value is not None:
        monkeypatch.setenv("PRIMA_BENCH_DEVICE", value)
    assert resolve_device() == FREE


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "cpu:7", "cuda:999", "meta", "mps", "hpu"])
def test_a_device_that_cannot_be_used_is_refused(name):
    with pytest.raises(InputError, match=f"device='{name}' is not") as caught:
        resolve_device(name)
    assert caught.value.hint


def test_a_bad_environment_names_the_variable(monkeypatch):
    monkeypatch.setenv("PRIMA_BENCH_DEVICE", "gpu")
    with pytest.raises(InputError, match="PRIMA_BENCH_DEVICE='gpu' is not a device"):
        resolve_device()
