"""The intermediate representation: a small SSA graph shaped like TorchScript's."""

from mobopt.ir.graph import Block, Graph, Node, Value
from mobopt.ir.node_list import InsertionPoint
from mobopt.ir.program import Attribute, Program, clone_graph
from mobopt.ir.text import parse_graph, print_graph
from mobopt.ir.verify import verify, verify_graph

__all__ = [
    "Attribute",
    "Block",
    "Graph",
    "InsertionPoint",
    "Node",
    "Program",
    "Value",
    "clone_graph",
    "parse_graph",
    "print_graph",
    "verify",
    "verify_graph",
]
