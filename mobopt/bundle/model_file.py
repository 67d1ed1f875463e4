"""What the reader asks of a file that holds a TorchScript model, whatever its container is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator

from mobopt.bundle.bytecode import Function, OperatorEntry
from mobopt.bundle.container import Record
from mobopt.bundle.unpickler import Unpickled
from mobopt.errors import BundleError


class ModelFile(ABC):
    """A file of a model.

    Attributes:
        name: the file's name for messages.
        records: its pieces, by name: source below ``code/``, storages below ``data/``, extra files below ``extra/``.
    """

    name: str
    records: dict[str, Record]

    @property
    @abstractmethod
    def size(self) -> int:
        """Bytes of the whole file."""

    @property
    @abstractmethod
    def unpacked_size(self) -> int:
        """Bytes of all that is in it."""

    @property
    @abstractmethod
    def has_bytecode(self) -> bool:
        """Whether it holds methods for the lite interpreter."""

    @property
    def has_source(self) -> bool:
        """Whether it holds methods as TorchScript source."""
        return any(name.startswith("code/") for name in self.records)

    @property
    @abstractmethod
    def kinds(self) -> tuple[str, ...]:
        """Which of PyTorch's loaders find what they need: ``torchscript``, ``lite``."""

    def __contains__(self, record: str) -> bool:
        return record in self.records

    def below(self, prefix: str) -> Iterator[Record]:
        """Records whose names begin with a prefix, in the file's order."""
        return (record for name, record in self.records.items() if name.startswith(prefix))

    @abstractmethod
    def find(self, record: str) -> Record:
        """A record's entry.

        Raises:
            BundleError: there is none of this name.
        """

    @abstractmethod
    def view(self, record: str) -> memoryview:
        """A record's bytes: a writable, private view of the mapped file, or unpacked bytes."""

    @abstractmethod
    def read(self, record: str) -> bytes:
        """A copy of a record's bytes."""

    @abstractmethod
    def error(self, message: str) -> BundleError:
        """An error about this file."""

    @abstractmethod
    def check_form(self) -> None:
        """Refuse a file that holds no methods.

        Raises:
            BundleError: it holds none, and is something else as far as one can tell.
        """

    @abstractmethod
    def version(self) -> int:
        """The version of the archive, which says what its operators mean.

        Raises:
            BundleError: it is missing, not a number, or of a release that is not read.
        """

    @abstractmethod
    def module(self) -> Unpickled:
        """The module object with its attributes."""

    @abstractmethod
    def constants(self) -> Unpickled:
        """The tuple of the source's constants."""

    @abstractmethod
    def bytecode(self) -> tuple[int, list[Function]]:
        """Version and methods of the lite interpreter's tables."""

    @abstractmethod
    def operators(self) -> set[OperatorEntry]:
        """What the lite interpreter's operator tables list."""

    @abstractmethod
    def mentions(self, words: Collection[bytes]) -> bool:
        """Whether one of the words stands in the file, seen without reading its weights."""

    def extra_files(self) -> dict[str, bytes]:
        """Extra files by name."""
        return {item.name.removeprefix("extra/"): self.read(item.name) for item in self.below("extra/")}
