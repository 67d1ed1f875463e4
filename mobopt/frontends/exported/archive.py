"""An archive of ``torch.export.save`` (.pt2): the graph as JSON, the tensors, and the example inputs.

Source of the layouts: ``torch/export/pt2_archive/`` (2.8 and newer), ``torch/export/__init__.py`` (2.6 and 2.7),
``torch/_export/serde/schema.py`` (version 8, of them all). torch's own loader falls back to pickles that run code and
evaluates the texts of sizes; this reader does neither.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mobopt.bundle.container import OLD_EXPORT_RECORD, ArchiveReader, BundleFile, iterate_records
from mobopt.bundle.tensors import StorageLoader, rebuild_tensor
from mobopt.bundle.unpickler import unpickle
from mobopt.errors import BundleError
from mobopt.frontends.exported.enums import NARROW_FLOATS, dtype_of

FORMAT_RECORD = "archive_format"
_SCHEMA_MAJOR = 8
"""Of ``torch/_export/serde/schema.py``, from PyTorch 2.6 on."""
_MODELS, _JSON = "models/", ".json"
_LONGEST_JSON = 1 << 27


@dataclass(frozen=True)
class _Layout:
    """Where an archive has what."""

    model: str
    """The record with the graph."""
    weights: str
    """What ``torch.save`` wrote of parameters and buffers, where they are not records of their own."""
    constants: str
    samples: str
    extra: str
    """What names of extra files begin with."""
    config: str = ""
    """Of records with weights, and with constants, which ``{kind}`` stands for; empty if there are none."""


_OLD_LAYOUT = _Layout(
    OLD_EXPORT_RECORD,
    "serialized_state_dict.pt",
    "serialized_constants.pt",
    "serialized_example_inputs.pt",
    "extra_files/",
)
"""Of PyTorch 2.6 and 2.7."""


def _layout(name: str) -> _Layout:
    """Of PyTorch 2.8 and newer; from 2.9 on tensors are records of their own."""
    return _Layout(
        f"{_MODELS}{name}{_JSON}",
        f"data/weights/{name}.pt",
        f"data/constants/{name}.pt",
        f"data/sample_inputs/{name}.pt",
        "extra/",
        f"data/{{kind}}/{name}_{{kind}}_config.json",
    )


def is_exported_file(file: Path) -> bool:
    """Whether a file is an archive of ``torch.export.save``, of this layout or an older one."""
    try:
        records = ArchiveReader(file).records
    except BundleError:  # the reader of other files has the words for it
        return False
    return FORMAT_RECORD in records or OLD_EXPORT_RECORD in records


class ExportedArchive:
    """A model of an archive, its records checked and its tensors mapped.

    Attributes:
        name: the file's name for messages.
        size: bytes of all records.
        model: the fields of the serialised program.
        tensors: parameters and buffers by their qualified names, and constants.
    """

    def __init__(self, file: BundleFile) -> None:
        """Read an archive.

        Raises:
            BundleError: the file is damaged or hostile, of an older layout, or holds what only a pickle can tell.
        """
        self._archive = archive = ArchiveReader(file)
        self.name = archive.name
        self.size = sum(record.size for record in archive.records.values())
        self._layout = _OLD_LAYOUT if OLD_EXPORT_RECORD in archive else self._new_layout()
        self.model = self._json(self._layout.model)
        self._check_version()
        self._storages: dict[str, StorageLoader] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        for kind, saved in (("weights", self._layout.weights), ("constants", self._layout.constants)):
            config = self._layout.config.format(kind=kind)
            tensors = self._tensors(kind, config) if config in archive else self._saved_tensors(saved)
            self.tensors.update(tensors)

    def error(self, message: str) -> BundleError:
        """An error about this file."""
        return self._archive.error(message)

    def examples(self) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Positional and keyword arguments that the model was exported with; None if they can't be read as data."""
        if self._layout.samples not in self._archive:
            return None
        try:
            value = self._saved(self._layout.samples)
        except BundleError:
            return None
        match value:
            case (tuple(positional), dict(keywords)):
                return positional, keywords
        return None

    def extra_files(self) -> dict[str, bytes]:
        """Extra files by name."""
        prefix = self._layout.extra
        return {item.name.removeprefix(prefix): self._archive.read(item.name) for item in self._records(prefix)}

    def _records(self, prefix: str) -> Iterator[Any]:
        return iterate_records(self._archive, prefix)

    def _new_layout(self) -> _Layout:
        archive = self._archive
        form = archive.read(FORMAT_RECORD)
        if form.strip() != b"pt2":
            raise self.error(f"has the archive format {form[:16]!r}, and pt2 is read")
        order = archive.read("byteorder").strip() if "byteorder" in archive else b"little"
        if order != b"little":
            raise self.error(f"has the byte order {order[:16]!r}; only little is read")
        if any(True for _ in self._records("data/aotinductor/")):
            raise self.error("is compiled by AOTInductor, and holds no graph; convert the program it came from")
        found = [str(item.name) for item in self._records(_MODELS) if item.name.endswith(_JSON)]
        if len(found) != 1:
            names = ", ".join(sorted(found)) or "none"
            raise self.error(f"holds {len(found)} models ({names}); save one program into each file")
        return _layout(found[0].removeprefix(_MODELS).removesuffix(_JSON))

    def _json(self, record: str) -> Any:
        if self._archive.find(record).size > _LONGEST_JSON:
            raise self.error(f"has {record!r} of over {_LONGEST_JSON >> 20} MiB; the file is hostile")
        try:
            value = json.loads(self._archive.read(record))
        except (ValueError, RecursionError) as error:
            raise self.error(f"has a damaged record {record!r}: {error}") from None
        if not isinstance(value, dict):
            raise self.error(f"has a damaged record {record!r}: it is no object of JSON")
        return value

    def _check_version(self) -> None:
        version = self.model.get("schema_version")
        major = version.get("major") if isinstance(version, dict) else None
        if major != _SCHEMA_MAJOR:
            raise self.error(
                f"is of version {major!r} of torch.export's schema, and {_SCHEMA_MAJOR} is read, which PyTorch 2.6 and "
                "newer write: export the model again with one of them"
            )

    def _tensors(self, kind: str, record: str) -> Iterator[tuple[str, torch.Tensor]]:
        """Records of tensors, as PyTorch 2.9 and newer write them."""
        config = self._json(record).get("config")
        if not isinstance(config, dict):
            raise self.error(f"has a damaged record {record!r}")
        for name, meta in config.items():
            try:
                yield name, self._tensor(f"data/{kind}", name, meta)
            except (KeyError, TypeError, AttributeError) as error:
                raise self.error(f"has a damaged record {record!r}, at {name!r}: {error!r}") from None

    def _saved_tensors(self, record: str) -> Iterator[tuple[str, torch.Tensor]]:
        """Tensors by name as PyTorch up to 2.8 keeps them: what ``torch.save`` makes of a dictionary."""
        if record not in self._archive:
            return
        values = self._saved(record)
        if not isinstance(values, dict):
            raise self.error(f"has a damaged record {record!r}: it is no dictionary")
        for name, value in values.items():
            if not isinstance(name, str) or not isinstance(value, torch.Tensor):
                raise self.error(f"has {type(value).__name__} for {name!r} in {record!r}, where tensors are read")
            yield name, value

    def _saved(self, record: str) -> Any:
        """What ``torch.save`` wrote into a record, read as data."""
        saved = ArchiveReader(io.BytesIO(self._archive.read(record)))
        return unpickle(saved.read("data.pkl"), StorageLoader(saved, "data"), f"{self.name}: {record}").value

    def _tensor(self, folder: str, name: str, meta: Mapping[str, Any]) -> torch.Tensor:
        described = meta["tensor_meta"]
        if meta["use_pickle"] or described is None:
            raise self.error(
                f"keeps {name!r} as a pickle, which could run any code: a tensor of a subclass or an object of "
                "a custom class; export the model with plain tensors (of torchao: after unwrap_tensor_subclass(model))"
            )
        narrow = NARROW_FLOATS.get(described["dtype"])
        dtype = dtype_of(described["dtype"]) if narrow is None else torch.uint8
        path = str(meta["path_name"])
        entry = self._archive.find(f"{folder}/{path}")
        loader = self._storages.setdefault(folder, StorageLoader(self._archive, folder))
        sizes, strides = (tuple(size["as_int"] for size in described[key]) for key in ("sizes", "strides"))
        storage = loader.load(dtype, path, entry.size // dtype.itemsize)
        tensor = rebuild_tensor(storage, described["storage_offset"]["as_int"], sizes, strides, False)
        return tensor if narrow is None else tensor.view(narrow).float()
