"""Opens prediction and solution files: h5ad, csv, tsv, parquet, npz. No format here can run code.

An ``.h5ad`` is opened, not read: its matrix is read in blocks later. What a table or an array means is the business of
``cells`` and ``labels``.
"""

import importlib.util
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd

from prima_bench.tasks.errors import PrimaBenchError, first_few

MAX_TABLE_BYTES = 8 * 2**30
MAX_ARRAY_BYTES = 64 * 2**30
# pandas 3.1 reads every digit by itself and has deprecated the option that made older ones do so.
_OLD_PANDAS = tuple(int(part) for part in pd.__version__.split(".")[:2]) < (3, 1)
_EVERY_DIGIT: dict[str, Any] = {"float_precision": "round_trip"} if _OLD_PANDAS else {}
FORMATS = (".h5ad", ".csv", ".tsv", ".parquet", ".npz")


class Arrays(dict[str, Any]):
    """The named arrays of an ``.npz`` file."""


@contextmanager
def opened(x: Any, *, error: type[PrimaBenchError]) -> Iterator[Any]:
    """Open ``x`` if it is a path, and pass anything else through.

    Args:
        x: A path, or data in memory.
        error: What to raise.

    Yields:
        An AnnData (backed), a DataFrame indexed by the file's first column, :class:`Arrays`, or ``x`` itself.

    Raises:
        PrimaBenchError: If there is no such file, or it cannot be read.
    """
    if not isinstance(x, str | PathLike):
        yield x
        return
    path = Path(x)
    if path.suffix not in FORMATS:
        raise error(f"{path} has none of the suffixes {', '.join(FORMATS)}", hint="Save as one of these.")
    if not path.is_file():
        raise error(f"there is no file {path}")
    if path.suffix == ".h5ad":
        with _h5ad(path, error) as cells:
            yield cells
        return
    try:
        data = {".csv": _csv, ".tsv": _csv, ".parquet": _parquet, ".npz": _npz}[path.suffix](path)
    except (OSError, ValueError, KeyError, EOFError, ImportError, zipfile.BadZipFile) as cause:
        raise error(f"{path} cannot be read as {path.suffix[1:]}: {cause}") from cause
    yield data


@contextmanager
def _h5ad(path: Path, error: type[PrimaBenchError]) -> Iterator[anndata.AnnData]:
    try:
        with warnings.catch_warnings():
            # Repeated names are an error of ours that names them; anndata's warning would only come first.
            warnings.filterwarnings("ignore", message=".*names are not unique", category=UserWarning)
            cells = anndata.read_h5ad(path, backed="r")
    except (OSError, KeyError, ValueError, TypeError, AttributeError) as cause:
        raise error(f"{path} cannot be read as h5ad: {cause}") from cause
    try:
        yield cells
    finally:
        cells.file.close()


def _csv(path: Path) -> pd.DataFrame:
    _bounded(path, path.stat().st_size, MAX_TABLE_BYTES)
    separator = "," if path.suffix == ".csv" else "\t"
    header = pd.read_csv(path, sep=separator, header=None, nrows=1, dtype=str, keep_default_na=False)
    names = header.iloc[0].tolist()
    twice = sorted({n for n in names if names.count(n) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise ValueError(f"columns are named more than once: {first_few(twice)}")
    types = {names[0] or "Unnamed: 0": str}
    frame: pd.DataFrame = pd.read_csv(
        path, sep=separator, index_col=0, dtype=types, keep_default_na=False, **_EVERY_DIGIT
    )
    return frame


def _parquet(path: Path) -> pd.DataFrame:
    if importlib.util.find_spec("pyarrow") is None:
        raise ValueError("this needs pyarrow, which is not installed (pip install pyarrow); or save as csv or h5ad")
    _bounded(path, path.stat().st_size, MAX_TABLE_BYTES)
    frame = pd.read_parquet(path)
    return frame.set_index(frame.columns[0]) if isinstance(frame.index, pd.RangeIndex) else frame


def _npz(path: Path) -> Arrays:
    with zipfile.ZipFile(path) as archive:
        _bounded(path, sum(member.file_size for member in archive.infolist()), MAX_ARRAY_BYTES)
    with np.load(path, allow_pickle=False) as arrays:
        return Arrays({name: arrays[name] for name in arrays.files})


def _bounded(path: Path, size: int, limit: int) -> None:
    if size > limit:
        raise ValueError(f"{path.name} holds {size / 2**30:.1f} GiB, more than {limit >> 30}; hand it in in shards")
