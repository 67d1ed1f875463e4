"""A model in a zip archive of pickles: the form of ``torch.jit.save`` and of the lite interpreter."""

from __future__ import annotations

import pickletools
from collections.abc import Collection

from mobopt.bundle.bytecode import Function, OperatorEntry, parse_bytecode, parse_operators
from mobopt.bundle.container import ArchiveReader
from mobopt.bundle.model_file import ModelFile
from mobopt.bundle.other_files import kind_of_records
from mobopt.bundle.tensors import StorageLoader
from mobopt.bundle.unpickler import Unpickled, unpickle
from mobopt.bundle.versions import READABLE
from mobopt.errors import BundleError

_BYTECODE = "bytecode.pkl"
_PICKLED_MODULES = ("torch", "torch._utils", "torch._tensor", "torch.jit._pickle")
_PICKLED_NAMES = ("collections OrderedDict", "builtins complex", "__main__ TensorID", "__main__ IntList")
"""What PyTorch's pickles name beside classes; ``torch/csrc/jit/serialization/unpickler.cpp`` reads no other."""


class ArchiveFile(ArchiveReader, ModelFile):
    """A model of pickles.

    Raises:
        BundleError: the file can't be opened, is no sound archive, or holds no TorchScript.
    """

    @property
    def unpacked_size(self) -> int:
        """Bytes of all records."""
        return sum(record.size for record in self.records.values())

    @property
    def has_bytecode(self) -> bool:
        """Whether it has the record."""
        return _BYTECODE in self

    @property
    def kinds(self) -> tuple[str, ...]:
        """By the records that the loaders look for."""
        found: list[str] = []
        if self.has_source and "constants.pkl" in self:
            found.append("torchscript")
        if self.has_bytecode:
            found.append("lite")
        return tuple(found)

    def check_form(self) -> None:
        """Refuse an archive that holds something else than TorchScript, by the name of what it is."""
        if not self.has_source and not self.has_bytecode:
            checkpoint = self.read("data.pkl") if "data.pkl" in self else None
            raise self.error(f"is {kind_of_records(list(self.records), checkpoint)}")

    def version(self) -> int:
        """The number in the version record."""
        record = ".data/version" if ".data/version" in self else "version"
        text = self.read(record)[:16]
        if not text.strip().isdigit() or int(text) not in READABLE:
            raise self.error(f"is of archive version {text!r}; versions {READABLE[0]} to {READABLE[-1]} are read")
        return int(text)

    def module(self) -> Unpickled:
        """What ``data.pkl`` holds."""
        return self._unpickled("data.pkl", "data")

    def constants(self) -> Unpickled:
        """What ``constants.pkl`` holds."""
        return self._unpickled("constants.pkl", "constants")

    def bytecode(self) -> tuple[int, list[Function]]:
        """What ``bytecode.pkl`` holds."""
        return parse_bytecode(self._tables())

    def operators(self) -> set[OperatorEntry]:
        """Those that ``bytecode.pkl`` lists."""
        self._check_globals()
        return parse_operators(self._tables())

    def mentions(self, words: Collection[bytes]) -> bool:
        """Whether one of the words stands in the pickles or the source."""
        names = [name for name in ("data.pkl", _BYTECODE) if name in self]
        names += [item.name for item in self.below("code/") if item.name.endswith(".py")]
        return any(word in data for data in map(self.read, names) for word in words)

    def _unpickled(self, record: str, folder: str) -> Unpickled:
        """A pickle, with its tensors from a folder."""
        return unpickle(self.read(record), StorageLoader(self, folder), record)

    def _tables(self) -> Unpickled:
        has_own = any(True for _ in self.below("bytecode/"))
        return self._unpickled(_BYTECODE, "bytecode" if has_own else "constants")

    def _check_globals(self) -> None:
        """Refuse a lite file whose module no loader of PyTorch opens: without one, or with foreign names in it.

        Quantised weights and objects of any class of PyTorch are let pass, for nothing is made of them here.
        """
        try:
            names = [
                str(argument) for op, argument, _ in pickletools.genops(self.read("data.pkl")) if op.name == "GLOBAL"
            ]
        except (ValueError, UnicodeError) as error:
            raise BundleError(f"{self.name}: data.pkl is no pickle: {error}") from None
        for name in names:
            module = name.partition(" ")[0]
            if module not in _PICKLED_MODULES and not module.startswith("__torch__") and name not in _PICKLED_NAMES:
                raise BundleError(f"{self.name}: data.pkl names the global {name!r}, as no PyTorch does; it is hostile")
