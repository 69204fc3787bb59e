"""Finds the modules behind a name and reads a spec out of a file, without importing or running anything.

Metrics, tasks and datasets are declared by a top-level assignment made of literals and spec constructors. It is read
from the syntax tree, so that listing stays quick and a plugin that fails, or imports half the world, can neither break
the list nor slow it. A constant that several specs share may have a name, in the same file or imported from another.
This module knows nothing of metrics, tasks or entry points; ``catalog`` and the tasks' registry do.
"""

import ast
import difflib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_SHOWN = 60
"""How much of a piece of source an error shows."""

Constructors = Mapping[str, Callable[..., Any]]


def modules_under(root: str) -> Iterator[tuple[str, Path]]:
    """The module of that dotted name, or every module of the package of that name and of packages within it.

    Nothing is imported.

    Yields:
        Dotted name and file.

    Raises:
        ImportError: If there is no such module, or it is not made of Python source.
        ValueError: If the name is empty or has an empty part.

    Example:
        >>> [name for name, _ in modules_under("prima_bench.metrics.specfiles")]
        ['prima_bench.metrics.specfiles']
    """
    location = _locate(root)
    if isinstance(location, Path):
        yield root, location
        return
    for folder in location:
        yield from _modules_in(root, Path(folder))


def _modules_in(package: str, folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.iterdir()):
        if path.suffix == ".py" and path.stem != "__init__":
            yield f"{package}.{path.stem}", path
        elif (path / "__init__.py").is_file():
            yield from _modules_in(f"{package}.{path.name}", path)


def read_constant(path: Path, name: str, constructors: Constructors) -> Any:
    """The value that a file assigns to a name at its top level, or None when it assigns none.

    Args:
        path: A Python file; it is not run.
        name: The name.
        constructors: What may be called in the value, by name, with keyword arguments only.

    Raises:
        ValueError: If the value is not made of literals, these constructors and names of such values.
        TypeError: If a constructor lacks a field or is given an unknown one.
        SyntaxError: If the file is not Python.
        OSError: If the file cannot be read.
    """
    return _File(path, constructors).value(name)


@dataclass
class _File:
    path: Path
    constructors: Constructors
    readers: tuple[tuple[Path, str], ...] = ()
    _assigned: dict[str, ast.expr] = field(init=False, default_factory=dict)
    _imported: dict[str, tuple[str, str]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for node in ast.parse(self.path.read_text(encoding="utf-8"), filename=str(self.path)).body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._assigned[name] = value
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    self._assigned[name] = value
                case ast.ImportFrom(module=str(module), level=0, names=names):
                    self._imported |= {alias.asname or alias.name: (module, alias.name) for alias in names}
                case _:
                    pass

    def value(self, name: str) -> Any:
        if name not in self._assigned:
            return None
        return self._value(self._assigned[name])

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Tuple(elts=items):
                return tuple(self._value(item) for item in items)
            case ast.Dict(keys=keys, values=values) if None not in keys:
                named = [self._value(key) for key in keys if key is not None]
                return dict(zip(named, map(self._value, values), strict=True))
            case ast.Call(func=ast.Name(id=name), args=args, keywords=words) if name in self.constructors:
                if args or not all(word.arg for word in words):
                    raise ValueError(f"{self.path.name}:{node.lineno}: name every field of {name}(...)")
                return self.constructors[name](**{str(word.arg): self._value(word.value) for word in words})
            case ast.Name(id=name) if name in self._assigned or name in self._imported:
                return self._named(name, node)
        try:
            return ast.literal_eval(node)
        except ValueError:
            allowed = ", ".join(f"{name}(...)" for name in self.constructors)
            written = ast.unparse(node)[:_SHOWN]
            raise ValueError(
                f"{self.path.name}:{node.lineno}: {written} is not a literal, {allowed} or the name of one"
            ) from None

    def _named(self, name: str, node: ast.expr) -> Any:
        """The value of a name, which may be assigned here or in the file that it is imported from."""
        reader = (self.path, name)
        if reader in self.readers:
            raise ValueError(f"{self.path.name}:{node.lineno}: {name} is defined by itself")
        readers = (*self.readers, reader)
        if name in self._assigned:
            here = _File(self.path, self.constructors, readers)
            return here._value(here._assigned[name])
        module, original = self._imported[name]
        location = _locate(module)
        if not isinstance(location, Path):
            raise ValueError(f"{self.path.name}:{node.lineno}: {name} is imported from {module}, which is no file")
        there = _File(location, self.constructors, readers)
        if original not in there._assigned:
            raise ValueError(f"{self.path.name}:{node.lineno}: {module} assigns no {original}")
        return there._value(there._assigned[original])


def _locate(name: str) -> Path | list[Path]:
    """The file of a module, or the folders of a package, found part by part so that no parent is imported."""
    top, *rest = name.split(".")
    loaded = sys.modules.get(top)
    spec = loaded.__spec__ if loaded is not None else importlib.util.find_spec(top)
    if spec is None:
        raise ImportError(f"no module or package {top} is installed")
    origin = spec.origin
    folders = [Path(f) for f in spec.submodule_search_locations or ()]
    if loaded is not None:
        folders = [Path(f) for f in getattr(loaded, "__path__", ())]
    parent = top
    for part in rest:
        if not part:
            raise ValueError(f"{name!r} has an empty part")
        siblings = folders
        origin, folders = _inside(folders, part)
        if origin is None and not folders:
            raise ImportError(f"{parent} has no module {part}{_nearest(part, siblings)}")
        parent = f"{parent}.{part}"
    if folders:
        return folders
    if origin is not None and origin.endswith(".py") and Path(origin).is_file():
        return Path(origin)
    raise ImportError(f"{name} is not made of Python source")


def _nearest(part: str, folders: list[Path]) -> str:
    there = sorted({path.stem for folder in folders for path in folder.glob("*") if path.stem.isidentifier()})
    near = difflib.get_close_matches(part, there, n=3)
    return f"; nearest: {', '.join(near)}" if near else ""


def _inside(folders: list[Path], part: str) -> tuple[str | None, list[Path]]:
    """A part of a package as import would find it: the first package or module, else all portions of a namespace."""
    portions: list[Path] = []
    for folder in folders:
        if (folder / part / "__init__.py").is_file():
            return None, [folder / part]
        if (folder / f"{part}.py").is_file():
            return str(folder / f"{part}.py"), []
        if (folder / part).is_dir():
            portions.append(folder / part)
    return None, portions
