"""Generates `docs/api.md` from the docstrings of `ps_worker.__all__`: `make api`."""

import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_overloads

import ps_worker

PAGE = Path(__file__).with_name("api.md")
LINE = 100
HEAD = """# The API of a training script

`import ps_worker as ps`, and then all that is below. Made from the docstrings by `make api`: change those.
"""
# What takes steps, as the worker sees it: `ps_worker.step.step_host.TakesSteps`.
TAKES_STEPS = {"clocks", "fall_behind", "is_between_steps", "reenter", "renew", "replay", "sit_out", "taken"}
# Public for other files of the package: a script does not call them.
INSIDE = {
    "Worker": {"is_in", "give_up"},
    "WrappedOptimizer": {"settle", "refresh", "abandon", "detach", "sends", "release"} | TAKES_STEPS,
    "Table": {"settle"} | TAKES_STEPS,
    "Loader": {"is_awaited", "is_under_way", "position"},
    "OptimizerChoice": {"spec"},
}
TITLES = {"Args": "Arguments", "Attributes": "Attributes", "Returns": "Returns", "Raises": "Raises"}
_SECTION = re.compile(rf"^({'|'.join(TITLES)}):$", re.MULTILINE)
_ENTRY = re.compile(r"^(\w+): ", re.MULTILINE)
_ELSEWHERE = re.compile(r"See `(\w+)\.\w+`\.")


def generate() -> str:
    """The text of the page."""
    chapters: dict[str, list[str]] = {}
    for name in ps_worker.__all__:
        chapters.setdefault(_chapter(getattr(ps_worker, name)), []).append(name)
    contents = [
        f"- {title}: {', '.join(f'[{name}](#{name.lower()})' for name in names)}"
        for title, names in chapters.items()
    ]
    parts = [HEAD, "\n".join(contents) + "\n"]
    for title, names in chapters.items():
        parts.append(f"## {title}\n")
        for name in names:
            parts += _described(name, getattr(ps_worker, name))
    return "\n".join(parts)


def _chapter(value: Any) -> str:
    if inspect.isclass(value):
        return "Errors" if issubclass(value, Exception) else "Classes"
    chosen = inspect.signature(value).return_annotation == "OptimizerChoice"
    return "Optimizers of tables" if chosen else "Functions"


def _described(name: str, value: Any) -> Iterator[str]:
    yield f"### `{name}`\n"
    if not inspect.isclass(value):
        yield from (_call(name, one) for one in get_overloads(value) or [value])
    elif dataclasses.is_dataclass(value):
        yield _call(name, value)
    yield _markdown(inspect.getdoc(value))
    if not inspect.isclass(value):
        return
    if issubclass(value, ps_worker.PsError):
        yield f"Base: `{value.__base__.__name__}`. A command that it ends has exit code {value.exit_code}.\n"
    elif issubclass(value, ps_worker.WrappedOptimizer):
        yield "Base: `torch.optim.Optimizer`.\n"
    for member, owner in _members(name, value):
        yield f"#### `{name}.{member}`\n"
        found = inspect.getattr_static(owner, member)
        if isinstance(found, property):
            yield _block(f"{member}: {inspect.signature(found.fget).return_annotation}")
        else:
            yield _call(member, found)
        yield _markdown(_doc(owner, member))


def _members(name: str, cls: type) -> Iterator[tuple[str, type]]:
    """Public methods and properties, each with the class of ours that has it; of an error only its own."""
    owners = [cls] if issubclass(cls, Exception) else cls.__mro__
    seen = set(INSIDE.get(name, ()))
    for owner in (owner for owner in owners if owner.__module__.startswith("ps_")):
        for member, value in vars(owner).items():
            told = inspect.isfunction(value) or isinstance(value, property)
            if told and not member.startswith("_") and member not in seen:
                seen.add(member)
                if not _ELSEWHERE.fullmatch(_doc(owner, member) or ""):  # else of a Protocol of ours
                    yield member, owner


def _doc(owner: type, member: str) -> str | None:
    """A method's docstring, or that of the base class which it names."""
    doc = inspect.getdoc(inspect.getattr_static(owner, member))
    there = _ELSEWHERE.fullmatch(doc or "")
    bases = [base for base in owner.__mro__[1:] if there and base.__name__ == there[1]]
    return inspect.getdoc(getattr(bases[0], member)) if bases else doc


# -- text ----------------------------------------------------------------------------------------------


def _call(name: str, function: Callable[..., Any]) -> str:
    """A call with annotations, in one line or with a line for each parameter."""
    signature = inspect.signature(function)
    parameters = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parameters:
            parameters.append("*")
        if parameter.name != "self":
            parameters.append(_parameter(parameter))
    result = signature.return_annotation
    if inspect.isgeneratorfunction(inspect.unwrap(function)) and not inspect.isgeneratorfunction(function):
        result = "AbstractContextManager[None]"
    end = ")" if inspect.isclass(function) else f") -> {result}"
    line = f"{name}({', '.join(parameters)}{end}"
    if len(line) > LINE:
        line = "\n".join([f"{name}(", *(f"    {text}," for text in parameters), end])
    return _block(line)


def _parameter(parameter: inspect.Parameter) -> str:
    text = str(parameter.replace(annotation=parameter.empty, default=parameter.empty))
    if parameter.annotation is not parameter.empty:
        text += f": {parameter.annotation}"
    return text if parameter.default is parameter.empty else f"{text} = {parameter.default!r}"


def _block(text: str) -> str:
    return f"```python signature\n{text}\n```\n"


def _markdown(doc: str | None) -> str:
    """A docstring in Google style."""
    assert doc, "a public name has no docstring"
    start, *sections = _SECTION.split(doc)
    parts = [start.strip() + "\n"]
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        text = inspect.cleandoc(body)
        if title != "Returns" and _ENTRY.match(text):
            text = _ENTRY.sub(r"- `\1`: ", re.sub(r"\n +", " ", text))
        parts.append(f"**{TITLES[title]}**\n\n{text}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(generate())
    sys.stdout.write(f"generated {PAGE.name}\n")
