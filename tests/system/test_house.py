"""The package keeps its house: floors, sizes, recipes that stand alone, light imports."""

import ast
import re
import runpy
import shutil
import sys
from collections import Counter
from pathlib import Path

from helpers.tools import notebooks

import pytest

PACKAGE = notebooks.ROOT / "src/helpers"
FLOORS = {
    "recipes": 1,
    "core": 1,
    "models": 2,
    "lessons": 3,
    "widgets": 4,
    "exercises": 4,
    "tools": 5,
}
# Within one folder, modules may import one another, but for these: they stand side by side.
SEPARATE = {"recipes", "widgets"}
# Lines. The rest, tools and tests are on their way to 5,500, 2,000 and 9,000: these only go down.
LARGEST = {"recipes": 1_000, "tools": 2_000, "the rest": 5_500, "tests": 9_000}
LONGEST_MODULE, LONGEST_FUNCTION = 300, 50
RECIPE_MODULE, RECIPE_FUNCTION = 135, 25
OURS = ("helpers", "tests")


def modules(folder=PACKAGE):
    """All modules below a folder."""
    return sorted(folder.rglob("*.py"))


def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def room(path):
    """The folder of a module in the package, "" for those beside the folders."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else ""


def imported(path):
    """The modules of the package that a module imports, as paths without a suffix."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path.name}: import {node.module} by its full name"
            names = [f"{node.module}.{alias.name}" for alias in node.names] + [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            target = PACKAGE.parent / name.replace(".", "/")
            if name.startswith("helpers.") and target.with_suffix(".py").exists():
                found.add(target.with_suffix(".py"))
    return found


def test_every_module_has_a_floor():
    for path in modules():
        where = room(path)
        assert where in FLOORS or path.parent == PACKAGE, (
            f"{path.relative_to(PACKAGE)} stands in a folder without a floor. Move it into one of "
            f"{', '.join(FLOORS)}, or give its folder a floor in FLOORS of {Path(__file__).name}."
        )


def test_imports_go_down():
    for path in modules():
        for target in imported(path):
            mine, theirs = FLOORS.get(room(path), 9), FLOORS.get(room(target), 0)
            sentence = (
                f"{path.relative_to(PACKAGE)} (floor {mine}) imports {target.relative_to(PACKAGE)} "
                f"(floor {theirs}): a module imports from floors below its own, or from its folder."
            )
            assert theirs < mine or room(path) == room(target), sentence
            if room(path) in SEPARATE and target.stem not in ("__init__", "frame"):
                assert room(path) != room(target), f"{sentence} Here not even that."


def test_no_circle():
    """Follow the imports from every module: none leads back."""
    arrows = {path: imported(path) for path in modules()}
    done = set()

    def follow(path, trail):
        names = " -> ".join(step.stem for step in [*trail, path])
        assert path not in trail, f"a circle of imports: {names}"
        if path not in done:
            for target in arrows[path]:
                follow(target, [*trail, path])
            done.add(path)

    for path in arrows:
        follow(path, [])


def test_no_module_shadows_a_package_that_it_uses():
    for path in modules():
        tree = parsed(path)
        packages = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                packages |= {alias.name.split(".")[0] for alias in node.names}
        assert path.stem not in packages, f"{path.stem} has the name of a package that it imports"


def lines(path):
    return len(path.read_text(encoding="utf-8").splitlines())


def test_the_folders_stay_small():
    """A number that is too large is mended by having less, not by writing denser."""
    sizes = Counter()
    for path in modules():
        sizes[room(path) if room(path) in LARGEST else "the rest"] += lines(path)
    sizes["tests"] = sum(lines(path) for path in modules(notebooks.ROOT / "tests"))
    too_large = {name: size for name, size in sizes.items() if size > LARGEST[name]}
    assert not too_large, f"lines: {too_large}, at most {LARGEST}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_and_functions_stay_short(path):
    recipe = room(path) == "recipes"
    assert lines(path) <= (RECIPE_MODULE if recipe else LONGEST_MODULE)
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef):
            length = node.end_lineno - node.lineno + 1
            longest = RECIPE_FUNCTION if recipe else LONGEST_FUNCTION
            assert length <= longest, f"{node.name} has {length} lines, at most {longest}"


RECIPES = notebooks.recipes()


@pytest.mark.parametrize("path", RECIPES.values(), ids=lambda path: path.stem)
def test_a_recipe_stands_alone(path, tmp_path, monkeypatch, capsys):
    """It imports nothing of ours, and a copy of it elsewhere answers --help."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names]
            assert not any(name.split(".")[0] in OURS for name in names), ast.unparse(node)
    copy = shutil.copy(path, tmp_path)
    monkeypatch.setattr(sys, "argv", [copy, "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(copy, run_name="__main__")
    assert f"usage: {path.name}" in capsys.readouterr().out


def functions(source):
    """The functions that a text defines at its top, by name, as they are written."""
    return {
        node.name: ast.get_source_segment(source, node)
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
    }


def shown_functions():
    """For each recipe its notebook's cells that define a function of the same name."""
    from helpers.tools import notebook_checks

    for number, recipe in [*RECIPES.items(), ("08", PACKAGE / "lessons/pipelines.py")]:
        own = functions(recipe.read_text(encoding="utf-8"))
        (page,) = (one for one in notebooks.pages() if one.name.startswith(number))
        for cell in notebook_checks.code_cells(notebook_checks.load(page)):
            for name, text in functions(notebook_checks.source(cell)).items():
                if name in own:
                    yield pytest.param(text, own[name], id=f"{number}-{name}")


@pytest.mark.parametrize(("cell", "recipe"), list(shown_functions()))
def test_a_cell_shows_the_function_that_the_recipe_has(cell, recipe):
    """What a reader saw is what they take home: the same code, whatever its line breaks."""
    assert ast.dump(ast.parse(cell)) == ast.dump(ast.parse(recipe))


def test_there_are_cells_that_show_the_recipes_functions():
    shown = {parameter.id for parameter in shown_functions()}
    assert len({name[:2] for name in shown}) >= 4, f"only {sorted(shown)} do"
    assert "08-one_by_one" in shown


CASES = re.compile(r"^\| (\d+) \|", re.MULTILINE)


def test_cases_are_listed():
    """Each number in a test's name has its line in CASES.md."""
    listed = {int(n) for n in CASES.findall((notebooks.ROOT / "tests/CASES.md").read_text("utf-8"))}
    tests = "\n".join(p.read_text("utf-8") for p in modules(notebooks.ROOT / "tests"))
    named = {int(number) for number in re.findall(r"(?:def test_|\")case_(\d+)_", tests)}
    assert named <= listed, f"without a line in CASES.md: {sorted(named - listed)}"
    assert listed <= named, f"without a test: {sorted(listed - named)}"
