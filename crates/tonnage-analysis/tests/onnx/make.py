# SPDX-License-Identifier: MIT OR Apache-2.0
"""Makes the models beside it with the onnx package, and prints the lives and bytes that tests/onnx.rs compares with.

    python make.py

The numbers come from the package's own parser and its own sizes of types, and share no code with the reader.
"""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference

HERE = Path(__file__).parent


def weight(name, *shape):
    return numpy_helper.from_array(np.full(shape, 0.5, np.float32), name)


def network(batch):
    """A small net of convolutions with a skip connection, an unused output and a branch."""
    nodes = [
        helper.make_node("Conv", ["image", "w1", "b1"], ["conv1"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv1"], ["relu1"]),
        helper.make_node("Conv", ["relu1", "w2"], ["conv2"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["conv2", "relu1"], ["sum"]),
        helper.make_node("MaxPool", ["sum"], ["pool", "where"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Constant", [], ["half"], value=weight("half_value", 1)),
        helper.make_node("Mul", ["pool", "half"], ["scaled"]),
        helper.make_node("GlobalAveragePool", ["scaled"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w3", ""], ["logits"], transB=1),
        helper.make_node("Cast", ["logits"], ["half_logits"], to=TensorProto.FLOAT16),
        helper.make_node("Softmax", ["logits"], ["probabilities"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [batch, 3, 16, 16])],
        [helper.make_tensor_value_info("half_logits", TensorProto.FLOAT16, [batch, 10]),
         helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [batch, 10])],
        [weight("w1", 8, 3, 3, 3), weight("b1", 8), weight("w2", 8, 8, 3, 3), weight("w3", 10, 8)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return shape_inference.infer_shapes(model, strict_mode=True)


def branches():
    """An If whose branches read from the graph around them."""
    info = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [4])
    then = helper.make_graph(
        [helper.make_node("Add", ["early", "x"], ["inner"]), helper.make_node("Neg", ["inner"], ["then_out"])], "then", [],
        [info("then_out")])
    other = helper.make_graph([helper.make_node("Identity", ["x"], ["else_out"])], "else", [], [info("else_out")])
    nodes = [
        helper.make_node("Abs", ["x"], ["early"]),
        helper.make_node("Exp", ["x"], ["middle"]),
        helper.make_node("If", ["which"], ["chosen"], then_branch=then, else_branch=other),
        helper.make_node("Add", ["chosen", "middle"], ["y"]),
    ]
    which = helper.make_tensor_value_info("which", TensorProto.BOOL, [])
    graph = helper.make_graph(nodes, "branches", [info("x"), which], [info("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return shape_inference.infer_shapes(model, strict_mode=True)


def names_read(node):
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        for graph in [attribute.g] if attribute.HasField("g") else list(attribute.graphs):
            inside = {name for inner in graph.node for name in inner.output}
            for inner in graph.node:
                names += [name for name in names_read(inner) if name not in inside]
    return names


def lives(model):
    graph = model.graph
    types = {info.name: info.type.tensor_type for info in [*graph.value_info, *graph.output]}
    outputs = {info.name for info in graph.output}
    for index, node in enumerate(graph.node):
        if node.op_type == "Constant":
            continue
        for name in node.output:
            kind = types[name]
            shape = [dim.dim_value for dim in kind.shape.dim]
            size = int(np.prod(shape, dtype=np.int64)) * helper.tensor_dtype_to_np_dtype(kind.elem_type).itemsize
            readers = [at for at, other in enumerate(graph.node) if name in names_read(other)]
            end = len(graph.node) if name in outputs else max(readers, default=index) + 1
            yield name, index, end, size


def main():
    models = {"net": network(2), "symbolic": network("batch"), "branches": branches()}
    for name, model in models.items():
        (HERE / f"{name}.onnx").write_bytes(model.SerializeToString())
        if name != "symbolic":
            print(name)
            for row in lives(model):
                print(f'    ("{row[0]}", {row[1]}, {row[2]}, {row[3]}),')
            weights = sum(numpy_helper.to_array(one).nbytes for one in model.graph.initializer)
            print(f"    weights {len(model.graph.initializer)} of {weights} bytes")
    print(onnx.__version__, file=sys.stderr)


if __name__ == "__main__":
    main()
