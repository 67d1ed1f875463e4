"""An archive of ``torch.export.save`` (.pt2): the graph as JSON, the tensors, and the example inputs.

Source of the layout: ``torch/export/pt2_archive/``, ``torch/_export/serde/schema.py`` (version 8). torch's own loader
falls back to pickles that run code and evaluates the texts of sizes; this reader does neither.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from mobopt.bundle.container import ArchiveReader, BundleFile, iterate_records
from mobopt.bundle.tensors import StorageLoader, rebuild_tensor
from mobopt.bundle.unpickler import unpickle
from mobopt.errors import BundleError
from mobopt.frontends.exported.enums import dtype_of

FORMAT_RECORD = "archive_format"
_SCHEMA_MAJOR = 8
"""Of ``torch/_export/serde/schema.py``; PyTorch 2.9 and newer write it in this layout."""
_MODELS, _JSON = "models/", ".json"
_SAMPLES = "data/sample_inputs/"
_LONGEST_JSON = 1 << 27
_NEWER = "export the model again with PyTorch 2.9 or newer, whose torch.export.save writes the layout that is read"


def is_exported_file(file: Path) -> bool:
    """Whether a file is an archive of ``torch.export.save``, of this layout or an older one."""
    try:
        records = ArchiveReader(file).records
    except BundleError:  # the reader of other files has the words for it
        return False
    return FORMAT_RECORD in records or any("serialized_exported_program" in name for name in records)


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
        self._check_form()
        record = self._only_model()
        self._model_name = record.removeprefix(_MODELS).removesuffix(_JSON)
        self.model = self._json(record)
        self._check_version()
        self._storages: dict[str, StorageLoader] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        for kind in ("weights", "constants"):
            self.tensors.update(self._tensors(kind))

    def error(self, message: str) -> BundleError:
        """An error about this file."""
        return self._archive.error(message)

    def examples(self) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Positional and keyword arguments that the model was exported with; None if they can't be read as data."""
        record = f"{_SAMPLES}{self._model_name}.pt"
        if record not in self._archive:
            return None
        try:
            saved = ArchiveReader(io.BytesIO(self._archive.read(record)))
            value = unpickle(saved.read("data.pkl"), StorageLoader(saved, "data"), record).value
        except BundleError:
            return None
        match value:
            case (tuple(positional), dict(keywords)):
                return positional, keywords
        return None

    def extra_files(self) -> dict[str, bytes]:
        """Extra files by name."""
        return {item.name.removeprefix("extra/"): self._archive.read(item.name) for item in self._records("extra/")}

    def _records(self, prefix: str) -> Iterator[Any]:
        return iterate_records(self._archive, prefix)

    def _check_form(self) -> None:
        archive = self._archive
        if FORMAT_RECORD not in archive:
            raise self.error(f"is a program of torch.export of PyTorch 2.8 or older, which is not read; {_NEWER}")
        form = archive.read(FORMAT_RECORD)
        if form.strip() != b"pt2":
            raise self.error(f"has the archive format {form[:16]!r}, and pt2 is read")
        order = archive.read("byteorder").strip() if "byteorder" in archive else b"little"
        if order != b"little":
            raise self.error(f"has the byte order {order[:16]!r}; only little is read")
        if any(True for _ in self._records("data/aotinductor/")):
            raise self.error("is compiled by AOTInductor, and holds no graph; convert the program it came from")

    def _only_model(self) -> str:
        found = [item.name for item in self._records(_MODELS) if item.name.endswith(_JSON)]
        if len(found) != 1:
            names = ", ".join(sorted(found)) or "none"
            raise self.error(f"holds {len(found)} models ({names}); save one program into each file")
        (record,) = found
        return str(record)

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
            raise self.error(f"is of version {major!r} of torch.export's schema, and {_SCHEMA_MAJOR} is read; {_NEWER}")

    def _tensors(self, kind: str) -> Iterator[tuple[str, torch.Tensor]]:
        record = f"data/{kind}/{self._model_name}_{kind}_config.json"
        if record not in self._archive:
            old = f"data/{kind}/{self._model_name}.pt"
            if old in self._archive:
                raise self.error(f"keeps its {kind} in the pickle {old!r}, as PyTorch 2.8 did; {_NEWER}")
            return
        config = self._json(record).get("config")
        if not isinstance(config, dict):
            raise self.error(f"has a damaged record {record!r}")
        for name, meta in config.items():
            try:
                yield name, self._tensor(f"data/{kind}", name, meta)
            except (KeyError, TypeError, AttributeError) as error:
                raise self.error(f"has a damaged record {record!r}, at {name!r}: {error!r}") from None

    def _tensor(self, folder: str, name: str, meta: Mapping[str, Any]) -> torch.Tensor:
        described = meta["tensor_meta"]
        if meta["use_pickle"] or described is None:
            raise self.error(
                f"keeps {name!r} as a pickle, which could run any code: a tensor of a subclass or an object of "
                "a custom class; export the model with plain tensors (of torchao: after unwrap_tensor_subclass(model))"
            )
        dtype = dtype_of(described["dtype"])
        path = str(meta["path_name"])
        entry = self._archive.find(f"{folder}/{path}")
        loader = self._storages.setdefault(folder, StorageLoader(self._archive, folder))
        sizes, strides = (tuple(size["as_int"] for size in described[key]) for key in ("sizes", "strides"))
        storage = loader.load(dtype, path, entry.size // dtype.itemsize)
        return rebuild_tensor(storage, described["storage_offset"]["as_int"], sizes, strides, False)
