"""Opens a file of a model: its first bytes tell which container it is."""

from __future__ import annotations

from mobopt.bundle.archive_file import ArchiveFile
from mobopt.bundle.container import BundleFile, map_file
from mobopt.bundle.flatbuffer_file import FlatbufferFile, is_flatbuffer
from mobopt.bundle.model_file import ModelFile


def open_model_file(file: BundleFile) -> ModelFile:
    """A ``.pt`` or ``.ptl`` file, as a zip archive or as a flatbuffer.

    Args:
        file: a path, which stays mapped while what was read from it lives, or an open binary file.

    Raises:
        BundleError: the file can't be opened, is of neither form, or its container contradicts itself.
    """
    mapped = map_file(file)
    return FlatbufferFile(mapped) if is_flatbuffer(mapped) else ArchiveFile(mapped)
