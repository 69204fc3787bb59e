"""Ranks results that may be compared, and keeps apart those that may not.

Results are grouped by ``comparability_key``; each group is a board. Nothing is computed from predictions here: a board
shows what the result files say.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from prima_bench.tasks.errors import DataError, UnknownNameError, UsageError
from prima_bench.tasks.results.checks import score_key
from prima_bench.tasks.results.digest import round_significant
from prima_bench.tasks.results.schema import EvalResult
from prima_bench.tasks.results.text import ARROWS, clip, numbers, printable, table

LONGEST_LABEL = 40
"""Columns that a model may take in a table; the whole name is in the files."""
SHORT_LIST = 4
"""How many metrics a note names before it only counts."""

Source = str | PathLike[str] | EvalResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One model's line.

    Attributes:
        rank: 1 for the best; equal models share a rank and the next one is skipped. None below the line.
        model: The model's name and version.
        values: Every score, None where undefined.
        reason: Why the row is not ranked.
        paths: The files that hold this very result.
        result_digest: Identity of the result.
    """

    rank: int | None
    model: str
    values: Mapping[str, float | None]
    reason: str | None
    paths: tuple[str, ...]
    result_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """Results that may be compared.

    Attributes:
        task: ``name@version``.
        dataset: ``name@version``.
        comparability_key: What all rows share.
        order_by: The metrics that rank the rows; later ones only part ties.
        directions: ``"max"`` or ``"min"`` of every metric.
        rows: Best first; rows without a rank last.
        differs: What keeps this board apart from the first one of the same task.
    """

    task: str
    dataset: str
    comparability_key: str
    order_by: tuple[str, ...]
    directions: Mapping[str, str]
    rows: tuple[Row, ...]
    differs: tuple[str, ...]

    def tie_groups(self) -> list[list[str]]:
        """The ranked models, those with equal scores together, best first."""
        groups: dict[int, list[str]] = {}
        for row in self.rows:
            if row.rank is not None:
                groups.setdefault(row.rank, []).append(row.model)
        return list(groups.values())

    def to_text(self) -> str:
        """The board as a plain-text table, the ranking metrics first, rows without a rank last and why below it."""
        columns = [*self.order_by, *(m for m in self.directions if m not in self.order_by)]
        header = ("rank", "model", *(f"{m} {ARROWS[self.directions[m]]}" for m in columns))
        shared = {rank for rank, n in Counter(r.rank for r in self.rows).items() if n > 1}
        ranks = ["—" if r.rank is None else f"{r.rank}{'=' if r.rank in shared else ''}" for r in self.rows]
        labels = self._labels()
        values = [numbers([r.values[m] for r in self.rows]) for m in columns]
        lines = [printable(f"{self.task} on {self.dataset}")]
        lines += [printable(f"  differs in {d}") for d in self.differs]
        lines += table(header, list(zip(ranks, labels, *values, strict=True)), right=(0, *range(2, len(header))))
        for reason in dict.fromkeys(r.reason for r in self.rows if r.reason is not None):
            concerned = [label for label, r in zip(labels, self.rows, strict=True) if r.reason == reason]
            lines.append(printable(f"not ranked: {', '.join(concerned)}: {reason}"))
        return "\n".join(lines)

    def _labels(self) -> list[str]:
        """A short name for each row, with the file where two rows would have the same."""
        often = Counter(r.model for r in self.rows)
        labels = []
        for row in self.rows:
            file = f" ({printable(Path(row.paths[0]).name)})" if often[row.model] > 1 and row.paths else ""
            labels.append(clip(printable(row.model), LONGEST_LABEL) + file)
        return labels


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A file of a folder that is no readable result."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaderboard:
    """All boards, sorted by task and dataset, and the files that could not be read."""

    boards: tuple[Board, ...]
    left_out: tuple[LeftOut, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for strict JSON."""
        return asdict(self)

    def to_json(self) -> str:
        """Strict JSON with a final newline."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def to_text(self) -> str:
        """All boards as plain text."""
        blocks = [board.to_text() for board in self.boards]
        if not blocks and not self.left_out:
            blocks.append("no results")
        if self.left_out:
            blocks.append("\n".join(f"left out: {printable(e.path)}: {printable(e.reason)}" for e in self.left_out))
        return "\n\n".join(blocks)

    def __str__(self) -> str:
        return self.to_text()


def leaderboard(paths: Source | Iterable[Source]) -> Leaderboard:
    """Rank results.

    Args:
        paths: Result files, folders (searched for ``*.json``), :class:`EvalResult` objects, or several of these.

    Raises:
        DataError: If a file that was named cannot be read as a result. In a folder such files are listed instead.
        UsageError: If nothing was given, or something that is no path and no result.
    """
    sources = _sources(paths)
    if not sources:
        raise UsageError("no results were given", hint="Name result files, or a folder that holds them.")
    found: list[tuple[str, EvalResult]] = []
    left_out: list[LeftOut] = []
    for source in sources:
        if isinstance(source, EvalResult):
            found.append(("", source))
        elif Path(source).is_dir():
            for path in sorted(Path(source).rglob("*.json")):
                try:
                    found.append((str(path), EvalResult.load(path)))
                except DataError as error:
                    left_out.append(LeftOut(path=str(path), reason=error.message.removeprefix(f"{path} ")))
        else:
            found.append((str(source), EvalResult.load(source)))
    return Leaderboard(boards=tuple(_boards(found)), left_out=tuple(left_out))


def _sources(paths: Any) -> list[Source]:
    if isinstance(paths, str | PathLike | EvalResult):
        return [paths]
    sources = list(paths) if isinstance(paths, Iterable) else [paths]
    for source in sources:
        if not isinstance(source, str | PathLike | EvalResult):
            raise UsageError(f"{source!r} is neither a path nor a result", hint="Name result files, or their folder.")
    return sources


def _boards(found: Iterable[tuple[str, EvalResult]]) -> list[Board]:
    groups: dict[str, list[tuple[str, EvalResult]]] = {}
    for path, result in found:
        # What a result says of itself is not enough: a changed copy of one keeps the key it had.
        groups.setdefault(score_key(result), []).append((path, result))

    def by_name(group: list[tuple[str, EvalResult]]) -> tuple[str, ...]:
        first = group[0][1]
        return (first.task.name, first.task.version, first.dataset.key, score_key(first))

    boards: list[Board] = []
    of_task: dict[str, EvalResult] = {}
    for group in sorted(groups.values(), key=by_name):
        first = group[0][1]
        differs = tuple(differences(first, of_task.setdefault(first.task.name, first)))
        boards.append(_board(group, differs))
    return boards


def _board(group: list[tuple[str, EvalResult]], differs: tuple[str, ...]) -> Board:
    first = group[0][1]
    directions = {name: score.direction for name, score in first.scores.items()}
    order_by, why_not = _order(first)
    copies: dict[str, list[str]] = {}
    results: dict[str, EvalResult] = {}
    for path, result in group:
        results[result.result_digest] = result
        copies.setdefault(result.result_digest, []).extend([path] if path else [])

    # An undefined value sorts behind all numbers, so the unranked rows come last and never move a rank.
    keys = {digest: _sort_key(result, order_by) for digest, result in results.items()}
    rows = []
    for digest, result in sorted(results.items(), key=lambda item: (keys[item[0]], _model(item[1]), item[0])):
        reason = why_not or _unrankable(result, order_by[0])
        rank = None if reason else 1 + sum(key < keys[digest] for key in keys.values())
        values = {name: score.value for name, score in result.scores.items()}
        paths = tuple(sorted(copies[digest]))
        rows.append(
            Row(rank=rank, model=_model(result), values=values, reason=reason, paths=paths, result_digest=digest)
        )
    return Board(
        task=f"{first.task.name}@{first.task.version}",
        dataset=first.dataset.key,
        comparability_key=score_key(first),
        order_by=order_by,
        directions=directions,
        rows=tuple(rows),
        differs=differs,
    )


def _order(result: EvalResult) -> tuple[tuple[str, ...], str | None]:
    from prima_bench.tasks.registry import get_task

    try:
        primary = get_task(result.task.name).spec.primary
    except UnknownNameError:
        return (), f"the task {result.task.name} is not installed here, so its primary metrics are unknown"
    computed = tuple(name for name in primary if name in result.scores)
    return computed, None if computed else f"none of the task's primary metrics ({', '.join(primary)}) was computed"


def _sort_key(result: EvalResult, order_by: Iterable[str]) -> tuple[tuple[bool, float], ...]:
    key = []
    for name in order_by:
        score = result.scores[name]
        sign = -1.0 if score.direction == "max" else 1.0
        key.append((True, 0.0) if score.value is None else (False, sign * round_significant(score.value)))
    return tuple(key)


def _unrankable(result: EvalResult, primary: str) -> str | None:
    score = result.scores[primary]
    return f"{primary} is undefined: {score.reason}" if score.value is None else None


def _model(result: EvalResult) -> str:
    name = result.model.name or "unnamed"
    return f"{name} {result.model.version}" if result.model.version else name


def differences(a: EvalResult, b: EvalResult) -> list[str]:
    """What keeps two results from being compared, in a few words each; empty when they may be."""
    found = []
    for part in ("task", "dataset"):
        mine, theirs = getattr(a, part).model_dump(), getattr(b, part).model_dump()
        names = [f"{record['name']}@{record['version']}" for record in (mine, theirs)]
        if names[0] != names[1]:
            found.append(f"{part}: {names[0]}, elsewhere {names[1]}")
        else:
            # Of one name and version, only a digest can differ; of other names, it cannot but.
            found += [
                f"{part}.{k}: {_short(mine[k])}, elsewhere {_short(theirs[k])}" for k in mine if mine[k] != theirs[k]
            ]
    more, fewer = [_listed(sorted(set(x.scores) - set(y.scores))) for x, y in ((a, b), (b, a))]
    if more or fewer:
        found.append("metrics: " + "; ".join(filter(None, (more and f"also {more}", fewer and f"without {fewer}"))))
    for name in a.scores:
        if name in b.scores:
            for field in ("version", "params"):
                mine, theirs = getattr(a.scores[name], field), getattr(b.scores[name], field)
                if mine != theirs:
                    found.append(f"{field} of {name}: {mine}, elsewhere {theirs}")
    return found


def _short(digest: str) -> str:
    return digest[: len("sha256:") + 12]


def _listed(names: list[str]) -> str:
    rest = len(names) - SHORT_LIST
    return ", ".join(names if rest <= 1 else [*names[:SHORT_LIST], f"{rest} more"])
