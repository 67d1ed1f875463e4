"""Files that are no TorchScript models, named as what they are, with the way to a file that mobopt reads."""

from __future__ import annotations

import pickletools
from collections.abc import Collection
from contextlib import suppress

_EXPORT = "load it in Python, script or trace the nn.Module, and save that with torch.jit.save"
_CONVERTED = (
    "mobopt reads TorchScript, torch.export's programs and ONNX: take the model that it was made from, and save it "
    "with torch.jit.save or torch.export.save"
)
_PLAIN_GLOBALS = ("torch ", "torch._utils ", "torch._tensor ", "torch.serialization ", "collections OrderedDict")
_LONGEST_PICKLE = 1 << 20
"""Of a checkpoint's pickle, so much is looked at."""

_AT_START: tuple[tuple[int, bytes, str], ...] = (
    (4, b"TFL3", f"a TensorFlow Lite model; {_CONVERTED}"),
    (4, b"ORTM", "a model in onnxruntime's own format; take the ONNX model that it was made from"),
    (4, b"ET", f"an ExecuTorch program; {_CONVERTED}"),
    (0, b"GGUF", "a GGUF file of weights; give them to an nn.Module by mobopt.load_gguf, and convert that"),
    (0, b"\x89HDF", f"an HDF5 file, as Keras writes them; {_CONVERTED}"),
    (8, b'{"', f"a safetensors file, which holds weights without a model; {_EXPORT}"),
    (0, b"\x80\x02\x8a\nl\xfc\x9cF\xf9", f"a checkpoint of torch.save in the form of before 1.6; {_EXPORT}"),
    (0, b"\x80", f"a Python pickle; {_EXPORT}"),
    (0, b"version https://git-lfs", "a pointer of Git LFS, not the file itself; get it with git lfs pull"),
    (0, b"7767517\n", f"a network of ncnn; {_CONVERTED}"),
    (0, b"<", "a page of HTML or XML; the download went wrong"),
    (0, b"\x1f\x8b", "compressed with gzip; unpack it first"),
    (257, b"ustar", f"a tar archive; {_EXPORT}"),
    (0, b"\x93NUMPY", "a NumPy array; it is an input, give it with --input"),
    (0, b"\x7fELF", "a program or library"),
)


def kind_of_bytes(head: bytes) -> str:
    """What a file is that is no zip archive, by its first bytes, and the way out; empty if it is not known."""
    if head.startswith(b"<") and b"<net " in head:
        return f"a network of OpenVINO; {_CONVERTED}"
    for offset, magic, kind in _AT_START:
        if head[offset : offset + len(magic)] == magic:
            return kind
    is_onnx = len(head) > 3 and head[0] == 0x08 and head[1] < 0x20 and head[2] in (0x12, 0x3A)
    return "an ONNX model, and no bundle; mobopt convert makes one of it" if is_onnx else ""


def kind_of_records(names: Collection[str], checkpoint: bytes | None) -> str:
    """What a zip archive is that holds no TorchScript, and the way out.

    Args:
        names: of its entries, as they are stored.
        checkpoint: its record ``data.pkl``, if it has one.
    """
    short = {name.partition("/")[2] or name for name in names} | set(names)
    if "archive_format" in short or any("serialized_exported_program" in name for name in short):
        return "a program of torch.export (.pt2), a model before conversion; mobopt convert makes a bundle of it"
    if checkpoint is not None:
        return _kind_of_checkpoint(checkpoint)
    if any(name.startswith(".data/extern_modules") for name in short):
        return f"a package of torch.package; {_EXPORT}"
    if names and all(name.endswith(".npy") for name in names):
        return "an archive of NumPy arrays (.npz); it holds no model"
    first = ", ".join(sorted(names)[:3])
    return f"a zip archive without a model (it holds {first}); {_EXPORT}"


def _kind_of_checkpoint(data: bytes) -> str:
    """Weights alone, or a whole module, which names its class."""
    names: list[str] = []
    with suppress(ValueError, UnicodeError, IndexError, KeyError):
        for op, argument, _ in pickletools.genops(data[:_LONGEST_PICKLE]):
            if op.name == "GLOBAL":
                names.append(str(argument))
    classes = [name.replace(" ", ".") for name in names if not name.startswith(_PLAIN_GLOBALS)]
    if classes:
        return (
            f"a whole object pickled by torch.save, without TorchScript code (it names the class {classes[0]}), which "
            f"only runs with that code; {_EXPORT}"
        )
    return (
        "a checkpoint of torch.save (a state_dict: weights without TorchScript code); load it into its nn.Module, "
        "script or trace that, and save it with torch.jit.save"
    )
