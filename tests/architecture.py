"""What tests/test_architecture.py measures: imports, lengths and parameters of a package, read with `ast`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, kw_only=True)
class Import:
    """One module names another."""

    source: str
    target: str
    line: int
    function: str | None  # the innermost function around it

    def __str__(self) -> str:
        return f"{self.source}:{self.line} -> {self.target}"


def modules(package: Path) -> dict[str, Path]:
    """All modules below a package, by their dotted names."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(package: Path) -> list[Import]:
    """Every import of one module of the package by another: in functions and type-checking blocks too, relative too."""
    known = modules(package)
    return [found for name, path in known.items() for found in _imports_of(name, path, known)]


def _imports_of(name: str, path: Path, known: dict[str, Path]) -> Iterator[Import]:
    home = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node, function in _with_function(ast.parse(path.read_text()), None):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = home.split(".")[: len(home.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            inside = [f"{base}.{alias.name}" for alias in node.names]
            targets = [target if target in known else base for target in inside]
        else:
            continue
        for target in dict.fromkeys(targets):
            if target in known and target != name:
                yield Import(source=name, target=target, line=node.lineno, function=function)


def _with_function(node: ast.AST, function: str | None) -> Iterator[tuple[ast.AST, str | None]]:
    for child in ast.iter_child_nodes(node):
        yield child, function
        yield from _with_function(child, child.name if isinstance(child, Function) else function)


def cycles(found: list[Import]) -> list[list[str]]:
    """Modules that import each other, directly or through others: one list per knot, by Tarjan's algorithm."""
    graph: dict[str, list[str]] = {}
    for one in found:
        graph.setdefault(one.source, []).append(one.target)
        graph.setdefault(one.target, [])
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    knots: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = low[module] = len(order)
        stack.append(module)
        for other in graph[module]:
            if other not in order:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], order[other])
        if low[module] == order[module]:
            knot = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(knot) > 1:
                knots.append(sorted(knot))

    for module in graph:
        if module not in order:
            visit(module)
    return knots


def layers(docstring: str) -> dict[str, int]:
    """The table of layers in a package's docstring: its indented lines under `Layers`; the highest has number 0."""
    _, _, rest = docstring.partition("Layers")
    rows = rest.partition("\n\n")[2].split("\n\n")[0].splitlines()
    names = [name.strip() for row in rows for name in row.split(">")]
    return {name: place for place, name in enumerate(names)}


def upward(found: list[Import], ranks: dict[str, int]) -> list[Import]:
    """Imports from a layer into one that is not below it. Modules of the package itself stand above all layers."""

    def rank(module: str) -> int:
        parts = module.split(".")
        return -1 if len(parts) == 1 or parts[1] == "__main__" else ranks[parts[1]]

    def same(one: Import) -> bool:
        return one.source.split(".")[1:2] == one.target.split(".")[1:2]

    return [one for one in found if not same(one) and rank(one.target) <= rank(one.source)]


def functions(package: Path) -> Iterator[tuple[str, Path, Function]]:
    """All functions and methods with `module: name`."""
    for name, path in modules(package).items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, Function):
                yield f"{name}: {node.name}", path, node


def parameters(function: Function) -> int:
    """How many there are, `self` and `cls` aside."""
    given = function.args
    names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"])) + (given.vararg is not None) + (given.kwarg is not None)


def length(function: Function) -> int:
    """Lines from `def` to the end."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def body(function: Function) -> int:
    """Lines of the statements after the docstring."""
    statements = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (function.end_lineno or 0) - statements[0].lineno + 1 if statements else 0


def lines(*folders: Path) -> dict[Path, int]:
    """Lines of every Python file below the folders."""
    return {path: len(path.read_text().splitlines()) for folder in folders for path in sorted(folder.rglob("*.py"))}
