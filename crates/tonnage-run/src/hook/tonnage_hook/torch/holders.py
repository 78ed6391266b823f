# SPDX-License-Identifier: MIT OR Apache-2.0
"""Queries Python for the holder of each block of device memory: a census.

Names come first: variables of the script's modules, then local variables of
all threads, from the outermost frame inwards, then of frames that generators
and tracebacks keep. From each name the objects are followed downwards, the
shortest way first, so every tensor gets the name a person would type:
`kept`, `trainer.history`, `cache (decode)`. An object without a name is followed
upwards from the tensor, by one pass over all objects for each step. Autograd's
graphs are walked from the tensors that have a name, and what they saved is
given to that name.

One block has one holder, however many names lead to it. In this order: a
module's parameter or buffer, optimizer state, a gradient, a container, an
attribute or closure, a variable, a frame that a traceback keeps, a graph; the
script's own names before those of libraries. Among graphs that several names
reach, one that grows or is carried from round to round (`total = total + loss`)
comes before one that is only assigned anew.

The place of a holder is the line to go to in order to change what is held.
For a container the line that puts something into it, in a loop if there is
one; for a variable the line that assigns it from itself in a loop, else the
nearest assignment above the line where its function stands; for a model or an
optimizer the line that assigns its name. Without source text, the line that
stores the name by the code object. For an argument the line where its
function stands; for a name in a library the line of the script that it works for.

It leaves no trace: no tensor is made or kept, nothing is allocated on the
device, no collection is set off, no code of the objects is run (types are
queried, not `isinstance`; attributes come from the dictionary), hooks on saved
tensors are not run, and local variables are read without making the snapshot
that `f_locals` would leave in the frame before Python 3.13. Its bounds count
objects and not seconds, so two runs give the same answers.
"""

import ast
import collections
import functools
import gc
import itertools
import linecache
import sys
import threading
import types
import warnings

from tonnage_hook.failures import swallow
from tonnage_hook.libraries import is_library
from tonnage_hook.torch.graphs import keeps_gradient, node_of
from tonnage_hook.wire import HOLDER, MOMENT, bind

# Sorts of objects, by their type.
(
    _ATOM,
    _OPAQUE,
    _TENSOR,
    _WRAPPER,
    _MODEL,
    _OPTIMIZER,
    _SEQUENCE,
    _DICTIONARY,
    _FUNCTION,
    _METHOD,
    _PARTIAL,
    _CLASS,
    _GENERATOR,
    _FRAME,
    _TRACEBACK,
    _EXCEPTION,
    _CELL,
    _OBJECT,
) = range(18)

# Which holder a block is given to, if there are several.
_ORDER = {
    "module": 0,
    "optimizer": 1,
    "grad": 2,
    "list": 3,
    "dict": 3,
    "set": 3,
    "attribute": 4,
    "closure": 4,
    "variable": 5,
    "tuple": 6,
    "traceback": 7,
    "other": 8,
    "graph": 9,
}
# Whether anything trains a model.
_STATES = ("frozen", "untrained", "trained")
_PLAIN = frozenset((list, dict, tuple, set, frozenset, str, int, float, bool, bytes, complex, type(None)))
_CONTAINERS = ("list", "dict", "set", "tuple")
_LIBRARY = 10

# How many there may be of each in a process: beyond these the answers cost more than they are worth.
_CENSUSES = 20
_OUT_OF_MEMORY = 4
# Objects followed downwards, nodes of graphs, steps upwards, lines of a file that is read: for each census.
_OBJECTS = 400_000
_NODES = 400_000
_STEPS = 8
# Objects that no name leads to are followed upwards if they are more than this part of the rest, until that was in vain
# so often. In a backward pass it mostly is: graphs hold the rest.
_WORTH_A_CLIMB = 100
_VAIN_CLIMBS = 2
# The shapes of tensors with so many bytes are recorded.
_LARGE = 16 << 20
# In the place of the operation that has saved a tensor.
_UNSAVED = "-"
_LINES = 20_000
# Objects looked at in all censuses together.
_LOOKS = 20_000_000
_CHUNK = 512

# Flags of types: made by a class statement, takes part in garbage collection.
_HEAP = 1 << 9
_HAS_GC = 1 << 14
_GROW = frozenset(
    "append appendleft extend extendleft insert add update setdefault put put_nowait push register".split()
)
_TASK_RESULT = "result of an asyncio task"
# Objects of these do not lead to the script's tensors, and are many.
_NOT_FOLLOWED = (
    "argparse",
    "asyncio",
    "concurrent",
    "ctypes",
    "importlib",
    "inspect",
    "logging",
    "multiprocessing",
    "sympy",
    "torch._dynamo",
    "torch._inductor",
    "torch.fx",
)
_mro = type.__dict__["__mro__"].__get__
_members = type.__dict__["__dict__"].__get__
_module_members = vars(types.ModuleType)["__dict__"].__get__


class _Cut(Exception):
    """More than the bounds allow."""


class _Scope:
    """Where a name lives: a module or a function."""

    __slots__ = ("code", "file", "function", "kept", "library", "line", "prefix")

    def __init__(self, function, file, code, line, library, prefix="", kept=None):
        self.function = function
        self.file = file
        self.code = code
        self.line = line
        self.library = library
        self.prefix = prefix
        # Set for a frame that only a traceback keeps: the label of the exception, or empty.
        self.kept = kept


class _Label:
    """The way to an object: the sort of holder, the dotted name, and where that name lives."""

    __slots__ = ("hooks", "keeper", "model", "name", "scope", "sort")

    def __init__(self, sort, name, scope, model=None, keeper=None):
        self.sort = sort
        self.name = name
        self.scope = scope
        # The name of the outermost module on the way.
        self.model = model
        # The class of the object whose attribute the last part of the name is.
        self.keeper = keeper
        # The hooks of a module among which the function is that remembers it.
        self.hooks = None

    def order(self):
        order = _ORDER[self.sort]
        return order + _LIBRARY if self.scope.library and order >= 3 else order

    def full_name(self):
        scope = self.scope
        name = f"{scope.prefix}{self.name}"
        if scope.function:
            name = f"{name} ({scope.function})"
        if scope.kept:
            name = f"{name} by {scope.kept.full_name()}"
        return name


def _dictionary(value):
    """A dictionary of a module; an empty one where something else stands in its place, as in modules of torch.jit."""
    return value if dict in _mro(type(value)) else {}


def _local_reader():
    """A function that gives the local variables of a frame, and leaves no snapshot of them in it."""
    if sys.version_info >= (3, 13):
        return lambda frame: list(frame.f_locals.items())
    import ctypes

    word, thing = ctypes.c_uint64, ctypes.py_object
    older = sys.version_info < (3, 11)
    code_at = {(3, 11): 4, (3, 12): 0}.get(sys.version_info[:2])
    if hasattr(sys, "gettotalrefcount") or ctypes.sizeof(ctypes.c_void_p) != 8 or not (older or code_at is not None):
        return lambda frame: []

    def read(frame):
        code = frame.f_code
        extra = [name for name in code.co_cellvars if older or name not in code.co_varnames]
        names = (*code.co_varnames, *extra, *code.co_freevars)
        if older:
            inner, code_word = id(frame), 4
            first = inner + types.FrameType.__basicsize__ - 8
        else:
            inner, code_word = word.from_address(id(frame) + 24).value, code_at
            first = inner + 72
        if word.from_address(inner + 8 * code_word).value != id(code):
            return []
        found = []
        for index, name in enumerate(names):
            if word.from_address(first + 8 * index).value:
                value = thing.from_address(first + 8 * index).value
                if type(value) is types.CellType:
                    try:
                        value = value.cell_contents
                    except ValueError:
                        continue
                found.append((name, value))
        return found

    return read


class _Source:
    """The lines of a file that assign a name or put something into it."""

    def __init__(self, file):
        self.assigns = collections.defaultdict(list)
        self.carries = collections.defaultdict(list)
        self.grows = collections.defaultdict(list)
        self.tree = None
        self.reads = {}
        lines = linecache.getlines(file)
        if not lines or len(lines) > _LINES:
            return
        # A warning about the script's text was shown when Python read it.
        show, warnings._showwarnmsg = warnings._showwarnmsg, lambda message: None
        try:
            tree = ast.parse("".join(lines))
        except (SyntaxError, ValueError, RecursionError):
            return
        finally:
            warnings._showwarnmsg = show
        self.tree = tree
        self._read(tree)

    def last_reads(self, function, name):
        known = self.reads.get((function, name))
        if known is None:
            known = _last_reads(self.tree, function, name) if self.tree is not None else {}
            self.reads[function, name] = known
        return known

    def _read(self, tree):
        # Each node with the line of the function it is in (0 at module level) and whether it is in a loop.
        waiting = [(tree, 0, False)]
        while waiting:
            node, function, loop = waiting.pop()
            kind = type(node)
            if kind in (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda):
                decorators = getattr(node, "decorator_list", [])
                function, loop = min([node.lineno, *(one.lineno for one in decorators)]), False
            elif kind in (ast.For, ast.AsyncFor, ast.While):
                loop = True
            if kind is ast.Assign:
                for target in node.targets:
                    self._assign(target, node.value, node.lineno, function, loop)
            elif kind in (ast.AnnAssign, ast.NamedExpr) and node.value is not None:
                self._assign(node.target, node.value, node.lineno, function, loop)
            elif kind is ast.AugAssign:
                key = self._key(node.target)
                if key:
                    self.grows[key].append((node.lineno, function, loop))
                    self.carries[key].append((node.lineno, function, loop))
            elif kind in (ast.For, ast.AsyncFor):
                self._assign(node.target, None, node.lineno, function, loop)
            elif kind in (ast.With, ast.AsyncWith):
                for item in node.items:
                    if item.optional_vars is not None:
                        self._assign(item.optional_vars, None, node.lineno, function, loop)
            elif kind is ast.Call and type(node.func) is ast.Attribute and node.func.attr in _GROW:
                key = self._key(node.func.value)
                if key:
                    self.grows[key].append((node.lineno, function, loop))
            waiting.extend((child, function, loop) for child in ast.iter_child_nodes(node))

    @staticmethod
    def _key(node):
        """A name as itself, an attribute with a dot before it; the container for what is in it."""
        while type(node) in (ast.Subscript, ast.Starred):
            node = node.value
        if type(node) is ast.Name:
            return node.id
        if type(node) is ast.Attribute:
            return "." + node.attr
        return None

    def _assign(self, target, value, line, function, loop):
        if type(target) in (ast.Tuple, ast.List):
            for part in target.elts:
                self._assign(part, value, line, function, loop)
            return
        key = self._key(target)
        if key is None:
            return
        if type(target) is ast.Subscript:
            self.grows[key].append((line, function, loop))
            return
        self.assigns[key].append((line, function, loop))
        if loop and value is not None and any(self._key(node) == key for node in ast.walk(value)):
            self.carries[key].append((line, function, loop))


def _loads(node, name):
    """Whether a part of a program reads a name, or deletes it."""
    parts = (one for one in ast.walk(node) if type(one) is ast.Name and one.id == name)
    return any(type(one.ctx) is not ast.Store for one in parts)


def _first_use(statements, name):
    """The first action of statements on a name: `read`, `write`, or None. If one way reads it first, that counts."""
    for statement in statements:
        used = _use(statement, name)
        if used is not None:
            return used
    return None


def _use(node, name):
    kind = type(node)
    if kind in (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef):
        return None  # looked at apart
    if kind is ast.Assign or (kind is ast.AnnAssign and node.value is not None):
        targets = node.targets if kind is ast.Assign else [node.target]
        if _loads(node.value, name) or any(_loads(target, name) for target in targets):
            return "read"
        stored = (one for target in targets for one in ast.walk(target))
        return "write" if any(type(one) is ast.Name and one.id == name for one in stored) else None
    if kind in (ast.With, ast.AsyncWith):
        return "read" if any(_loads(item, name) for item in node.items) else _first_use(node.body, name)
    if kind is ast.If:
        used = {_first_use(node.body, name), _first_use(node.orelse, name)}
        if _loads(node.test, name) or "read" in used:
            return "read"
        return "write" if used == {"write"} else None
    if kind in (ast.For, ast.AsyncFor, ast.While):
        head = node.test if kind is ast.While else node.iter
        # The body may be skipped, so what it writes may stay as it was.
        read = _loads(head, name) or "read" in (_first_use(node.body, name), _first_use(node.orelse, name))
        return "read" if read else None
    return "read" if any(type(one) is ast.Name and one.id == name for one in ast.walk(node)) else None


def _last_reads(tree, function, name):
    """For each line that assigns a variable in a loop the line that reads it last: its value is never used from
    there on. Nothing if it is assigned elsewhere, or may be read in the next round or after the loop."""
    if not function and _is_read_in_functions(tree, name):
        return {}
    # From each loop that assigns the name outwards: neither the next round nor what comes after it may read it first.
    lines = {}
    waiting = [(_body_of(tree, function) or [], ())]
    while waiting:
        statements, around = waiting.pop()
        for at, statement in enumerate(statements):
            kind = type(statement)
            if kind in (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef):
                if function and any(type(one) is ast.Name and one.id == name for one in ast.walk(statement)):
                    return {}
                continue
            after = statements[at + 1 :]
            loop = kind in (ast.For, ast.AsyncFor, ast.While)
            outside = (*around, after)
            if kind is ast.Assign and around and _use(statement, name) == "write":
                if not any(type(one) is tuple for one in around):
                    return {}
                if any(_first_use(one[0] if type(one) is tuple else one, name) == "read" for one in around):
                    return {}
                loops = [one[0] for one in around if type(one) is tuple]
                reads = [
                    one.lineno
                    for part in loops[-1]
                    for one in ast.walk(part)
                    if type(one) is ast.Name and one.id == name and type(one.ctx) is not ast.Store
                ]
                lines[statement.lineno] = max([statement.end_lineno, *reads])
            for field in ("body", "orelse", "finalbody"):
                inner = getattr(statement, field, None)
                if inner:
                    waiting.append((inner, (*outside, (inner,)) if loop and field == "body" else outside))
            for handler in getattr(statement, "handlers", ()):
                waiting.append((handler.body, outside))
    return lines


def _body_of(tree, function):
    """The statements of a function, by the line in its code object, or of the file."""
    if not function:
        return tree.body
    for node in ast.walk(tree):
        if type(node) in (ast.FunctionDef, ast.AsyncFunctionDef):
            if min([node.lineno, *(one.lineno for one in node.decorator_list)]) == function:
                return node.body
    return None


def _is_read_in_functions(tree, name):
    functions = (one for one in ast.walk(tree) if type(one) in (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
    for function in functions:
        named = [one for one in ast.walk(function) if type(one) is ast.Name and one.id == name]
        arguments = [one.arg for one in ast.walk(function.args) if type(one) is ast.arg]
        shared = any(type(one) is ast.Global and name in one.names for one in ast.walk(function))
        own = name in arguments or any(type(one.ctx) is ast.Store for one in named)
        if shared or (named and not own):
            return True
    return False


def _stores(code, name):
    """The lines at which a code object stores a name, without its source."""
    import dis

    lines, line = [], None
    if len(code.co_code) > 100_000:
        return lines
    for instruction in dis.get_instructions(code):
        number = getattr(instruction, "line_number", None) or instruction.starts_line
        if type(number) is int and number is not True:
            line = number
        if instruction.opname.startswith("STORE_") and instruction.argval == name and line:
            lines.append(line)
    return lines


class Holders:
    """Takes censuses and reports them to the stand-in."""

    def __init__(self, torch, library):
        self.torch = torch
        self.library = library
        # Files whose frames are ours.
        self.hidden = {"<tonnage>"}
        names = ("note", "census_begin", "census_end", "census_due")
        bind(library, *(f"tonnage_{name}" for name in names))
        self.locals_of = _local_reader()
        # Python forgets it before the end.
        self.main_file = None
        self.main_file = self.file_of("__main__")
        self.sources = {}
        self.states = {}
        self.busy = False
        self.before_census = lambda: None
        # Returns the names of models by their ids, of models whose variables are wanted; and the record of each.
        self.called_models = dict
        self.last_results = {}
        # The holders of blocks that no graph had saved when graphs were walked last.
        self.unsaved = {}
        self.names_at = {}
        self.variables = {}
        self.taken = 0
        self.taken_at_failures = 0
        self.looks = 0
        # For searches without graphs and with them: how many named nothing, and the most bytes that one left.
        self.vain_climbs, self.vain_bytes = [0, 0], [0, 0]
        # An exception has ended the script. Its traceback keeps what was alive then, which is not a mistake.
        self.script_failed = False
        self.note_collection = None
        # Before torch 2.7 a saved tensor does not report whether hooks are on it.
        saved = torch._C._autograd.SavedTensor
        self.is_lazy_copy = getattr(torch._C, "_is_cow_tensor", lambda tensor: False)
        self.sees_saved = hasattr(saved, "data") and hasattr(saved, "unpack_hook")
        self.hooked = False
        if not self.sees_saved:
            self._watch_hooks()
        self.not_the_scripts = ("<frozen", "<__array", *self.hidden)

    def _watch_hooks(self):
        """Notes whether the program puts hooks on saved tensors, which must not be run."""
        autograd = self.torch._C._autograd
        push = getattr(autograd, "_push_saved_tensors_default_hooks", None)
        if push is None:
            self.hooked = True
            return

        @functools.wraps(push)
        def note_hooks(*arguments):
            self.hooked = True
            return push(*arguments)

        autograd._push_saved_tensors_default_hooks = note_hooks

    def due(self, percent=None):
        """Whether a pass or a step that begins now is worth a census."""
        few = self.taken < _CENSUSES // 2
        return self.taken < _CENSUSES and self.library.tonnage_census_due(percent or (105 if few else 125))

    def watch_collections(self):
        """Notes the blocks that each garbage collection frees: only reference cycles kept them.

        No census is taken here: a collection may start in C code that must not be entered again, such as the parser."""
        bind(self.library, "tonnage_torch_events")
        events = self.library.tonnage_torch_events
        before = events()

        def note_collection(phase, _):
            nonlocal before
            try:
                if phase == "start":
                    before = events()
                elif freed := events() - before:
                    self.tell(MOMENT, f"collected\t{freed}")
            except Exception as error:
                swallow("Holders.watch_collections", error)

        self.note_collection = note_collection
        gc.callbacks.append(note_collection)

    def forget(self):
        """Watches no further collection."""
        if self.note_collection in gc.callbacks:
            gc.callbacks.remove(self.note_collection)

    def take(self, reason, backward=False):
        """Takes a census; in a backward pass graphs are left alone, because the engine frees them meanwhile."""
        if self.busy:
            return
        if reason == "oom":
            self.taken_at_failures += 1
            if self.taken_at_failures > _OUT_OF_MEMORY:
                return
        elif reason == "peak":
            self.taken += 1
            if self.taken > _CENSUSES or self.looks > _LOOKS:
                return
        self.busy = True
        collecting = gc.isenabled()
        gc.disable()
        name = reason.encode()
        self.library.tonnage_census_begin(name, len(name))
        walked = False
        census = None
        try:
            with self.torch._C.DisableTorchFunction():
                self.before_census()
                census = _Census(self, not backward)
                census.ask()
                walked = not backward
        except _Cut as error:
            self.tell(MOMENT, f"census_cut\t{error}")
        except Exception as error:
            swallow("Holders.take", error)
            self.tell(MOMENT, f"census_cut\t{type(error).__name__}: {error}")
        finally:
            if census is not None:
                self.looks += census.looks
                census.clear()
                census = None
            self.library.tonnage_census_end(name, len(name), walked)
            if collecting:
                gc.enable()
            self.busy = False

    def tell(self, kind, text, address=0):
        data = text.encode("utf-8", "replace")
        self.library.tonnage_note(kind, address, data, len(data))

    def is_library(self, file):
        """Whether a file is not the script's own."""
        return file.startswith(self.not_the_scripts) or is_library(file)

    def file_of(self, module):
        """The file of a module, by its name."""
        found = sys.modules.get(module) if type(module) is str else None
        if found is None or types.ModuleType not in _mro(type(found)):
            return None
        file = _module_members(found).get("__file__")
        if module == "__main__":
            # A fork server has imported torch before there was a script.
            self.main_file = file = file or self.main_file
        return file if type(file) is str else None

    def source(self, file):
        source = self.sources.get(file)
        if source is None:
            source = self.sources[file] = _Source(file)
        return source

    def place(self, label, graph=False):
        """File, line, and whether the holder grows or is carried from round to round."""
        scope = label.scope
        if scope.library or not scope.file:
            return (scope.file, scope.line, False)
        name = label.name
        key = name
        files = [scope.file]
        if scope.file == "<stdin>":
            # Cells of a notebook, the last first.
            cells = [file for file in list(linecache.cache) if type(file) is str and file.startswith("In[")]
            files = sorted(cells, key=lambda file: int(file[3:-1]), reverse=True) or files
        if "." in name:
            key = "." + name.rpartition(".")[2]
            file = self.file_of(_members(label.keeper).get("__module__")) if label.keeper is not None else None
            if file and file not in files and not self.is_library(file):
                files.insert(0, file)
        container = label.sort in _CONTAINERS
        for file in files:
            source = self.source(file)
            first = scope.code.co_firstlineno if scope.code is not None and key == name else None
            if first is not None and scope.code.co_name.startswith("<"):
                first = None
            for lines, grows in ((source.grows, True), (source.carries, True), (source.assigns, False)):
                if (lines is source.grows and not container) or (lines is source.carries and container):
                    continue
                # A variable is assigned in its function; a container may be filled in another.
                here = [entry for entry in lines.get(key, ()) if first is None or entry[1] == first]
                if not here and grows:
                    here = list(lines.get(key, ()))
                if not here:
                    continue
                if grows:
                    looped = [line for line, _, loop in here if loop]
                    return (file, (looped or [line for line, _, _ in here])[-1 if not looped else 0], True)
                lines_here = [line for line, _, _ in here]
                above = [line for line in lines_here if scope.line is None or line <= scope.line]
                return (file, max(above) if above else max(lines_here), False)
        if scope.code is not None and key == name:
            stores = _stores(scope.code, name)
            if stores:
                above = [line for line in stores if scope.line is None or line <= scope.line]
                return (scope.file, max(above or stores), False)
        return (scope.file, scope.line, False)

    def last_read(self, label):
        """The line that reads a variable last before a loop assigns it anew; None if it may be read after that."""
        scope = label.scope
        if scope.library or scope.prefix or scope.kept is not None or not scope.file:
            return None
        if scope.code is not None and scope.code.co_name.startswith("<"):
            return None
        name = label.name.partition(".")[0]
        function = scope.code.co_firstlineno if scope.code is not None else 0
        reads = self.source(scope.file).last_reads(function, name)
        above = [line for line in reads if scope.line is None or line <= scope.line]
        return reads[max(above or reads)] if reads else None


class _Census:
    """One query. Everything it refers to is dropped by `clear`."""

    def __init__(self, holders, graphs):
        self.holders = holders
        self.torch = holders.torch
        self.graphs = graphs
        self.looks = 0
        self.steps = 0
        self.kinds = {}
        self.getters = {}
        # Tensors by their id: the address of the block.
        self.addresses = {}
        self.sizes = {}
        # Tensors that the collector does not know of.
        self.hidden = []
        # The best label of each block and of each tensor.
        self.best = {}
        self.of_tensor = {}
        # Types and shapes of large tensors, by the address of the block.
        self.shapes = {}
        # Blocks that graphs have saved.
        self.saved = set()
        # The labels of all variables that lead to each block.
        self.leading = {}
        # Everything that was reached, with its label.
        self.labels = {}
        self.models = {}
        # The variables and attributes that lead to models, also to parts of others.
        self.variables = {}
        # The line of the script that is running.
        self.working = None

    def clear(self):
        for name in list(vars(self)):
            setattr(self, name, None)

    def ask(self):
        objects = gc.get_objects()
        self.looks += len(objects)
        kinds = list(map(type, objects))
        for kind in set(kinds):
            self._kind(kind)
        by_kind = {sort: [] for sort in (_TENSOR, _MODEL, _OPTIMIZER, _GENERATOR, _TRACEBACK)}
        asked = {kind for kind, sort in self.kinds.items() if sort in by_kind}
        for thing in itertools.compress(objects, map(asked.__contains__, kinds)):
            by_kind[self.kinds[type(thing)]].append(thing)
        tensors = by_kind[_TENSOR]
        for tensor in tensors:
            address = self.addresses[id(tensor)] = self._address(tensor)
            size = self.sizes[id(tensor)] = tensor.untyped_storage().nbytes() if address else 0
            if size >= _LARGE and self._fills_storage(tensor, size):
                self.shapes.setdefault(address, self._shape(tensor))
        self._names(by_kind)
        tensors += self.hidden
        self._gradients(tensors)
        if self.graphs:
            self._graphs(tensors)
        self._climb(objects, kinds)
        self._tell(by_kind[_MODEL], by_kind[_OPTIMIZER])

    @staticmethod
    def _fills_storage(tensor, size):
        try:
            return tensor.numel() * tensor.element_size() == size
        except Exception as error:
            swallow("_Census._fills_storage", error)
            return False

    @staticmethod
    def _shape(tensor):
        return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"

    # The type of an object.

    def _kind(self, kind):
        sort = self.kinds[kind] = self._classify(kind)
        return sort

    def _classify(self, kind):
        torch = self.torch
        mro = _mro(kind)
        if torch.Tensor in mro:
            first = next(one for one in mro if "__torch_dispatch__" in _members(one))
            return _TENSOR if first in (torch.Tensor, torch.Tensor.__base__) else _WRAPPER
        if torch.nn.Module in mro:
            return _MODEL
        if torch.optim.Optimizer in mro:
            return _OPTIMIZER
        if not kind.__flags__ & _HAS_GC or types.ModuleType in mro:
            return _ATOM
        for one, sort in (
            (dict, _DICTIONARY),
            (list, _SEQUENCE),
            (tuple, _SEQUENCE),
            (set, _SEQUENCE),
            (frozenset, _SEQUENCE),
            (collections.deque, _SEQUENCE),
            (types.FunctionType, _FUNCTION),
            (types.MethodType, _METHOD),
            (functools.partial, _PARTIAL),
            (type, _CLASS),
            (types.GeneratorType, _GENERATOR),
            (types.CoroutineType, _GENERATOR),
            (types.AsyncGeneratorType, _GENERATOR),
            (types.FrameType, _FRAME),
            (types.TracebackType, _TRACEBACK),
            (BaseException, _EXCEPTION),
            (types.CellType, _CELL),
        ):
            if one in mro:
                return sort
        for one in mro[:-1]:
            members = _members(one)
            slots = one.__flags__ & _HEAP and types.MemberDescriptorType in map(type, members.values())
            if slots or type(members.get("__dict__")) is types.GetSetDescriptorType:
                module = _members(kind).get("__module__")
                if type(module) is str and module.startswith(_NOT_FOLLOWED):
                    return _OPAQUE
                return _OBJECT
        return _OPAQUE if kind.__flags__ & _HEAP or kind.__module__ != "builtins" else _ATOM

    def _address(self, tensor):
        try:
            if not tensor.is_cuda or self.holders.is_lazy_copy(tensor):
                return 0
            return tensor.untyped_storage().data_ptr()
        except RuntimeError:
            return 0  # without its own memory
        except Exception as error:
            swallow("_Census._address", error)
            return 0

    def _attributes(self, thing):
        """The attributes of an object, by its dictionary and its slots."""
        kind = type(thing)
        getters = self.getters.get(kind)
        if getters is None:
            found, slots = None, []
            for one in _mro(kind)[:-1]:
                for name, member in _members(one).items():
                    if name == "__dict__" and type(member) is types.GetSetDescriptorType:
                        found = found or member
                    elif type(member) is types.MemberDescriptorType and one.__flags__ & _HEAP:
                        slots.append((name, member))
            getters = self.getters[kind] = (found, slots)
        found, slots = getters
        pairs = []
        if found is not None:
            members = found.__get__(thing)
            if members:
                pairs.extend(dict.items(members))
        for name, member in slots:
            try:
                pairs.append((name, member.__get__(thing)))
            except AttributeError:
                pass
        return pairs

    # From names downwards.

    def _names(self, by_kind):
        own, foreign = [], []
        self._globals(own)
        self._stacks(own, foreign)
        for generator in by_kind[_GENERATOR]:
            self._generator(generator, own, foreign)
        self._descend(own)
        if not self.holders.script_failed:
            last = [("sys.last_exc", "last_exc"), ("sys.last_value", "last_value")]
            scope = _Scope("", "", None, None, True)
            foreign += [(vars(sys)[name], _Label("variable", full, scope)) for full, name in last if name in vars(sys)]
        self._descend(foreign)
        # Frames that tracebacks keep, if nothing above led to them.
        kept = []
        for trace in () if self.holders.script_failed else by_kind[_TRACEBACK]:
            if id(trace) not in self.labels:
                self._traceback(trace, "", kept)
        self._descend(kept)
        # Models without a name: most often one that the running line is making.
        file, line = self.working or ("", None)
        scope = _Scope("", file, None, line, True)
        inside = self._parts_of_models(by_kind[_MODEL])
        roots = [one for one in by_kind[_MODEL] if id(one) not in self.labels and id(one) not in inside]
        roots += by_kind[_OPTIMIZER]
        self._descend([(one, _Label("variable", f"<{type(one).__name__}>", scope)) for one in roots])

    def _parts_of_models(self, models):
        """The modules that are part of another one."""
        inside = set()
        for model in models:
            children = _dictionary(dict(self._attributes(model)).get("_modules"))
            inside.update(map(id, dict.values(children)))
        return inside

    def _globals(self, own):
        modules = dict(sys.modules)
        main = modules.pop("__main__", None)
        for name, module in [("__main__", main), *modules.items()]:
            if module is None or types.ModuleType not in _mro(type(module)):
                continue
            members = _module_members(module)
            file = self.holders.file_of(name) or ("<stdin>" if name == "__main__" else None)
            if file is None:
                continue
            if (self.holders.is_library(file) and name != "__main__") or name in ("sitecustomize", "usercustomize"):
                continue
            prefix = "" if name == "__main__" else name.rpartition(".")[2] + "."
            scope = _Scope("", file, None, None, False, prefix)
            for key, value in list(members.items()):
                if type(key) is str and not (key.startswith("__") and key.endswith("__")):
                    own.append((value, _Label("variable", key, scope)))

    def _stacks(self, own, foreign):
        stacks = sys._current_frames()
        main = threading.main_thread().ident
        here = threading.get_ident()
        hidden = self.holders.hidden
        for thread in sorted(stacks, key=lambda thread: (thread != main, thread)):
            frames = []
            frame = stacks[thread]
            while frame is not None and len(frames) < 2000:
                if frame.f_code.co_filename not in hidden:
                    frames.append(frame)
                frame = frame.f_back
            frames.reverse()
            # The line of the script that a library works for.
            line = None
            for frame in frames:
                line = self._frame(frame, own, foreign, line)
            if line and (self.working is None or thread == here):
                self.working = line
            frames.clear()
        # A frame of ours that referred to itself would be kept, and with it all that it knows.
        frame = None
        stacks.clear()

    def _frame(self, frame, own, foreign, line=None, kept=None):
        """Adds the variables of a frame; gives the line of the script it stands at, or works for."""
        code = frame.f_code
        library = self.holders.is_library(code.co_filename)
        if not library:
            line = (code.co_filename, frame.f_lineno)
        if id(frame) in self.labels:
            return line
        self.labels[id(frame)] = None
        if not code.co_flags & 1:
            return line  # a module's, which has been read, or a class's, which is being made
        file, number = line or (code.co_filename, frame.f_lineno)
        scope = _Scope(code.co_name, file, code, number, library, kept=kept)
        sort = "variable" if kept is None else "traceback"
        names = foreign if library else own
        for name, value in self.holders.locals_of(frame):
            names.append((value, _Label(sort, name, scope)))
        return line

    def _generator(self, generator, own, foreign):
        for name in ("gi_frame", "cr_frame", "ag_frame"):
            member = _members(type(generator)).get(name)
            frame = member.__get__(generator) if member is not None else None
            if frame is not None:
                self._frame(frame, own, foreign)

    def _traceback(self, trace, keeper, found):
        line = None
        while trace is not None and id(trace) not in self.labels:
            self.labels[id(trace)] = None
            line = self._frame(trace.tb_frame, found, found, line, keeper)
            trace = trace.tb_next

    def _descend(self, level):
        """Follows objects from their names, level by level."""
        labels, kinds = self.labels, self.kinds
        while level:
            deeper = []
            for thing, label in level:
                kind = type(thing)
                sort = kinds.get(kind)
                if sort is None:
                    sort = self._kind(kind)
                if sort < _TENSOR:
                    continue
                if sort == _TENSOR:
                    self._reach(thing, label)
                    continue
                if id(thing) in labels:
                    continue
                labels[id(thing)] = label
                self.steps += 1
                if self.steps > _OBJECTS:
                    raise _Cut("more objects than are followed")
                self._expand(thing, sort, label, deeper)
            level = deeper

    def _reach(self, tensor, label):
        """A label leads to a tensor."""
        known = self.of_tensor.get(id(tensor))
        order = label.order()
        if known is None or order < known.order():
            self.of_tensor[id(tensor)] = label
        address = self.addresses.get(id(tensor))
        if address is None:
            # `gc.freeze` hides objects from the collector, not from their names.
            address = self.addresses[id(tensor)] = self._address(tensor)
            self.sizes[id(tensor)] = tensor.untyped_storage().nbytes() if address else 0
            self.hidden.append(tensor)
        if address:
            if self.sizes[id(tensor)] >= _LARGE and address not in self.shapes:
                self.shapes[address] = self._shape(tensor)
            self.leading.setdefault(address, {})[label.name.partition(".")[0], id(label.scope.code)] = label
            known = self.best.get(address)
            if known is None or order < known.order():
                self.best[address] = label

    def _expand(self, thing, sort, label, deeper):
        if sort in (_SEQUENCE, _DICTIONARY):
            parts = list(dict.values(thing)) if sort == _DICTIONARY else list(thing)
            self.steps += len(parts) // 8
            if not self._barren(parts):
                deeper.extend(zip(parts, itertools.repeat(self._inside(thing, label))))
        elif sort == _MODEL:
            self._expand_model(thing, label, deeper)
        elif sort == _OPTIMIZER:
            self._expand_optimizer(thing, label, deeper)
        elif sort == _OBJECT:
            for name, value in self._attributes(thing):
                deeper.append((value, self._member(thing, label, name, value)))
        elif sort == _WRAPPER:
            # Its parts are what the block belongs to; they go by the name of the whole.
            self.of_tensor.setdefault(id(thing), label)
            for _, value in self._attributes(thing):
                deeper.append((value, label))
        elif sort == _FUNCTION:
            self._expand_function(thing, label, deeper)
        elif sort in (_METHOD, _PARTIAL):
            deeper.extend((part, label) for part in gc.get_referents(thing))
        elif sort == _CELL:
            deeper.extend((part, label) for part in gc.get_referents(thing))
        elif sort == _CLASS:
            if self._is_users(thing):
                for name, value in list(_members(thing).items()):
                    if type(name) is str and not name.startswith("__"):
                        deeper.append((value, self._attribute(thing, label, name, thing)))
        elif sort == _EXCEPTION:
            found = []
            self._traceback(thing.__traceback__, self._outermost(label), found)
            deeper.extend(found)
            for value in (thing.__cause__, thing.__context__):
                if value is not None:
                    deeper.append((value, label))
            for key, value in self._attributes(thing):
                deeper.append((value, self._attribute(thing, label, key)))
            deeper.append((thing.args, label))
        elif sort == _GENERATOR:
            self._generator(thing, deeper, deeper)
        elif sort == _TRACEBACK:
            # Its label was set just now, so that it would not be followed.
            del self.labels[id(thing)]
            found = []
            self._traceback(thing, self._outermost(label), found)
            deeper.extend(found)

    @staticmethod
    def _outermost(label):
        """The label of an exception, if that is not in the frame of another one."""
        return label if label.scope.kept is None else label.scope.kept

    def _barren(self, parts):
        """Whether there are only numbers, texts and the like in plain containers: then they need not be followed."""
        for _ in range(4):
            kinds = set(map(type, parts))
            sorts = {self.kinds.get(kind) for kind in kinds} if len(kinds) < 64 else {None}
            if sorts <= {_ATOM}:
                return True
            if not kinds <= _PLAIN:
                return False
            parts = gc.get_referents(*parts)
        return False

    def _inside(self, thing, label):
        """The label of what is in a container: that of the outermost one."""
        if label.sort not in ("variable", "attribute", "closure", "other"):
            return label
        mro = _mro(type(thing))
        sort = "dict" if dict in mro else "tuple" if tuple in mro else "set" if {set, frozenset} & set(mro) else "list"
        return _Label(sort, label.name, label.scope, label.model, label.keeper)

    def _member(self, thing, label, name, value):
        """Return the label of an attribute. A container in an object of another container gets its full name."""
        kind = type(thing)
        inner = label.sort in _CONTAINERS and self.kinds.get(type(value)) in (_SEQUENCE, _DICTIONARY)
        if not inner or "[" in label.name or type(name) is not str or not self._is_users(kind):
            return self._attribute(thing, label, name)
        return _Label("attribute", f"{label.name}[…].{name}", label.scope, label.model, kind)

    def _is_users(self, kind):
        module = _members(kind).get("__module__")
        file = self.holders.file_of(module)
        return module == "__main__" or bool(file and not self.holders.is_library(file))

    def _attribute(self, thing, label, name, keeper=None):
        if label.sort not in ("variable", "attribute", "closure", "other") or type(name) is not str:
            return label
        return _Label("attribute", f"{label.name}.{name}", label.scope, label.model, keeper or type(thing))

    def _expand_model(self, model, label, deeper):
        root = label.model or label.name
        if label.sort in ("variable", "attribute", "closure") and not label.scope.library:
            self.variables.setdefault(id(model), label.full_name())
        self.models.setdefault(id(model), _Label("module", root, label.scope, root, label.keeper))
        members = dict(self._attributes(model))
        for part in ("_parameters", "_buffers"):
            values = _dictionary(members.pop(part, None))
            if values:
                inside = self.models[id(model)]
                deeper.extend((value, inside) for value in dict.values(values) if value is not None)
        children = _dictionary(members.pop("_modules", None))
        for name, child in list(dict.items(children)):
            inside = self._attribute(model, label, name)
            if inside is label or inside.model is None:
                inside = _Label(inside.sort, inside.name, inside.scope, root, inside.keeper)
            deeper.append((child, inside))
        for name, value in members.items():
            inside = self._attribute(model, label, name)
            deeper.append((value, inside))

    def _expand_optimizer(self, optimizer, label, deeper):
        members = dict(self._attributes(optimizer))
        inside = _Label("optimizer", label.name, label.scope, None, label.keeper)
        self.models.setdefault(id(optimizer), inside)
        for values in list(dict.values(members.pop("state", None) or {})):
            # Not as one object, because another name may have led to it before.
            values = list(dict.values(values)) if self._kind(type(values)) == _DICTIONARY else [values]
            deeper.extend((value, inside) for value in values)
        # The parameters are named by what else holds them, if anything does.
        late = _Label("other", f"{label.name}.param_groups", label.scope, None, label.keeper)
        deeper.append((members.pop("param_groups", None), late))
        for name, value in members.items():
            deeper.append((value, self._attribute(optimizer, label, name)))

    def _expand_function(self, function, label, deeper):
        code = function.__code__
        library = self.holders.is_library(code.co_filename)
        closure = function.__closure__
        if closure:
            outer = function.__qualname__.split(".<locals>")[0].rpartition(".")[2] or function.__name__
            scope = _Scope(outer, code.co_filename, None, None, library)
            for name, cell in zip(code.co_freevars, closure):
                try:
                    value = cell.cell_contents
                except ValueError:
                    continue
                inner = _Label("closure", name, scope)
                if label.name.endswith("_hooks") and not label.scope.library:
                    inner.hooks = label.full_name()
                deeper.append((value, inner))
        if not library and (function.__defaults__ or function.__kwdefaults__):
            scope = _Scope(function.__name__, code.co_filename, None, None, False)
            named = code.co_varnames[: code.co_argcount]
            defaults = function.__defaults__ or ()
            pairs = list(zip(named[len(named) - len(defaults) :], defaults))
            pairs += list((function.__kwdefaults__ or {}).items())
            deeper.extend((value, _Label("closure", name, scope)) for name, value in pairs)
        members = vars(function)
        if members:
            deeper.extend((value, self._attribute(function, label, name)) for name, value in list(members.items()))

    # Gradients and graphs.

    def _gradients(self, tensors):
        for tensor in tensors:
            label = self.of_tensor.get(id(tensor))
            if not tensor.requires_grad or not keeps_gradient(tensor):
                continue
            gradient = tensor._grad
            if gradient is None:
                continue
            if label is None:
                self._gradient_of_garbage(tensor, gradient)
                continue
            if label.model is None and label.sort in ("variable", "attribute", "closure"):
                # A tensor of the script's own. The line to go to is that of the tensor.
                inside = _Label("grad", f"{label.name}.grad", label.scope, None, label)
            else:
                inside = _Label("grad", label.model or label.name, label.scope, label.model, label.keeper)
            self._descend([(gradient, inside)])
            if id(gradient) not in self.addresses and self._kind(type(gradient)) == _TENSOR:
                address = self._address(gradient)
                known = self.best.get(address)
                if address and (known is None or inside.order() < known.order()):
                    self.best[address] = inside

    def _gradient_of_garbage(self, tensor, gradient):
        """Names the cycle of a double backward pass: a leaf keeps its gradient, whose graph keeps the leaf."""
        if node_of(gradient) is None:
            return
        cycle = _Label("other", "<cycle: a parameter and its .grad>", _Scope("", "", None, None, True))
        for one in (tensor, gradient):
            self.of_tensor[id(one)] = cycle
            address = self.addresses.get(id(one)) or self._address(one)
            if address:
                self.best.setdefault(address, cycle)

    def _cycle_of(self, node):
        """The label of a function written in Python whose context keeps its own output; None if it does not."""
        kind = type(node)
        if self.torch._C._FunctionBase not in _mro(kind):
            return None
        for name, value in self._attributes(node):
            if self._kind(type(value)) == _TENSOR and node_of(value) is node:
                forward = getattr(getattr(kind, "_forward_cls", None), "forward", None)
                code = getattr(forward, "__code__", None)
                scope = _Scope("", code.co_filename if code is not None else "", None, None, code is None)
                keeper = _Label("variable", f"ctx.{name}", scope)
                function = kind.__name__.removesuffix("Backward")
                nowhere = _Scope("", "", None, None, True)
                return _Label("graph", f"<cycle: ctx.{name} of {function}>", nowhere, None, keeper)
        return None

    def _graphs(self, tensors):
        starts = []
        for index, tensor in enumerate(tensors):
            node = node_of(tensor)
            if node is None:
                continue
            label = self.of_tensor.get(id(tensor))
            number = node._sequence_nr() if hasattr(node, "_sequence_nr") else index
            if label is None:
                starts.append((4, -number, index, node, None))
                continue
            if label.scope.kept is not None:
                # An object that a variable of a running frame reaches too belongs to that variable.
                starts.append((3, -number, index, node, label))
                continue
            library = label.scope.library
            grows = not library and (label.sort in _CONTAINERS or self.holders.place(label)[2])
            starts.append((0 if grows else 2 if library else 1, -number, index, node, label))
        starts.sort(key=lambda start: start[:3])
        seen = {}
        nobody = _Label("graph", "", _Scope("", "", None, None, True))
        try:
            for _, _, _, node, label in starts:
                sort = "graph" if label is None or label.scope.kept is None else "traceback"
                label = _Label(sort, label.name, label.scope, None, label) if label else self._cycle_of(node)
                self._walk(node, label or nobody, seen)
        finally:
            seen.clear()
            starts.clear()

    def _walk(self, node, label, seen):
        waiting = [node]
        kinds = self.nodes_saved = getattr(self, "nodes_saved", None) or {}
        while waiting:
            node = waiting.pop()
            if id(node) in seen:
                continue
            # Kept until the end, because another node could get its id.
            seen[id(node)] = node
            if len(seen) > _NODES:
                raise _Cut("more nodes of graphs than are followed")
            kind = type(node)
            saved = kinds.get(kind)
            if saved is None:
                saved = kinds[kind] = [name for name in dir(kind) if name.startswith("_raw_saved_")]
            for name in saved:
                try:
                    value = getattr(node, name)
                except RuntimeError:
                    continue  # freed already
                except Exception as error:
                    swallow("_Census._walk", error)
                    continue
                for one in value if type(value) is tuple else (value,):
                    self._saved(one, label, node, name)
            if self.torch._C._FunctionBase in _mro(kind):
                # The context of a function written in Python.
                level = [(value, label) for key, value in self._attributes(node)]
                self._descend_in_graph(level)
            for after, _ in node.next_functions:
                if after is not None and id(after) not in seen:
                    waiting.append(after)

    def _saved(self, saved, label, node, name):
        if self.holders.sees_saved:
            value = saved.data
        elif self.holders.hooked:
            return
        else:
            try:
                value = getattr(node, name.replace("_raw_saved_", "_saved_", 1))
            except RuntimeError:
                return  # freed already
            except Exception as error:
                swallow("_Census._saved", error)
                return
            if type(value) is tuple:
                self._descend_in_graph([(part, label) for part in value])
                return
        if value is not None:
            self._descend_in_graph([(value, label)])

    def _descend_in_graph(self, level):
        """Gives tensors, and those in plain containers, to a graph."""
        for _ in range(3):
            deeper = []
            for thing, label in level:
                sort = self.kinds.get(type(thing))
                if sort is None:
                    sort = self._kind(type(thing))
                if sort == _TENSOR:
                    address = self.addresses.get(id(thing)) or self._address(thing)
                    self.saved.add(address)
                    known = self.best.get(address)
                    if address and (known is None or label.order() < known.order()):
                        self.best[address] = label
                elif sort == _WRAPPER:
                    deeper.extend((value, label) for _, value in self._attributes(thing))
                elif sort == _SEQUENCE:
                    deeper.extend((value, label) for value in thing)
                elif sort == _DICTIONARY:
                    deeper.extend((value, label) for value in list(dict.values(thing)))
            level = deeper

    # From tensors upwards.

    def _climb(self, objects, kinds):
        """Finds what holds the tensors that no name led to."""
        unknown, known = {}, 0
        below = set()
        for number, address in self.addresses.items():
            if not address:
                continue
            if address in self.best:
                known += self.sizes[number]
            else:
                below.add(number)
                unknown[address] = self.sizes[number]
        # It costs a pass over all objects for each step.
        holders, total = self.holders, sum(unknown.values())
        # Tensors that a running line has not assigned yet have no name either. After a few climbs in vain, only much
        # more of such memory is worth another.
        is_vain = holders.vain_climbs[self.graphs] >= _VAIN_CLIMBS and total < 2 * holders.vain_bytes[self.graphs]
        if total <= known // _WORTH_A_CLIMB or is_vain:
            return
        wanted = set(below)
        above = {}
        passed = {kind for kind, sort in self.kinds.items() if sort not in (_ATOM, _FRAME, _CLASS)}
        candidates = list(itertools.compress(objects, map(passed.__contains__, kinds)))
        found = {}
        for _ in range(_STEPS):
            parents = {}
            for start in range(0, len(candidates), _CHUNK):
                chunk = candidates[start : start + _CHUNK]
                if wanted.isdisjoint(map(id, gc.get_referents(*chunk))):
                    continue
                for thing in chunk:
                    for part in gc.get_referents(thing):
                        number = id(part)
                        if number in wanted and number not in above:
                            above[number] = (thing, part)
                            if id(thing) not in below and id(thing) not in above:
                                parents[id(thing)] = thing
            self.looks += len(candidates)
            if not parents:
                break
            wanted = set()
            for number, thing in parents.items():
                if self.labels.get(number) is None:
                    wanted.add(number)
            if not wanted:
                break
        chunk = candidates = thing = part = parents = None
        namespaces = {}
        for name, module in list(sys.modules.items()):
            if module is not None and types.ModuleType in _mro(type(module)):
                namespaces[id(_module_members(module))] = (name, module)
        for number in below:
            label = self._upwards(number, above, namespaces)
            if label is not None:
                found[number] = label
        above.clear()
        named = {self.addresses[number] for number in found}
        if not self.graphs or sum(unknown[address] for address in named) * 2 < total:
            holders.vain_climbs[self.graphs] += 1
            holders.vain_bytes[self.graphs] = max(holders.vain_bytes[self.graphs], total)
        for number, label in found.items():
            address = self.addresses[number]
            known = self.best.get(address)
            if known is None or label.order() < known.order():
                self.best[address] = label

    def _upwards(self, number, above, namespaces):
        """The label of a tensor by the objects above it; `None` if there are none."""
        way = []
        seen = set()
        current = number
        while current not in seen:
            seen.add(current)
            step = above.get(current)
            if step is None:
                break
            thing, part = step
            way.append((thing, part))
            current = id(thing)
            if self.labels.get(current) is not None or current in namespaces:
                break
        if not way:
            return None
        top = way[-1][0]
        # An object without a name is most often one that the running line is making.
        file, line = self.working or ("", None)
        nowhere = _Scope("", file, None, line, True)
        label = self.labels.get(id(top))
        nameless = False
        if label is None and id(top) in namespaces:
            name, module = namespaces[id(top)]
            key = next((key for key, value in list(dict.items(top)) if value is way[-1][1]), "")
            file = _module_members(module).get("__file__")
            scope = _Scope("", file if type(file) is str else "", None, None, True, f"{name}.")
            label = _Label("variable", str(key), scope)
            if name.partition(".")[0] in ("asyncio", "_asyncio"):
                # The table of running tasks leads to every task of the script.
                label = _Label("other", _TASK_RESULT, nowhere)
                nameless = True
            way.pop()
        elif label is None and current in seen and above.get(current) is not None:
            # Objects that refer to each other and have no name: garbage that waits for a collection.
            name = f"<cycle: {self._members(way)}>"
            return _Label("other", name, _Scope("", "", None, None, True))
        elif label is None:
            nameless = True
            kind = type(top)
            is_task = str(kind.__module__).startswith(("asyncio", "_asyncio"))
            label = _Label("other", _TASK_RESULT if is_task else kind.__name__, nowhere)
            if self.kinds.get(type(top)) in (_SEQUENCE, _DICTIONARY):
                label = self._inside(top, _Label("other", "", nowhere))
        for thing, part in reversed(way):
            sort = self.kinds.get(type(thing))
            if sort in (_SEQUENCE, _DICTIONARY):
                label = self._inside(thing, label)
            elif sort == _MODEL:
                root = label.model or label.name
                label = _Label("module", root, label.scope, root, label.keeper)
            elif sort == _OPTIMIZER:
                label = _Label("optimizer", label.name, label.scope, None, label.keeper)
            elif sort in (_OBJECT, _EXCEPTION):
                name = next((name for name, value in self._attributes(thing) if value is part), None)
                if name is not None:
                    label = self._attribute(thing, label, name)
        if nameless and label.name:
            # No variable of the script leads there, so the class of the object is not its name.
            label = _Label(label.sort, f"<{label.name}>", label.scope, label.model, label.keeper)
        return label

    def _members(self, way):
        """The objects of a cycle, with the attributes that lead on, from a tensor upwards."""
        members = []
        key = below = None
        for thing, part in way:
            sort = self.kinds.get(type(thing))
            if sort == _DICTIONARY:
                key = next((key for key, value in list(dict.items(thing)) if value is part), None)
                below = thing
                continue
            name = key if part is below else None
            if name is None and sort in (_OBJECT, _MODEL, _EXCEPTION):
                name = next((name for name, value in self._attributes(thing) if value is part), None)
            kind = type(thing).__name__
            member = f"{kind}.{name}" if type(name) is str else kind
            if member not in members:
                members.append(member)
        return ", ".join(members[:3])

    # Records of holders.

    def _tell(self, models, optimizers):
        holders = self.holders
        self._tell_models(models, optimizers)
        # A census in a backward pass does not walk graphs. It repeats the result of the last one that did.
        sees_graphs = self.graphs and not holders.hooked
        if self.graphs:
            holders.unsaved.clear()
        texts = {}
        for address in sorted(self.best):
            label = self.best[address]
            text = texts.get(id(label))
            if text is None:
                origin = label.keeper if type(label.keeper) is _Label else label
                origin = origin.scope.kept or origin
                file, line, _ = holders.place(origin)
                place = f"{file}:{line}" if file and line else ""
                text = texts[id(label)] = f"{label.sort}\t{label.full_name()}\t{place}"
            shape = self.shapes.pop(address, None)
            if shape and _ORDER[label.sort] >= _ORDER["list"] and label.sort != "graph":
                if sees_graphs and address not in self.saved:
                    holders.unsaved[address] = label.full_name()
                unsaved = _UNSAVED if holders.unsaved.get(address) == label.full_name() else ""
                text = f"{text}\t{unsaved}\t{shape}"
                if label.hooks is not None:
                    text += f"\t{label.hooks}"
                elif (
                    label.sort in ("variable", "tuple", "dict") and label.scope.library and label.scope.code is not None
                ):
                    # An argument of a library's function, or `args`: the script has no line to change.
                    text += "\t\tlibrary"
            holders.tell(HOLDER, text, address)
        if self.graphs:
            # Tensors without a name, such as those that the running line has not assigned yet.
            for address, shape in self.shapes.items():
                holders.tell(HOLDER, f"nothing\t\t\t\t{shape}", address)
        self._tell_last_results()

    def _tell_last_results(self):
        """Finds variables that are not read before they are assigned anew, and the line that reads them last."""
        found = {}
        for address, label in self.best.items():
            if label.sort in ("variable", "tuple", "dict", "list", "attribute"):
                # Also the names that led there in an earlier census: one may be assigned anew before the other.
                reads = self.holders.names_at.setdefault(address, {})
                for (name, _), other in self.leading.get(address, {}).items():
                    reads[name, other.scope.code] = self.holders.last_read(other)
                known = found.setdefault(label.full_name(), (label, {}))
                # A variable of a function that has returned since does not keep it.
                known[1].update({name: read for (name, code), read in reads.items() if code is label.scope.code})
        said = self.holders.last_results
        for full_name, (label, reads) in found.items():
            text = ""
            if reads and None not in reads.values():
                text = f"{', '.join(sorted(reads))} {label.scope.file}:{max(reads.values())}"
            if said.get(full_name, "") != text:
                said[full_name] = text
                self.holders.tell(MOMENT, f"last_result\t{full_name} = {text}")

    def _tell_models(self, models, optimizers):
        """Reports for each model whether anything trains it."""
        inside = self._parts_of_models(models)
        trained = set()
        for optimizer in optimizers:
            for group in dict(self._attributes(optimizer)).get("param_groups") or ():
                trained.update(map(id, group.get("params", ())))
        # Where an optimizer has parameters of one model, those of another that none has are not trained by a loop of
        # the script's own.
        stepped = any(map(trained.__contains__, map(id, self._parameters(models))))
        states = {}
        for model in models:
            label = self.models.get(id(model))
            if id(model) in inside or label is None or label.scope.library:
                continue
            state = self._state(model, trained, stepped)
            name = label.full_name()
            if state is not None:
                # If one list has several models, the best trained one counts.
                states[name] = max(state, states.get(name, 0))
        said = self.holders.states
        for name, state in states.items():
            if said.get(name) != state:
                said[name] = state
                self.holders.tell(MOMENT, f"model\t{_STATES[state]} {name}")
        said = self.holders.variables
        for number, name in self.holders.called_models().items():
            variable = self.variables.get(number)
            if variable is not None and said.get(name) != variable:
                said[name] = variable
                self.holders.tell(MOMENT, f"called_model\t{name} = {variable}")

    def _parameters(self, models):
        for model in models:
            members = dict(self._attributes(model))
            yield from dict.values(_dictionary(members.get("_parameters")))

    def _state(self, model, trained, stepped):
        state = None
        waiting, seen = [model], set()
        while waiting:
            part = waiting.pop()
            if id(part) in seen:
                continue
            seen.add(id(part))
            members = dict(self._attributes(part))
            for parameter in dict.values(_dictionary(members.get("_parameters"))):
                if parameter is None:
                    continue
                graded = parameter.requires_grad and keeps_gradient(parameter) and parameter._grad is not None
                if (graded and not stepped) or id(parameter) in trained:
                    return _STATES.index("trained")
                state = max(state or 0, _STATES.index("untrained" if parameter.requires_grad else "frozen"))
            waiting.extend(child for child in dict.values(_dictionary(members.get("_modules"))) if child is not None)
        return state
