"""Run tapped files on PyTorch's own kernels, as an app does: ``python3 dump_taps.py FILE...``.

For each file of ``mobopt tap``, ``FILE.npz`` has what the kernels made of its values in between; read it with ``mobopt
compare FILE --dump FILE.npz``. Runs in an environment of its own, without mobopt: see the README beside it.
"""

import argparse
from pathlib import Path

import numpy as np
import torch


def taps_of(path, method):
    """What the method without arguments returns, by the loader that the file's kind is for."""
    if path.suffix == ".ptl":
        from torch.jit.mobile import _load_for_lite_interpreter

        return _load_for_lite_interpreter(str(path)).run_method(method)
    return getattr(torch.jit.load(str(path)), method)()


def main():
    """Run every file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--library", help="shared library with kernels to load first")
    parser.add_argument("--method", default="tapped_example")
    options = parser.parse_args()
    if options.library:
        torch.ops.load_library(options.library)
    torch.set_num_threads(1)
    for path in options.files:
        with torch.inference_mode():
            taps = taps_of(path, options.method)
        np.savez(f"{path}.npz", **{name: tensor.numpy() for name, tensor in taps.items()})
        print(f"{path}: {len(taps)} taps")


if __name__ == "__main__":
    main()
