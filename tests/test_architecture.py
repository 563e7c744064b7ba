"""The layers, no cycles, short functions and short files: measured, not promised."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import architecture
import gswgan

ROOT = Path(__file__).parents[1]
PACKAGE, TESTS = ROOT / "src" / "gswgan", ROOT / "tests"
IMPORTS = architecture.imports(PACKAGE)
LAYERS = architecture.layers(gswgan.__doc__ or "")

MAX_FUNCTION_LINES, MAX_PARAMETERS, MAX_COMMAND_LINES = 80, 10, 15
MAX_FILE_LINES, MAX_SRC_LINES, MAX_TEST_LINES = 300, 19_500, 22_500

INSIDE_FUNCTIONS = {
    "gswgan.cli": "`gswgan --help` and a wrong option must not wait for torch",
    "gswgan.federated.simulation: simulate": "its apps need Flower, which is an extra",
    "gswgan.release.page: page_of": "the page needs jinja2 and matplotlib, which are an extra",
    "gswgan.critics.ensemble.adam: adam_step": "needs Triton, which exists with CUDA only",
    "gswgan.critics.ensemble.convolution: _convolve_kernels": "needs Triton",
    "gswgan.critics.ensemble.convolution: _transposed_kernels": "needs Triton",
    "gswgan.critics.ensemble.network: backward": "needs Triton",
    "gswgan.critics.refined.operations: activate": "needs Triton",
    "gswgan.critics.refined.operations: forward": "needs Triton",
    "gswgan.critics.refined.operations: backward": "needs Triton",
    "gswgan.privacy.mechanism: _gpu_row_sum": "needs Triton",
}
"""Where a module of ours may be imported inside a function, and why. None of them is there to escape a cycle."""

MANY_PARAMETERS = {"gswgan.api.model: __init__": "the public constructor"}

NOT_YET = pytest.mark.xfail(strict=True, reason="not reached yet; whoever reaches it removes this mark")


def where(one: architecture.Import) -> str:
    return f"{one.source}: {one.function}"


def assert_none(found: list[str]) -> None:
    """Nothing was found, or a failure that names all of it."""
    assert not found, "\n".join(["", *found])


def is_listed(one: architecture.Import) -> bool:
    return where(one) in INSIDE_FUNCTIONS or one.source.startswith("gswgan.cli.")


def is_triton(function: architecture.Function) -> bool:
    """A kernel: pointers, sizes and strides come one by one, because the compiler specializes on each."""
    return any("triton" in ast.unparse(mark) for mark in function.decorator_list)


def too_long(package: Path, allowed: dict[str, str]) -> list[str]:
    """Functions with too many lines or parameters; a command's option list does not count if its body is short."""
    found = []
    for name, path, function in architecture.functions(package):
        length, parameters = architecture.length(function), architecture.parameters(function)
        if "cli" in path.parts and parameters > 0 and architecture.body(function) <= MAX_COMMAND_LINES:
            continue
        excused = name in allowed or is_triton(function)
        if length > MAX_FUNCTION_LINES or (parameters > MAX_PARAMETERS and not excused):
            found.append(f"{name}: {length} lines, {parameters} parameters")
    return found


def test_every_package_has_a_layer() -> None:
    tops = {module.split(".")[1] for module in architecture.modules(PACKAGE) if "." in module} - {"__main__"}
    assert tops == set(LAYERS)


def test_no_module_imports_itself_through_others() -> None:
    assert_none([" ".join(knot) for knot in architecture.cycles(IMPORTS)])


def test_imports_point_downwards_only() -> None:
    assert_none([str(one) for one in architecture.upward(IMPORTS, LAYERS)])


def test_the_privacy_core_imports_nothing_else_of_ours() -> None:
    outside = [one for one in IMPORTS if one.source.startswith("gswgan.privacy")]
    assert [str(one) for one in outside if not one.target.startswith("gswgan.privacy")] == []


def test_imports_inside_functions_are_listed_with_a_reason() -> None:
    inside = [one for one in IMPORTS if one.function is not None]
    assert_none([str(one) for one in inside if not is_listed(one)])
    unused = set(INSIDE_FUNCTIONS) - {where(one) for one in inside} - {"gswgan.cli"}
    assert unused == set(), "listed, but not there any more"


def test_functions_are_short_and_take_few_parameters() -> None:
    assert_none(too_long(PACKAGE, MANY_PARAMETERS))


@pytest.mark.parametrize("folder", [pytest.param(PACKAGE, id="src"), pytest.param(TESTS, id="tests")])
def test_files_are_short(folder: Path) -> None:
    counted = architecture.lines(folder)
    assert_none([f"{path.relative_to(ROOT)}: {n} lines" for path, n in counted.items() if n > MAX_FILE_LINES])


@NOT_YET
def test_the_package_is_small() -> None:
    total = sum(architecture.lines(PACKAGE).values())
    assert total <= MAX_SRC_LINES


@NOT_YET
def test_the_tests_are_few() -> None:
    total = sum(architecture.lines(TESTS).values())
    assert total <= MAX_TEST_LINES


# The measuring itself, on a made package.


def make(folder: Path, **files: str) -> Path:
    package = folder / "made"
    for name, content in {"__init__": "", **files}.items():
        path = package / (name.replace("__in__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        (path.parent / "__init__.py").touch()
    return package


MADE_LAYERS = architecture.layers("Made.\n\nLayers, from the top:\n\n    high\n    middle > beside\n    low\n\nMore.")


def test_the_table_is_read_from_the_docstring() -> None:
    assert MADE_LAYERS == {"high": 0, "middle": 1, "beside": 2, "low": 3}


@pytest.mark.parametrize(
    "hidden",
    [
        "import made.low.b",
        "from made.low import b",
        "from ..low import b",
        "def f():\n    from made.low.b import x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from made.low.b import x",
        "class C:\n    def f(self):\n        if True:\n            import made.low.b",
    ],
)
def test_a_planted_cycle_is_found(tmp_path: Path, hidden: str) -> None:
    straight = make(tmp_path / "straight", high__in__a="from made.low.b import x", low__in__b="x = 1")
    assert architecture.cycles(architecture.imports(straight)) == []
    package = make(
        tmp_path / "knot", high__in__a=hidden, low__in__b="from made.low import c", low__in__c="import made.high.a"
    )
    assert architecture.cycles(architecture.imports(package)) == [["made.high.a", "made.low.b", "made.low.c"]]


def test_a_planted_arrow_upwards_is_found(tmp_path: Path) -> None:
    package = make(
        tmp_path,
        high__in__a="from made import low",
        middle__in__a="from made.beside import a",
        beside__in__a="def f():\n    from made.middle.b import y",
        middle__in__b="y = 1",
        low__in__b="import made",
    )
    found = architecture.upward(architecture.imports(package), MADE_LAYERS)
    assert [str(one) for one in found] == ["made.beside.a:2 -> made.middle.b", "made.low.b:1 -> made"]
    assert found[0].function == "f"


def test_planted_long_functions_are_found(tmp_path: Path) -> None:
    many = ", ".join(f"p{place}" for place in range(MAX_PARAMETERS))
    long = "    x = 1\n" * MAX_FUNCTION_LINES
    package = make(
        tmp_path,
        low__in__a=f"def fits({many}):\n{long[:-10]}\nclass C:\n    def method(self, {many}): pass\n",
        low__in__long=f"def long():\n{long}",
        low__in__b=f"def many({many}, more): pass\n@triton.jit\ndef kernel({many}, more): pass",
        cli__in__a=f"def command({many}, more):\n    '''Words.'''\n" + "    x = 1\n" * MAX_COMMAND_LINES,
        cli__in__b=f"def logic({many}, *, more):\n" + "    x = 1\n" * (MAX_COMMAND_LINES + 1),
    )
    named = [row.split(":")[1].strip() for row in too_long(package, {})]
    assert named == ["logic", "many", "long"]
    assert [row for row in too_long(package, {"made.low.b: many": "a reason"}) if "many" in row] == []
