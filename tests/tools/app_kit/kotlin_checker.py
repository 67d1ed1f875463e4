"""A type checker for the Kotlin that kits are made of: every call of org.pytorch must be one that the table has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomllib

API: dict[str, Any] = tomllib.loads((Path(__file__).parent / "mobile_api.toml").read_text(encoding="utf-8"))
_JAVA = {"long": "Long", "boolean": "Boolean", "double": "Double", "int": "Int", "float": "Float", "void": "Unit"}
_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|!!|==|->|[A-Za-z_]\w*|\d+|[^\s])')
_ARRAYS = {"LongArray": "Long", "DoubleArray": "Double", "BooleanArray": "Boolean"}


class KotlinError(AssertionError):
    """The text calls what the API has not, or with other types."""


@dataclass(frozen=True)
class JavaMethod:
    """A method of the table, with types as Kotlin spells them."""

    returns: str
    parameters: tuple[str, ...]
    is_static: bool
    has_varargs: bool

    def takes(self, types: list[str]) -> bool:
        """Whether arguments of these types fit; ``*T`` is a spread array of T."""
        fixed = len(self.parameters) - self.has_varargs
        if len(types) < fixed or (len(types) > fixed and not self.has_varargs):
            return False
        rest = [kind.removeprefix("*") for kind in types[fixed:]]
        return all(map(_fits, types[:fixed], self.parameters)) and all(kind == self.parameters[-1] for kind in rest)


def _fits(kind: str, parameter: str) -> bool:
    return kind == parameter or (kind == "null" and parameter not in _JAVA.values())


def _kotlin(java: str) -> str:
    if java.endswith("[]"):
        inner = _kotlin(java[:-2])
        return f"{inner}Array" if java[:-2] in (*_JAVA, "byte") else f"Array<{inner}>"
    if java.startswith("java.util.Map<"):
        return f"Map<{', '.join(map(_kotlin, java[14:-1].split(', ')))}>"
    return _JAVA.get(java, java.rpartition(".")[2])


def _methods() -> dict[tuple[str, str], list[JavaMethod]]:
    found: dict[tuple[str, str], list[JavaMethod]] = {}
    for name, item in API["java"].items():
        assert item["source"].startswith("https://github.com/pytorch/pytorch/")
        for text in item.get("methods", ()):
            match = re.fullmatch(r"\d+\.\d+ (static )?(\S+(?:<.*>)?) (\w+)\((.*)\)", text)
            assert match, text
            parameters = re.split(r", (?![^<]*>)", match[4]) if match[4] else []
            has_varargs = bool(parameters) and parameters[-1].endswith("...")
            types = tuple(_kotlin(parameter.removesuffix("...")) for parameter in parameters)
            method = JavaMethod(_kotlin(match[2]), types, bool(match[1]), has_varargs)
            found.setdefault((name.rpartition(".")[2], match[3]), []).append(method)
    return found


METHODS = _methods()
CLASSES = {name.rpartition(".")[2] for name in API["java"]}
CONSTANTS = {
    f"{name.rpartition('.')[2]}.{constant}"
    for name, item in API["java"].items()
    for constant in item.get("constants", ())
}


def without_comments(text: str) -> str:
    """Kotlin without comments; strings stay. Comments nest, and may not be left open."""
    found, depth, at = [], 0, 0
    for match in re.finditer(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*|\*/', text):
        token = match[0]
        if depth == 0:
            found.append(text[at : match.start()])
            if token.startswith('"'):
                found.append(token)
        at = match.end()
        depth += (token == "/*") - (token == "*/")
        if depth < 0:
            raise KotlinError("a comment ends that did not begin")
    if depth:
        raise KotlinError("a comment is open")
    return "".join([*found, text[at:]])


@dataclass
class Checker:
    """Checks the functions of a generated class; ``calls`` are those of org.pytorch that were met."""

    source: str
    calls: set[str] = field(default_factory=set)

    def check(self) -> set[str]:
        """Check every function.

        Raises:
            KotlinError: a call is not in the table, or a type is another.
        """
        text = without_comments(self.source)
        self.records = {
            match[1]: dict(_declarations(match[2]))
            for match in re.finditer(r"^class (\w+)\(\n(.*?)^\)$", text, re.M | re.S)
        }
        self.objects = set(re.findall(r"^object (\w+)", text, re.M))
        loaded = re.search(r"private val module: Module = (.*)", text)
        assert loaded
        self._expect(loaded[1], "Module", {"modelPath": "String"})
        for match in re.finditer(r"^    fun (\w+)\((.*?)\)(?:: (\S.*?))? \{\n(.*?)^    \}$", text, re.M | re.S):
            self._function(dict(_declarations(match[2])), match[3] or "Unit", match[4])
        return self.calls

    def _function(self, scope: dict[str, str], returns: str, body: str) -> None:
        scope = {**scope, "module": "Module"}
        for statement in _statements(body):
            declared = re.fullmatch(r"val (\w+): (\S+) = (.*)", statement, re.S)
            if declared:
                self._expect(declared[3], declared[2], scope)
                scope[declared[1]] = declared[2]
            elif statement.startswith("return "):
                self._expect(statement.removeprefix("return "), returns, scope)
            else:
                self._parse(statement, scope)

    def _expect(self, text: str, kind: str, scope: dict[str, str]) -> None:
        found = self._parse(text, scope)
        if found != kind and found != kind.removesuffix("?") and not (found == "null" and kind.endswith("?")):
            raise KotlinError(f"{text} is {found}, and {kind} is wanted")

    def _parse(self, text: str, scope: dict[str, str]) -> str:
        tokens = _TOKEN.findall(text)
        parser = _Expression(self, tokens, scope)
        kind = parser.expression()
        if parser.at != len(tokens):
            raise KotlinError(f"can't read {text!r} beyond {tokens[parser.at]!r}")
        return kind


def _declarations(text: str) -> Iterator[tuple[str, str]]:
    for part in _split(text):
        match = re.fullmatch(r"(?:val )?(\w+): (.+?)( = null)?", part.strip(), re.S)
        if match is None:
            raise KotlinError(f"can't read the declaration {part!r}")
        yield match[1], match[2]


def _split(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += (character in "<(") - (character in ">)")
        if character == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [part for part in (*parts, text[start:]) if part.strip()]


def _statements(body: str) -> Iterator[str]:
    statement = ""
    for line in body.splitlines():
        statement = f"{statement} {line.strip()}".strip()
        if statement and statement.count("(") == statement.count(")"):
            yield statement
            statement = ""
    if statement:
        raise KotlinError(f"{statement!r} does not end")


class _Expression:
    def __init__(self, checker: Checker, tokens: list[str], scope: dict[str, str]) -> None:
        self.checker, self.tokens, self.scope, self.at = checker, tokens, scope, 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, wanted: str = "") -> str:
        token = self.peek()
        if not token or (wanted and token != wanted):
            raise KotlinError(f"{wanted!r} is wanted, and {token!r} stands in {' '.join(self.tokens)}")
        self.at += 1
        return token

    def expression(self) -> str:
        if self.peek() == "*":
            self.take()
            return f"*{_element(self.expression())}"
        if self.peek() != "if":
            return self.postfix()
        self.take("if")
        self.take("(")
        start = self.at
        self.postfix()
        tested = " ".join(self.tokens[start : self.at])
        narrows = self.peek() == "=="
        if narrows:
            self.take("==")
            self.take("null")
        self.take(")")
        first = self.expression()
        self.take("else")
        outer = self.scope
        self.scope = {
            **outer,
            **({tested: outer.get(tested, self._type_of(tested)).removesuffix("?")} if narrows else {}),
        }
        second = self.expression()
        self.scope = outer
        if first == "null":
            return f"{second.removesuffix('?')}?"
        if first != second:
            raise KotlinError(f"the branches of an if are {first} and {second}")
        return first

    def _type_of(self, text: str) -> str:
        return _Expression(self.checker, text.split(), self.scope).postfix()

    def postfix(self) -> str:
        start = self.at
        kind = self.primary()
        while True:
            here = " ".join(self.tokens[start : self.at])
            kind = self.scope.get(here, kind)
            if self.peek() == "[":
                self.take("[")
                if not self.take().isdigit():
                    raise KotlinError("an index is a number")
                self.take("]")
                kind = _element(kind)
            elif self.peek() == ".":
                self.take(".")
                kind = self.member(kind, self.take())
            else:
                return kind

    def primary(self) -> str:
        token = self.take()
        if token.startswith('"'):
            return "String"
        if token == "null":
            return "null"
        if token in CLASSES:
            self.take(".")
            name = self.take()
            if f"{token}.{name}" in CONSTANTS:
                return token
            return self.call(token, name, is_static=True)
        if token in self.checker.objects:
            return token
        if token in self.checker.records:
            return self.construct(token)
        if token not in self.scope:
            raise KotlinError(f"{token!r} is unknown")
        return self.scope[token]

    def arguments(self) -> list[str]:
        self.take("(")
        found = []
        while self.peek() != ")":
            found.append(self.expression())
            if self.peek() == ",":
                self.take(",")
        self.take(")")
        return found

    def call(self, cls: str, name: str, is_static: bool) -> str:
        types = self.arguments()
        for method in METHODS.get((cls, name), ()):
            if method.is_static == is_static and method.takes(types):
                self.checker.calls.add(f"{cls}.{name}")
                return method.returns
        raise KotlinError(f"{cls} has no {'static ' if is_static else ''}method {name}({', '.join(types)})")

    def construct(self, record: str) -> str:
        fields = dict(self.checker.records[record])
        self.take("(")
        while self.peek() != ")":
            name = self.take()
            self.take("=")
            kind, wanted = self.expression(), fields.pop(name, "nothing")
            if kind not in (wanted, wanted.removesuffix("?")):
                raise KotlinError(f"{record}.{name} is {wanted}, and gets {kind}")
            if self.peek() == ",":
                self.take(",")
        self.take(")")
        if fields:
            raise KotlinError(f"{record} lacks {fields}")
        return record

    def member(self, kind: str, name: str) -> str:
        if name in ("map", "mapValues"):
            return self.mapped(kind, name)
        if kind in self.checker.records:
            return self.checker.records[kind][name]
        if name == "toTypedArray" and kind.startswith("List<"):
            self.arguments()
            return f"Array<{_element(kind)}>"
        if name == "toList" and kind.startswith("Array<"):
            self.arguments()
            return f"List<{_element(kind)}>"
        return self.call(kind, name, is_static=False)

    def mapped(self, kind: str, name: str) -> str:
        self.take("{")
        if name == "mapValues":
            for token in ("(", "_", ","):
                self.take(token)
        item = self.take()
        if name == "mapValues":
            self.take(")")
        self.take("->")
        if name == "mapValues" and not kind.startswith("Map<"):
            raise KotlinError(f"mapValues of {kind}")
        outer, self.scope = self.scope, {**self.scope, item: _element(kind)}
        inner = self.expression()
        self.scope = outer
        self.take("}")
        return f"List<{inner}>" if name == "map" else f"Map<{_split(kind[4:-1])[0]}, {inner}>"


def _element(kind: str) -> str:
    if kind in _ARRAYS:
        return _ARRAYS[kind]
    match = re.fullmatch(r"(List|Array|Map)<(.*)>", kind)
    if match is None:
        raise KotlinError(f"{kind} has no elements")
    return _split(match[2])[-1].strip()
