"""``prima-bench cache``: where downloads are kept, whether they are whole, and how to get their room back."""

# ruff: noqa: D301 (a backslash before b keeps the lines of an example together in --help)

import re
import time
from typing import Annotated, Any

import typer

from prima_bench.cli.grammar import Command, Group
from prima_bench.cli.options import Json
from prima_bench.cli.render import Steps, facts, remark, table, write, write_json
from prima_bench.cli.words import size
from prima_bench.storage.cache import Cache, upkeep
from prima_bench.storage.cache.upkeep import Entry
from prima_bench.storage.manifest.model import manifest_at
from prima_bench.tasks.errors import IncomparableError, UsageError, counted

_SIZES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_TIMES = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_KINDS = {
    "blob": "files",
    "partial": "interrupted downloads",
    "quarantine": "damaged files",
    "lock": "locks",
    "view": "stray copies",
}

app = typer.Typer(cls=Group, no_args_is_help=True)


@app.callback()
def cache() -> None:
    """See and clean what was downloaded."""


@app.command(cls=Command)
def path() -> None:
    """Print the folder of the cache.

    \b
    Example:
      prima-bench cache path
    """
    write(str(Cache.from_environment().root))


@app.command(cls=Command)
def info(as_json: Json = False) -> None:
    """Show what is kept, of which datasets.

    Also how large it is and when it was last used.

    \b
    Examples:
      prima-bench cache info
      prima-bench cache info --json
    """
    store = Cache.from_environment()
    found = upkeep.entries(store)
    if as_json:
        write_json({"path": str(store.root), "size": sum(e.size for e in found), "entries": list(map(_record, found))})
        return
    write(facts([("path", str(store.root)), *_totals(found)]))
    blobs = [e for e in found if e.kind == "blob"]
    if blobs:
        now = time.time()
        rows = [[e.path.name[:12], size(e.size), _age(now - e.used), _known_as(e)] for e in blobs]
        write()
        write(table(["blob", "size", "unused for", "known as"], rows, right=[1, 2]))


@app.command(cls=Command)
def verify(as_json: Json = False) -> None:
    """Compare every file with its digest.

    Ends with 6 when one is damaged. Damaged files are moved aside, where that may be done, so that they are fetched
    again when they are next needed.

    \b
    Example:
      prima-bench cache verify
    """
    store = Cache.from_environment()
    with Steps() as steps:
        blobs = [e for e in upkeep.entries(store) if e.kind == "blob"]
        bad = upkeep.damaged(store, steps, blobs=blobs)
    if as_json:
        write_json({"path": str(store.root), "verified": len(blobs) - len(bad), "damaged": [p.name for p in bad]})
    else:
        write("\n".join([f"{counted(len(blobs) - len(bad), 'file')} verified", *(f"damaged: {p}" for p in bad)]))
    if bad:
        left = [path for path in bad if path.exists()]
        hint = "They are fetched again when they are next needed. If it happens again, check the disk."
        if left:
            hint = f"{counted(len(left), 'file')} could not be moved aside: whoever may write there must delete them."
        raise IncomparableError(f"{len(bad)} of {counted(len(blobs), 'file')} damaged", hint=hint)


@app.command(cls=Command)
def clean(
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="TIME", help="Delete files unused for so long: 12h, 30d, 8w."),
    ] = None,
    max_size: Annotated[
        str | None,
        typer.Option("--max-size", metavar="SIZE", help="Delete files unused longest until no more is left: 20GB."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Delete all files.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Say what would be deleted; delete nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Delete leftovers, and what the options name.

    Leftovers are interrupted downloads, damaged files and stray copies.

    Files used within the last hour stay unless --all is given, and so does what is being downloaded.

    \b
    Examples:
      prima-bench cache clean
      prima-bench cache clean --older-than 30d --max-size 20GB --dry-run
      prima-bench cache clean --all
    """
    limits: dict[str, Any] = {
        "older_than": None if older_than is None else _amount(older_than, _TIMES, "--older-than", "30d"),
        "max_size": None if max_size is None else int(_amount(max_size, _SIZES, "--max-size", "20GB")),
        "everything": everything,
    }
    store = Cache.from_environment()
    upkeep.check_is_cache(store)
    going = upkeep.removable(store, **limits)
    gone: list[Entry] = going if dry_run else []
    try:
        if not dry_run:
            upkeep.remove(store, going, gone.append)
    finally:
        # What is gone is told even where something could not be deleted.
        _tell(store, gone, dry_run=dry_run, as_json=as_json)


def _tell(store: Cache, gone: list[Entry], *, dry_run: bool, as_json: bool) -> None:
    freed = sum(e.size for e in gone)
    if as_json:
        write_json({"path": str(store.root), "dry_run": dry_run, "size": freed, "entries": list(map(_record, gone))})
        return
    for entry in gone:
        write(f"{entry.path}  {size(entry.size)}{'  ' + ', '.join(entry.views) if entry.views else ''}")
    remark(f"{counted(len(gone), 'file')}, {size(freed)} {'would be deleted' if dry_run else 'deleted'}")


def _totals(found: list[Entry]) -> list[tuple[str, str]]:
    totals = []
    for kind, label in _KINDS.items():
        of_kind = [e for e in found if e.kind == kind]
        if of_kind or kind == "blob":
            totals.append((label, f"{len(of_kind)}, {size(sum(e.size for e in of_kind))}"))
    return totals


def _known_as(entry: Entry) -> str:
    if entry.views:
        return ", ".join(entry.views)
    # It is kept under no name of its own: what leads to it is its digest.
    manifest = manifest_at(entry.path)
    return "-" if manifest is None else f"manifest of {manifest.name}@{manifest.version}"


def _record(entry: Entry) -> dict[str, Any]:
    return {
        "path": str(entry.path),
        "kind": entry.kind,
        "size": entry.size,
        "used": round(entry.used),
        "views": list(entry.views),
    }


def _age(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return "now"


def _amount(text: str, units: dict[str, int], option: str, example: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]?)b?", text.strip().lower())
    if found is None or found[2] not in units or len(found[1]) > 15:
        known = ", ".join(unit for unit in units if unit)
        raise UsageError(f"{option} {text!r}: not a number with a unit", hint=f"Write {example}. Units: {known}.")
    return float(found[1]) * units[found[2]]
