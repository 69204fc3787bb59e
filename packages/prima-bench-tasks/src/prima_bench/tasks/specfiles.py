"""Reads the ``SPEC`` of a task or dataset file without running the file.

A curator's file holds ``SPEC = TaskSpec(...)`` or ``SPEC = DatasetSpec(...)`` at its top level, written in literals.
It is read from the syntax tree, so that listing runs nobody's code: a plugin that fails or imports half the world
when it is imported can neither break the list nor slow it. This module knows nothing about names or entry points;
``registry`` does.
"""

import ast
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from prima_bench.tasks.specs import ArtifactSpec, BaselineSpec, DatasetSpec, TaskSpec

_CONSTRUCTORS: Mapping[str, Callable[..., Any]] = {
    cls.__name__: cls for cls in (ArtifactSpec, BaselineSpec, DatasetSpec, TaskSpec)
}


def modules_under(root: str) -> Iterator[tuple[str, Path]]:
    """The module of that dotted name, or every module of the package of that name, with its file; nothing is imported.

    Raises:
        ImportError: If there is no such module, or it is not made of Python source.
        ValueError: If the name is empty or has an empty part.
    """
    location = _locate(root)
    if isinstance(location, Path):
        yield root, location
        return
    for folder in location:
        for path in sorted(Path(folder).glob("*.py")):
            if path.stem != "__init__":
                yield f"{root}.{path.stem}", path


def read_spec(path: Path) -> Any:
    """The value of a file's top-level ``SPEC``, or None when it has none.

    Raises:
        ValueError: If ``SPEC`` is not made of literals and spec constructors.
        TypeError: If a constructor lacks a field or is given an unknown one.
        SyntaxError: If the file is not Python.
        OSError: If the file cannot be read.

    Example:
        >>> from prima_bench.tasks.definitions import cell_type_annotation
        >>> read_spec(Path(cell_type_annotation.__file__)) == cell_type_annotation.SPEC
        True
    """
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(t, ast.Name) and t.id == "SPEC" for t in targets):
                return _value(node.value, path)
    return None


def _locate(name: str) -> Path | Iterable[str]:
    """The file of a module, or the folders of a package, found part by part so that no parent is imported."""
    folders: Iterable[str] = ()
    parts = name.split(".")
    for i in range(1, len(parts) + 1):
        prefix = ".".join(parts[:i])
        loaded = getattr(sys.modules.get(prefix), "__path__", None)
        if loaded is not None:
            folders = loaded
            continue
        spec = importlib.util.find_spec(prefix) if i == 1 else PathFinder.find_spec(prefix, list(folders))
        if spec is None:
            raise ImportError(f"no module named {prefix}")
        if spec.submodule_search_locations is not None:
            folders = spec.submodule_search_locations
        elif i == len(parts) and spec.origin and spec.origin.endswith(".py"):
            return Path(spec.origin)
        else:
            raise ImportError(f"{prefix} is not a package or a module in Python source")
    return folders


def _value(node: ast.expr, path: Path) -> Any:
    if isinstance(node, ast.Tuple):
        return tuple(_value(item, path) for item in node.elts)
    if isinstance(node, ast.Dict) and all(key is not None for key in node.keys):
        keys = [_value(key, path) for key in node.keys if key is not None]
        return dict(zip(keys, (_value(value, path) for value in node.values), strict=True))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CONSTRUCTORS:
        if node.args or any(keyword.arg is None for keyword in node.keywords):
            raise ValueError(f"{path.name}:{node.lineno}: name every field of {node.func.id}(...)")
        return _CONSTRUCTORS[node.func.id](**{str(k.arg): _value(k.value, path) for k in node.keywords})
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"{path.name}:{node.lineno}: SPEC must be made of literals and spec constructors") from None
