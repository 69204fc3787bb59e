"""Specs put into words, the same in the terminal and on the cards."""

from prima_bench.metrics.spec import MetricSpec, Param, ParamValue

_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "any text"}


def number(x: float) -> str:
    """A number of a spec, without needless zeros.

    >>> number(1.0), number(0.5)
    ('1', '0.5')
    """
    return f"{x:g}"


def span(bounds: tuple[float | None, float | None]) -> str:
    """The range of a metric.

    >>> span((0.0, 1.0)), span((0.0, None)), span((None, None))
    ('0 to 1', '0 or more', 'any number')
    """
    low, high = bounds
    if low is not None and high is not None:
        return f"{number(low)} to {number(high)}"
    if low is not None:
        return f"{number(low)} or more"
    return f"{number(high)} or less" if high is not None else "any number"


def better(direction: str) -> str:
    """Which way is better, as an arrow with its word.

    >>> better("max"), better("min")
    ('↑ higher', '↓ lower')
    """
    return "↑ higher" if direction == "max" else "↓ lower"


def chance(spec: MetricSpec) -> str:
    """The value of no skill."""
    return "depends on the data" if spec.chance is None else number(spec.chance)


def averaged(spec: MetricSpec) -> str:
    """How a metric's value comes about."""
    return f"one for each {spec.unit}, then their mean" if spec.unit else "one for all rows together"


def param(p: Param) -> str:
    """A parameter's allowed values, its default and what it does.

    >>> param(Param(name="k", default=3, range=(1, None), summary="How many."))
    'a whole number, 1 or more; default 3. How many.'
    """
    allowed = f"one of {', '.join(map(value, p.choices))}" if p.choices else bounds(p)
    return f"{allowed}; default {value(p.default)}. {p.summary}".strip()


def bounds(p: Param) -> str:
    """The values of a parameter that has no list of choices.

    >>> bounds(Param(name="k", default=3, range=(1, None), summary="How many."))
    'a whole number, 1 or more'
    """
    return _KINDS[type(p.default)] + (f", {span(p.range)}" if p.range != (None, None) else "")


def value(setting: ParamValue) -> str:
    """A parameter's value as it is written in a reference.

    >>> value(True), value(20), value("own")
    ('true', '20', 'own')
    """
    return str(setting).lower() if isinstance(setting, bool) else str(setting)


def size(count: int) -> str:
    """A number of bytes for people.

    >>> size(999), size(123456), size(5_300_000), size(20_000_000_000)
    ('999 bytes', '123.5 kB', '5.3 MB', '20.0 GB')
    """
    if count < 1000:
        return f"{count} bytes"
    for unit, length in (("kB", 1e3), ("MB", 1e6)):
        if count < 1000 * length:
            return f"{count / length:.1f} {unit}"
    return f"{count / 1e9:.1f} GB"
