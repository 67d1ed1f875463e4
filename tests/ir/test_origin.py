from mobopt.ir import NOWHERE, ModelNode, Origin, Program, parse_graph

CONVOLUTION, NORM, SAME_LINE, UNKNOWN = (
    ModelNode("forward", 1, "aten::conv2d %x", "a.py:1"),
    ModelNode("forward", 2, "aten::batch_norm %y", "a.py:2"),
    ModelNode("forward", 3, "aten::relu %z", "a.py:2"),
    ModelNode("forward", 4, "aten::neg %w", ""),
)

TEXT = """graph(%self : __torch__.M,
      %x : Tensor):
  %y : Tensor = aten::relu(%x) # a.py:1
  %z : Tensor = aten::dropout(%y, %rate, %train) # a.py:2
  %w : Tensor = aten::neg(%z)
  return (%w)
"""
CONSTANTS = "  %rate : float = prim::Constant[value=0.5]()\n  %train : bool = prim::Constant[value=0]()\n"


def test_union_keeps_the_models_order_and_names_lines_once() -> None:
    whole = Origin((NORM,)) | Origin((CONVOLUTION, SAME_LINE))
    assert whole.nodes == (CONVOLUTION, NORM, SAME_LINE)
    assert whole == Origin.union([Origin((SAME_LINE,)), Origin((NORM,)), NOWHERE, Origin((CONVOLUTION, NORM))])
    assert str(whole) == "a.py:1, a.py:2"
    assert whole | NOWHERE is whole and NOWHERE | whole is whole


def test_is_true_where_a_line_is_known() -> None:
    assert Origin((CONVOLUTION,)) and not NOWHERE
    assert not Origin((UNKNOWN,)) and Origin((UNKNOWN,)).nodes


def test_nodes_are_numbered_and_hand_on_what_they_come_from() -> None:
    head, body = TEXT.split("  %y", 1)
    program = Program(methods={"forward": parse_graph(f"{head}{CONSTANTS}  %y{body}")})
    program.number_nodes()
    relu, dropout, neg = program.methods["forward"].walk()
    assert relu.origin.nodes == (ModelNode("forward", 0, "aten::relu %y", "a.py:1"),)
    assert (neg.source, neg.origin.nodes[0].number) == ("", 2)
    dropout.output.replace_all_uses_with(relu.output)
    assert relu.source == "a.py:1, a.py:2"
    twin = next(program.clone().methods["forward"].walk())
    assert twin.origin == relu.origin
