"""The options of ``evaluate`` that say how data of one's own are read: which belong together, and what they are called.

The API names them as keywords and the command line as options. What can be seen from the names alone is refused here,
before anything heavy is loaded; what a value means is the API's business.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prima_bench.tasks.errors import PrimaBenchError, UsageError
from prima_bench.tasks.registry import get_task

REQUIRED = {"perturbation": ("perturbation_key", "control", "scale"), "classification": ("label_key",)}
"""By family of tasks, what must be said of a solution of one's own."""
OPTIONAL = {"perturbation": ("target_map", "target_separator", "context_key"), "classification": ("classes", "scores")}
"""By family of tasks, what may be said of it."""
OF_PREDICTIONS = ("scores",)
"""Options that describe predictions, so that they may stand beside a registered dataset."""

_KEYWORDS = (
    *("perturbation_key", "control", "scale", "target_map", "target_separator", "context_key"),
    *("label_key", "classes", "scores", "solution", "anchors"),
)
_KEYWORD = re.compile(rf"\b({'|'.join(_KEYWORDS)})=(?:'([^']*)'|\"([^\"]*)\")?|\b(target_map|context_key)\b")
CALLS = {
    "Call update(predictions=...) before compute()": "Name files that hold some after --predictions",
    "Call update()": "Give --predictions",
    "update()": "--predictions",
}
"""What to do, in words of the API and of ``evaluate``."""
CALLS_OF_MERGE = {
    "Call update(predictions=...) before compute()": "Name states of runs that were handed some",
    "hand in further shards with update()": "name the states of all parts",
}
"""The same of ``merge``."""
_NO_OPTION = re.compile(r",? or pass (?:ids|perturbation|context)=(?:, one \w+ for each \w+)?")
"""Ways out that the command line does not have, since files say it themselves."""


def option(keyword: str) -> str:
    """A keyword as it is typed.

    >>> option("label_key")
    '--label-key'
    """
    return "--" + keyword.replace("_", "-")


def check_options(task: str, dataset: str | None, solution: Path | None, given: Iterable[str]) -> None:
    """Refuse options that contradict each other, are of another kind of task, or are missing.

    Args:
        task: Name of the task.
        dataset: The registered dataset that was named.
        solution: The solution of one's own that was named.
        given: Keywords of the other options that were given.

    Raises:
        UnknownNameError: If there is no such task.
        UsageError: If they do not go together.
    """
    family = get_task(task).spec.problem
    required, optional = REQUIRED.get(family, ()), OPTIONAL.get(family, ())
    if solution is not None and dataset is not None:
        raise UsageError(
            "--solution and --dataset exclude each other",
            hint="A dataset brings its own solution. Leave out one of the two.",
        )
    strange = [name for name in given if name not in (*required, *optional)]
    if strange and family in REQUIRED:
        raise UsageError(
            f"{_listed(strange)} {_verb(strange, 'has', 'have')} no meaning for {task}",
            hint=f"Its options for data of your own: --solution, {', '.join(map(option, (*required, *optional)))}.",
        )
    of_solution = [name for name in given if name not in OF_PREDICTIONS]
    if solution is None and of_solution:
        instead = f", in the place of --dataset {dataset}" if dataset is not None else ""
        raise UsageError(
            f"{_listed(of_solution)} {_verb(of_solution, 'says', 'say')} how a solution of your own is read, "
            f"but a dataset is scored against",
            hint=f"Leave out {_listed(of_solution)}, or add --solution FILE{instead}.",
        )
    missing = [name for name in required if name not in given]
    if solution is not None and missing:
        raise UsageError(
            f"--solution needs {_listed(missing)}",
            hint="Nothing about a solution is guessed; say which column, label or scale it is.",
        )


def read_classes(text: str) -> list[str]:
    """The classes in their order, from a file with one a line, or from a list separated by commas.

    Raises:
        UsageError: If the text is neither, or the file is no text.

    Example:
        >>> read_classes("B cell, T cell")
        ['B cell', 'T cell']
    """
    if os.path.isfile(text):  # noqa: PTH113 (unlike Path.is_file it does not raise for a list that is too long for a name)
        try:
            lines = Path(text).read_text(encoding="utf-8-sig").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--classes {text}: cannot be read as text", hint="Write one class a line.") from error
        return [line.strip() for line in lines if line.strip()]
    if "," in text:
        return [name.strip() for name in text.split(",")]
    raise UsageError(
        f"--classes {text}: there is no such file",
        hint="Name a file with one class a line, or all classes separated by commas.",
    )


def as_options(sentence: str, calls: Mapping[str, str] = CALLS) -> str:
    """A sentence of the API, with its keywords as they are typed.

    Args:
        sentence: The sentence.
        calls: What stands for the calls in it.

    >>> as_options("classes= lacks 'B'; declare scale='counts'")
    "--classes lacks 'B'; declare --scale counts"
    """
    sentence = _NO_OPTION.sub("", sentence)
    for call, words in calls.items():
        sentence = sentence.replace(call, words)
    return _KEYWORD.sub(lambda m: " ".join(filter(None, (option(m[1] or m[4]), m[2] or m[3]))), sentence)


@contextmanager
def errors_name_options(calls: Mapping[str, str] = CALLS) -> Iterator[None]:
    """Let errors of the API speak of options.

    Args:
        calls: What stands for its calls.
    """
    try:
        yield
    except PrimaBenchError as error:
        error.args = (as_options(error.message, calls), *error.args[1:])
        error.hint = as_options(error.hint, calls)
        raise


def given_options(options: Mapping[str, str | None]) -> dict[str, Any]:
    """What was given of the options, as the API takes it.

    Raises:
        UsageError: If ``classes`` is neither a file nor a list.
    """
    known = {name: value for name, value in options.items() if value is not None}
    return {name: read_classes(value) if name == "classes" else value for name, value in known.items()}


def _listed(names: list[str]) -> str:
    typed = [option(name) for name in names]
    return " and ".join(filter(None, (", ".join(typed[:-1]), typed[-1])))


def _verb(names: list[str], one: str, several: str) -> str:
    return one if len(names) == 1 else several
