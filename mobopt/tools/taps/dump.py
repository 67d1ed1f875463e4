"""What a phone saved: the arrays of an ``.npz`` file, or of a folder of ``.npy`` files."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy
import torch

from mobopt.errors import InputError
from mobopt.tools.taps.table import TapTable


def read_dump(path: Path, table: TapTable) -> tuple[dict[str, torch.Tensor], list[str]]:
    """The tensors of a dump.

    Args:
        path: an ``.npz`` file, or a folder with a ``.npy`` file for each name.
        table: of the taps, the names of which are read; nothing else is.

    Returns:
        The tensors by their names, and names of the dump that are of no tap.

    Raises:
        InputError: it can't be read, or has nothing of the taps.
    """
    try:
        if path.is_dir():
            names = sorted(file.stem for file in path.glob("*.npy"))
            files = {name: path / f"{name}.npy" for name in names if table.find(name)}
            found = {name: _tensor(numpy.load(file, allow_pickle=False)) for name, file in files.items()}
        else:
            with path.open("rb") as file:
                if not zipfile.is_zipfile(file):
                    raise ValueError("it is no archive of arrays with names")
            with numpy.load(path, allow_pickle=False) as archive:
                names = sorted(archive.files)
                found = {name: _tensor(archive[name]) for name in names if table.find(name)}
    except OSError as error:
        raise InputError(f"can't read the dump {path}: {error.strerror or error}") from None
    except (ValueError, TypeError, KeyError, EOFError, AttributeError, MemoryError, zipfile.BadZipFile) as error:
        raise InputError(
            f"the dump {path} can't be read: {error}; it is an .npz file, or a folder of .npy files, that code which "
            "mobopt tap wrote has saved"
        ) from None
    if not found:
        known = f"its names are {', '.join(names[:5])}" if names else "it is empty"
        keys = sorted(table.by_key)[:5]
        raise InputError(f"the dump {path} is not of this file: {known}, and the file's taps are {', '.join(keys)}")
    return found, [name for name in names if not table.find(name)]


def _tensor(array: numpy.ndarray) -> torch.Tensor:  # type: ignore[type-arg]
    if array.dtype == object or array.dtype.kind not in "fiub":
        raise ValueError(f"it has elements of {array.dtype}")
    native = numpy.ascontiguousarray(array).reshape(array.shape)
    return torch.from_numpy(native.astype(native.dtype.newbyteorder("=")))
