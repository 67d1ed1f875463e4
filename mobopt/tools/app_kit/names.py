"""Names and text of files, made safe for the languages of a kit: identifiers, string literals, comments, Markdown."""

from __future__ import annotations

import re
from collections.abc import Collection

from mobopt.display import shown
from mobopt.errors import InputError

_KEYWORDS = frozenset(
    """
    alignas alignof alloc and and_eq Any as asm assert associatedtype auto bitand bitor bool BOOL break by case
    catch char char16_t char32_t char8_t class close co_await co_return co_yield companion compl concept const
    const_cast consteval constexpr constinit constructor context continue copy data dealloc decltype default
    defer deinit delete description do double dynamic_cast else enum equals errno error explicit export
    extension extern fallthrough false field fileprivate float for friend fun func get goto guard hash hashCode
    id if IMP import in init inline inout inputs int interface internal is it item items lateinit let long main
    module mutable namespace new nil NO noexcept not not_eq NULL null nullptr object open operator or or_eq out
    override package precedencegroup private protected protocol public register reinterpret_cast repeat requires
    restrict result rethrows return sealed SEL self Self set short signed sizeof static static_assert
    static_cast struct subscript super suspend switch template this thread_local throw throws toString true try
    typealias typedef typeid typename typeof union unsigned using val value var vararg virtual void volatile
    wchar_t when where while xor xor_eq YES
    """.split()  # noqa: SIM905 - a list of strings would be a page
)
"""Words of Kotlin, Swift, C++ and Objective-C, and names of the generated code: no identifier of a kit is one of these,
for a name is the same in all languages."""

_CLASSES = frozenset(
    """
    Any Array AutoCloseable Boolean Bundle Class Context Data DataType Device Dictionary Double Error Float Int
    IValue List LiteModuleLoader Long Map MemoryFormat Module Nothing NSObject Number Object Optional Protocol
    Result Self Set String Tensor Test Type Unit URL Void XCTestCase
    """.split()  # noqa: SIM905
)
"""Names of classes that generated code uses."""
_OWNED = re.compile(r"(alloc|copy|init|mutableCopy|new)(?![a-z])")
"""How names of Objective-C begin that promise to hand over an object."""


def identifier(name: str, taken: Collection[str] = ()) -> str:
    """An identifier of every language: ``inputIds`` of ``input_ids``; a keyword gets ``Value`` behind it.

    Args:
        name: of an argument, a field or a method in a file; it may be anything.
        taken: identifiers that it must differ from.
    """
    words = re.findall(r"[A-Za-z0-9]+", name)
    text = "".join(word if number == 0 else word[:1].upper() + word[1:] for number, word in enumerate(words))
    text = text[:1].lower() + text[1:] if not text[:2].isupper() or len(text) == 1 else text
    if not text or text[0].isdigit():
        text = f"argument{text}"
    if text in _KEYWORDS:
        text += "Value"
    if _OWNED.match(text):
        text = f"the{text[:1].upper()}{text[1:]}"
    return distinct(text, taken)


def distinct(text: str, taken: Collection[str]) -> str:
    """The text, with a number behind it if it is taken."""
    number, found = 2, text
    while found in taken:
        found, number = f"{text}{number}", number + 1
    return found


def pascal_case(name: str) -> str:
    """``InputIds`` of ``inputIds`` or ``input_ids``."""
    return "".join(word[:1].upper() + word[1:] for word in re.findall(r"[A-Za-z0-9]+", name))


def class_name(name: str) -> str:
    """The name of a model's class: ``MobilenetV2`` of ``mobilenet_v2``; never one that the generated code uses."""
    text = pascal_case(name)
    if not text or text[0].isdigit():
        text = f"Model{text}"
    return f"{text}Model" if text in _CLASSES else text


def snake_case(name: str) -> str:
    """``mobilenet_v2`` of ``MobilenetV2``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def file_name(name: str) -> str:
    """A name that assets, resources and file systems take."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._-") or "model"


def string_literal(text: str, language: str) -> str:
    """The text as a string literal of ``kotlin``, ``swift``, ``cpp`` or ``objc``: nothing in it is code."""
    return f'{"@" if language == "objc" else ""}"{"".join(_character(item, language) for item in text)}"'


def _character(character: str, language: str) -> str:
    if character in '"\\' or (character == "$" and language == "kotlin"):
        return f"\\{character}"
    if character == "?" and language in ("cpp", "objc"):
        return "\\?"  # no trigraphs
    if " " <= character <= "~":
        return character
    if language == "swift":
        return f"\\u{{{ord(character):x}}}"
    if language in ("cpp", "objc"):
        return "".join(f"\\{byte:03o}" for byte in character.encode("utf-8", "replace"))
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))


def comment(text: str) -> str:
    """The text on one line of a comment, which it can't end; Kotlin's and Swift's comments nest."""
    return shown(text, keep="").replace("/*", "/ *").replace("*/", "* /").replace("\\", "/")


def markdown(text: str) -> str:
    """The text as it is, on one line of Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>#|&])", r"\\\1", shown(text, keep=""))


def code(text: str) -> str:
    """The text as a piece of code in Markdown, also within tables."""
    fence = "`" * (max((len(run) for run in re.findall(r"`+", text)), default=0) + 1)
    text = shown(text, keep="").replace("|", "\\|")
    return f"{fence} {text} {fence}" if "`" in text else f"{fence}{text}{fence}"


def package_name(text: str) -> str:
    """The name of a Kotlin package, as it is.

    Raises:
        InputError: it is none.
    """
    parts = text.split(".")
    if not all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", part) and part not in _KEYWORDS for part in parts):
        raise InputError(f"{text!r} is no name of a Kotlin package; give one such as com.example.model")
    return text
