# SPDX-License-Identifier: MIT OR Apache-2.0
"""Finds the one place in a Python file that gives a name its value, for `--let`.

Arguments: the file, the name, and a line or nothing. Prints JSON: the place, or what is wrong.
"""

import ast
import json
import sys


def main(file, name, line):
    with open(file, "rb") as source:
        text = source.read()
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        return {"wrong": f"it cannot be read as Python: {error}"}
    found = list(places(tree, name))
    if line:
        found = [place for place in found if place[1].lineno == int(line)]
    first = min((rank for rank, _ in found), default=None)
    nodes = [node for rank, node in found if rank == first]
    if not nodes:
        where = f" in line {line}" if line else ""
        return {"wrong": f"nothing gives {name} a value{where}"}
    if len(nodes) > 1:
        lines = ", ".join(str(node.lineno) for node in nodes[:6])
        return {"wrong": f"lines {lines} give {name} a value", "lines": [node.lineno for node in nodes]}
    node = nodes[0]
    if node.lineno != node.end_lineno:
        return {"wrong": f"the value in line {node.lineno} goes over several lines"}
    return {"line": node.lineno, "begin": node.col_offset, "end": node.end_col_offset}


def places(tree, name):
    """The value of each assignment, keyword and default, with how far it is from a constant at the top level."""
    for node in ast.walk(tree):
        # A script may read its arguments into the same name further down.
        rank = 0 if node in tree.body else 1
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if is_named(target, name):
                    yield rank, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None and is_named(node.target, name):
            yield rank, node.value
        elif isinstance(node, ast.keyword) and node.arg == name and not isinstance(node.value, ast.Name):
            yield 2, node.value
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            plain = [*node.args.posonlyargs, *node.args.args]
            for argument, default in zip(reversed(plain), reversed(node.args.defaults)):
                if argument.arg == name:
                    yield 3, default
            for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults):
                if argument.arg == name and default is not None:
                    yield 3, default


def is_named(target, name):
    return isinstance(target, ast.Name) and target.id == name


print(json.dumps(main(sys.argv[1], sys.argv[2], sys.argv[3])))
