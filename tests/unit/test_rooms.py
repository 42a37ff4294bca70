"""The rooms of the pipeline stand in one order: what a room imports lies below it; and a name means one thing."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]

# from the ground up
ROOMS = [
    "artifacts",
    "identity",
    "columns",
    "section",
    "objective",
    "sections",
    "config",
    "records",
    "grading",
    "problems",
    "policy",
    "published_weights",
    "processes",
    "rollout",
    "trainer",
    "engines",
    "evaluation",
    "cell",
    "planning",
    "doctor",
    "dag",
    "results",
    "paper",
    "__main__",
]


# the protocol of both engines, and what implements it on a cluster
SAME_MEANING = {"engine.py", "trainer.py"}


def sources() -> Iterator[tuple[str, ast.Module]]:
    """Every module of the pipeline by its path below pipeline/, parsed."""
    for path in sorted((REPOSITORY / "pipeline").rglob("*.py")):
        if path != REPOSITORY / "pipeline" / "__init__.py":
            yield str(path.relative_to(REPOSITORY / "pipeline")), ast.parse(path.read_text(encoding="utf-8"))


def room_of(module: str) -> str:
    return module.split("/")[0].removesuffix(".py")


def imported(tree: ast.AST) -> Iterator[str]:
    """The modules that run when the code does, those in functions too: "pipeline.config". Annotations alone tie no rooms."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, "relative imports hide where an arrow leads"
            names = [f"pipeline.{alias.name}" for alias in node.names]
            yield from names if node.module == "pipeline" else [node.module]
        elif not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            yield from imported(node)


def test_no_room_imports_one_above_it() -> None:
    assert {room_of(module) for module, _ in sources()} == set(ROOMS)
    upward = [
        f"{module} imports {name}"
        for module, tree in sources()
        for name in imported(tree)
        if name.startswith("pipeline.") and ROOMS.index(name.split(".")[1]) > ROOMS.index(room_of(module))
    ]
    assert upward == []


def test_the_objective_needs_nothing_but_arrays() -> None:
    found = {name.split(".")[0] for module, tree in sources() if room_of(module) == "objective" for name in imported(tree)}
    assert found - sys.stdlib_module_names <= {"torch", "numpy", "pydantic", "pipeline"}


def test_a_name_means_one_thing() -> None:
    files = Counter(Path(module).name for module, _ in sources())
    assert {name for name, count in files.items() if count > 1} == SAME_MEANING | {"__init__.py"}
    classes = Counter(node.name for _, tree in sources() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert {name for name, count in classes.items() if count > 1} == set()
