# SPDX-License-Identifier: MIT OR Apache-2.0
"""Finds the one place in a file that gives a name its value, for `--let`: in Python, or in JSON or YAML.

Arguments: the file, the name, and a line or nothing. Prints JSON: the place, or what is wrong.
"""

import ast
import json
import sys


def main(file, name, line):
    with open(file, "rb") as source:
        text = source.read()
    is_yaml = file.endswith((".yaml", ".yml"))
    try:
        # To Python, a file of JSON is an expression with strings for keys.
        found = list(places_in_yaml(text.decode(), name) if is_yaml else places(ast.parse(text), name))
    except ImportError:
        return {"wrong": "there is no PyYAML to read it with"}
    except Exception as error:
        kind = "YAML" if is_yaml else "JSON" if file.endswith(".json") else "Python"
        return {"wrong": f"it cannot be read as {kind}: {' '.join(str(error).split())}"}
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
                elif is_part(target, name) and is_constant(node.value):
                    yield 2, node.value
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values):
                if isinstance(key, ast.Constant) and key.value == name and is_constant(value):
                    yield 2, value
        elif isinstance(node, ast.AnnAssign) and node.value is not None and is_named(node.target, name):
            yield rank, node.value
        elif isinstance(node, ast.keyword) and node.arg == name and not isinstance(node.value, ast.Name):
            yield 2 if is_constant(node.value) else 4, node.value
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


def is_part(target, name):
    """`config.batch_size`, `config["batch_size"]`."""
    if isinstance(target, ast.Subscript):
        return isinstance(target.slice, ast.Constant) and target.slice.value == name
    return isinstance(target, ast.Attribute) and target.attr == name


def is_constant(value):
    """Whether it is not another variable's value, which `self.batch_size = batch_size` passes on."""
    return not any(isinstance(node, (ast.Name, ast.Call)) for node in ast.walk(value))


class Place:
    """A place in YAML, as Python reports one: a line from 1, bytes from its begin."""

    def __init__(self, lines, begin, end):
        self.lineno, self.end_lineno = begin.line + 1, end.line + 1
        self.col_offset = len(lines[begin.line][: begin.column].encode())
        self.end_col_offset = len(lines[begin.line][: end.column].encode())


def places_in_yaml(text, name):
    import yaml

    lines = text.splitlines()
    open_nodes = [node for node in yaml.compose_all(text, yaml.SafeLoader) if node is not None]
    # An alias is the node itself once more, which may be inside of it.
    seen = set()
    while open_nodes:
        node = open_nodes.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            open_nodes += node.value
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                open_nodes.append(value)
                if isinstance(value, yaml.ScalarNode) and key.value == name:
                    yield 2, Place(lines, value.start_mark, value.end_mark)


print(json.dumps(main(sys.argv[1], sys.argv[2], sys.argv[3])))
