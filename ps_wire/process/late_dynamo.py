"""A stand-in for `torch._dynamo`, the tracer of `torch.compile`, until something needs the tracer itself.

Every optimizer of torch imports `torch._dynamo`, for two names that do nothing where nothing is compiled:
`disable(function)` and `graph_break()`; `init_process_group` asks it to forget what it has evaluated, and our
hooks on modules ask its `eval_frame` to skip their code. With it come sympy, FSDP and most of the compiler:
1.2 s of a core and 75 MB for each process, and most processes never compile. The stand-in has these names.
Any other name of it, or an import of one of its modules, imports `torch._dynamo` itself, which takes its
place; functions that were to be disabled before are disabled from then on, and code that was to be skipped is
skipped.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import Any

_NAME = "torch._dynamo"
_CACHE = "__dynamo_disable"  # where torch keeps on a function what `disable` made of it


class _LateModule:
    """A module of the tracer, as the stand-in has it: any other name of it is that of the module itself."""

    def __init__(self, itself: Callable[[], Any]) -> None:
        self._itself = itself  # imports the module, unless it is there

    def __getattr__(self, name: str) -> Any:
        return getattr(self._itself(), name)


class _LateTraceRules(_LateModule):
    """`torch._dynamo.trace_rules` of the stand-in."""

    def clear_lru_cache(self) -> None:
        """Forgets what rules were evaluated: none where nothing is traced yet."""
        if not is_late():
            self._itself().clear_lru_cache()


class _LateEvalFrame(_LateModule):
    """`torch._dynamo.eval_frame` of the stand-in."""

    def __init__(self, itself: Callable[[], Any], lock: threading.RLock) -> None:
        super().__init__(itself)
        self._lock = lock
        self._skipped: set[CodeType] = set()

    def skip_code(self, code: CodeType) -> None:
        """Remembers the code: nothing is traced yet."""
        with self._lock:
            if is_late():
                self._skipped.add(code)
            else:
                self._itself().skip_code(code)

    def hand_on(self) -> None:
        """Has the module itself, which has taken its place, skip what was to be skipped before."""
        while self._skipped:
            self._itself().skip_code(self._skipped.pop())


class _LateDynamo(ModuleType):
    """The stand-in. Thread-safe."""

    def __init__(self, spec: ModuleSpec) -> None:
        super().__init__(_NAME)
        self.__spec__, self.__file__ = spec, spec.origin
        self.__path__ = list(spec.submodule_search_locations or ())  # so its modules are looked for
        self._lock = threading.RLock()  # guards the list, and what is to be skipped
        self._not_disabled: list[Any] = []
        self.trace_rules = _LateTraceRules(lambda: self.itself().trace_rules)
        self.eval_frame = _LateEvalFrame(lambda: self.itself().eval_frame, self._lock)

    def disable(self, fn: Any = None, recursive: bool = True, **options: Any) -> Any:
        """The function as it is: nothing is traced yet."""
        if fn is None:  # used as a decorator with arguments
            return self.itself().disable(fn, recursive, **options)
        with self._lock:
            self._not_disabled.append(fn)
        return fn

    def graph_break(self, *_: Any, **__: Any) -> None:
        """Nothing: there is no graph."""

    def __getattr__(self, name: str) -> Any:
        """That of the module itself, which is imported now."""
        if name.startswith("__") and name.endswith("__"):  # asked for by who looks through all modules
            raise AttributeError(f"module {_NAME!r} has no attribute {name!r}")
        return getattr(self.itself(), name)

    def itself(self) -> Any:
        """The module itself."""
        with self._lock:
            if sys.modules.get(_NAME) is self:
                del sys.modules[_NAME]
                vars(sys.modules["torch"]).pop("_dynamo", None)
                try:
                    importlib.import_module(_NAME)
                except BaseException:
                    sys.modules[_NAME] = self
                    raise
                for function in self._not_disabled:
                    vars(function).pop(_CACHE, None)
                self._not_disabled.clear()
                self.eval_frame.hand_on()
            return sys.modules[_NAME]


class _Finder(MetaPathFinder):
    """Imports the module itself before one of its modules, which it may import in turn."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{_NAME}.") or not is_late():
            return None
        sys.modules[_NAME].itself()
        module = sys.modules.get(fullname)
        return None if module is None else ModuleSpec(fullname, _Imported(module))


class _Imported(Loader):
    """A module that has been imported meanwhile: it is left as it is."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__
        vars(module)["__spec__"] = None  # else the import system would go by it, and run the module again

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Gives back the specification that it was made from."""
        vars(module)["__spec__"] = self._spec


def install() -> None:
    """Puts the stand-in where torch looks, unless the module is there already. Imports torch."""
    importlib.import_module("torch")
    if _NAME not in sys.modules and (spec := find_spec(_NAME)) is not None:
        sys.modules[_NAME] = _LateDynamo(spec)
        sys.meta_path.insert(0, _Finder())


def is_late() -> bool:
    """Whether the stand-in is still there."""
    return isinstance(sys.modules.get(_NAME), _LateDynamo)
