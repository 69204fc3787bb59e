"""Opens prediction and solution files: h5ad, csv, tsv, parquet, npz. No format here can run code.

An ``.h5ad`` is opened, not read: its matrix is read in blocks later. What a table or an array means is the business of
``cells`` and ``labels``; what the containers may hold is that of ``archives``.
"""

import importlib.util
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import anndata
import pandas as pd
from anndata._io.specs.registry import IORegistryError  # anndata raises it and has no public name for it

from prima_bench.tasks.errors import PrimaBenchError, first_few
from prima_bench.tasks.inputs.archives import UNREADABLE, RefusedContent, read_arrays, refuse_links

MAX_TABLE_BYTES = 8 * 2**30
MAX_ARRAY_BYTES = 64 * 2**30
# pandas 3.1 reads every digit by itself and has deprecated the option that made older ones do so.
_OLD_PANDAS = tuple(int(part) for part in pd.__version__.split(".")[:2]) < (3, 1)
_EVERY_DIGIT: dict[str, Any] = {"float_precision": "round_trip"} if _OLD_PANDAS else {}
FORMATS = (".h5ad", ".csv", ".tsv", ".parquet", ".npz")


class Arrays(dict[str, Any]):
    """The named arrays of an ``.npz`` file."""


@contextmanager
def opened(x: Any, *, error: type[PrimaBenchError], text: Sequence[str] = ()) -> Iterator[Any]:
    """Open ``x`` if it is a path, and pass anything else through.

    Args:
        x: A path, or data in memory.
        error: What to raise.
        text: Columns of a csv or tsv file that hold names, so that ``1`` and ``True`` are read as strings.

    Yields:
        An AnnData (backed), a DataFrame indexed by the file's first column, :class:`Arrays`, or ``x`` itself.

    Raises:
        PrimaBenchError: If there is no such file, or it cannot be read.
    """
    if not isinstance(x, str | PathLike):
        yield x
        return
    try:
        path = Path(x)
    except TypeError as cause:
        raise error(f"{x!r} is no path: {cause}", hint="Give the path as a string or a pathlib.Path.") from cause
    if path.suffix not in FORMATS:
        raise error(f"{_shown(path)} has none of the suffixes {', '.join(FORMATS)}", hint="Save as one of these.")
    try:
        there = path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        there = False
    if not there:
        raise error(f"there is no file {_shown(path)}", hint="Check the path; it is relative to the working directory.")
    if path.suffix == ".h5ad":
        with _h5ad(path, error) as cells:
            yield cells
        return
    try:
        if path.suffix == ".npz":
            data: Any = _npz(path)
        else:
            data = _parquet(path) if path.suffix == ".parquet" else _table(path, text)
    except UNREADABLE as cause:
        raise _unreadable(path, cause, error) from cause
    yield data


def _unreadable(path: Path, cause: Exception, error: type[PrimaBenchError]) -> PrimaBenchError:
    hint = cause.hint if isinstance(cause, RefusedContent) else "It is damaged or of another kind; write it anew."
    return error(f"{_shown(path)} cannot be read as {path.suffix[1:]}: {str(cause) or type(cause).__name__}", hint=hint)


def _shown(path: Path) -> str:
    """A path as a terminal can print it, whatever bytes its name is made of."""
    return str(path).encode("utf-8", "backslashreplace").decode()


@contextmanager
def _h5ad(path: Path, error: type[PrimaBenchError]) -> Iterator[anndata.AnnData]:
    try:
        with warnings.catch_warnings():
            # Repeated names are an error of ours that names them; anndata's warning would only come first.
            warnings.filterwarnings("ignore", message=".*names are not unique", category=UserWarning)
            refuse_links(path)
            cells = anndata.read_h5ad(path, backed="r")
    except (*UNREADABLE, IORegistryError) as cause:
        raise _unreadable(path, cause, error) from cause
    try:
        yield cells
    finally:
        cells.file.close()


def _table(path: Path, text: Sequence[str]) -> pd.DataFrame:
    _bounded(path, path.stat().st_size, MAX_TABLE_BYTES)
    separator = "," if path.suffix == ".csv" else "\t"
    header = pd.read_csv(path, sep=separator, header=None, nrows=1, dtype=str, keep_default_na=False)
    names = header.iloc[0].tolist()
    twice = sorted({n for n in names if names.count(n) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise RefusedContent(
            f"columns are named more than once: {first_few(twice)}", hint="Drop or rename the repeated columns."
        )
    if len(names) == 1 and any(other in names[0] for other in ",;\t"):
        raise RefusedContent(
            f"no column ends at a {separator!r}; the first line is {names[0][:80]!r}",
            hint="Separate columns by commas in .csv and by tabs in .tsv.",
        )
    types = {names[0] or "Unnamed: 0": str, **{name: str for name in text if name in names}}
    frame: pd.DataFrame = pd.read_csv(
        path, sep=separator, index_col=0, dtype=types, keep_default_na=False, **_EVERY_DIGIT
    )
    return frame


def _parquet(path: Path) -> pd.DataFrame:
    if importlib.util.find_spec("pyarrow") is None:
        raise RefusedContent(
            "this needs pyarrow, which is not installed", hint="pip install pyarrow, or save as csv or h5ad."
        )
    _bounded(path, path.stat().st_size, MAX_TABLE_BYTES)
    frame = pd.read_parquet(path)
    if not len(frame.columns):
        raise RefusedContent("it has no columns", hint="Save the table with its columns.")
    return frame.set_index(frame.columns[0]) if isinstance(frame.index, pd.RangeIndex) else frame


def _npz(path: Path) -> Arrays:
    return Arrays(read_arrays(path, lambda size: _bounded(path, size, MAX_ARRAY_BYTES)))


def _bounded(path: Path, size: int, limit: int) -> None:
    if size > limit:
        raise RefusedContent(
            f"it holds {size / 2**30:.1f} GiB, more than {limit >> 30}; hand it in in shards",
            hint="Call update() once for each of several smaller files.",
        )
