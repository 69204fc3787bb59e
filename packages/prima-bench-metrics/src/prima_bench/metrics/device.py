"""Decides where tensors are computed. It only names a device; nothing is moved here."""

import os

import torch

from prima_bench.metrics.errors import InputError

DEVICE_VARIABLE = "PRIMA_BENCH_DEVICE"


def resolve_device(device: str | torch.device | None = None) -> torch.device:
    """The device to compute on: the argument, else ``PRIMA_BENCH_DEVICE``, else CUDA when there is one, else the CPU.

    Args:
        device: A device or its name (``"cpu"``, ``"cuda"``, ``"cuda:1"``); None to choose.

    Raises:
        InputError: If the name is not a device, or no such device is available here.

    Example:
        >>> resolve_device("cpu")
        device(type='cpu')
    """
    source = "device"
    if device is None:
        device = os.environ.get(DEVICE_VARIABLE, "").strip() or None
        source = DEVICE_VARIABLE
    if device is None:
        return torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"{source}={device!r} is not a device", hint="Write cpu, cuda or cuda:0.") from error
    if not _available(chosen):
        raise InputError(f"{source}={device!r} is not available here", hint="Choose cpu, or leave it out.")
    return chosen


def _available(device: torch.device) -> bool:
    if device.type == "cpu":
        return device.index in (None, 0)
    if device.type == "cuda":
        return torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()
    if device.type == "mps":
        return False  # it has no float64, which every score is computed in
    return bool(getattr(torch, device.type, None)) and bool(torch.get_device_module(device.type).is_available())
