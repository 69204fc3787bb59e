"""The two digests of a result: what may be compared with it, and whether two runs agree.

Nothing here knows the schema's classes: both functions take plain documents, so that a reader in another language can
follow them line by line.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from prima_bench.tasks.specs import digest_of

SIGNIFICANT_DIGITS = 12
"""What of a float enters a digest: beyond it, two machines may differ in the last bit of a logarithm."""


def round_significant(x: float) -> float:
    """Round to 12 significant digits; negative zero becomes zero.

    >>> round_significant(0.1 + 0.2)
    0.3
    """
    return float(f"{x:.{SIGNIFICANT_DIGITS}g}") + 0.0


def comparability_key(task: Mapping[str, Any], dataset: Mapping[str, Any], metrics: Iterable[Mapping[str, Any]]) -> str:
    """``sha256:...`` over what two results must share before their scores may be compared.

    Args:
        task: ``name``, ``version``, ``digest``.
        dataset: ``name``, ``version``, ``digest``, ``solution_digest``.
        metrics: ``name``, ``version`` and ``params`` of each; their order does not matter.
    """
    return digest_of({"task": dict(task), "dataset": dict(dataset), "metrics": sorted(map(digest_of, metrics))})


def result_digest(document: Mapping[str, Any]) -> str:
    """``sha256:...`` over a result's document, the same for the same predictions however they were handed in.

    Left out are ``result_digest`` itself, ``provenance`` (machine, time, versions) and
    ``predictions.duplicates_dropped`` (how often a sampler padded). Floats are rounded to 12 significant digits.
    """
    kept = {k: v for k, v in document.items() if k not in ("provenance", "result_digest")}
    predictions = dict(kept["predictions"])
    predictions.pop("duplicates_dropped")
    return digest_of(_rounded(kept | {"predictions": predictions}))


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round_significant(value)
    if isinstance(value, Mapping):
        return {k: _rounded(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(v) for v in value]
    return value
