"""LSTM and GRU become a dense layer of all steps and a Recurrence, in images as on rows of channels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.graph.layers import GraphNode
from nnstretch.passes import optimize
from tests.kits.graphs.textual_graphs import Check, model_of, normal
from tests.kits.hypothesis_examples import examples
from tests.nnstretch.conftest import fuse_and_compare

DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}
GATES = {"LSTM": 4, "GRU": 3}
LAST_STATES = "all", "all and last", "last"


def weights_of(operator: str, inputs: int, hidden: int, directions: int, sequences: int) -> dict[str, np.ndarray]:
    gates = GATES[operator] * hidden
    return {
        "w": normal(directions, gates, inputs) / 2,
        "r": normal(directions, gates, hidden, seed=2) / 2,
        "b": normal(directions, 2 * gates, seed=3),
        "h": normal(directions, sequences, hidden, seed=4),
        "c": normal(directions, sequences, hidden, seed=5),
        "zeros": np.zeros((directions, sequences, hidden), np.float32),
        "channels": np.array([0, 0, -1]),
        "peepholes": normal(directions, 3 * hidden),
        "no_peepholes": np.zeros((directions, 3 * hidden), np.float32),
        "lengths": np.array([4, 2, 3], np.int32),
        "all_steps": np.array([4, 4, 4], np.int32),
    }


def sequence_model(
    operator: str,
    sizes: tuple[int, int, int, int] = (4, 3, 5, 6),
    *,
    attributes: str = "",
    direction: str = "bidirectional",
    operands: str = "x, w, r, b",
    outputs: str = "s",
    results: str = "y",
) -> ir.Model:
    """`operator` on x of T,B,I = sizes[:3], with sizes[3] hidden units; y is the states s as T,B,D·H."""
    steps, sequences, inputs, hidden = sizes
    directions = DIRECTIONS[direction]
    state = f"{directions},{sequences},{hidden}"
    types = {
        "y": f"{steps},{sequences},{directions * hidden}",
        "l": state,
        "m": state,
    }
    made = ", ".join(f"float[{types[name]}] {name}" for name in results)
    given = f"float[{steps},{sequences},{inputs}] x, float[{state}] i"
    y = "t = Transpose<perm=[0,2,1,3]>(s) y = Reshape(t, channels)" if "y" in results else ""
    text = f"""g ({given}) => ({made}) {{
        {outputs} = {operator}<direction="{direction}", hidden_size={hidden}{attributes}>({operands})
        {y}
    }}"""
    return model_of(text, weights_of(operator, inputs, hidden, directions, sequences))


def found(nodes: Sequence[GraphNode]) -> Counter[str]:
    """How many layers there are of each operator, but views."""
    return Counter(node.layer.op for node in nodes if node.layer.op not in ("Reshape", "Slice"))


@st.composite
def models(draw: st.DrawFn) -> ir.Model:
    operator = draw(st.sampled_from(sorted(GATES)))
    sizes = [draw(st.integers(1, most)) for most in (5, 4, 7, 19)]
    first = [draw(st.sampled_from(["", "zeros", value, "i"])) for value in ("h", "c")]
    kept = draw(st.sampled_from(LAST_STATES))
    return sequence_model(
        operator,
        (sizes[0], sizes[1], sizes[2], sizes[3]),
        attributes=draw(st.sampled_from(["", ", linear_before_reset=1"][: 5 - GATES[operator]])),
        direction=draw(st.sampled_from(sorted(DIRECTIONS))),
        operands=", ".join(["x", "w", "r", draw(st.sampled_from(["b", ""])), "", *first[: GATES[operator] - 2]]),
        outputs="s, l" if kept != "all" else "s",
        results={"all": "y", "all and last": "yl", "last": "l"}[kept],
    )


@given(models())
@settings(max_examples=examples(40), deadline=None)
def test_any_form(model: ir.Model) -> None:
    layers = found(fuse_and_compare(model))
    assert layers["Recurrence"] == 1
    assert not any(name.startswith("onnx:") for name in layers)


@pytest.mark.parametrize("operator", sorted(GATES))
@pytest.mark.parametrize("direction", sorted(DIRECTIONS))
def test_rows_of_channels_are_not_moved(check: Check, operator: str, direction: str) -> None:
    layers = found(check(sequence_model(operator, direction=direction)))
    assert layers == {"Dense": 1, "Recurrence": 1}


def test_states_with_directions_apart(check: Check) -> None:
    """What reads steps, directions, sequences, units gets them by a Transpose."""
    model = model_of(
        'g (float[4,3,5] x) => (float[4,2,3,6] y) { s = LSTM<direction="bidirectional", hidden_size=6>(x, w, r) y = Relu(s) }',
        weights_of("LSTM", 5, 6, 2, 3),
    )
    assert found(check(model)) == {"Dense": 1, "Recurrence": 1, "Transpose": 1, "Activation": 1}


@pytest.mark.parametrize("batch", [1, 2])
def test_steps_along_rows_and_columns_of_an_image(check: Check, batch: int) -> None:
    """Sequencer2D's block: nothing is moved between the normalisation and the dense layer behind both directions."""
    height, width, channels, hidden = 3, 5, 16, 6
    sizes = {
        "columns": (batch * width, height, channels),
        "rows": (batch * height, width, channels),
        "of_columns": (batch, width, height, 2 * hidden),
        "of_rows": (batch, height, width, 2 * hidden),
        "joined": (0, 0, -1),
    }
    weights = {name: np.array(size) for name, size in sizes.items()}
    weights |= {"k": normal(channels, 3, 1, 1), "dense": normal(4 * hidden, channels)}
    made = weights_of("LSTM", channels, hidden, 2, 1)
    weights |= {f"{name}{index}": made[name] for name in "wr" for index in (1, 2)}
    lstm = 'LSTM<direction="bidirectional", hidden_size=6>'
    model = model_of(
        f"""g (float[{batch},3,{height},{width}] x) => (float[{batch},{height},{width},{channels}] y) {{
            p = Conv(x, k) n = Transpose<perm=[0,2,3,1]>(p)
            a = Transpose<perm=[0,2,1,3]>(n) b = Reshape(a, columns) c = Transpose<perm=[1,0,2]>(b)
            d = {lstm}(c, w1, r1) e = Transpose<perm=[0,2,1,3]>(d) f = Reshape(e, joined)
            h = Transpose<perm=[1,0,2]>(f) i = Reshape(h, of_columns) v = Transpose<perm=[0,2,1,3]>(i)
            l = Reshape(n, rows) m = Transpose<perm=[1,0,2]>(l)
            o = {lstm}(m, w2, r2) q = Transpose<perm=[0,2,1,3]>(o) s = Reshape(q, joined)
            t = Transpose<perm=[1,0,2]>(s) u = Reshape(t, of_rows)
            j = Concat<axis=3>(v, u) y = MatMul(j, dense)
        }}""",
        weights,
    )
    nodes = check(model)
    assert found(nodes) == {"Conv": 4, "Recurrence": 2, "Concat": 1, "Transpose": 1}
    assert [node.layer.integer("axis") for node in nodes if node.layer.op == "Recurrence"] == [2, 3]


def test_a_recogniser_of_text(check: Check) -> None:
    """CRNN: columns of features are steps, and the last states of a layer are read beside all of them."""
    weights = {
        "k": normal(8, 3, 4, 1),
        "one": np.array([2]),
        "channels": np.array([0, 0, -1]),
        "classes": normal(10, 4),
    }
    first, second = weights_of("LSTM", 8, 6, 2, 1), weights_of("LSTM", 12, 5, 2, 1)
    weights |= {f"{name}1": first[name] for name in "wrb"} | {f"{name}2": second[name] for name in "wrb"}
    lstm = 'LSTM<direction="bidirectional", hidden_size='
    model = model_of(
        f"""g (float[1,3,4,9] x) => (float[9,1,4] y, float[2,1,5] l) {{
            p = Conv(x, k) q = Squeeze(p, one) c = Transpose<perm=[2,0,1]>(q)
            d = {lstm}6>(c, w1, r1, b1) e = Transpose<perm=[0,2,1,3]>(d) f = Reshape(e, channels)
            h, l = {lstm}5>(f, w2, r2, b2) i = Transpose<perm=[0,2,1,3]>(h) j = Reshape(i, channels)
            y = MatMul(j, classes)
        }}""",
        weights,
    )
    layers = found(check(model))
    assert (layers["Conv"], layers["Recurrence"]) == (4, 2)
    assert not any(name.startswith("onnx:") for name in layers)


@pytest.mark.parametrize(
    ("operator", "changes"),
    [
        ("LSTM", {"attributes": ", clip=0.5"}),
        ("LSTM", {"attributes": ", input_forget=1"}),
        ("LSTM", {"attributes": ', activations=["Sigmoid","Relu","Tanh","Sigmoid","Tanh","Tanh"]'}),
        ("LSTM", {"outputs": "s, l, m", "results": "ym"}),
        ("LSTM", {"operands": "x, w, r, b, , , , peepholes"}),
        ("LSTM", {"operands": "x, w, r, b, lengths"}),
        ("GRU", {"operands": "x, w, r, b, lengths"}),
    ],
)
def test_others_stay(check: Check, operator: str, changes: dict[str, Any]) -> None:
    model = sequence_model(operator, **changes)
    assert f"onnx:{operator}" in found(check(model))


def test_peepholes_of_zero_are_none(check: Check) -> None:
    layers = found(check(sequence_model("LSTM", operands="x, w, r, b, , , , no_peepholes")))
    assert layers == {"Dense": 1, "Recurrence": 1}


def test_lengths_of_all_steps_and_usual_activations(check: Check) -> None:
    activations = ', activations=["sigmoid","TANH","Sigmoid","Tanh"]'
    model = sequence_model("GRU", attributes=activations, operands="x, w, r, b, all_steps")
    assert found(check(model)) == {"Dense": 1, "Recurrence": 1}
    assert optimize(optimize(model)).graph.num_nodes() == optimize(model).graph.num_nodes()
