"""An evaluation among others of a process group: what they tell each other, and one that scores for all."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prima_bench.metrics.attendance import attend, first_line
from prima_bench.metrics.errors import LostRankError
from prima_bench.metrics.sync import share
from prima_bench.tasks import errors
from prima_bench.tasks.errors import PrimaBenchError
from prima_bench.tasks.results.schema import EvalResult


@contextmanager
def attended() -> Iterator[None]:
    """Tell the other ranks what went wrong here, should this one end because of it. One that goes on is not blamed."""
    attendance = attend()
    if attendance is None:
        yield
        return
    try:
        yield
    except Exception as error:
        lost = isinstance(error.__cause__ or error, LostRankError)
        attendance.trouble("" if lost else f"{type(error).__name__}: {first_line(str(error))}")
        raise
    attendance.trouble("")


def scored_for_all(score: Callable[[], EvalResult] | None) -> EvalResult:
    """The result of the one rank that scores; every rank must call it.

    Args:
        score: Scores; None on the ranks that wait for it.

    Raises:
        PrimaBenchError: What scoring raised, on every rank.
        LostRankError: If a rank gave up or ended.
    """
    if score is not None and attend() is None:
        return score()
    result: EvalResult | None = None
    refused: PrimaBenchError | None = None
    if score is not None:
        try:
            result = score()
        except PrimaBenchError as error:
            refused = error
    said = (
        None if result is None else result.to_json(),
        None if refused is None else (type(refused).__name__, refused.message, refused.hint),
    )
    for document, refusal in share(said, None):
        if refused is not None:
            raise refused
        if result is not None:
            return result
        if refusal is not None:
            name, message, hint = refusal
            raise getattr(errors, name, PrimaBenchError)(message, hint=hint)
        if document is not None:
            return EvalResult.model_validate_json(document)
    raise RuntimeError("no rank scored")
