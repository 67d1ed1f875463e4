"""Exceptions that mobopt raises on purpose.

Each message is one paragraph that names the value at fault and the way out. The command line turns any
:class:`MoboptError` into that message and exit code 2, without a traceback.
"""

from __future__ import annotations


class MoboptError(Exception):
    """Base of every error that mobopt raises on purpose."""


class BundleError(MoboptError):
    """A model file is damaged, hostile, or of a form that mobopt does not read or write."""


class GraphError(MoboptError):
    """A graph breaks a rule of the intermediate representation, or its text can't be parsed."""


class PassError(MoboptError):
    """A pass was asked for something unknown, left the graph in a state that it must not, or changed the results."""


class TableError(MoboptError):
    """A table of mobopt's own, such as the rows of targets, breaks a rule; the message names the place."""


class UnsupportedError(MoboptError):
    """A model needs something that the chosen runtime, device or target lacks."""


class InputError(MoboptError, ValueError):
    """An argument has a value, shape or dtype that can't be used."""


class MissingInputError(InputError):
    """A method was called without an input that has no default."""


class EndlessError(InputError):
    """A model that nobody asked to run on these inputs did not come to an end within what it was allowed."""


class DeviceError(MoboptError):
    """No Vulkan loader, no usable device, an unknown device, or a device that failed or ran out of memory."""


class DeviceLostError(DeviceError):
    """The driver gave the device up in the middle of a call. The next call opens it anew."""


class ArgumentTypeError(MoboptError, TypeError):
    """An argument has a type that can't be used; where torch raises TypeError, so does mobopt."""


class MissingMethodError(MoboptError, AttributeError):
    """A method to preserve doesn't exist; where torch raises AttributeError, so does mobopt."""
