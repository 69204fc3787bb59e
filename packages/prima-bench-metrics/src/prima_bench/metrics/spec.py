"""What a metric says about itself, and how a metric is referred to by name.

Pure data: this module imports neither torch nor numpy, so that metrics can be listed, documented and
referred to without the weight of computing them. The classes that compute live in the modules that
hold these specs; ``catalog`` reads the specs from those modules' syntax trees.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from prima_bench.metrics.errors import MetricError, MetricNameError

ParamValue = str | int | float | bool

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_SPACE = " \t\r\n"
# Wider than a name can be, so that pearson-delta is an unknown metric, which has a nearest one.
_REF = re.compile(r"[ \t\r\n]*(?P<name>[A-Za-z][A-Za-z0-9_-]*)[ \t\r\n]*(?:\((?P<params>[^()]*)\))?[ \t\r\n]*")
_WHOLE = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")

LARGEST_WHOLE = 2**31 - 1
"""Whole numbers go from minus this to this, so that they fit every integer type they may meet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """One parameter of a metric.

    Attributes:
        name: Keyword of the metric's constructor.
        default: Value when the reference does not name it.
        choices: The allowed values; empty when any value of the default's type is allowed.
        range: The smallest and the largest number that is allowed; None where there is no limit.
        summary: One sentence.

    Raises:
        ValueError: If the name is not an identifier, the default is no text, number or truth value, or the default is
            not allowed.
    """

    name: str
    default: ParamValue
    choices: tuple[ParamValue, ...] = ()
    range: tuple[float | None, float | None] = (None, None)
    summary: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"parameter name {self.name!r} is not lower_snake_case")
        if type(self.default) not in _READERS:
            raise ValueError(f"parameter {self.name}: the default {self.default!r} is no text, number or truth value")
        if self.choices and self.default not in self.choices:
            raise ValueError(f"parameter {self.name}: the default {self.default!r} is not among its choices")
        if not self._in_range(self.default):
            raise ValueError(f"parameter {self.name}: the default {self.default!r} is out of its range")

    def parse(self, text: str) -> ParamValue:
        """Turn the text of a reference into a value of this parameter's type.

        Numbers are written in ASCII digits; what Python would also read (``1_0``, digits of other scripts) is refused,
        since nobody else would.

        Raises:
            MetricNameError: If the text is not of the type, or not among the choices.
            MetricError: If a number is out of range.
        """
        kind = type(self.default)
        read, wanted = _READERS[kind]
        try:
            value = read(text)
        except ValueError:
            raise MetricNameError(
                f"parameter {self.name}={text!r} is not {wanted}", hint=f"The default is {_text(self.default)}."
            ) from None
        return self.check(value)

    def check(self, value: ParamValue) -> ParamValue:
        """Return ``value`` if it is allowed.

        Raises:
            MetricNameError: If it is not among the choices.
            MetricError: If it is a number out of range, or a whole one too large to be computed with.
        """
        if self.choices and value not in self.choices:
            raise MetricNameError(
                f"parameter {self.name} cannot be {value!r}",
                hint=f"Choose one of {', '.join(map(_text, self.choices))}.",
            )
        if not self._in_range(value):
            low, high = self.range
            limits = [f"at least {low:g}"] if low is not None else []
            limits += [f"at most {high:g}"] if high is not None else []
            limits = limits or [f"at most {LARGEST_WHOLE} in size"]
            raise MetricError(f"parameter {self.name} cannot be {value}", hint=f"It is {' and '.join(limits)}.")
        return value

    def _in_range(self, value: ParamValue) -> bool:
        if isinstance(value, str | bool):
            return True
        low, high = self.range
        too_large = isinstance(value, int) and abs(value) > LARGEST_WHOLE
        return not too_large and (low is None or value >= low) and (high is None or value <= high)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec:
    """The facts of one metric; cards and leaderboards are made from them.

    Attributes:
        name: What users type (``pearson_delta``).
        version: Starts at 1; raised whenever any value can move.
        inputs: The family of inputs that it scores (``"perturbation"``, ``"classification"``); a task with the
            same family offers it.
        implementation: Name of the class, in the same module.
        title: A few words, as a heading.
        summary: One sentence: what a good value means.
        formula: The formula, in plain text.
        direction: Whether larger or smaller is better.
        range: Smallest and largest possible value; None where unbounded.
        perfect: The value of a perfect prediction.
        chance: The value of no skill; None where it depends on the data.
        level: ``"unit"`` when the value is a mean over units, ``"global"`` when it is not.
        unit: What a unit is (``"perturbation"``, ``"class"``); None for global metrics.
        undefined: When the value, or a unit's value, does not exist.
        references: Papers or reference implementations.
        params: The parameters that a reference may set.
        notes: Where the field's tools disagree and what is taken here; known traps.

    Raises:
        ValueError: If the facts contradict each other.
    """

    name: str
    version: int
    inputs: str
    implementation: str
    title: str
    summary: str
    formula: str
    direction: Literal["max", "min"]
    range: tuple[float | None, float | None]
    perfect: float
    chance: float | None
    level: Literal["unit", "global"]
    unit: str | None
    undefined: str
    references: tuple[str, ...]
    params: tuple[Param, ...] = ()
    notes: str = ""

    def __post_init__(self) -> None:
        low, high = self.range
        problems = {
            "the name is not lower_snake_case": not _NAME.fullmatch(self.name),
            "the version is not a whole number from 1": type(self.version) is not int or self.version < 1,
            "the direction is neither max nor min": self.direction not in ("max", "min"),
            "the level is neither unit nor global": self.level not in ("unit", "global"),
            "a unit is named exactly when the level is unit": (self.level == "unit") != (self.unit is not None),
            "the perfect value lies outside the range": (low is not None and self.perfect < low)
            or (high is not None and self.perfect > high),
            "two parameters have one name": len({p.name for p in self.params}) != len(self.params),
        }
        for problem, found in problems.items():
            if found:
                raise ValueError(f"metric {self.name}: {problem}")


@dataclass(frozen=True, slots=True)
class MetricRef:
    """A metric's name with the parameters that differ from their defaults.

    Attributes:
        name: The metric.
        params: The parameters by name, sorted.
        alias: What another tool calls this metric with these parameters; no part of what the reference refers to.

    >>> str(MetricRef("pds_cosine", {"exclude_targets": "own"}))
    'pds_cosine(exclude_targets=own)'
    """

    name: str
    params: Mapping[str, ParamValue] = field(default_factory=dict)
    alias: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        # Adding zero makes one zero of the two.
        params = {k: v + 0.0 if isinstance(v, float) else v for k, v in sorted(self.params.items())}
        object.__setattr__(self, "params", MappingProxyType(params))

    def __str__(self) -> str:
        if not self.params:
            return self.name
        return f"{self.name}({', '.join(f'{k}={_text(v)}' for k, v in self.params.items())})"

    def __hash__(self) -> int:
        return hash((self.name, tuple(self.params.items())))

    def __reduce__(self) -> tuple[type["MetricRef"], tuple[str, dict[str, ParamValue], str | None]]:
        return MetricRef, (self.name, dict(self.params), self.alias)  # a read-only view cannot be pickled


def split_ref(text: str) -> tuple[str, dict[str, str]]:
    """Split the text of a reference into the name and its raw parameters.

    Args:
        text: ``name`` or ``name(param=value, ...)``.

    Raises:
        MetricNameError: If the text has another form.

    Example:
        >>> split_ref("pds_cosine(exclude_targets=own)")
        ('pds_cosine', {'exclude_targets': 'own'})
    """
    match = _REF.fullmatch(text)
    hint = "Write name or name(param=value, param=value)."
    if match is None:
        raise MetricNameError(f"{text!r} is not a metric reference", hint=hint)
    params: dict[str, str] = {}
    for part in (p.strip(_SPACE) for p in (match["params"] or "").split(",")):
        key, sep, value = (p.strip(_SPACE) for p in part.partition("="))
        if part and (not (key and sep and value) or key in params):
            raise MetricNameError(f"{part!r} in {text!r} is not one param=value", hint=hint)
        if part:
            params[key] = value
    return match["name"], params


def resolve_ref(text: str, spec: MetricSpec) -> MetricRef:
    """Check a reference's parameters against the spec and drop those that equal the default.

    Raises:
        MetricNameError: If a parameter is unknown, or its value is of another type or none of the choices.
        MetricError: If a number is out of range.

    Example:
        >>> from prima_bench.metrics.catalog import get_spec
        >>> str(resolve_ref("pds_cosine(exclude_targets=panel)", get_spec("pds_cosine")))
        'pds_cosine'
    """
    name, raw = split_ref(text)
    known = {p.name: p for p in spec.params}
    for key in raw:
        if key not in known:
            raise MetricNameError(
                f"metric {name} has no parameter {key!r}",
                hint=f"It takes {', '.join(known)}." if known else "It takes no parameters.",
            )
    values = {key: known[key].parse(value) for key, value in raw.items()}
    return MetricRef(name, {k: v for k, v in values.items() if v != known[k].default})


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _whole(text: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise ValueError(text)
    return int(text)


def _decimal(text: str) -> float:
    value = float(text) if _DECIMAL.fullmatch(text) else math.nan
    if not math.isfinite(value):
        raise ValueError(text)
    return value + 0.0  # -0.0 is no other number


_READERS: Mapping[type, tuple[Callable[[str], ParamValue], str]] = {
    bool: (_truth, "true or false"),
    int: (_whole, "a whole number"),
    float: (_decimal, "a number"),
    str: (str, "a text"),
}


def _text(value: ParamValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
