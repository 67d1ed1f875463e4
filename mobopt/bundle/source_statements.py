"""Statements of serialised TorchScript source: assignments, control flow, and calls, which are inlined."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from mobopt.bundle.source_expressions import ExpressionTranslator, Model, declare_attribute, is_object, joined
from mobopt.bundle.source_files import shown
from mobopt.bundle.source_graph import GraphWriter, common_type
from mobopt.bundle.source_scope import Binding, FunctionReference, GradientMode, ObjectReference, Results, Scope
from mobopt.ir import Block, Node, Value
from mobopt.ir.types import INT, ListType, TupleType, Type

MAX_CALLS = 60
"""How deeply calls may nest."""

Variable = tuple[Binding, Type | None]
"""What a variable stands for, and its type where that may be wider than the value's."""

_ENDLESS = 2**63 - 1
"""The trip count of a ``while`` loop."""


class FunctionTranslator(ExpressionTranslator):
    """Translates the body of one function or method into the block that the writer is at."""

    def __init__(
        self,
        model: Model,
        writer: GraphWriter,
        function: FunctionReference,
        scope: Scope,
        callers: tuple[tuple[int, str], ...] = (),
    ) -> None:
        super().__init__(model, writer, function.file, scope)
        self.function = function
        self.callers = (*callers, _identity(function))

    def body(self) -> Binding:
        """Translate all statements; what the function returns."""
        statements = self.function.node.body
        for index, statement in enumerate(statements):
            self.locate(statement)
            if isinstance(statement, ast.Return):
                if index != len(statements) - 1:
                    raise self.file.error(statements[index + 1], "this statement follows a return")
                return self.returned(statement)
            self.statement(statement)
        return self.writer.constant(None)

    def returned(self, node: ast.Return) -> Binding:
        """What a return statement gives, as the declared type."""
        kind = self.type(self.function.node.returns) if self.function.node.returns else None
        if node.value is None:
            return self.writer.constant(None)
        result = self.binding(node.value, kind)
        if kind is None or isinstance(result, ObjectReference):
            return result
        if isinstance(result, Results) and isinstance(kind, TupleType):
            return result
        return self.converted(self.as_value(result, node.value), kind, node.value)

    def locate(self, node: ast.stmt) -> None:
        """Say that the next nodes come from here."""
        place = f"{self.file.path.rpartition('/')[2]}:{node.lineno}"
        path = self.function.receiver.path if self.function.receiver else ""
        self.writer.source = f"{place} in {path}" if path else place

    def inline(
        self, function: FunctionReference, positional: Sequence[Binding], named: Mapping[str, Binding], node: ast.Call
    ) -> Binding:
        """Translate a called function in place."""
        if _identity(function) in self.callers:
            raise self.file.error(node, f"{function.name} calls itself, which mobile runtimes can't inline")
        if len(self.callers) >= MAX_CALLS:
            raise self.file.error(node, f"calls are nested more than {MAX_CALLS} deep, mobopt's limit")
        callee = FunctionTranslator(self.model, self.writer, function, Scope(), self.callers)
        callee.bind(positional, named, self, node)
        source = self.writer.source
        result = callee.body()
        self.writer.source = source
        return result

    def bind(
        self, positional: Sequence[Binding], named: Mapping[str, Binding], caller: ExpressionTranslator, node: ast.Call
    ) -> None:
        """Give the parameters what a call passes, and the others their defaults."""
        parameters = self.parameters()
        if self.function.receiver is not None and parameters:
            self.scope.assign(parameters.pop(0)[0].arg, self.function.receiver)
        known = {parameter.arg for parameter, _ in parameters}
        if len(positional) > len(parameters) or not set(named) <= known:
            raise caller.file.error(node, f"{self.function.name} does not take these arguments")
        for index, (parameter, default) in enumerate(parameters):
            given = positional[index] if index < len(positional) else named.get(parameter.arg)
            if given is None and default is None:
                raise caller.file.error(node, f"the call of {self.function.name} lacks the argument {parameter.arg!r}")
            if given is None and default is not None:
                given = self.literal_constant(default, self.file)
            assert given is not None
            self.parameter(parameter, given, caller, node)

    def parameters(self) -> list[tuple[ast.arg, ast.expr | None]]:
        """Parameters and their defaults."""
        arguments = self.function.node.args
        if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs:
            raise self.file.error(self.function.node, f"{self.function.name} has parameters TorchScript does not have")
        missing: list[ast.expr | None] = [None] * (len(arguments.args) - len(arguments.defaults))
        return list(zip(arguments.args, [*missing, *arguments.defaults], strict=True))

    def parameter(self, parameter: ast.arg, given: Binding, caller: ExpressionTranslator, node: ast.AST) -> None:
        """Bind one parameter; values are converted to the declared type."""
        if not isinstance(given, (Value, Results)):
            self.scope.assign(parameter.arg, given)
            return
        value = caller.as_value(given, node)
        kind = self.type(parameter.annotation) if parameter.annotation else value.type
        self.scope.assign(parameter.arg, caller.converted(value, kind, node), kind)

    # Statements.

    def statement(self, node: ast.stmt) -> None:
        """Translate one statement."""
        self.locate(node)
        self.writer.spend(1)
        match node:
            case ast.Pass():
                pass
            case ast.Expr():
                self.binding(node.value)
            case ast.Assign(targets=[target]):
                self.assign(target, node.value)
            case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is not None:
                self.declare(name, self.type(node.annotation), value)
            case ast.If():
                self.branch(node)
            case ast.While(orelse=[]):
                self.loop(node, None, node.test)
            case ast.For(orelse=[]):
                self.counted(node)
            case ast.With():
                self.context(node)
            case ast.Raise():
                self.raising(node)
            case ast.Assert():
                self.assertion(node)
            case ast.Return():
                raise self.file.error(node, "a return inside a branch or loop, which serialised TorchScript never has")
            case _:
                raise self.file.error(node, f"{shown(node)} is a statement that serialised TorchScript does not have")

    def statements(self, nodes: Sequence[ast.stmt]) -> None:
        """Translate several statements."""
        for node in nodes:
            self.statement(node)

    def assign(self, target: ast.expr, source: ast.expr) -> None:
        """``a = x``, ``a, b = x, y``, ``a, b, = x`` or ``self.a = x``."""
        match target:
            case ast.Name(id=name):
                self.assign_name(name, *self.variable(source))
            case ast.Tuple(elts=targets):
                self.unpack(targets, self.items(source, len(targets)), source)
            case ast.Attribute(value=owner, attr=name):
                self.set_attribute(self.binding(owner), name, self.value(source), target)
            case _:
                raise self.file.error(target, f"{shown(target)} can't be assigned to")

    def assign_name(self, name: str, binding: Binding, kind: Type | None) -> None:
        """Bind a variable of a type; a value that has no name yet takes the variable's."""
        if isinstance(binding, Value) and binding.producer is not None and binding.name.isdigit():
            binding.name = self.writer.graph.unique_name("" if name.lstrip("_").isdigit() else name)
        self.scope.assign(name, binding, kind)

    def variable(self, source: ast.expr) -> Variable:
        """What an assigned expression stands for; another variable hands on its type, which may be wider."""
        binding = self.binding(source)
        kind = self.scope.type(source.id) if isinstance(source, ast.Name) else None
        return (self.as_value(binding, source) if isinstance(binding, Results) else binding), kind

    def declare(self, name: str, kind: Type, source: ast.expr) -> None:
        """``a : T = x``."""
        binding = self.binding(source, kind)
        if isinstance(binding, ObjectReference):
            self.scope.assign(name, binding)
            return
        self.assign_name(name, self.converted(self.as_value(binding, source), kind, source), kind)

    def items(self, source: ast.expr, count: int) -> Sequence[Variable]:
        """What an unpacked expression gives."""
        if isinstance(source, ast.Tuple):
            return [self.variable(item) for item in source.elts]
        binding = self.binding(source)
        if isinstance(binding, Results):
            return [(value, None) for value in binding.values]
        value = self.as_value(binding, source)
        if isinstance(value.type, TupleType):
            outputs = self.writer.node("prim::TupleUnpack", [value], value.type.elements).outputs
        elif isinstance(value.type, ListType):
            outputs = self.writer.node("prim::ListUnpack", [value], [value.type.element] * count).outputs
        else:
            raise self.file.error(source, f"{shown(source)} is {value.type}, which can't be unpacked")
        return [(output, None) for output in outputs]

    def unpack(self, targets: Sequence[ast.expr], items: Sequence[Variable], source: ast.expr) -> None:
        """Bind several variables."""
        if len(targets) != len(items):
            raise self.file.error(source, f"{shown(source)} has {len(items)} values for {len(targets)} names")
        for target, (binding, kind) in zip(targets, items, strict=True):
            if not isinstance(target, ast.Name):
                raise self.file.error(target, f"{shown(target)} can't be unpacked into")
            self.assign_name(target.id, binding, kind)

    def set_attribute(self, owner: Binding, name: str, value: Value, node: ast.AST) -> None:
        """``self.a = x``."""
        if not isinstance(owner, ObjectReference) or owner.definition.base != "Module":
            raise self.file.error(node, f"{shown(node)}: only a module's attributes can be assigned to")
        if name not in owner.definition.annotations or name not in owner.state.attributes:
            raise self.file.error(node, f"{shown(node)}: data.pkl has no attribute {joined(owner.path, name)!r}")
        if is_object(owner.state.attributes[name]):
            raise self.file.error(node, f"{shown(node)} exchanges a module, which mobopt does not read")
        attribute = declare_attribute(self.model, owner, name)
        converted = self.converted(value, attribute.type, node)
        receiver = self.writer.graph.inputs[0]
        self.writer.node("prim::SetAttr", [receiver, converted], [], attributes={"name": joined(owner.path, name)})

    def context(self, node: ast.With) -> None:
        """``with torch.no_grad():``."""
        for item in node.items:
            manager = self.binding(item.context_expr)
            if not isinstance(manager, GradientMode):
                raise self.file.error(node, f"{shown(node)}: the only context managers mobopt reads are gradient modes")
        self.statements(node.body)

    def raising(self, node: ast.Raise) -> None:
        """``raise ValueError("...")``."""
        match node.exc:
            case ast.Call(func=ast.Name(id=name), args=[message]):
                arguments = [self.value(message), self.writer.constant(f"builtins.{name}")]
            case ast.Name(id=name):
                arguments = [self.writer.constant(""), self.writer.constant(f"builtins.{name}")]
            case _:
                raise self.file.error(node, f"{shown(node)} is no exception that mobopt reads")
        self.operator("prim::RaiseException", arguments, {}, node)

    def assertion(self, node: ast.Assert) -> None:
        """``assert condition, message``."""
        chosen = self.writer.node("prim::If", [self.condition(node.test)], [])
        chosen.add_block()
        with self.writer.inside(chosen.add_block()):
            message = self.value(node.msg) if node.msg else self.writer.constant("AssertionError: ")
            self.operator("prim::RaiseException", [message], {}, node)

    # Control flow.

    def nested(self, block: Block, scope: Scope, nodes: Sequence[ast.stmt]) -> Scope:
        """Translate statements into a block; the names that they assign."""
        outer, self.scope = self.scope, scope
        with self.writer.inside(block):
            self.statements(nodes)
        self.scope = outer
        return scope

    def branch(self, node: ast.If) -> None:
        """``if``; variables that both sides know afterwards become its outputs. A side never taken is left out."""
        condition = self.condition(node.test)
        if condition.is_constant:
            self.statements(node.body if condition.constant else node.orelse)
            return
        chosen = self.writer.node("prim::If", [condition], [])
        scopes = [self.nested(chosen.add_block(), Scope(self.scope), nodes) for nodes in (node.body, node.orelse)]
        for name in dict.fromkeys([*scopes[0].names, *scopes[1].names]):
            self.merge(name, chosen, scopes)

    def merge(self, name: str, chosen: Node, scopes: Sequence[Scope]) -> None:
        """Bind a variable after a branch; one that is not a value of one type on both sides is unknown there."""
        left, right = (scope.get(name) for scope in scopes)
        left_type, right_type = (scope.type(name) for scope in scopes)
        if left is right and left is not None:
            self.scope.assign(name, left, left_type)
        elif isinstance(left, Value) and isinstance(right, Value) and left_type is not None and right_type is not None:
            kind = common_type(left_type, right_type)
            if kind is not None:
                for block, value in zip(chosen.blocks, (left, right), strict=True):
                    block.returns.add_input(value)
                self.scope.assign(name, chosen.add_output(self.writer.graph.value(kind, name)))

    def counted(self, node: ast.For) -> None:
        """``for i in range(n)``."""
        match node:
            case ast.For(target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id="range"), args=[limit], keywords=[])):
                self.loop(node, name, limit)
            case _:
                raise self.file.error(node, f"{shown(node)}: serialised loops run over range(n) only")

    def loop(self, node: ast.For | ast.While, counter: str | None, header: ast.expr) -> None:
        """A loop; variables that it assigns and that existed before are carried from one iteration to the next.

        Args:
            node: the statement.
            counter: the variable that counts iterations in a ``for`` loop; None in a ``while`` loop.
            header: the number of iterations, or the condition.
        """
        carried = [name for name in dict.fromkeys(_assigned(node.body)) if isinstance(self.scope.get(name), Value)]
        carried = [name for name in carried if name != counter]
        if counter is None:
            limit, condition = self.writer.constant(_ENDLESS), self.condition(header)
        else:
            limit, condition = self.converted(self.value(header), INT, header), self.writer.constant(True)
        kinds = {name: self.scope.type(name) for name in carried}
        inputs = [value for name in carried if isinstance(value := self.scope.get(name), Value)]
        loop = self.writer.node("prim::Loop", [limit, condition, *inputs], [])
        scope = self.iteration(loop, counter, kinds)
        self.nested(loop.blocks[0], scope, node.body)
        self.end_iteration(loop, node, header if counter is None else None, scope, kinds)
        for name, kind in kinds.items():
            assert kind is not None
            self.scope.assign(name, loop.add_output(self.writer.graph.value(kind, name)))

    def iteration(self, loop: Node, counter: str | None, kinds: Mapping[str, Type | None]) -> Scope:
        """The block of a loop with its parameters."""
        block, scope, graph = loop.add_block(), Scope(self.scope), self.writer.graph
        count = block.add_parameter(graph.value(INT, counter or ""))
        if counter is not None:
            scope.assign(counter, count)
        for name, kind in kinds.items():
            assert kind is not None
            scope.assign(name, block.add_parameter(graph.value(kind, name)))
        return scope

    def end_iteration(
        self, loop: Node, node: ast.stmt, test: ast.expr | None, scope: Scope, kinds: Mapping[str, Type | None]
    ) -> None:
        """What an iteration hands to the next: whether there is one, and the carried variables."""
        block, outer = loop.blocks[0], self.scope
        self.scope = scope
        with self.writer.inside(block):
            returned = [self.condition(test) if test is not None else self.writer.constant(True)]
            for name, kind in kinds.items():
                value = scope.get(name)
                if not isinstance(value, Value) or kind is None:
                    raise self.file.error(node, f"the loop changes what {name!r} is")
                returned.append(self.converted(value, kind, node))
        self.scope = outer
        block.returns.set_inputs(returned)


def _identity(function: FunctionReference) -> tuple[int, str]:
    return id(function.node), function.receiver.path if function.receiver else ""


def _assigned(nodes: Sequence[ast.stmt]) -> Iterator[str]:
    """Names that statements assign, in nested statements too, in order."""
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]):
                yield name
            case ast.Assign(targets=[ast.Tuple(elts=targets)]):
                yield from (target.id for target in targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.If():
                yield from _assigned(node.body)
                yield from _assigned(node.orelse)
            case ast.For() | ast.While() | ast.With():
                yield from _assigned(node.body)
                if isinstance(node, ast.For) and isinstance(node.target, ast.Name):
                    yield node.target.id
