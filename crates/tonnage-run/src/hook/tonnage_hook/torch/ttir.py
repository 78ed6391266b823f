# SPDX-License-Identifier: MIT OR Apache-2.0
"""Computes small Triton kernels on the CPU, from the intermediate form (TTIR) that Triton compiles them to.

Programs keep their books in kernels of their own: how many tokens were sampled,
which slot a token goes to, how long a sequence has become. The host reads the
results back and branches on them. TTIR is what the GPU would execute: helpers are
inlined, constants folded, and its operations are few. A kernel becomes one Python
function that computes one program of the grid with NumPy.

Each value has a flag beside it: whether it is what a GPU would compute. A value
that was made of an unknown one, chosen by it, or reached because of it, is not.

Kernels that write no integers are left alone, as are those with operations that
are not here (matrix products, descriptors, assembly). The work for one
launch is bounded by a count of operations, so that two runs do the same.
"""

import re

# Operations of one launch; one on up to 1,024 elements counts as one.
BUDGET = 120_000
# A kernel that took more than so many, and of which nothing came out known so often, is not computed again.
_COSTLY, _FRUITLESS = 4_000, 3


class Refused(Exception):
    """A kernel is not computed; why."""


_INTEGERS = {"i1": "bool", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "index": "int64"}
_FLOATS = {"f16": "float16", "bf16": "float32", "f32": "float32", "f64": "float64"}


class Type:
    """Shape and element of a value; of a pointer also what it points to."""

    __slots__ = ("element", "pointee", "shape")

    def __init__(self, text):
        text = text.strip()
        self.shape, self.pointee = (), None
        if text.startswith("tensor<"):
            found = re.fullmatch(r"tensor<((?:\d+x)*)(.+)>", text)
            if found is None:
                raise Refused(f"the type {text}")
            self.shape = tuple(int(length) for length in found[1].split("x")[:-1])
            text = found[2]
        if text.startswith("!tt.ptr<"):
            self.pointee = text[len("!tt.ptr<") : -1].split(",")[0]
            if self.pointee.startswith(("tensor", "!")):
                raise Refused(f"a pointer to {self.pointee}")
            text = "i64"
        self.element = text

    @property
    def dtype(self):
        return dtype_of(self.element)

    @property
    def count(self):
        count = 1
        for length in self.shape:
            count *= length
        return count


def dtype_of(element):
    name = _INTEGERS.get(element) or _FLOATS.get(element)
    if name is None:
        raise Refused(f"numbers of type {element}")
    return name


def width_of(element):
    """Bytes of an argument, and of an element in memory."""
    return {"i1": 1, "i8": 1, "i16": 2, "f16": 2, "bf16": 2, "i32": 4, "f32": 4}.get(element, 8)


def _without_locations(text):
    """The text without `loc(…)`, which may have quotes and parentheses inside."""
    out, at = [], 0
    while True:
        start = text.find(" loc(", at)
        if start < 0:
            out.append(text[at:])
            return "".join(out)
        out.append(text[at:start])
        at, depth = start + 5, 1
        while depth and at < len(text):
            if text[at] == '"':
                at = text.find('"', at + 1)
                if at < 0:
                    raise Refused("its text")
            depth += {"(": 1, ")": -1}.get(text[at], 0)
            at += 1


def _split(text, separator=","):
    """Parts of a list, whose elements may have brackets."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        # The `>` of an arrow closes nothing.
        if letter in "<([{":
            depth += 1
        elif letter in ")]}" or (letter == ">" and text[at - 1] != "-"):
            depth -= 1
        elif letter == separator and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def _signature(text):
    """Types behind a colon: those of operands and those of results."""
    before, arrow, after = text.partition(" -> ")
    before, after = before.strip(), after.strip()
    strip = lambda one: one[1:-1] if one.startswith("(") and one.endswith(")") else one  # noqa: E731
    return [Type(one) for one in _split(strip(before))], [Type(one) for one in _split(strip(after))] if arrow else []


_COMPARED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_BINARY = {
    "arith.addi": "{0} + {1}",
    "arith.subi": "{0} - {1}",
    "arith.muli": "{0} * {1}",
    "arith.andi": "{0} & {1}",
    "arith.ori": "{0} | {1}",
    "arith.xori": "{0} ^ {1}",
    "arith.shli": "np.left_shift({0}, {1})",
    "arith.shrsi": "np.right_shift({0}, {1})",
    "arith.shrui": "signed(np.right_shift(unsigned({0}), unsigned({1})))",
    "arith.divsi": "divide({0}, {1})",
    "arith.divui": "signed(unsigned({0}) // unsigned({1}))",
    "arith.remsi": "np.fmod({0}, {1})",
    "arith.remui": "signed(unsigned({0}) % unsigned({1}))",
    "arith.floordivsi": "{0} // {1}",
    "arith.ceildivsi": "-(-{0} // {1})",
    "arith.minsi": "np.minimum({0}, {1})",
    "arith.maxsi": "np.maximum({0}, {1})",
    "arith.minui": "signed(np.minimum(unsigned({0}), unsigned({1})))",
    "arith.maxui": "signed(np.maximum(unsigned({0}), unsigned({1})))",
    "arith.addf": "{0} + {1}",
    "arith.subf": "{0} - {1}",
    "arith.mulf": "{0} * {1}",
    "arith.divf": "{0} / {1}",
    "tt.precise_divf": "{0} / {1}",
    "arith.remf": "np.fmod({0}, {1})",
    "arith.minnumf": "np.fmin({0}, {1})",
    "arith.maxnumf": "np.fmax({0}, {1})",
    "arith.minimumf": "np.minimum({0}, {1})",
    "arith.maximumf": "np.maximum({0}, {1})",
    "tt.mulhiui": "high({0}, {1})",
}
_UNARY = {
    "arith.negf": "-{0}",
    "math.absf": "np.abs({0})",
    "math.absi": "np.abs({0})",
    "math.exp": "np.exp({0})",
    "math.exp2": "np.exp2({0})",
    "math.log": "np.log({0})",
    "math.log2": "np.log2({0})",
    "math.sqrt": "np.sqrt({0})",
    "tt.precise_sqrt": "np.sqrt({0})",
    "math.rsqrt": "1 / np.sqrt({0})",
    "math.sin": "np.sin({0})",
    "math.cos": "np.cos({0})",
    "math.tanh": "np.tanh({0})",
    "math.floor": "np.floor({0})",
    "math.ceil": "np.ceil({0})",
    "arith.extf": "{0}",
    "arith.truncf": "{0}",
    "tt.fp_to_fp": "{0}",
    "arith.sitofp": "signed_bits({0})",
    "arith.uitofp": "unsigned({0})",
    "arith.fptosi": "{0}",
    "arith.fptoui": "{0}",
    "arith.extsi": "signed_bits({0})",
    "arith.extui": "unsigned({0})",
    "arith.trunci": "{0}",
    "arith.index_cast": "{0}",
    "tt.int_to_ptr": "{0}",
    "tt.ptr_to_int": "{0}",
}
# Regions of one operation that NumPy has as a function.
_REDUCED = {
    "arith.addi": "add",
    "arith.addf": "add",
    "arith.muli": "multiply",
    "arith.mulf": "multiply",
    "arith.maxsi": "maximum",
    "arith.minsi": "minimum",
    "arith.maxnumf": "fmax",
    "arith.minnumf": "fmin",
    "arith.maximumf": "maximum",
    "arith.minimumf": "minimum",
    "arith.andi": "bitwise_and",
    "arith.ori": "bitwise_or",
    "arith.xori": "bitwise_xor",
}
_IGNORED = ("tt.assert", "tt.print", "llvm.intr.assume", "gpu.barrier", "ttg.barrier", "ttg.local_barrier")
_UPDATES = {
    "add": "np.add({0}, {1})",
    "fadd": "np.add({0}, {1})",
    "max": "np.maximum({0}, {1})",
    "min": "np.minimum({0}, {1})",
    "umax": "signed(np.maximum(unsigned({0}), unsigned({1})))",
    "umin": "signed(np.minimum(unsigned({0}), unsigned({1})))",
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "xor": "{0} ^ {1}",
    "exch": "{1}",
}


class _Reader:
    """Lines of a module, without locations and comments."""

    def __init__(self, text):
        lines = (line.split("  //")[0].strip() for line in _without_locations(text).splitlines())
        self.lines = [line for line in lines if line and not line.startswith(("#", "//"))]
        self.at = 0

    def next(self):
        if self.at >= len(self.lines):
            raise Refused("its text ends early")
        self.at += 1
        return self.lines[self.at - 1]


class _Writer:
    """Makes the Python function of a kernel."""

    def __init__(self):
        self.code = []
        self.indent = 1
        self.names = {}
        self.types = {}
        self.blocks = {}
        self.stores_integers = False
        # Inside the region of a reduction, where scalars stand for arrays.
        self.combining = False
        self.spent = 0
        self.operations = 0

    def emit(self, line):
        self.code.append("    " * self.indent + line)

    def name(self, value):
        if value not in self.names:
            self.names[value] = f"v{len(self.names)}"
        return self.names[value]

    def define(self, value, kind, expression, known):
        """A value, and beside it whether it is known."""
        name = self.name(value)
        self.types[value] = kind
        self.emit(f"{name} = {expression}")
        self.emit(f"k{name} = {known}")

    def knows(self, operands):
        return " & ".join(["k", *(f"k{self.name(one)}" for one in operands)])

    def spend(self):
        """Operations that were written since the last time, where they are executed."""
        index = len(self.code)
        self.emit("")
        return index, self.spent

    def spend_until(self, mark):
        index, before = mark
        cost, self.spent = self.spent - before, before
        self.code[index] = "    " * self.indent + f"spend({max(1, cost)})"

    # Functions and regions.

    def function(self, line):
        found = re.match(r"tt\.func (?:public |private )?@(\S+?)\((.*?)\)(?: attributes| ->| \{)", line)
        if found is None or " -> " in line.split(" attributes")[0]:
            raise Refused("a function that gives something back")
        arguments = []
        for part in _split(found[2]):
            name, _, kind = part.partition(":")
            kind = Type(kind.split("{")[0])
            arguments.append(kind)
            self.types[name.strip()] = kind
            variable = self.name(name.strip())
            self.emit(f"{variable} = arguments[{len(arguments) - 1}]")
            self.emit(f"k{variable} = True")
        return arguments

    def body(self, reader):
        """Operations up to the end of a function, which may be in blocks that jump to each other."""
        self.emit("k, block = True, 0")
        self.emit("while True:")
        self.indent += 1
        self.emit("if block == 0:")
        self.indent += 1
        mark = self.spend()
        while True:
            line = reader.next()
            if line == "}" or line.startswith("} "):
                break
            label = re.match(r"\^(\w+)(?:\((.*)\))?:", line)
            if label:
                self.spend_until(mark)
                self.indent -= 1
                number = self.label(label[1])
                self.emit(f"elif block == {number}:")
                self.indent += 1
                mark = self.spend()
                for position, part in enumerate(_split(label[2] or "")):
                    name, _, kind = part.partition(":")
                    name = name.strip()
                    self.types[name] = Type(kind)
                    self.emit(f"{self.name(name)}, k{self.name(name)} = b{number}_{position}")
                continue
            self.operation(line, reader)
        self.spend_until(mark)

    def label(self, name):
        return self.blocks.setdefault(name, len(self.blocks) + 1)

    def jump(self, target):
        found = re.match(r"\^(\w+)(?:\((.*)\))?$", target.strip())
        if found is None:
            raise Refused(f"the jump {target}")
        number = self.label(found[1])
        given = _split((found[2] or "").partition(" : ")[0])
        self.emit("")
        for position, value in enumerate(given):
            self.emit(f"b{number}_{position} = {self.name(value)}, k{self.name(value)}")
        self.emit(f"block = {number}")

    def region(self, reader, finish):
        """Operations of a region; `finish` gets its last one. The line that ended it."""
        mark = self.spend()
        while True:
            line = reader.next()
            if line.startswith("}"):
                self.spend_until(mark)
                return line
            if line.startswith(("scf.yield", "scf.condition", "tt.reduce.return", "tt.scan.return")):
                finish(line)
            else:
                self.operation(line, reader)

    def operation(self, line, reader):
        results, call = [], line
        found = re.match(r"(%[\w#.$-]+)(?::(\d+))? = (.*)", line)
        if found:
            call = found[3]
            results = [found[1]] if found[2] is None else [f"{found[1]}#{at}" for at in range(int(found[2]))]
        name = re.match(r'"?([\w.]+)"?', call)
        if name is None:
            raise Refused(f"the line {line}")
        self.operations += 1
        self.spent += 1
        name = name[1]
        if name in _IGNORED:
            return
        handle = getattr(self, "_" + name.replace(".", "_"), None)
        if handle is not None and name not in _BINARY and name not in _UNARY:
            handle(results, call, reader)
            return
        operands = re.findall(r"%[\w#.$-]+", call)
        if name in _BINARY:
            kind = Type(call.rpartition(" : ")[2])
            expression = _BINARY[name].format(*(self.name(one) for one in operands))
            self.define(results[0], kind, self.rounded(kind, expression), self.knows(operands))
        elif name in _UNARY:
            # `to` stands between the types of a conversion.
            kinds = [Type(one) for one in call.rpartition(" : ")[2].replace(" -> ", " to ").split(" to ")]
            kind = kinds[-1]
            expression = _UNARY[name].format(self.name(operands[0]))
            if kind.element == "i1" and name == "arith.trunci":
                expression = f"({expression} & 1)"
            if len(kinds) > 1:
                expression = f"cast({expression}, np.{kind.dtype})"
            self.define(results[0], kind, self.rounded(kind, expression), self.knows(operands))
        else:
            raise Refused(f"the operation {name}")
        self.spent += kind.count >> 10

    @staticmethod
    def rounded(kind, expression):
        return f"rounded({expression})" if kind.element == "bf16" else expression

    # Operations.

    def _arith_constant(self, results, call, reader):
        text, _, kind = call[len("arith.constant") :].strip().rpartition(" : ")
        if not text:
            # `arith.constant true`
            text, kind = kind, "i1"
        kind = Type(kind)
        dense = re.fullmatch(r"dense<(.*)>", text.strip())
        text = (dense[1] if dense else text).strip()
        if kind.element in _FLOATS:
            if text.startswith("0x"):
                bits = int(text, 16)
                value = f"from_bits({bits}, {kind.element!r})"
            else:
                value = repr(float(text))
        elif text in ("true", "false"):
            value = text.capitalize()
        else:
            value = str(int(text))
        made = f"np.{kind.dtype}({value})" if not kind.shape else f"np.full({kind.shape}, {value}, np.{kind.dtype})"
        self.define(results[0], kind, made, "True")

    def _ub_poison(self, results, call, reader):
        kind = Type(call.rpartition(" : ")[2])
        self.define(results[0], kind, f"np.zeros({kind.shape}, np.{kind.dtype})[()]", "False")

    def _arith_cmpi(self, results, call, reader):
        found = re.match(r"arith\.cmpi (\w+), (%\S+), (%\S+) : (.*)", call)
        kind, of = Type(found[4]), found[1]
        left, right = self.name(found[2]), self.name(found[3])
        if of[0] == "u":
            left, right = f"unsigned({left})", f"unsigned({right})"
        sign = _COMPARED[of if of in ("eq", "ne") else of[1:]]
        self._flag(results[0], kind, f"{left} {sign} {right}", found[2], found[3])

    def _flag(self, result, like, expression, *operands):
        kind = Type("i1")
        kind.shape = like.shape
        self.define(result, kind, expression, self.knows(operands))

    def _arith_cmpf(self, results, call, reader):
        found = re.match(r"arith\.cmpf (\w+), (%[\w#.$-]+), (%[\w#.$-]+).*? : (.*)", call)
        kind, of = Type(found[4]), found[1]
        left, right = self.name(found[2]), self.name(found[3])
        either = f"(np.isnan({left}) | np.isnan({right}))"
        if of in ("ord", "uno"):
            expression = either if of == "uno" else f"~{either}"
        else:
            expression = f"({left} {_COMPARED[of[1:]]} {right})"
            # An ordered comparison with what is not a number is false, one that is not ordered is true.
            expression = f"{expression} & ~{either}" if of[0] == "o" else f"{expression} | {either}"
        self._flag(results[0], kind, expression, found[2], found[3])

    def _arith_select(self, results, call, reader):
        operands = re.findall(r"%[\w#.$-]+", call)
        kind = _signature(call.rpartition(" : ")[2])[0][-1]
        test, left, right = (self.name(one) for one in operands)
        if self.types[operands[0]].shape or self.combining:
            self.define(results[0], kind, f"np.where({test}, {left}, {right})", self.knows(operands))
        else:
            # Values that are not chosen do not matter.
            known = f"k & k{test} & (k{left} if {test} else k{right})"
            self.define(results[0], kind, f"({left} if {test} else {right})", known)

    def _math_fma(self, results, call, reader):
        operands = re.findall(r"%[\w#.$-]+", call)
        kind = Type(call.rpartition(" : ")[2])
        a, b, c = (self.name(one) for one in operands)
        self.define(results[0], kind, self.rounded(kind, f"{a} * {b} + {c}"), self.knows(operands))

    def _tt_clampf(self, results, call, reader):
        operands = re.findall(r"%[\w#.$-]+", call)
        kind = Type(call.rpartition(" : ")[2])
        a, low, high = (self.name(one) for one in operands)
        self.define(results[0], kind, f"np.fmin(np.fmax({a}, {low}), {high})", self.knows(operands))

    def _tt_get_program_id(self, results, call, reader):
        axis = "xyz".index(re.match(r"tt\.get_program_id (\w)", call)[1])
        self.define(results[0], Type("i32"), f"np.int32(program[{axis}])", "True")

    def _tt_get_num_programs(self, results, call, reader):
        axis = "xyz".index(re.match(r"tt\.get_num_programs (\w)", call)[1])
        self.define(results[0], Type("i32"), f"np.int32(grid[{axis}])", "True")

    def _tt_make_range(self, results, call, reader):
        numbers = dict(re.findall(r"(start|end) = (\d+)", call))
        kind = Type(call.rpartition(" : ")[2])
        made = f"np.arange({int(numbers['start'])}, {int(numbers['end'])}, dtype=np.int32)"
        self.define(results[0], kind, made, "True")

    def _shaped(self, results, call, expression):
        operands = re.findall(r"%[\w#.$-]+", call)
        kind = _signature(call.rpartition(" : ")[2])[1][0]
        self.define(results[0], kind, expression(self.name(operands[0]), kind), self.knows(operands))

    def _tt_splat(self, results, call, reader):
        self._shaped(results, call, lambda value, kind: f"np.full({kind.shape}, {value}, np.{kind.dtype})")

    def _tt_broadcast(self, results, call, reader):
        self._shaped(results, call, lambda value, kind: f"np.broadcast_to({value}, {kind.shape})")

    def _tt_reshape(self, results, call, reader):
        self._shaped(results, call, lambda value, kind: f"{value}.reshape({kind.shape})")

    _tt_expand_dims = _tt_reshape

    def _tt_unsplat(self, results, call, reader):
        self._shaped(results, call, lambda value, kind: f"{value}.reshape(-1)[0]")

    def _tt_trans(self, results, call, reader):
        order = re.search(r"order = array<i32: ([\d, ]+)>", call)
        if order is None:
            raise Refused("a transposition")
        axes = tuple(int(one) for one in order[1].split(","))
        self._shaped(results, call, lambda value, kind: f"np.transpose({value}, {axes})")

    def _tt_cat(self, results, call, reader):
        left, right = re.findall(r"%[\w#.$-]+", call)
        kind = _signature(call.rpartition(" : ")[2])[1][0]
        joined = f"np.concatenate([{self.name(left)}, {self.name(right)}])"
        self.define(results[0], kind, joined, self.knows([left, right]))

    def _tt_join(self, results, call, reader):
        left, right = re.findall(r"%[\w#.$-]+", call)
        kind = _signature(call.rpartition(" : ")[2])[1][0]
        joined = f"np.stack([{self.name(left)}, {self.name(right)}], axis=-1)"
        self.define(results[0], kind, joined, self.knows([left, right]))

    def _tt_split(self, results, call, reader):
        operand = re.findall(r"%[\w#.$-]+", call)[0]
        kind = Type(call.rpartition(" -> ")[2])
        for at, result in enumerate(results):
            self.define(result, kind, f"{self.name(operand)}[..., {at}]", self.knows([operand]))

    def _tt_bitcast(self, results, call, reader):
        operand = re.findall(r"%[\w#.$-]+", call)[0]
        before, after = (Type(one) for one in call.rpartition(" : ")[2].replace(" to ", " -> ").split(" -> "))
        name = self.name(operand)
        if before.pointee is None and "bf16" in (before.element, after.element):
            raise Refused("the bits of a bfloat16")
        expression = name if before.dtype == after.dtype else f"{name}.view(np.{after.dtype})"
        self.define(results[0], after, expression, self.knows([operand]))

    _arith_bitcast = _tt_bitcast

    def _tt_addptr(self, results, call, reader):
        pointer, offset = re.findall(r"%[\w#.$-]+", call)
        kind = _signature(call.rpartition(" : ")[2])[0][0]
        each = width_of(kind.pointee)
        moved = f"{self.name(pointer)} + np.int64({each}) * cast({self.name(offset)}, np.int64)"
        self.define(results[0], kind, moved, self.knows([pointer, offset]))

    def _access(self, call):
        """Operands and the type of the pointers of an access to memory."""
        operands = re.findall(r"%[\w#.$-]+", call)
        kind = self.types[operands[0]]
        if kind.pointee not in _INTEGERS and kind.pointee not in _FLOATS:
            raise Refused(f"numbers of type {kind.pointee}")
        self.spent += 4 + (kind.count >> 8)
        return operands, kind

    def _tt_load(self, results, call, reader):
        operands, kind = self._access(call)
        pointer = self.name(operands[0])
        mask = self.name(operands[1]) if len(operands) > 1 else "None"
        other = self.name(operands[2]) if len(operands) > 2 else "None"
        result = Type(kind.pointee)
        result.shape = kind.shape
        name = self.name(results[0])
        self.types[results[0]] = result
        self.emit(f"{name}, known = load({pointer}, {kind.pointee!r}, {mask}, {other})")
        self.emit(f"k{name} = known & {self.knows(operands)}")

    def _tt_store(self, results, call, reader):
        operands, kind = self._access(call)
        self.stores_integers |= kind.pointee in _INTEGERS
        pointer, value = self.name(operands[0]), self.name(operands[1])
        mask = self.name(operands[2]) if len(operands) > 2 else "None"
        self.emit(f"store({pointer}, {kind.pointee!r}, {value}, {mask}, {self.knows(operands)})")

    def _tt_atomic_rmw(self, results, call, reader):
        found = re.match(r"tt\.atomic_rmw (\w+),", call)
        operands = re.findall(r"%[\w#.$-]+", call)
        kinds, _ = _signature(call.rpartition(" : ")[2])
        kind = kinds[0]
        update = _UPDATES.get(found[1] if found else "")
        if update is None or kind.pointee not in (_INTEGERS | _FLOATS):
            raise Refused(f"the line {call}")
        self.stores_integers |= kind.pointee in _INTEGERS
        # Each element by itself, because several may have the same address.
        self.spent += 8 + 4 * kind.count
        pointer, value = self.name(operands[0]), self.name(operands[1])
        mask = self.name(operands[2]) if len(operands) > 2 else "None"
        result = Type(kind.pointee)
        result.shape = kind.shape
        name = self.name(results[0]) if results else "_"
        if results:
            self.types[results[0]] = result
        new = update.format("old", "value")
        arguments = f"{pointer}, {kind.pointee!r}, {value}, {mask}, lambda old, value: {new}, {self.knows(operands)}"
        self.emit(f"{name}, k{name} = change({arguments})")

    def _tt_atomic_cas(self, results, call, reader):
        operands = re.findall(r"%[\w#.$-]+", call)
        kind = _signature(call.rpartition(" : ")[2])[0][0]
        if kind.shape or kind.pointee not in _INTEGERS:
            raise Refused("a comparison and exchange of many")
        self.stores_integers = True
        self.spent += 8
        pointer, expected, value = (self.name(one) for one in operands)
        name = self.name(results[0]) if results else "_"
        if results:
            self.types[results[0]] = Type(kind.pointee)
        new = f"lambda old, value: value if old == {expected} else old"
        arguments = f"{pointer}, {kind.pointee!r}, {value}, None, {new}, {self.knows(operands)}"
        self.emit(f"{name}, k{name} = change({arguments})")

    def _tt_histogram(self, results, call, reader):
        operands = re.findall(r"%[\w#.$-]+", call)
        kind = _signature(call.rpartition(" : ")[2])[1][0]
        mask = f"[{self.name(operands[1])}]" if len(operands) > 1 else ""
        counted = f"np.bincount({self.name(operands[0])}{mask}, minlength={kind.shape[0]})[:{kind.shape[0]}]"
        self.define(results[0], kind, f"{counted}.astype(np.{kind.dtype})", self.knows(operands))

    def _tt_gather(self, results, call, reader):
        source, indices = re.findall(r"%[\w#.$-]+", call)[:2]
        axis = int(re.search(r"axis = (\d+)", call)[1])
        kind = _signature(call.rpartition(" : ")[2])[1][0]
        taken = f"np.take_along_axis({self.name(source)}, {self.name(indices)}, axis={axis})"
        self.define(results[0], kind, taken, self.knows([source, indices]))

    # Reductions and scans: their region combines two elements.

    def _combining(self, results, call, reader, scan):
        operands = re.findall(r"%[\w#.$-]+", call.partition("<{")[0])
        axis = int(re.search(r"axis = (\d+)", call)[1])
        reverse = "reverse = true" in call
        header = re.match(r"\^\w+\((.*)\):", reader.next())
        arguments = [part.partition(":") for part in _split(header[1])]
        if reader.lines[reader.at + 1].startswith(("tt.reduce.return", "tt.scan.return")) and len(operands) == 1:
            single = re.match(r"%\S+ = ([\w.]+) (%\S+), (%\S+) :", reader.lines[reader.at])
            names = {name.strip() for name, _, _ in arguments}
            if single and single[1] in _REDUCED and {single[2], single[3]} == names:
                reader.at += 2
                kind = self._after_region(reader.next())[0]
                how = "accumulate" if scan else "reduce"
                value = self.name(operands[0])
                turned = f"np.flip({value}, {axis})" if reverse else value
                made = f"np.{_REDUCED[single[1]]}.{how}({turned}, axis={axis}, dtype=np.{kind.dtype})"
                made = f"np.flip({made}, {axis})" if reverse else made
                self.define(results[0], kind, self.rounded(kind, made), self.knows(operands))
                self.spent += self.types[operands[0]].count >> 9
                return
        function = f"f{len(self.names)}_{self.operations}"
        self.emit(f"def {function}({', '.join(self.name(name.strip()) for name, _, _ in arguments)}, k=k):")
        self.indent += 1
        self.combining = True
        for name, _, kind in arguments:
            self.types[name.strip()] = Type(kind)
            self.emit(f"k{self.name(name.strip())} = True")

        def finish(line):
            given = re.findall(r"%[\w#.$-]+", line)
            self.emit(f"return [{', '.join(self.name(one) for one in given)}]")

        ended = self.region(reader, finish)
        self.indent -= 1
        self.combining = False
        kinds = self._after_region(ended)
        given = ", ".join(self.name(one) for one in operands)
        count = self.types[operands[0]].shape[axis]
        self.spent += count if scan else 16
        made = f"{'scan' if scan else 'fold'}({function}, [{given}], {axis}{f', {reverse}' if scan else ''})"
        self.emit(f"made = {made}")
        for at, (result, kind) in enumerate(zip(results, kinds)):
            self.define(result, kind, f"made[{at}]", self.knows(operands))

    @staticmethod
    def _after_region(line):
        return _signature(line.rpartition(") : ")[2] if line.startswith("})") else line)[1]

    def _tt_reduce(self, results, call, reader):
        self._combining(results, call, reader, False)

    def _tt_scan(self, results, call, reader):
        self._combining(results, call, reader, True)

    # Control flow.

    def _assign(self, targets, line):
        given = re.findall(r"%[\w#.$-]+", line.partition(" : ")[0])
        if len(given) != len(targets):
            raise Refused(f"the line {line}")
        if targets:
            left = ", ".join(f"{self.name(one)}, k{self.name(one)}" for one in targets)
            right = ", ".join(f"{self.name(one)}, k & k{self.name(one)}" for one in given)
            self.emit(f"{left} = {right}")

    def _scf_for(self, results, call, reader):
        found = re.match(r"scf\.for (?:unsigned )?(%\S+) = (%\S+) to (%\S+) step (%\S+)(.*)\{$", call)
        if found is None:
            raise Refused(f"the line {call}")
        counter, low, high, step = found[1], found[2], found[3], found[4]
        carried = re.search(r"iter_args\((.*?)\) ->", found[5])
        pairs = [part.split(" = ") for part in _split(carried[1])] if carried else []
        names = [name.strip() for name, _ in pairs]
        for (name, value), result in zip(pairs, results):
            self.types[name.strip()] = self.types[result] = self.types[value.strip()]
            self.emit(f"{self.name(name.strip())}, k{self.name(name.strip())} = "
                     f"{self.name(value.strip())}, k{self.name(value.strip())}")  # fmt: skip
        kind = self.types[low]
        self.types[counter] = kind
        outer = f"outer{self.operations}"
        self.emit(f"{outer} = k")
        self.emit(f"k = {self.knows([low, high, step])}")
        bounds = ", ".join(f"int({self.name(one)})" for one in (low, high, step))
        self.emit(f"for count in range({bounds}):")
        self.indent += 1
        self.emit(f"{self.name(counter)}, k{self.name(counter)} = np.{kind.dtype}(count), k")
        self.region(reader, lambda line: self._assign(names, line))
        self.indent -= 1
        for name, result in zip(names, results):
            self.emit(f"{self.name(result)}, k{self.name(result)} = {self.name(name)}, k & k{self.name(name)}")
        self.emit(f"k = {outer}")

    def _scf_if(self, results, call, reader):
        found = re.match(r"scf\.if (%\S+)(?: -> \((.*)\))? \{", call)
        if found is None or self.combining:
            raise Refused(f"the line {call}")
        for result, kind in zip(results, _split(found[2] or "")):
            self.types[result] = Type(kind)
        outer = f"outer{self.operations}"
        test = self.name(found[1])
        self.emit(f"{outer} = k")
        self.emit(f"k = k & k{test}")
        self.emit(f"if {test}:")
        self.indent += 1
        ended = self.region(reader, lambda line: self._assign(results, line))
        self.indent -= 1
        if ended.startswith("} else"):
            self.emit("else:")
            self.indent += 1
            self.region(reader, lambda line: self._assign(results, line))
            self.indent -= 1
        self.emit(f"k = {outer}")

    def _scf_while(self, results, call, reader):
        found = re.match(r"scf\.while(?: \((.*?)\))? : \(.*\) -> (.*?) \{", call)
        if found is None:
            raise Refused(f"the line {call}")
        pairs = [part.split(" = ") for part in _split(found[1] or "")]
        names = [name.strip() for name, _ in pairs]
        for name, value in pairs:
            name, value = name.strip(), value.strip()
            self.types[name] = self.types[value]
            self.emit(f"{self.name(name)}, k{self.name(name)} = {self.name(value)}, k{self.name(value)}")
        kinds = [Type(one) for one in _split(found[2].strip().removeprefix("(").removesuffix(")"))]
        for result, kind in zip(results, kinds):
            self.types[result] = kind
        outer = f"outer{self.operations}"
        self.emit(f"{outer} = k")
        self.emit("while True:")
        self.indent += 1

        def decide(line):
            test, _, given = line[len("scf.condition(") :].partition(")")
            self.emit(f"k = k & k{self.name(test)}")
            self._assign(results, given)
            self.emit(f"if not {self.name(test)}:")
            self.emit("    break")

        self.region(reader, decide)
        label = re.match(r"\^\w+\((.*)\):", reader.lines[reader.at])
        if label:
            reader.next()
            for part, result in zip(_split(label[1]), results):
                name, _, kind = part.partition(":")
                name = name.strip()
                self.types[name] = Type(kind)
                self.emit(f"{self.name(name)}, k{self.name(name)} = {self.name(result)}, k{self.name(result)}")
        self.region(reader, lambda line: self._assign(names, line))
        self.indent -= 1
        self.emit(f"k = {outer}")

    def _cf_br(self, results, call, reader):
        self.jump(call[len("cf.br ") :])

    def _cf_cond_br(self, results, call, reader):
        test, first, second = _split(call[len("cf.cond_br ") :])
        name = self.name(test)
        self.emit(f"k = k & k{name}")
        self.emit(f"if {name}:")
        self.indent += 1
        self.jump(first)
        self.indent -= 1
        self.emit("else:")
        self.indent += 1
        self.jump(second)
        self.indent -= 1

    def _tt_return(self, results, call, reader):
        if call.strip() != "tt.return":
            raise Refused("a function that gives something back")
        self.emit("return")


_WRITES = re.compile(r"\b(?:tt|tts|ttng)\.(?:store|atomic_rmw|atomic_cas|\w*descriptor_(?:store|reduce|scatter))\b")
_NAME = re.compile(r"%[\w$.-]+")
_DEFINED = re.compile(r"(%[\w$.-]+)(?::\d+)? = (\S+) (.*)")


def written_pointers(text):
    """How many pointers a kernel gets, and the places of those that it may write to among them.

    A pointer that is written to is followed back to the arguments that it was made from; what cannot be followed may be
    any of them."""
    text = _without_locations(text)
    function = re.search(r"tt\.func public @\S+?\((.*?)\)(?: attributes| ->| \{)", text)
    if function is None:
        raise Refused("its text")
    arguments = [part.partition(":") for part in _split(function[1])]
    pointers = [name.strip() for name, _, kind in arguments if "!tt.ptr" in kind or "tensordesc" in kind]
    made_from, starts, lost = {}, [], "tt.call" in text
    for line in text[function.end() :].splitlines():
        line = line.split(" : ")[0]
        if writes := _WRITES.search(line):
            starts += _NAME.findall(line[writes.end() :])[:1]
        for name, first in re.findall(r"(%[\w$.-]+) = (%[\w$.-]+)", line):
            # The values that a loop carries on: it begins with these.
            made_from.setdefault(name, []).append(first)
        if defined := _DEFINED.match(line.strip()):
            name, operation, operands = defined.groups()
            operands = _NAME.findall(operands)
            if operation == "tt.addptr":
                operands = operands[:1]
            elif operation == "tt.load":
                operands = None
            made_from[name] = operands
    seen = set()
    while starts:
        name = starts.pop()
        if name not in seen and name not in pointers:
            before = made_from.get(name)
            lost |= not before
            starts += before or ()
        seen.add(name)
    return len(pointers), {at for at, name in enumerate(pointers) if lost or name in seen}


class Kernel:
    """A kernel that can be computed; `Refused` if it cannot be or need not be."""

    def __init__(self, text, np):
        reader = _Reader(text)
        writer = _Writer()
        while True:
            line = reader.next()
            if line.startswith("tt.func"):
                break
        self.arguments = writer.function(line)
        writer.body(reader)
        if any(one.startswith("tt.func") for one in reader.lines[reader.at :]):
            raise Refused("a function that is called")
        if not writer.stores_integers:
            raise Refused("it writes no integers")
        self.operations = writer.operations
        header = "def program(arguments, program, grid, load, store, change, spend):\n"
        scope = dict(_helpers(np))
        exec(compile(header + "\n".join(writer.code), "<tonnage>", "exec"), scope)
        self.program = scope["program"]
        self.np = np
        self.fruitless = 0

    def run(self, arguments, grid, memory):
        """Computes all programs of a grid, one after another."""
        left = BUDGET
        if self.fruitless == _FRUITLESS:
            raise Refused("nothing of it was known before")
        if grid[0] * grid[1] * grid[2] * min(self.operations, 64) > left:
            raise Refused("too many programs")

        def spend(operations):
            nonlocal left
            left -= operations
            if left < 0:
                raise Refused("too many operations")

        with self.np.errstate(all="ignore"):
            for z in range(grid[2]):
                for y in range(grid[1]):
                    for x in range(grid[0]):
                        self.program(arguments, (x, y, z), grid, memory.load, memory.store, memory.change, spend)
        is_fruitless = BUDGET - left > _COSTLY and not memory.wrote_known
        self.fruitless = self.fruitless + 1 if is_fruitless else 0


def _helpers(np):
    """Functions that the Python of a kernel calls."""
    plain = {np.dtype(f"int{bits}"): np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)}
    back = {one: other for other, one in plain.items()}

    def unsigned(value):
        return value.view(plain[value.dtype]) if value.dtype in plain else value

    def signed(value):
        return value.view(back[value.dtype]) if value.dtype in back else value

    def signed_bits(value):
        """A flag that is set has all bits set, where it counts as a number with a sign."""
        return -value.astype(np.int8) if value.dtype == np.bool_ else value

    def cast(value, dtype):
        return value.astype(dtype)

    def divide(left, right):
        """Towards zero."""
        return ((left - np.fmod(left, right)) // right).astype(left.dtype)

    def high(left, right):
        """The upper half of a product of numbers without sign."""
        left, right = unsigned(left), unsigned(right)
        if left.dtype.itemsize <= 4:
            bits = np.uint64(8 * left.dtype.itemsize)
            return signed(((left.astype(np.uint64) * right.astype(np.uint64)) >> bits).astype(left.dtype))
        half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
        a, b, c, d = left >> half, left & low, right >> half, right & low
        middle = ((b * d) >> half) + ((a * d) & low) + ((b * c) & low)
        return signed(a * c + ((a * d) >> half) + ((b * c) >> half) + (middle >> half))

    def rounded(value):
        """A number as a bfloat16 holds it; to the nearest, ties to even."""
        bits = np.asarray(value, np.float32).view(np.uint32)
        more = ((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)
        whole = np.where(np.isnan(value), bits, (bits + more) & np.uint32(0xFFFF0000))
        return whole.astype(np.uint32).view(np.float32)[()]

    def from_bits(bits, element):
        if element == "bf16":
            return np.uint32(bits << 16).view(np.float32)
        size = {"f16": 16, "f32": 32}.get(element, 64)
        return getattr(np, f"uint{size}")(bits).view(getattr(np, f"float{size}"))

    def fold(combine, values, axis):
        """Neighbours are combined, so that the order is kept."""
        parts = [np.moveaxis(one, axis, 0) for one in values]
        while parts[0].shape[0] > 1:
            even, odd = [one[0::2] for one in parts], [one[1::2] for one in parts]
            rest = [one[len(second) :] for one, second in zip(even, odd)]
            even = [one[: len(second)] for one, second in zip(even, odd)]
            made = combine(*even, *odd)
            parts = [np.concatenate([np.asarray(one), more]) if len(more) else np.asarray(one)
                     for one, more in zip(made, rest)]  # fmt: skip
        return [one[0] for one in parts]

    def scan(combine, values, axis, reverse):
        parts = [np.moveaxis(np.flip(one, axis) if reverse else one, axis, 0) for one in values]
        made = [np.array(one) for one in parts]
        for at in range(1, len(made[0])):
            combined = combine(*(one[at - 1] for one in made), *(one[at] for one in parts))
            for one, value in zip(made, combined):
                one[at] = value
        made = [np.moveaxis(one, 0, axis) for one in made]
        return [np.flip(one, axis) if reverse else one for one in made]

    return locals()


def is_float(element):
    return element in _FLOATS
