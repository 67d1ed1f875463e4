"""TorchScript in: a ``torch.jit.ScriptModule`` becomes a Program.

torch itself puts the module into evaluation mode, freezes and inlines it (a copy; the caller's module stays as it is);
this file translates what comes out. Batch normalisations are left for our own pass.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from mobopt.errors import GraphError, InputError, UnsupportedError
from mobopt.frontends.shared_storages import SharedStorages, restore_views, tensors_in
from mobopt.frontends.torchscript_types import convert_type
from mobopt.ir import Attribute, Block, Graph, Node, Program, Value
from mobopt.ir.graph import type_of_constant
from mobopt.ir.types import NONE, OptionalType, Type
from mobopt.ops.state import lift_changed_constants

_GRADIENT_MODES = ("no_grad", "enable_grad", "inference_mode", "set_grad_enabled")
"""Context managers that say nothing about a model that only infers."""


def program_from_script_module(module: torch.jit.ScriptModule, preserved_methods: Sequence[str] = ()) -> Program:
    """Translate a scripted, traced or frozen module.

    Args:
        module: the module, in training or evaluation mode; it is not changed.
        preserved_methods: names of the methods to keep beside ``forward``, and of attributes to keep.

    Returns:
        A Program with ``forward``, if the module has it, and the preserved methods. Parameters and buffers are
        constants of the graphs, on the CPU; attributes that the methods assign to or change in place, and preserved
        ones, stay attributes.

    Raises:
        InputError: there is no method to translate, or a preserved name does not exist.
        UnsupportedError: the module uses what a Program can't hold; the message names the node.
    """
    for name in preserved_methods:
        if not hasattr(module, name):
            raise InputError(f"the module has no method or attribute {name!r} to preserve")
    methods = [name for name in dict.fromkeys(["forward", *preserved_methods]) if module._c._has_method(name)]
    if not methods:
        raise InputError("the module has no method 'forward'; name a method to convert in preserved_methods")
    frozen = _freeze(module, preserved_methods)
    translator = _Translator(
        frozen, _shared_storages(module, [name for name in preserved_methods if name not in methods])
    )
    for name in methods:
        translator.add_method(name)
    for name in preserved_methods:
        if name not in methods:
            translator.add_attribute(name)
    lift_changed_constants(translator.program)
    return translator.program


def copy_of(module: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """A deep copy of a module, whose tensors are views of each other where the module's are."""
    twin = copy.deepcopy(module)
    restore_views(module, twin)
    return twin


def _freeze(module: torch.jit.ScriptModule, preserved: Sequence[str]) -> Any:
    """A frozen, inlined copy in evaluation mode, as torch's C++ object."""
    evaluating = copy_of(module).eval()  # freezing must see that a constant is a view of what a method changes
    names = [name for name in preserved if name != "forward"]
    try:
        frozen = torch._C._freeze_module(evaluating._c, names, True, False)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise UnsupportedError(f"torch can't freeze this module: {reason}") from error
    return frozen


def _shared_storages(module: torch.jit.ScriptModule, attributes: Sequence[str]) -> SharedStorages:
    """What parameters, buffers and these attributes share."""
    kept = (getattr(module, name) for name in attributes)
    return SharedStorages([*module.parameters(), *module.buffers(), *tensors_in(list(kept))])


class _Translator:
    """Fills a Program method by method; tensors that share memory become one constant per graph."""

    def __init__(self, frozen: Any, shared: SharedStorages) -> None:
        self.frozen = frozen
        self.shared = shared
        self.program = Program(class_name=_demangled(frozen._type().qualified_name()))

    def add_method(self, name: str) -> None:
        """Translate one method."""
        method = self.frozen._get_method(name)
        torch._C._jit_pass_inline(method.graph)
        self.program.methods[name] = _GraphTranslator(self, method.graph).translate()
        defaults = {a.name: a.default_value for a in method.schema.arguments if a.has_default_value()}
        if defaults:
            self.program.metadata.setdefault("defaults", {})[name] = defaults

    def add_attribute(self, path: str, kind: Type | None = None) -> None:
        """Take over an attribute, by its dotted name from the root."""
        if path in self.program.attributes:
            known = self.program.attributes[path]
            known.type = known.type if kind is None else _either(known.type, kind)
            return
        owner: Any = self.frozen
        for part in path.split("."):
            owner = owner.getattr(part)
        if isinstance(owner, torch._C.ScriptModule):
            raise UnsupportedError(
                f"{path!r} is a submodule: preserve its methods' results through a method of the root"
            )
        try:
            # Methods may write to a tensor that is an attribute, so it shares its memory with no constant.
            value = plain_value(owner, None if isinstance(owner, torch.Tensor) else self.shared)
            known_type = type_of_constant(value) if kind is None or value is None else kind
            kind = known_type if kind is None else _either(known_type, kind)
        except GraphError as error:
            raise UnsupportedError(f"attribute {path!r} can't be kept: {error}") from None
        self.program.attributes[path] = Attribute(kind, value, is_buffer=isinstance(value, torch.Tensor))


class _GraphTranslator:
    """Translates one inlined graph of torch's."""

    def __init__(self, owner: _Translator, source: Any) -> None:
        self.owner = owner
        self.source = source
        self.graph = Graph()
        self.values: dict[str, Value] = {}
        """Our values by torch's names."""
        self.modules: dict[str, str] = {}
        """Dotted paths of the values that are modules."""
        self.ignored: set[str] = set()
        """Values of context managers that are left out."""
        self.tensors: dict[tuple[Any, ...], Value] = {}

    def translate(self) -> Graph:
        """Our graph."""
        for index, parameter in enumerate(self.source.inputs()):
            if index == 0:
                self.modules[parameter.debugName()] = ""
                value = Value(self.name(parameter), self.owner.program.self_type)
            else:
                value = self.value(parameter)
            self.graph.block.add_parameter(value)
            self.values[parameter.debugName()] = value
        self.fill(self.source, self.graph.block)
        return self.graph

    def fill(self, source: Any, target: Block) -> None:
        """Translate nodes and returned values of a block (or of a graph's own block)."""
        for node in source.nodes():
            self.node(node, target)
        target.returns.set_inputs([self.use(value) for value in source.outputs()])

    def node(self, node: Any, target: Block) -> None:
        """Append the translation of a node, if it has one."""
        kind = node.kind()
        if kind == "prim::Constant":
            return  # made where it is used
        if self.is_gradient_mode(node):
            return
        if kind in ("prim::GetAttr", "prim::SetAttr"):
            self.attribute_access(node, target)
            return
        if kind in _UNSUPPORTED:
            raise _unsupported(node, _UNSUPPORTED[kind])
        result = Node(
            kind, [self.use(value) for value in node.inputs()], overload=_overload(node), source=_source(node)
        )
        result.attributes = _attributes(node)
        target.append(result)
        for block in node.blocks():
            self.nested(block, result)
        self.outputs(node, result)

    def nested(self, source: Any, node: Node) -> None:
        """Translate a block of a node."""
        block = node.add_block()
        for parameter in source.inputs():
            self.values[parameter.debugName()] = block.add_parameter(self.value(parameter))
        self.fill(source, block)

    def attribute_access(self, node: Any, target: Block) -> None:
        """``GetAttr`` and ``SetAttr`` name their attribute from the root; submodules themselves leave no node."""
        inputs = list(node.inputs())
        if inputs[0].debugName() not in self.modules:
            raise _unsupported(
                node, "it reads or changes an object that is not a module; return a tuple or dict instead"
            )
        prefix = self.modules[inputs[0].debugName()]
        path = f"{prefix}.{node.s('name')}" if prefix else node.s("name")
        if node.kind() == "prim::GetAttr":
            output = node.output()
            if isinstance(self.lookup(path), torch._C.ScriptModule):
                self.modules[output.debugName()] = path
                return
            self.owner.add_attribute(path, self.type(output))
        else:
            self.owner.add_attribute(path, self.type(inputs[1]))
        operands = [self.graph.inputs[0], *[self.use(value) for value in inputs[1:]]]
        result = Node(node.kind(), operands, attributes={"name": path}, source=_source(node))
        target.append(result)
        self.outputs(node, result)

    def lookup(self, path: str) -> Any:
        """The frozen module's attribute of this dotted name."""
        found: Any = self.owner.frozen
        for part in path.split("."):
            found = found.getattr(part)
        return found

    def is_gradient_mode(self, node: Any) -> bool:
        """Whether a node belongs to ``with torch.no_grad()`` and the like."""
        if node.kind() == "prim::CreateObject":
            name = str(node.output().type().annotation_str)
            if name.startswith("__torch__.torch.autograd.grad_mode.") and name.rpartition(".")[2] in _GRADIENT_MODES:
                self.ignored.add(node.output().debugName())
                return True
        if node.kind() in ("prim::Enter", "prim::Exit", "prim::SetAttr", "prim::GetAttr"):
            return next(iter(node.inputs())).debugName() in self.ignored
        return False

    def outputs(self, node: Any, result: Node) -> None:
        """Give a node its outputs."""
        for output in node.outputs():
            self.values[output.debugName()] = result.add_output(self.value(output))

    def use(self, value: Any) -> Value:
        """Our value for a value of torch's; constants are made on the way."""
        name = value.debugName()
        if name not in self.values:
            if value.node().kind() != "prim::Constant":
                what = "a module" if name in self.modules else "a context manager"
                raise _unsupported(value.node(), f"it makes {what}, which can't be a value of a graph")
            self.values[name] = self.constant(value)
        return self.values[name]

    def constant(self, value: Any) -> Value:
        """A constant; tensors of the same memory are one Value."""
        node = value.node()
        try:
            # toIValue() makes a number of a tensor without dimensions.
            is_tensor = node.hasAttribute("value") and node.kindOf("value") == "t"
            known = plain_value(node.t("value") if is_tensor else value.toIValue(), self.owner.shared)
        except RuntimeError:
            raise _unsupported(value.node(), "its constant has no Python value") from None
        if not isinstance(known, torch.Tensor):
            return Value(self.name(value), self.type(value), known)
        key = (known.data_ptr(), known.dtype, tuple(known.shape), known.stride())
        if key not in self.tensors or known.numel() == 0:
            self.tensors[key] = Value(self.name(value), self.type(value), known)
        return self.tensors[key]

    def value(self, value: Any) -> Value:
        """A new value with torch's name and type."""
        return Value(self.name(value), self.type(value))

    def type(self, value: Any) -> Type:
        """Our type of a value."""
        try:
            return convert_type(value.type())
        except UnsupportedError as error:
            raise _unsupported(value.node(), str(error)) from None

    def name(self, value: Any) -> str:
        """Torch's name of a value, which is unique in its graph."""
        name: str = value.debugName()
        self.graph.reserve_name(name)
        return name


def _either(left: Type, right: Type) -> Type:
    """The type of an attribute that two nodes name; None may be all that one of them knows of an optional one."""
    if left == right or NONE not in (left, right):
        return left
    other = right if left == NONE else left
    return other if isinstance(other, OptionalType) else OptionalType(other)


def plain_value(value: Any, shared: SharedStorages | None = None) -> Any:
    """A value of torch's without gradients and on the CPU; its tensors in shared storages, if these are given."""
    if isinstance(value, torch.Tensor):
        plain = value.detach().cpu()
        return plain if shared is None else shared.restored(plain)
    if isinstance(value, list):
        return [plain_value(item, shared) for item in value]
    if isinstance(value, tuple):
        return tuple(plain_value(item, shared) for item in value)
    if isinstance(value, dict):
        return {key: plain_value(item, shared) for key, item in value.items()}
    return value


_UNSUPPORTED = {
    "prim::CallMethod": "the call could not be inlined (a module chosen at run time, or recursion)",
    "prim::CallFunction": "the call could not be inlined (recursion)",
    "prim::CreateObject": "it makes an object of a class; return a tuple or a dict instead",
    "prim::ConstantMKLDNNTensor": "torch.jit.optimize_for_inference made it for this computer's processor; convert the "
    "module that it was made from",
    "prim::PythonOp": "it calls Python, which no mobile runtime can; trace or script what it does",
    "prim::Enter": "context managers other than torch.no_grad() have no place in a mobile model",
    "prim::fork": "mobile GPU runtimes run one thing after another; call the function instead of forking it",
    "prim::awaitable": "mobile GPU runtimes run one thing after another; call the function instead",
    "prim::rpc_async": "a mobile model can't call other machines",
    "prim::Closure": "it makes a closure",
}


def _unsupported(node: Any, reason: str) -> UnsupportedError:
    source = _source(node)
    names = ", ".join(f"%{value.debugName()}" for value in node.outputs())
    return UnsupportedError(
        f"can't convert {names or 'the node'} = {node.kind()}{f' ({source})' if source else ''}: {reason}"
    )


def _demangled(name: str) -> str:
    return re.sub(r"\.___torch_mangle_\d+", "", name)


def _overload(node: Any) -> str:
    """The overload of a node's operator; torch tells it only in the schema's text."""
    match = re.match(r"[\w:]+\.(\w+)\(", node.schema())
    return match.group(1) if match else ""


def _attributes(node: Any) -> dict[str, Any]:
    return dict(_node_attributes(node))


def _node_attributes(node: Any) -> Iterator[tuple[str, Any]]:
    for name in node.attributeNames():
        kind = node.kindOf(name)
        if kind == "tys":
            yield name, tuple(convert_type(item) for item in node.tys(name))
        elif kind in ("s", "i", "f", "is", "fs", "ss"):
            yield name, getattr(node, "is_" if kind == "is" else kind)(name)
        else:
            raise _unsupported(node, f"its attribute {name!r} is of a kind ({kind}) that a Program can't hold")


def _source(node: Any) -> str:
    """``conv.py:554 in features.0.0``: the line of code, and the module that it ran in."""
    text = node.sourceRange()
    match = re.search(r'File "([^"]*)", line (\d+)', text) or re.search(r"(\S+)\((\d+)\):", text)
    line = f"{match.group(1).replace(chr(92), '/').rpartition('/')[2]}:{match.group(2)}" if match else ""
    path = _module_path(node)
    return f"{line} in {path}" if line and path else line or path


def _module_path(node: Any) -> str:
    """``features.0.0`` from ``features(Sequential).0(ConvBNReLU).0(Conv2d).SELF(Conv2d)``."""
    names = [part.rpartition("(")[0].strip(" .") for part in node.getModuleHierarchy().split(").")]
    return ".".join(name for name in names if name and not name.startswith(("SELF", "UNKNOWN")))
