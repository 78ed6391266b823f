# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a function of Python does with a value, from its byte code: whether it branches on it, and what it calls it.

A value that is read from the device is followed from the instruction that makes it: through the stack of the
interpreter, into the variables that it is stored in and from each of their uses. Nothing of the program is run or
changed for that.
"""

import dis
import functools

# Instructions that branch on the value on top of the stack.
_JUMPS = (
    "POP_JUMP_IF",
    "POP_JUMP_FORWARD_IF",
    "POP_JUMP_BACKWARD_IF",
    "JUMP_IF_TRUE_OR_POP",
    "JUMP_IF_FALSE_OR_POP",
    "TO_BOOL",
    "UNARY_NOT",
    "GET_ITER",
    "BUILD_SLICE",
)
# The number of values that instructions take from the stack; other instructions take what they do not give back.
_TAKEN = {
    "BINARY_SLICE": 3,
    "COMPARE_OP": 2,
    "CONTAINS_OP": 2,
    "FORMAT_SIMPLE": 1,
    "FORMAT_WITH_SPEC": 2,
    "IS_OP": 2,
    "LOAD_ATTR": 1,
    "LOAD_METHOD": 1,
    "LOAD_SUPER_ATTR": 3,
    "STORE_ATTR": 2,
    "STORE_FAST_LOAD_FAST": 1,
    "STORE_SLICE": 4,
    "STORE_SUBSCR": 3,
    "UNPACK_SEQUENCE": 1,
}
# The same, by how many operands they have: so many for each, and so many more.
_TAKEN_BY_COUNT = {
    "BUILD_CONST_KEY_MAP": (1, 1),
    "BUILD_LIST": (1, 0),
    "BUILD_MAP": (2, 0),
    "BUILD_SET": (1, 0),
    "BUILD_STRING": (1, 0),
    "BUILD_TUPLE": (1, 0),
    "CALL": (1, 2),
    "CALL_FUNCTION": (1, 1),
    "CALL_FUNCTION_KW": (1, 2),
    "CALL_KW": (1, 3),
    "CALL_METHOD": (1, 2),
}
# Attributes of a tensor that do not depend on its values.
_OF_NO_VALUE = {"device", "dim", "dtype", "is_cuda", "nbytes", "ndim", "numel", "requires_grad", "shape", "size"}
_INTO_TEXT = ("FORMAT_", "RAISE_", "YIELD_")


@functools.lru_cache(1024)
def stored_as(code, offset):
    """The variable that takes the result of the call at this instruction; none if something else is done with it."""
    after = (one for one in dis.get_instructions(code) if one.offset > offset and one.opname != "CACHE")
    following = next(after, None)
    return following.argval if following is not None and following.opname.startswith("STORE_") else None


def _taken(one):
    """How many values an instruction takes from the stack."""
    name = one.opname
    if name.startswith(("BINARY_", "INPLACE_")) and name not in _TAKEN:
        return 2
    if name.startswith("UNARY_"):
        return 1
    if name in _TAKEN:
        return _TAKEN[name]
    if name in _TAKEN_BY_COUNT:
        each, more = _TAKEN_BY_COUNT[name]
        return each * one.arg + more
    if name == "CALL_FUNCTION_EX":
        return 4 - (not one.arg & 1)
    if name == "FORMAT_VALUE":
        return 1 + (one.arg & 4 == 4)
    return max(0, -dis.stack_effect(one.opcode, one.arg, jump=False))


def leads_to_decision(code, offset):
    """Whether a value that is made at this instruction reaches a condition, a slice or a loop of the same function;
    None if the function returns it.

    The value is followed through the stack to the end of its statement and, where
    it is stored in a variable, from each use of that variable, and so on.
    """
    instructions = list(dis.get_instructions(code))
    at = next((index for index, one in enumerate(instructions) if one.offset >= offset), None)
    if at is None:
        return False
    first = instructions[at]
    if first.opname.startswith(_JUMPS) or first.opname in ("BINARY_SUBSCR", "BINARY_SLICE", "STORE_SLICE"):
        return True
    if first.opname.startswith(_INTO_TEXT):
        return False
    if first.opname == "RETURN_VALUE":
        return None
    place = {one.offset: index for index, one in enumerate(instructions)}
    reached, seen = _follow(instructions, place, at + 1, 0)
    waiting = list(seen)
    returned = reached is None
    while waiting and not reached:
        name = waiting.pop()
        for index, one in enumerate(instructions):
            # A constant that is a text may be called as the variable is.
            if not one.opname.startswith("LOAD_") or one.opname.startswith(("LOAD_CONST", "LOAD_SMALL_INT")):
                continue
            loaded = one.argval if isinstance(one.argval, tuple) else (one.argval,)
            if name not in loaded:
                continue
            reached, stored = _follow(instructions, place, index + 1, len(loaded) - 1 - loaded.index(name))
            if reached:
                return True
            returned = returned or reached is None
            waiting.extend(stored - seen)
            seen |= stored
    return True if reached else None if returned else False


def _follow(instructions, place, index, depth):
    """Follows a value from an instruction on, with so many others above it on the stack. Reports whether it decides, or
    None if it is returned, and the variables that it is stored in."""
    held = {depth}
    for _ in range(200):
        if index >= len(instructions) or not held:
            break
        one = instructions[index]
        index += 1
        name = one.opname
        if name == "COPY":
            held = {depth + 1 for depth in held} | ({0} if one.arg - 1 in held else set())
            continue
        if name == "SWAP":
            other = {0: one.arg - 1, one.arg - 1: 0}
            held = {other.get(depth, depth) for depth in held}
            continue
        if name.startswith(("JUMP_FORWARD", "JUMP_ABSOLUTE")) and one.argval in place:
            index = max(index, place[one.argval])
            continue
        if name == "PRECALL":
            continue
        taken = _taken(one)
        touched = {depth for depth in held if depth < taken}
        # Python 3.11 has its calls in two parts, and counts what they take at the first.
        left = 1 - taken if name.startswith("CALL") else dis.stack_effect(one.opcode, one.arg, jump=False)
        held = {depth + left for depth in held - touched}
        if not touched:
            if name.startswith(("RETURN_", "JUMP_BACKWARD", "RERAISE")):
                break
            continue
        if name.startswith(_JUMPS):
            return True, set()
        if name in ("BINARY_SUBSCR", "BINARY_SLICE", "STORE_SLICE") or (name == "BINARY_OP" and one.argrepr == "[]"):
            # The value is an index, unless it is what is looked into.
            if min(touched) < taken - 1:
                return True, set()
        if name in ("LOAD_ATTR", "LOAD_METHOD") and one.argval in _OF_NO_VALUE:
            continue
        if name == "RETURN_VALUE":
            return None, set()
        if name.startswith("STORE_FAST_STORE"):
            return False, {one.argval[depth] for depth in touched}
        if name.startswith("STORE_FAST_LOAD"):
            return False, {one.argval[0]}
        if name == "STORE_ATTR":
            return False, {one.argval} if 1 in touched else set()
        if name == "STORE_SUBSCR" or name.startswith(_INTO_TEXT) or name == "POP_TOP":
            continue
        if name.startswith("STORE_"):
            return False, {one.argval}
        if name in ("LIST_APPEND", "SET_ADD", "MAP_ADD"):
            # In a comprehension: its own function, or a loop on the way to its end.
            ends = [at for at in range(index, len(instructions)) if instructions[at].opname == "END_FOR"]
            if not ends:
                return None, set()
            index = ends[0] + 1
            index += instructions[index].opname in ("POP_TOP", "POP_ITER")
            held = {0}
            continue
        if name == "UNPACK_SEQUENCE":
            stored = [
                other.argval for other in instructions[index : index + one.arg] if other.opname.startswith("STORE_")
            ]
            return False, {part for name in stored for part in (name if isinstance(name, tuple) else (name,))}
        if taken + left > 0:
            held |= {0}
    return False, set()
