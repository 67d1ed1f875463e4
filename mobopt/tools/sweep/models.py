"""The models of a sweep, by what a user writes: files, folders, patterns, names of callables."""

from __future__ import annotations

import glob
import hashlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from mobopt.errors import InputError
from mobopt.tools.sweep.jobs import Model

SUFFIXES = (".pt", ".ptl", ".pt2", ".onnx")
"""Files that are looked for in folders."""
_CALLABLE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_PATTERN = re.compile(r"[*?\[]")


def find_models(names: Iterable[str | Path | Callable[[], object]]) -> list[Model]:
    """The models that are meant, each once, in order.

    Args:
        names: paths of files, of folders (all models in them), patterns such as ``zoo/**/*.onnx``, names
            ``module:callable``, or callables of modules that workers can import. A callable gives a model and the
            list of its example inputs.

    Raises:
        InputError: there is no such file, nothing is found, or a file can't be read.
    """
    found = {model.name: model for name in names for model in _models_of(name)}
    if not found:
        raise InputError("no models are named; give files, folders, patterns or module:callable")
    return list(found.values())


def _models_of(name: str | Path | Callable[[], object]) -> Iterator[Model]:
    text = name if isinstance(name, str) else str(name) if isinstance(name, Path) else _name_of(name)
    path = Path(text)
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file())
        if not files:
            raise InputError(f"the folder {text} has no model: no file in it ends in {', '.join(SUFFIXES)}")
        yield from map(_file, files)
    elif path.exists():
        yield _file(path)
    elif _CALLABLE.fullmatch(text):
        yield Model(text)
    elif _PATTERN.search(text):
        files = sorted(file for file in map(Path, glob.glob(text, recursive=True)) if file.is_file())
        if not files:
            raise InputError(f"no file is called {text}")
        yield from map(_file, files)
    else:
        raise InputError(f"there is no model {text}; give files, folders, patterns or module:callable")


def _file(path: Path) -> Model:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise InputError(f"can't read the model {path}: {error.strerror or error}") from None
    return Model(path.as_posix(), digest.hexdigest(), path.stat().st_size)


def _name_of(function: object) -> str:
    name = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"
    if not callable(function) or not _CALLABLE.fullmatch(name) or name.startswith("__main__"):
        raise InputError(
            f"the model {function!r} can't be sent to a worker; give the path of a file, or a function of a module "
            "that workers can import, which gives a model and its example inputs"
        )
    module = sys.modules[name.partition(":")[0]]
    if inspect.getattr_static(module, name.partition(":")[2].partition(".")[0], None) is None:
        raise InputError(f"the model {function!r} is not in the module {module.__name__}; give it a name there")
    return name
