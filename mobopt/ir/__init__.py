"""The intermediate representation: a small SSA graph shaped like TorchScript's."""

from mobopt.ir.graph import Block, Graph, Node, Value
from mobopt.ir.node_list import InsertionPoint
from mobopt.ir.origin import NOWHERE, ModelNode, Origin
from mobopt.ir.program import Attribute, Program, clone_graph, describe
from mobopt.ir.text import named_constants, parse_graph, print_graph
from mobopt.ir.verify import verify, verify_graph

__all__ = [
    "NOWHERE",
    "Attribute",
    "Block",
    "Graph",
    "InsertionPoint",
    "ModelNode",
    "Node",
    "Origin",
    "Program",
    "Value",
    "clone_graph",
    "describe",
    "named_constants",
    "parse_graph",
    "print_graph",
    "verify",
    "verify_graph",
]
