"""TorchScript source in: the methods of a ``.pt`` archive become graphs, with every call inlined.

Statements are compiled here, expressions in :mod:`mobopt.bundle.source_compiler`. Variables that a branch or a loop
assigns become its results. Nothing is executed.

Source of the language: ``torch/csrc/jit/serialization/python_print.cpp``, ``import_source.cpp``.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from mobopt.bundle.attributes import ModuleTree, Submodule
from mobopt.bundle.builder import Allowance
from mobopt.bundle.source_compiler import Compiler
from mobopt.bundle.source_library import SourceFunction, SourceLibrary
from mobopt.bundle.source_operators import Ignored, Item, NewObject
from mobopt.bundle.unpickler import PickledEnum, Unpickled
from mobopt.errors import BundleError, MoboptError
from mobopt.ir import Block, Graph, Program, Value
from mobopt.ir.schemas import accepts
from mobopt.ir.types import BOOL, INT, TupleType, Type

_MAX_TRIPS = (1 << 63) - 1
_MAX_CALLS = 60


def fill_from_source(
    program: Program,
    modules: ModuleTree,
    library: SourceLibrary,
    constants: Unpickled,
    allowance: Allowance,
    methods: Collection[str] | None = None,
) -> None:
    """Compile the methods of the root class into the program.

    Args:
        program: what to fill.
        modules: the module and its attributes.
        library: the archive's source.
        constants: the tuple that source calls ``CONSTANTS``.
        allowance: what reading may cost.
        methods: names of those to compile; None for all.

    Raises:
        BundleError: the source uses what is not read; the message names record, line and construct.
    """
    if not isinstance(constants.value, tuple):
        raise BundleError(
            f"the source's constants are a {type(constants.value).__name__} where a tuple belongs; the file is damaged"
        )
    defaults: dict[str, dict[str, Any]] = {}
    found = library.find_class(modules.root.class_name).methods
    for name, function in found.items():
        if methods is not None and name not in methods:
            continue
        compiler = SourceCompiler(modules, library, constants, allowance)
        program.methods[name] = compiler.method(function)
        defaults[name] = compiler.defaults
    program.metadata["defaults"] = {name: values for name, values in defaults.items() if values}
    program.metadata["method_names"] = list(found)


def parameters_with_default(library: SourceLibrary, class_name: str) -> dict[str, range]:
    """Places of the parameters that have a default, for each method of a class; 0 is the module itself."""
    definitions = {name: function.definition.args for name, function in library.find_class(class_name).methods.items()}
    return {name: range(len(it.args) - len(it.defaults), len(it.args)) for name, it in definitions.items()}


def refine_attributes(modules: ModuleTree, library: SourceLibrary) -> None:
    """Give attributes the types that their classes declare, and say which are parameters and buffers.

    Raises:
        BundleError: a class declares an attribute that isn't there, or of another type.
    """
    for module in modules.all_modules():
        declared = library.find_class(module.class_name)
        for name, annotation in declared.attributes.items():
            member = module.members.get(name)
            if member is None:
                raise BundleError(
                    f"{declared.record} declares attribute {name!r} of {module.class_name}, which the model lacks"
                )
            if not isinstance(member, str):
                continue
            attribute = modules.attributes[member]
            kind = library.type(annotation, declared.record)
            if not accepts(kind, attribute.type):
                raise BundleError(
                    f"{declared.record} declares {member!r} as {kind}, but the model holds a {attribute.type}"
                )
            attribute.type = kind
            attribute.is_parameter = name in declared.parameters
            attribute.is_buffer = name in declared.buffers


class SourceCompiler(Compiler):
    """Compiles one method, statement by statement."""

    def __init__(self, modules: ModuleTree, library: SourceLibrary, constants: Unpickled, allowance: Allowance) -> None:
        super().__init__(modules, library, constants, allowance)
        self.calls = 0
        self.defaults: dict[str, Any] = {}

    def method(self, function: SourceFunction) -> Graph:
        """The graph of a method of the root module."""
        graph = self.builder.graph
        self.record = function.record
        parameters = function.definition.args.args
        if not parameters:
            raise self.error(function.definition, "a method has no parameter for the module itself")
        self.module_value = graph.add_input("self", self.modules.root_type)
        environment: dict[str, Item] = {parameters[0].arg: self.modules.root}
        for parameter in parameters[1:]:
            environment[parameter.arg] = graph.add_input(parameter.arg, self.parameter_type(parameter))
        for parameter, default in self.default_expressions(function.definition):
            value = self.expression(default, self.parameter_type(parameter))
            self.defaults[parameter.arg] = value.constant if isinstance(value, Value) and value.is_constant else None
        result = self.body(function, environment)
        graph.return_values(self.value(result, function.definition))
        return graph

    def inline(
        self, function: SourceFunction, call: ast.AST, arguments: Sequence[Item], keywords: dict[str, Item]
    ) -> Item:
        """Compile a called function in place; returns its result."""
        definition = function.definition
        parameters = definition.args.args
        bound: dict[str, Item] = dict(zip((item.arg for item in parameters), arguments, strict=False))
        if (
            len(arguments) > len(parameters)
            or set(keywords) & set(bound)
            or set(keywords) - {p.arg for p in parameters}
        ):
            raise self.error(call, f"{definition.name} is called with arguments that it does not take")
        bound |= keywords
        outer_record, outer, outer_path = self.record, self.environment, self.path
        if arguments and isinstance(arguments[0], Submodule):
            self.path = arguments[0].path
        self.record = function.record
        for parameter, default in self.default_expressions(definition):
            if parameter.arg not in bound:
                bound[parameter.arg] = self.expression(default, self.parameter_type(parameter))
        missing = [parameter.arg for parameter in parameters if parameter.arg not in bound]
        if missing:
            self.record = outer_record
            raise self.error(call, f"{definition.name} is called without its argument {missing[0]!r}")
        result = self.body(function, {p.arg: self.bind(bound[p.arg], p) for p in parameters})
        self.record, self.environment, self.path = outer_record, outer, outer_path
        return result

    def bind(self, item: Item, parameter: ast.arg) -> Item:
        """An argument as the parameter's type wants it."""
        if not isinstance(item, Value) or parameter.annotation is None:
            return item
        return self.checked(item, self.parameter_type(parameter), parameter)

    def checked(self, item: Value, kind: Type, node: ast.AST) -> Value:
        """A value that must be of a declared type."""
        value = self.converted(item, kind)
        if not accepts(kind, value.type):
            raise self.error(node, f"a {value.type} is given where {kind} is declared")
        return value

    def parameter_type(self, parameter: ast.arg) -> Type:
        """The declared type of a parameter."""
        if parameter.annotation is None:
            raise BundleError(f"{self.record}:{parameter.lineno}: parameter {parameter.arg!r} has no type")
        return self.library.type(parameter.annotation, self.record)

    def default_expressions(self, definition: ast.FunctionDef) -> Iterator[tuple[ast.arg, ast.expr]]:
        """Parameters that have a default, with it."""
        defaults = definition.args.defaults
        yield from zip(definition.args.args[len(definition.args.args) - len(defaults) :], defaults, strict=True)

    def body(self, function: SourceFunction, environment: dict[str, Item]) -> Item:
        """Compile a function's statements; returns what it returns."""
        self.calls += 1
        if self.calls > _MAX_CALLS:
            raise self.error(function.definition, f"calls are nested over {_MAX_CALLS} deep; recursion is not read")
        self.environment = environment
        *statements, last = function.definition.body
        self.statements(statements)
        if isinstance(last, ast.Return):
            kind = self.return_type(function)
            result = self.none() if last.value is None else self.expression(last.value, kind)
            if kind is not None and isinstance(result, Value):
                result = self.checked(result, kind, last)
        else:
            self.statements([last])
            result = self.none()
        self.calls -= 1
        return result

    def return_type(self, function: SourceFunction) -> Type | None:
        """The declared type of a function's result."""
        returns = function.definition.returns
        return None if returns is None else self.library.type(returns, function.record)

    # Statements.

    def statements(self, statements: Sequence[ast.stmt]) -> None:
        """Compile statements in order."""
        for statement in statements:
            self.builder.source = self.place(statement)
            try:
                self.statement(statement)
            except MoboptError as error:
                text = str(error)
                raise BundleError(
                    text if text.startswith("code/") else f"{self.record}:{statement.lineno}: {text}"
                ) from None

    def statement(self, statement: ast.stmt) -> None:
        """Compile one statement."""
        match statement:
            case ast.Assign(targets=[target], value=value):
                self.assign(target, value)
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=ast.expr() as value):
                self.set_variable(name, self.expression(value, self.library.type(annotation, self.record)))
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
                self.set_variable(
                    name, self.binary(op, self.name(ast.Name(id=name)), self.expression(value), statement)
                )
            case ast.Expr(value=value):
                self.evaluate(value)
            case ast.If():
                self.branch(statement)
            case ast.While():
                self.while_loop(statement)
            case ast.For():
                self.for_loop(statement)
            case ast.With():
                self.context(statement)
            case ast.Assert():
                self.assertion(statement)
            case ast.Raise(exc=exception):
                self.raise_exception(exception)
            case ast.Pass():
                pass
            case ast.FunctionDef():
                raise self.error(
                    statement,
                    "it forks a function (prim::fork), and mobile GPU runtimes run one thing after another; call the "
                    "function instead of forking it",
                )
            case ast.Return():
                raise self.error(statement, "a function returns before its end")
            case _:
                raise self.error(statement, f"{type(statement).__name__} statements are not read")

    def assign(self, target: ast.expr, value: ast.expr) -> None:
        """An assignment."""
        match target:
            case ast.Name(id=name):
                self.set_variable(name, self.expression(value))
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                self.assign_several(targets, value)
            case ast.Attribute(value=owner, attr=name):
                self.set_attribute(owner, name, value)
            case ast.Subscript(value=container, slice=index):
                items = [self.expression(container), self.expression(index), self.expression(value)]
                self.call_operator("aten::_set_item", items, {}, target)
            case _:
                raise self.error(target, f"can't assign to {ast.unparse(target)[:80]!r}")

    def assign_several(self, targets: Sequence[ast.expr], value: ast.expr) -> None:
        """``a, b = ...``"""
        if isinstance(value, ast.Tuple) and len(value.elts) == len(targets):
            items: Sequence[Item] = [self.expression(part) for part in value.elts]
        else:
            items = self.unpacked(self.evaluate(value), len(targets), value)
        for target, item in zip(targets, items, strict=True):
            if not isinstance(target, ast.Name):
                raise self.error(target, f"can't assign to {ast.unparse(target)[:80]!r}")
            self.set_variable(target.id, item)

    def set_variable(self, name: str, item: Item) -> None:
        """Bind a variable; a new value that has no name yet takes its."""
        if isinstance(item, Value) and not item.is_constant and item.name.isdigit():
            item.name = self.builder.graph.unique_name(name)
        self.environment[name] = item

    def set_attribute(self, owner: ast.expr, name: str, value: ast.expr) -> None:
        """``self.x = ...``"""
        module = self.expression(owner)
        if isinstance(module, Ignored):
            return
        if isinstance(module, NewObject):
            self.set_field(module, name, value)
            return
        if isinstance(module, Value) and isinstance(module.type, TupleType) and module.type.name:
            raise self.error(
                value,
                f"it changes {name!r} of an object of the class {module.type.name} that is made already, which is not "
                "read; make another object instead",
            )
        member = module.members.get(name) if isinstance(module, Submodule) else None
        if not isinstance(member, str):
            raise self.error(owner, f"can't assign to attribute {name!r} of {ast.unparse(owner)[:80]!r}")
        item = self.value(self.expression(value, self.modules.attributes[member].type), value)
        self.builder.node("prim::SetAttr", [self.module_value, item], [], attributes={"name": member})

    def set_field(self, made: NewObject, name: str, value: ast.expr) -> None:
        """``self.x = ...`` in ``__init__`` of a class of values."""
        if name not in made.type.fields or self.builder.block is not made.block:
            raise self.error(
                value, f"__init__ of {made.name} sets {name!r} in a branch, which is not read; choose its value before"
            )
        kind = made.type.elements[made.type.fields.index(name)]
        made.fields[name] = self.checked(self.value(self.expression(value, kind), value), kind, value)

    def context(self, statement: ast.With) -> None:
        """``with torch.no_grad():``, which says nothing about a model that only infers."""
        for item in statement.items:
            if not isinstance(self.expression(item.context_expr), Ignored):
                raise self.error(
                    statement, "context managers other than torch.no_grad() have no place in a mobile model"
                )
        self.statements(statement.body)

    def assertion(self, statement: ast.Assert) -> None:
        """``assert``"""
        node = self.builder.if_else(self.condition(statement.test))
        with self.builder.inside(node.blocks[1]):
            message = statement.msg if statement.msg is not None else ast.Constant(value="")
            self.raise_message([self.value(self.expression(message), statement), self.none()])
        self.builder.finish_if(node, [], [])

    def raise_exception(self, exception: ast.expr | None) -> None:
        """``raise``"""
        arguments = exception.args if isinstance(exception, ast.Call) else []
        message = self.expression(arguments[0]) if arguments else self.builder.constant("")
        self.raise_message([self.value(message, exception), self.none()])

    # Branches and loops.

    def branch(self, statement: ast.If) -> None:
        """``if``"""
        node = self.builder.if_else(self.condition(statement.test))
        then = self.nested(node.blocks[0], statement.body, self.environment)
        otherwise = self.nested(node.blocks[1], statement.orelse, self.environment)
        merged: dict[str, Item] = {}
        differing: list[str] = []
        for name, item in then.items():
            other = otherwise.get(name)
            if other is item or (isinstance(item, PickledEnum) and other == item):
                merged[name] = item
            elif isinstance(item, Value) and isinstance(other, Value):
                differing.append(name)
        left, right = ([self.known(side[name]) for name in differing] for side in (then, otherwise))
        merged.update(zip(differing, self.builder.finish_if(node, left, right, differing), strict=True))
        self.environment = merged

    def known(self, item: Item) -> Value:
        """An item that has been found to be a value."""
        assert isinstance(item, Value)
        return item

    def nested(self, block: Block, body: Sequence[ast.stmt], environment: dict[str, Item]) -> dict[str, Item]:
        """Compile statements into a block; returns the variables at its end."""
        self.builder.step(copied=len(environment))
        outer, self.environment = self.environment, dict(environment)
        with self.builder.inside(block):
            self.statements(body)
        inner, self.environment = self.environment, outer
        return inner

    def while_loop(self, statement: ast.While) -> None:
        """``while``"""
        condition = self.condition(statement.test)
        self.loop(statement, self.builder.constant(_MAX_TRIPS), condition, statement.test, None)

    def for_loop(self, statement: ast.For) -> None:
        """``for i in range(...)``"""
        if not isinstance(statement.target, ast.Name):
            raise self.error(statement, "only loops over a range are read")
        match statement.iter:
            case ast.Call(func=ast.Name(id="range"), args=[limit], keywords=[]):
                trips, bounds = self.value(self.expression(limit), limit), None
            case ast.Call(func=ast.Name(id="range"), args=[_, _] | [_, _, _] as given, keywords=[]):
                bounds = [self.value(self.expression(item), item) for item in given]
                bounds = bounds if len(bounds) == 3 else [*bounds, self.builder.constant(1)]
                trips = self.value(self.call_operator("aten::__range_length", bounds, {}, statement), statement)
            case _:
                raise self.error(statement, "only loops over a range are read")
        self.loop(statement, self.converted(trips, INT), self.builder.constant(True), None, bounds)

    def loop(
        self,
        statement: ast.For | ast.While,
        limit: Value,
        condition: Value,
        test: ast.expr | None,
        bounds: Sequence[Value] | None,
    ) -> None:
        """A prim::Loop; the variables that its body assigns and that exist before it are carried."""
        names = [name for name in _assigned(statement.body) if isinstance(self.environment.get(name), Value)]
        carried = [self.known(self.environment[name]) for name in names]
        results = self.builder.loop(
            limit,
            condition,
            carried,
            lambda body, types: self.loop_body(body, statement, names, types, test, bounds),
            names,
        )
        self.environment.update(zip(names, results, strict=True))

    def loop_body(
        self,
        block: Block,
        statement: ast.For | ast.While,
        names: Sequence[str],
        types: Sequence[Type],
        test: ast.expr | None,
        bounds: Sequence[Value] | None,
    ) -> list[Value]:
        """Fill a loop's block; returns what it returns."""
        graph = self.builder.graph
        iteration = block.add_parameter(graph.value(INT, "i"))
        inner = dict(self.environment)
        for name, kind in zip(names, types, strict=True):
            inner[name] = block.add_parameter(graph.value(kind, name))
        with self.builder.inside(block):
            if isinstance(statement, ast.For) and isinstance(statement.target, ast.Name):
                inner[statement.target.id] = self.index_value(iteration, bounds, statement)
            end = self.nested(block, statement.body, inner)
            outer, self.environment = self.environment, end
            go_on = self.builder.constant(True) if test is None else self.condition(test)
            self.environment = outer
        missing = [name for name in names if not isinstance(end.get(name), Value)]
        if missing:
            raise self.error(statement, f"a loop leaves the variable {missing[0]!r} undefined")
        return [go_on, *(self.known(end[name]) for name in names)]

    def index_value(self, iteration: Value, bounds: Sequence[Value] | None, statement: ast.For) -> Value:
        """The loop variable from the number of the iteration."""
        if bounds is None:
            return iteration
        derived = self.call_operator("aten::__derive_index", [iteration, bounds[0], bounds[2]], {}, statement)
        return self.value(derived, statement)

    def condition(self, test: ast.expr) -> Value:
        """A condition as a bool."""
        value = self.value(self.expression(test), test)
        if accepts(BOOL, value.type):
            return value
        return self.value(self.call_operator("aten::Bool", [value], {}, test), test)


def _assigned(statements: Sequence[ast.stmt]) -> list[str]:
    """Variables that statements assign to, in order, also in nested ones."""
    names: dict[str, None] = {}
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names[node.id] = None
    return list(names)
