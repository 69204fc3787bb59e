"""What all tests of the workspace share: how hard hypothesis searches, and a clean environment of their own."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=50, print_blob=True)
settings.register_profile("dev", deadline=None, max_examples=20)
settings.register_profile(
    "thorough",
    deadline=None,
    max_examples=1000,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))

_PREFIXES = ("HMAC_BOTO_PRIMA_MENTE_BENCHMARK_", "PRIMA_BENCH_")


@pytest.fixture(scope="session", autouse=True)
def _clean_environment(tmp_path_factory: pytest.TempPathFactory) -> None:
    # A developer's own keypair, endpoints and cache stay out of the tests; the device to test on may be chosen.
    for name in [n for n in os.environ if n.startswith(_PREFIXES) and n != "PRIMA_BENCH_DEVICE"]:
        del os.environ[name]
    os.environ["PRIMA_BENCH_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root folder of the workspace."""
    return Path(__file__).parent
