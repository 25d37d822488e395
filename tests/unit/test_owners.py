"""Rules of the house about who owns what: nouns stand alone, attributes have one owner, folders can be read.

A parser checks them as far as it can see; who reads sees the rest.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("ps_wire", "ps_server", "ps_worker", "ps_lab")
MAX_ENTRIES = 20  # of a folder: what a reader takes in at a glance

# Underscore names of torch, grpc, ssl and Python, for which nothing public stands.
THEIRS = {
    *(
        "_version",
        "_is_view",
        "_cdata",
        "_foreach_add_",
        "_foreach_copy_",
        "_fused_adam_",
        "_fused_adamw_",
        "_execution_engine",
        "_dynamo",
    ),
    *("_forward_pre_hooks", "_state_dict_pre_hooks", "_parameters", "_opt_called", "_wrapped_by_lr_sched"),
    *("_forward_hooks", "_backward_hooks", "_assert"),
    *("_replace", "_SSLMethod", "_exit", "_getframe", "_inheriting", "_shutdown", "_run_exitfuncs"),
}


@cache
def trees() -> dict[str, ast.Module]:
    """Each source file of the packages, parsed."""
    paths = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    return {
        path.relative_to(ROOT).as_posix(): ast.parse(path.read_text())
        for path in paths
        if "v1" not in path.parts
    }


# -- who asks for a class ----------------------------------------------------------------------------------


def test_a_consistency_model_is_asked_by_its_properties_and_not_by_its_class():
    """Else a new model silently falls into the branch of the others: the gate alone has a row for each."""
    models, gate = {"BSP", "SSP", "ASP"}, "ps_server/agreement/gate.py"
    found = [
        f"{path}: {ast.unparse(node)}"
        for path, tree in trees().items()
        if path.startswith(("ps_worker/", "ps_server/")) and path != gate
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute)
        and (node.id if isinstance(node, ast.Name) else node.attr) in models
    ]
    assert found == []


# -- whose attributes are used ---------------------------------------------------------------------------


def foreign(tree: ast.Module) -> Iterator[str]:
    """Accesses of an underscore attribute from outside of the class that has it."""
    inside = {id(node): cls for cls in _classes(tree) for node in ast.walk(cls)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr) and node.attr not in THEIRS:
            own = inside.get(id(node))
            if not _is_self(node.value) and not (own and node.attr in _attributes(own) | _declared(own)):
                yield ast.unparse(node)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"getattr", "setattr"}:
            named = node.args[1]
            constant = named.value if isinstance(named, ast.Constant) else None
            private = isinstance(constant, str) and _is_private(constant) and constant not in THEIRS
            if private and not _is_self(node.args[0]):
                yield ast.unparse(node)


def _classes(tree: ast.AST) -> list[ast.ClassDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _is_self(node: ast.expr) -> bool:
    return ast.unparse(node) in {"self", "cls", "super()"}


def _attributes(cls: ast.ClassDef) -> set[str]:
    """What a class sets on itself or defines, without what it only declares."""
    found = {node.name for node in cls.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    frozen = any(
        "dataclass" in ast.unparse(it) or "NamedTuple" in ast.unparse(it) for it in cls.decorator_list
    )
    for node in cls.body:
        if isinstance(node, ast.AnnAssign) and (frozen or node.value is not None):
            found.add(ast.unparse(node.target))
        elif isinstance(node, ast.Assign):
            found |= {ast.unparse(target) for target in node.targets}
    for node in ast.walk(cls):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            found.add(node.attr)
    return found


def _declared(cls: ast.ClassDef) -> set[str]:
    return {ast.unparse(node.target) for node in cls.body if isinstance(node, ast.AnnAssign)}


def test_nobody_uses_another_objects_underscore_attributes():
    """Who holds state saves it, and who needs something asks for it."""
    found = {name: list(foreign(tree)) for name, tree in trees().items()}
    assert not {name: those for name, those in found.items() if those}


# -- who sets an attribute -------------------------------------------------------------------------------

# Attributes of what is not the project's: torch, ssl, ctypes, logging, weakref, exceptions; modules.
NOT_OURS = {
    *("grad", "data", "state", "param_groups", "step", "__getstate__"),  # of tensors, optimizers
    *("training", "__dict__", "_state_dict_pre_hooks"),  # of modules
    "meta",  # of nodes of a traced graph
    *("_opt_called", "_wrapped_by_lr_sched"),
    *("check_hostname", "verify_mode", "argtypes", "restype", "propagate", "handlers", "atexit", "args"),
}
MODULES = {"sys", "os"}

# Messages of protobuf, by the names that they have where they are filled.
MESSAGES = {
    "ps_server/coordinator/jobs/runner.py": {"action.reply.joined"},
    "ps_server/coordinator/member_streams.py": {"progress"},
    "ps_server/coordinator/readers.py": {"cut"},
    "ps_server/coordinator/snapshots/attempt.py": {"self.progress", "end"},
    "ps_worker/job/job_link.py": {"mark"},
    "ps_worker/job/presence.py": {"progress"},
    "ps_worker/membership/coordinator_calls.py": {"request"},
    "ps_worker/membership/member_stream.py": {"request"},
}

# Plain records of another file, documented there: a partition's state machine counts in its ledgers, and the
# one with backup workers, which is a state machine, too, in its members.
INPUTS, MACHINE = "ps_server/shard/partition/inputs.py", "ps_server/shard/partition/machine.py"
RECORDS = {
    MACHINE: {(INPUTS, "Ledger")},
    "ps_server/shard/partition/backup_machine.py": {(INPUTS, "Ledger"), (MACHINE, "_Member")},
}


def set_from_outside(file: str, tree: ast.Module) -> Iterator[str]:
    """Stores to attributes of an object that somebody else has made, and that is no plain record here.

    And into lists and mappings that are such attributes: `job.members[worker] = 1`.
    """
    stores = [
        node
        for node in map(_stored, ast.walk(tree))
        if node is not None and not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"})
    ]
    if not stores:
        return
    plain = {name for cls in _classes(tree) if _is_record(cls) for name in _attributes(cls)} | NOT_OURS
    for path, record in RECORDS.get(file, ()):
        plain |= {name for cls in _classes(trees()[path]) if cls.name == record for name in _attributes(cls)}
    made: dict[int, set[str]] = {id(node): set() for node in stores}
    for owner in ast.walk(tree):
        if isinstance(owner, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = [id(node) for node in ast.walk(owner) if id(node) in made]
            names = _made(owner) if inside else set()
            for key in inside:
                made[key] |= names
    for node in stores:
        text = ast.unparse(node.value)
        known = text in MODULES or text in MESSAGES.get(file, ()) or text in made[id(node)]
        if not known and node.attr not in plain and node.attr not in _setters():
            yield ast.unparse(node)


def _stored(node: ast.AST) -> ast.Attribute | None:
    """The attribute that a statement sets, or into which it puts something."""
    if not isinstance(node, ast.Attribute | ast.Subscript) or not isinstance(node.ctx, ast.Store | ast.Del):
        return None
    while isinstance(node, ast.Subscript):
        node = node.value
    return node if isinstance(node, ast.Attribute) else None


def _is_record(cls: ast.ClassDef) -> bool:
    """A class that its file has for itself, or a dataclass that can change: this file alone may set it."""
    decorators = " ".join(map(ast.unparse, cls.decorator_list))
    return _is_private(cls.name) or ("dataclass" in decorators and "frozen=True" not in decorators)


def _made(owner: ast.AST) -> set[str]:
    """Names that a function gives to what it has made: by a class, or to a class of its own."""
    found = {node.name for node in ast.walk(owner) if isinstance(node, ast.ClassDef)}
    for node in ast.walk(owner):
        pairs: list[tuple[ast.expr, ast.expr]] = []
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            pairs = [(node.target, node.value)]
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            pairs = [(node.optional_vars, node.context_expr)]
        for target, value in pairs:
            both = (
                zip(target.elts, value.elts, strict=False)
                if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
                else [(target, value)]
            )
            found |= {it.id for it, what in both if isinstance(it, ast.Name) and _makes(what)}
    return found


def _makes(value: ast.expr) -> bool:
    if isinstance(value, ast.IfExp):
        return _makes(value.body) and _makes(value.orelse)
    if not isinstance(value, ast.Call):
        return False
    called = ast.unparse(value.func)
    classes = [part.lstrip("_") for part in called.split(".")]
    return called in {"cls", "super().__new__"} or any(part[:1].isupper() for part in classes)


@cache
def _setters() -> set[str]:
    """Properties that say themselves what a store does."""
    return {
        ast.unparse(decorator).removesuffix(".setter")
        for tree in trees().values()
        for cls in _classes(tree)
        for node in cls.body
        if isinstance(node, ast.FunctionDef)
        for decorator in node.decorator_list
        if ast.unparse(decorator).endswith(".setter")
    }


def test_nobody_sets_another_objects_attributes():
    """Who holds something changes it, by a method that says what has happened."""
    found = {file: list(set_from_outside(file, tree)) for file, tree in trees().items()}
    assert not {file: those for file, those in found.items() if those}


# -- which nouns can be made alone -----------------------------------------------------------------------


@dataclass
class Noun:
    """A class, where it is, and what it needs of whom it does not know."""

    file: str
    node: ast.ClassDef
    bases: list[str] = field(default_factory=list)


def nouns() -> dict[str, Noun]:
    """Classes of the packages by name; of two of one name, none."""
    every = [Noun(file, cls, _bases(cls)) for file, tree in trees().items() for cls in _classes(tree)]
    seen = Counter(noun.node.name for noun in every)
    return {noun.node.name: noun for noun in every if seen[noun.node.name] == 1}


def _bases(cls: ast.ClassDef) -> list[str]:
    return [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in cls.bases]


def fragments() -> Iterator[tuple[str, str]]:
    """Bases with one child that cannot be without it, and why."""
    known = nouns()
    children = Counter(base for noun in known.values() for base in noun.bases)
    for name, noun in known.items():
        if children[name] == 1 and not {"Protocol", "ABC", "Exception"} & set(noun.bases):
            missing = sorted(_needed(noun.node) - _inherited(noun, known))
            if missing:
                yield name, f"needs {', '.join(missing)} of its child"


def _needed(cls: ast.ClassDef) -> set[str]:
    """What its methods use of themselves, and what they leave to a child."""
    used = {
        node.attr
        for node in ast.walk(cls)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"
    }
    stubs = {
        node.name
        for node in cls.body
        if isinstance(node, ast.FunctionDef) and "NotImplementedError" in ast.unparse(node)
    }
    return {name for name in used if not name.startswith("__")} | {f"{name}()" for name in stubs}


def _inherited(noun: Noun, known: dict[str, Noun]) -> set[str]:
    """Attributes of a class and its bases; of bases elsewhere, such as torch's, nothing is known: all."""
    found = _attributes(noun.node)
    for base in noun.bases:
        if base in known:
            found |= _inherited(known[base], known)
        elif base not in {"object", "Generic", "Protocol"}:
            return found | _needed(noun.node)
    return found


def test_no_class_is_a_fragment_of_its_only_child():
    """A noun can be made alone: no class needs attributes which another file sets."""
    assert not dict(fragments())


# -- what a name means -----------------------------------------------------------------------------------

TWICE = {"Reduced"}  # a Protocol, and the value that is one


def test_a_class_name_stands_for_one_thing():
    """Between the wire, the server and the worker; `ps_lab` names records of what it shows alike."""
    every = [
        cls.name
        for path, tree in trees().items()
        if not path.startswith("ps_lab/")
        for cls in tree.body
        if isinstance(cls, ast.ClassDef) and not _is_private(cls.name)
    ]
    assert sorted(name for name, count in Counter(every).items() if count > 1 and name not in TWICE) == []


# -- what a listing shows --------------------------------------------------------------------------------


def test_a_listing_of_a_folder_can_be_read():
    """At most twenty entries, `__init__.py` and what is not the project's own left out."""
    left_out = {"__init__.py", "__pycache__", "py.typed"}
    folders = [folder for package in PACKAGES for folder in [ROOT / package, *(ROOT / package).rglob("*")]]
    counts = {
        folder.relative_to(ROOT).as_posix(): len([it for it in folder.iterdir() if _is_shown(it, left_out)])
        for folder in folders
        if folder.is_dir() and folder.name not in {"__pycache__", "v1"}
    }
    assert not {name: count for name, count in counts.items() if count > MAX_ENTRIES}


def _is_shown(path: Path, left_out: set[str]) -> bool:
    return path.name not in left_out and path.suffix != ".so"


# -- tests -----------------------------------------------------------------------------------------------


def test_no_test_module_imports_from_another():
    """What tests share lies in modules that hold no tests."""
    found = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [it.name for it in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [
                f"{path.relative_to(ROOT)}: {name}"
                for name in names
                if name.rpartition(".")[2].startswith("test_")
            ]
    assert not found


# -- the rules themselves --------------------------------------------------------------------------------


def test_a_friend_is_found():
    text = "class A:\n    def f(self, other): self._x = 1; other._x; other._y; getattr(other, '_z')\n"
    assert list(foreign(ast.parse(text))) == ["other._y", "getattr(other, '_z')"]
    assert list(foreign(ast.parse("def f(cell): cell._held = 1"))) == ["cell._held"]


def test_a_store_from_outside_is_found():
    text = "def f(cell, cells):\n    cell.loaded = True\n    cells[0].steps += 1\n    del cell.held\n"
    assert list(set_from_outside("a.py", ast.parse(text))) == ["cell.loaded", "cells[0].steps", "cell.held"]
    text = "class A:\n    def f(self): self.part.started = True; self.x = 1; B().y.z = 2\n"
    assert list(set_from_outside("a.py", ast.parse(text))) == ["self.part.started", "B().y.z"]
    text = "def f(job):\n    job.members[1] = 2\n    del job.tables[3]\n    {}[job.name] = 4\n"
    assert list(set_from_outside("a.py", ast.parse(text))) == ["job.members", "job.tables"]
    text = "def f():\n    made = B()\n    made.x = 1\n    first, made = 1, C()\n    first.y = 2\n"
    assert list(set_from_outside("a.py", ast.parse(text))) == ["first.y"]


def test_a_fragment_is_found():
    text = "class Half:\n    step: int\n    def f(self): return self.step + self.other()\n"
    (half,) = _classes(ast.parse(text))
    assert _needed(half) - _inherited(Noun("a.py", half), {}) == {"step", "other"}
