"""The reference interpreter, on torch's CPU kernels."""

from mobopt.runtimes.cpu.interpreter import Interpreter

__all__ = ["Interpreter"]
