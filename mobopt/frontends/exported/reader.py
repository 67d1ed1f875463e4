"""A serialised program becomes a Program: its signature, parameters and state, inputs and outputs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from mobopt.bundle.builder import Allowance
from mobopt.bundle.source_text import is_identifier
from mobopt.errors import BundleError, GraphError, InputError, UnsupportedError
from mobopt.frontends.exported.archive import ExportedArchive
from mobopt.frontends.exported.control_flow import GraphReader
from mobopt.frontends.exported.enums import dtype_of
from mobopt.frontends.exported.sizes import Sizes
from mobopt.frontends.exported.trees import Packer, Tree, input_type, parse_tree
from mobopt.ir import Attribute, Graph, Program, Value, verify
from mobopt.ir.graph import type_of_constant
from mobopt.ir.input_rules import Condition, Fixed, InputRules, Rule
from mobopt.ir.schemas import resolve
from mobopt.ir.types import INT, TENSOR, ClassType, OptionalType, TensorType, Type
from mobopt.ops.state import settle_state

_METHOD = "forward"
_CLASS = "__torch__.Exported"
_HELD = {"parameter": "parameter_name", "buffer": "buffer_name", "tensor_constant": "tensor_constant_name"}
"""Inputs of the graph that the program itself holds, and the field with their names."""
_BUFFER_CHANGE = {"buffer_mutation": "buffer_name", "parameter_mutation": "parameter_name"}


class ExportedModel:
    """A model of an archive.

    Attributes:
        program: as it was exported, with attributes.
        inputs: the nest of each input, by its name, in order.
        output: the nest of the result.
    """

    def __init__(
        self,
        archive: ExportedArchive,
        libraries: Collection[str] | None = (),
        trees: tuple[Tree, Tree] | None = None,
    ) -> None:
        """Read it.

        Args:
            archive: the model as data.
            libraries: namespaces of operators beyond torch's own that it may name; None for all that are loaded.
            trees: the nests of inputs and outputs, where the archive does not tell them.

        Raises:
            BundleError: it is damaged or hostile.
            UnsupportedError: it uses what a Program can't hold.
            InputError: it was exported in training mode.
        """
        try:
            self._read(archive, libraries, trees)
        except (BundleError, GraphError) as error:
            raise BundleError(f"{archive.name}: {error}" if archive.name not in str(error) else str(error)) from None
        except (UnsupportedError, InputError):
            raise
        except RecursionError:
            raise archive.error("is nested too deeply to be read; the file is hostile") from None
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, StopIteration) as error:
            raise archive.error(f"has a damaged model record: {type(error).__name__}: {error}") from error

    def _read(
        self, archive: ExportedArchive, libraries: Collection[str] | None, trees: tuple[Tree, Tree] | None
    ) -> None:
        module = archive.model["graph_module"]
        graph, signature = module["graph"], module["signature"]
        reader = _ModelReader(Allowance(archive.size, libraries), self, archive)
        builder = reader.builder
        builder.graph.add_input("self", ClassType(_CLASS))
        self.program = Program(methods={_METHOD: builder.graph}, class_name=_CLASS)
        call = module["module_call_graph"][0]["signature"]
        if trees is None:
            fields = module.get("treespec_namedtuple_fields") or {}
            trees = parse_tree(call["in_spec"], fields), parse_tree(call["out_spec"], fields)
        self.output = trees[1]
        specs = [_only(item) for item in signature["input_specs"]]
        user = [(kind, content) for kind, content in specs if kind in ("user_input", "constant_input")]
        self.inputs = _named_inputs(trees[0], call.get("forward_arg_names"))
        self._add_inputs(reader, user, graph, archive.model)
        outputs = [_only(item) for item in signature["output_specs"]]
        changed = {content[_BUFFER_CHANGE[kind]] for kind, content in outputs if kind in _BUFFER_CHANGE}
        for kind, content in specs:
            if kind in _HELD:
                name = content[_HELD[kind]]
                read = reader.values[content["arg"]["name"]] = reader.held(name, kind)
                if name in changed:
                    del reader.stored[read]
            elif kind not in ("user_input", "constant_input"):
                raise UnsupportedError(f"the model takes a {kind.replace('_', ' ')}, which a Program can't hold")
        reader.read(graph)
        builder.source = ""
        results = self._outputs(reader, outputs)
        builder.graph.return_values(Packer(builder).pack(self.output, iter(results)))
        _remove_unread(builder.graph)
        _remove_wholes(self.program)
        verify(self.program)
        settle_state(self.program)
        self.program.number_nodes()

    def _add_inputs(
        self, reader: GraphReader, user: Sequence[tuple[str, Any]], graph: Mapping[str, Any], model: Mapping[str, Any]
    ) -> None:
        """Parameters of the method, the values that they hold, what is asked of them, and their defaults."""
        if sum(tree.leaf_count for tree in self.inputs.values()) != len(user):
            raise BundleError(f"the nest of the inputs has other leaves than the {len(user)} inputs of the graph")
        leaves = [_leaf(kind, content) for kind, content in user]
        sizes = Sizes(model.get("range_constraints") or {})
        remaining = iter(leaves)
        rules: dict[str, Rule] = {}
        for name, tree in self.inputs.items():
            own = [next(remaining) for _ in range(tree.leaf_count)]
            kind = input_type(name, tree, (leaf.type for leaf in own))
            value = reader.graph.add_input(name, kind)
            for leaf, part in zip(own, Packer(reader.builder).unpack(tree, value), strict=True):
                reader.values[leaf.name] = part
                if leaf.tag == "fixed":
                    _refuse_others(reader, part, leaf.value, name)
            rule = rules[name] = _rule(tree, iter(own), graph, sizes, name)
            if isinstance(rule, Fixed):
                self.program.metadata.setdefault("defaults", {}).setdefault(_METHOD, {})[name] = rule.value
        conditions = [Condition(text) for text in model.get("guards_code") or () if _is_of_inputs(text)]
        self.program.metadata["input_rules"] = {_METHOD: InputRules(rules, sizes.guards, conditions)}

    def _outputs(self, reader: GraphReader, outputs: Sequence[tuple[str, Any]]) -> list[Value]:
        """What the method returns, after what it leaves in its buffers and inputs."""
        results = []
        this = reader.graph.inputs[0]
        for kind, content in outputs:
            if kind == "user_output":
                results.append(reader.argument(content["arg"]))
            elif kind in _BUFFER_CHANGE:
                new = reader.named(content["arg"]["name"])
                name = content[_BUFFER_CHANGE[kind]]
                reader.builder.node("prim::SetAttr", [this, new], [], attributes={"name": name})
            elif kind == "user_input_mutation":
                old, new = reader.named(content["user_input_name"]), reader.named(content["arg"]["name"])
                reader.builder.node("aten::copy_", [old, new, reader.builder.constant(False)], [TENSOR])
            else:
                raise UnsupportedError(f"the model gives a {kind.replace('_', ' ')}, which only training needs")
        return results


class _ModelReader(GraphReader):
    """Reads the graph of a program, and what the program holds."""

    def __init__(self, allowance: Allowance, model: ExportedModel, archive: ExportedArchive) -> None:
        super().__init__(allowance)
        self._model = model
        self._archive = archive

    def held(self, name: str, kind: str) -> Value:
        """A tensor that the program holds, which becomes an attribute.

        Raises:
            BundleError: there is none.
        """
        tensors = self._archive.tensors
        if name not in tensors:
            raise BundleError(f"the model has no tensor {name!r}, which its graph reads")
        self._model.program.attributes[name] = Attribute(
            TENSOR, tensors[name], is_parameter=kind == "parameter", is_buffer=kind == "buffer"
        )
        this = self.graph.inputs[0]
        (read,) = self.builder.node("prim::GetAttr", [this], [TENSOR], attributes={"name": name}, name=name)
        self.stored[read] = tensors[name]
        return read

    def part(self, value: Value, name: str) -> Value:
        """A tensor that a stored tensor of a subclass is made of."""
        node = value.producer
        if value not in self.stored or node is None:
            return super().part(value, name)
        return self.held(f"{node.attributes['name']}.{name}", "buffer")


class _Leaf:
    """A leaf of the inputs: the name that the graph reads, its type, and its value if that is fixed."""

    def __init__(self, name: str, kind: Type, tag: str, value: Any = None) -> None:
        self.name = name
        self.type = kind
        self.tag = tag
        self.value = value


def _refuse_others(reader: GraphReader, given: Value, value: Any, name: str) -> None:
    """Let the model refuse other values of an input than the one that it was exported for, which it would ignore.

    A file for phones has nobody else who looks.
    """
    builder = reader.builder
    equal = "aten::__is__" if value is None else "aten::eq"
    schema, arguments = resolve(equal, [given.type, type_of_constant(value)]), {0: given, 1: builder.constant(value)}
    (condition,) = builder.operator(schema, arguments)
    reader.raise_unless(condition, f"the model was exported for {name} = {value!r}, and ignores other values")


def _leaf(kind: str, content: Mapping[str, Any]) -> _Leaf:
    if kind == "constant_input":
        tag, value = _only(content["value"])
        value = None if tag == "as_none" else value
        return _Leaf(
            content["name"], OptionalType(TENSOR) if value is None else type_of_constant(value), "fixed", value
        )
    tag, described = _only(content["arg"])
    if tag == "as_tensor":
        return _Leaf(described["name"], TENSOR, tag)
    if tag == "as_sym_int" and "as_name" in described:
        return _Leaf(described["as_name"], INT, tag)
    raise UnsupportedError(f"an input is of the kind {tag.removeprefix('as_')}; give tensors, numbers or text")


def _rule(tree: Tree, leaves: Iterator[_Leaf], graph: Mapping[str, Any], sizes: Sizes, what: str) -> Rule:
    if tree.kind == "leaf":
        return _leaf_rule(next(leaves), graph, sizes, what)
    parts = [_rule(child, leaves, graph, sizes, what) for child in tree.children]
    return dict(zip(tree.names, parts, strict=True)) if tree.kind == "dict" else parts


def _leaf_rule(leaf: _Leaf, graph: Mapping[str, Any], sizes: Sizes, what: str) -> Rule:
    if leaf.tag == "fixed":
        return Fixed(leaf.value)
    if leaf.tag == "as_sym_int":
        size = sizes.dimension(graph["sym_int_values"][leaf.name], f"the input {what!r}")
        return Fixed(size) if isinstance(size, int) else size
    meta = graph["tensor_values"][leaf.name]
    dims = [sizes.dimension(size, f"dimension {dim} of input {what}") for dim, size in enumerate(meta["sizes"])]
    return TensorType(dtype_of(meta["dtype"]), tuple(dims))


def _only(item: Mapping[str, Any]) -> tuple[str, Any]:
    """Tag and content of a union."""
    ((tag, content),) = item.items()
    return tag, content


def _named_inputs(tree: Tree, names: Sequence[str] | None) -> dict[str, Tree]:
    """The nests of positional and keyword arguments by the names of ``forward``."""
    if tree.kind != "tuple" or len(tree.children) != 2 or tree.children[1].kind != "dict":
        raise BundleError("the nest of the inputs is not of positional and keyword arguments")
    positional, keyword = tree.children
    found: dict[str, Tree] = {}
    for number, child in enumerate(positional.children):
        name = names[number] if names and number < len(names) else f"input_{number}"
        found[name if is_identifier(name) and name not in found else f"input_{number}"] = child
    for key, child in zip(keyword.names, keyword.children, strict=True):
        if not isinstance(key, str) or not is_identifier(key) or key in found:
            raise BundleError(f"the keyword argument {key!r} can't be the name of an input")
        found[key] = child
    return found


def _is_of_inputs(text: Any) -> bool:
    """Whether a condition says something; some torch versions write those of nothing."""
    return isinstance(text, str) and bool(text.strip())


def _remove_wholes(program: Program) -> None:
    """Take out tensors of subclasses, of which only the parts are there.

    Raises:
        UnsupportedError: an operator reads one.
    """
    nodes = [node for graph in program.methods.values() for node in graph.block.nodes]
    read = {node.attributes["name"] for node in nodes if node.op == "prim::GetAttr"}
    for name in [name for name, item in program.attributes.items() if item.value.is_meta]:
        if name in read:
            raise UnsupportedError(f"an operator reads {name!r}, a tensor of a subclass, as a whole")
        del program.attributes[name]


def _remove_unread(graph: Graph) -> None:
    """Take out reads of attributes and of parts of inputs that nothing reads."""
    for node in reversed(list(graph.block.nodes)):
        if node.op in ("prim::GetAttr", "prim::TupleUnpack", "prim::ListUnpack") and not any(
            value.is_used for value in node.outputs
        ):
            node.destroy()
