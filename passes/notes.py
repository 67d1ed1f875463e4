"""Notes: what passes did, and what they left alone and why, as data; words are put to them when they are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mobopt.ir import NOWHERE, Node, Origin, Value, describe


@dataclass(frozen=True)
class NoteKind:
    """What can be said of a node, a value or an attribute; those of mobopt's own passes are in ``note_kinds.py``."""

    name: str
    words: str | Callable[..., str]
    """The end of a sentence that begins with the subject: a format of the note's parameters, or a function of them."""
    done: bool = True
    """False if it says why nothing was changed."""

    def say(self, parameters: Mapping[str, Any]) -> str:
        """The words, with a note's parameters."""
        return self.words.format(**parameters) if isinstance(self.words, str) else self.words(**parameters)


@dataclass(frozen=True)
class Note:
    """One thing that a pass did, or did not do and why."""

    pass_name: str
    kind: NoteKind
    subject: str
    """The node, ``aten::conv2d %x.5``, the value, ``%x.5``, or the attribute, by its name."""
    origin: Origin = NOWHERE
    """The nodes of the model that the subject comes from."""
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Plain values by name; nodes and values among them by their names."""
    node: Node | None = field(default=None, compare=False, repr=False)
    """The node itself, if the note is about one."""

    @property
    def message(self) -> str:
        """What is said of the subject, in words."""
        return self.kind.say(self.parameters)

    @property
    def done(self) -> bool:
        """False if the note says why nothing was changed."""
        return self.kind.done

    @property
    def source(self) -> str:
        """Lines of the model that the subject comes from; empty if none is known."""
        return str(self.origin)

    @property
    def rewrite(self) -> str:
        """Name of the rewrite that was applied, if it has one."""
        return str(self.parameters.get("rewrite", "")) if self.done else ""

    def data(self) -> dict[str, Any]:
        """The note as JSON has it."""
        return {
            "pass_name": self.pass_name,
            "kind": self.kind.name,
            "subject": self.subject,
            "message": self.message,
            "source": self.source,
            "done": self.done,
            "rewrite": self.rewrite,
            "parameters": dict(self.parameters),
        }

    def __str__(self) -> str:
        place = f" ({self.source})" if self.source else ""
        return f"{self.pass_name}: {self.subject}{place} {self.message}"


class NoteBook:
    """Collects the notes of one pass."""

    def __init__(self, pass_name: str) -> None:
        self.pass_name = pass_name
        self._notes: dict[Note, None] = {}

    @property
    def notes(self) -> list[Note]:
        """What was written down, each thing once, in order."""
        return list(self._notes)

    def add(self, kind: NoteKind, about: Node | Value | str, **parameters: Any) -> None:
        """Write down something about a node, a value, or an attribute, given by its name."""
        plain = {name: _text(item) for name, item in parameters.items()}
        node = about if isinstance(about, Node) else None
        self._notes[Note(self.pass_name, kind, _text(about), _origin(about), plain, node)] = None

    def extend(self, notes: Iterable[Note]) -> None:
        """Take over notes of another pass."""
        self._notes.update(dict.fromkeys(notes))


def _text(item: Any) -> Any:
    if isinstance(item, Node):
        return describe(item)
    return f"%{item.name}" if isinstance(item, Value) else item


def _origin(about: Node | Value | str) -> Origin:
    if isinstance(about, Value):
        return NOWHERE if about.producer is None else about.producer.origin
    return about.origin if isinstance(about, Node) else NOWHERE
