"""Refuses what cannot be scored as classes, before anything is stored.

The same checks stand before the functions and before the classes. What passes here is exact: codes lie in the
vocabulary, scores are finite, probabilities are probabilities. Nothing is guessed from values, and nothing is repaired
but what the type of the tensor says that rounding did.
"""

import math
from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor

from prima_bench.metrics.errors import InputError
from prima_bench.metrics.numerics import tree_sum
from prima_bench.metrics.spill import row_blocks

Scores = Literal["probability", "logit"]
Labels = Literal["present", "union"]

SUM_TOLERANCE = 1e-3
"""How far a row of probabilities may sum from 1."""

ABSTAINED = -1
"""The label code of a row for which the model names no class."""

_NAMED = 5


def check_num_classes(num_classes: int) -> int:
    """Return the size of the vocabulary if it is one.

    Raises:
        InputError: If it is not a positive integer.
    """
    if isinstance(num_classes, bool) or not isinstance(num_classes, int) or num_classes < 1:
        raise InputError(
            f"num_classes must be a positive integer, not {num_classes!r}", hint="Pass the length of the class list."
        )
    return num_classes


def check_score_kind(scores: str) -> Scores:
    """Return what two-dimensional predictions are declared to be.

    Raises:
        InputError: If it is neither ``"probability"`` nor ``"logit"``.
    """
    if scores == "probability":
        return "probability"
    if scores == "logit":
        return "logit"
    raise InputError(f"scores cannot be {scores!r}", hint='Declare scores="probability" or scores="logit".')


def check_averaged_labels(labels: str) -> Labels:
    """Return which classes a macro average runs over.

    Raises:
        InputError: If it is neither ``"present"`` nor ``"union"``.
    """
    if labels == "present":
        return "present"
    if labels == "union":
        return "union"
    raise InputError(f"labels cannot be {labels!r}", hint='Average over labels="present" or labels="union".')


def prediction_field(preds: Tensor) -> Literal["label", "score"]:
    """Tell hard labels (integers, [n]) from class scores (floats, [n, C]) by dtype and shape alone.

    Raises:
        InputError: If the tensor is neither.
    """
    if not isinstance(preds, Tensor):
        raise InputError(
            f"preds must be a torch tensor, not {type(preds).__name__}", hint="Wrap it: torch.as_tensor(preds)."
        )
    if preds.ndim == 1 and _is_integer(preds):
        return "label"
    if preds.ndim == 2 and preds.is_floating_point():
        return "score"
    raise InputError(
        f"preds of shape {tuple(preds.shape)} and dtype {preds.dtype} are neither labels nor class scores",
        hint="Pass integer class codes of shape [n], or floating-point class scores of shape [n, num_classes].",
    )


def widened(preds: Tensor, scores: Scores) -> Tensor:
    """Predictions; probabilities in bfloat16 as float32, rows that its rounding moved divided by their sum.

    Rounding moves a probability by up to 2^-8 of itself, and a softmax that ran in bfloat16 by as much again; rows that
    are further off stay as they are, to be refused. Any other predictions are passed through.

    Example:
        >>> rounded = torch.tensor([[0.05, 0.05, 0.9]], dtype=torch.bfloat16)
        >>> float(rounded.float().sum()), float(widened(rounded, "probability").sum())
        (0.99853515625, 1.0)
    """
    if scores != "probability" or not isinstance(preds, Tensor) or preds.dtype != torch.bfloat16 or preds.ndim != 2:
        return preds
    rows = preds.detach().double()
    total = tree_sum(rows, dim=1)
    # A little less than the tolerance, since rows are added in float32 where they are checked.
    moved = ((total - 1).abs() > 0.99 * SUM_TOLERANCE) & ((total - 1).abs() <= torch.finfo(torch.bfloat16).eps)
    moved &= ((rows >= 0) & (rows <= 1)).all(dim=1)
    rows[moved] /= total[moved, None]
    return rows.float()


def check_rows(fields: Mapping[str, Tensor], num_classes: int, scores: Scores, index: Tensor | None = None) -> None:
    """Check a chunk of rows: true classes, and either predicted classes or class scores.

    Args:
        fields: ``"target"``, integer [n]; and either ``"label"``, integer [n], -1 where the model abstains, or
            ``"score"``, real [n, num_classes].
        num_classes: Size of the vocabulary; codes run from 0 to ``num_classes - 1``.
        scores: ``"probability"``: scores lie in [0, 1] and sum to 1 within 1e-3 in each row; ``"logit"``: any finite
            scores.
        index: Ids by which errors name rows, integer [n]; their positions when left out or unfit.

    Raises:
        InputError: If a shape or dtype is wrong, a code is outside the vocabulary, a score is NaN or infinite, or the
            scores are not what they are declared to be.

    Example:
        >>> check_rows({"target": torch.tensor([0, 2]), "label": torch.tensor([0, -1])}, 2, "probability")
        Traceback (most recent call last):
        prima_bench.metrics.errors.InputError: target codes must lie between 0 and 1; not so in rows 1 (seen 0 to 2)
        hint: Encode classes as their positions in the class list; a label of -1 abstains.
    """
    if ("label" in fields) == ("score" in fields):
        raise InputError("a row needs either a label or class scores", hint="Give one of them for all rows.")
    target, preds = fields["target"], fields["label" if "label" in fields else "score"]
    if not isinstance(target, Tensor) or len(target) != len(preds):
        raise InputError(f"{len(preds)} predictions need one target each", hint="Pass two tensors of one length.")
    named = index if isinstance(index, Tensor) and index.shape == target.shape else None
    _check_codes(target, "target", 0, num_classes, named)
    if "label" in fields:
        _check_codes(preds, "label", ABSTAINED, num_classes, named)
    else:
        _check_shape(preds, num_classes)
        _check_values(preds.detach(), scores, named)


def _check_codes(codes: Tensor, name: str, lowest: int, num_classes: int, index: Tensor | None) -> None:
    if codes.ndim != 1 or not _is_integer(codes):
        raise InputError(
            f"{name} must be an integer tensor of shape [n], not {codes.dtype} of shape {list(codes.shape)}",
            hint="Encode classes as their positions in the class list.",
        )
    if not len(codes):
        return
    codes = codes.long()
    low, high = (int(v) for v in torch.aminmax(codes))
    if low < lowest or high >= num_classes:
        rows = _named((codes < lowest) | (codes >= num_classes), index)
        raise InputError(
            f"{name} codes must lie between {lowest} and {num_classes - 1}; not so in rows {rows} "
            f"(seen {low} to {high})",
            hint="Encode classes as their positions in the class list; a label of -1 abstains.",
        )


def _check_shape(score: Tensor, num_classes: int) -> None:
    if score.ndim != 2 or score.shape[1] != num_classes or not score.is_floating_point():
        raise InputError(
            f"class scores must be floating-point of shape [n, {num_classes}], "
            f"not {score.dtype} of shape {list(score.shape)}",
            hint="Give one column per class, in the order of the class list.",
        )


def _check_values(score: Tensor, scores: Scores, index: Tensor | None) -> None:
    if not len(score):
        return
    # The extremes carry NaN and infinities, and need no second matrix.
    ends = torch.stack([torch.stack(torch.aminmax(block)) for _, block in row_blocks(score)])
    low, high = float(ends[:, 0].amin()), float(ends[:, 1].amax())
    if not (math.isfinite(low) and math.isfinite(high)):
        rows = _named(_by_row(score, lambda x: ~torch.isfinite(x).all(dim=1)), index)
        raise InputError(f"class scores are NaN or infinite in rows {rows}", hint="Every score must be finite.")
    if scores == "logit":
        return
    hint = 'If these are logits, declare scores="logit".'
    if low < 0 or high > 1:
        rows = _named(_by_row(score, lambda x: ((x < 0) | (x > 1)).any(dim=1)), index)
        raise InputError(
            f"class probabilities must lie between 0 and 1; not so in rows {rows} (seen {low:.6g} to {high:.6g})",
            hint=hint,
        )
    total = _by_row(score, lambda x: x.sum(dim=1, dtype=torch.promote_types(x.dtype, torch.float32)))
    off = (total - 1).abs() > SUM_TOLERANCE
    if bool(off.any()):
        raise InputError(
            f"class probabilities must sum to 1; not so in rows {_named(off, index)} (seen {float(total[off][0]):.6g})",
            hint=hint,
        )


def _by_row(score: Tensor, of: Callable[[Tensor], Tensor]) -> Tensor:
    return torch.cat([of(block) for _, block in row_blocks(score)])


def _is_integer(x: Tensor) -> bool:
    return not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)


def _named(rows: Tensor, index: Tensor | None) -> str:
    positions = rows.nonzero().flatten()
    first = positions[:_NAMED] if index is None else index.to(rows.device)[positions[:_NAMED]]
    more = f", ... ({len(positions)} in all)" if len(positions) > _NAMED else ""
    return ", ".join(map(str, first.tolist())) + more
