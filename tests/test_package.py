"""The package as it ships: every file is in the wheel, and imports run in one direction."""

import ast
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FLOORS = ("envs", "agents", "models", "runtime", "assets")
MAY_IMPORT = {
    "envs": {"envs"},
    "models": {"models"},
    "agents": {"agents", "models", "envs"},
    "runtime": {"runtime", "agents", "models", "envs", "assets"},
}


def shipped_files() -> set[str]:
    files = {"__init__.py", "__main__.py", "py.typed"}
    for floor in FLOORS:
        for path in (ROOT / floor).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                files.add(path.relative_to(ROOT).as_posix())
    return files


def test_the_wheel_holds_every_module_and_asset(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for name in ("__init__.py", "__main__.py", "py.typed", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copy(ROOT / "MANIFEST.in", source)
    for floor in FLOORS:
        shutil.copytree(ROOT / floor, source / floor, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "-q", "-w", "dist"]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (wheel,) = (source / "dist").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    inside = {name.removeprefix("palaestra/") for name in names if name.startswith("palaestra/")}
    assert inside == shipped_files()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"palaestra"}, "lands nothing else"
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_every_folder_with_modules_is_a_package():
    for floor in FLOORS:
        for module in (ROOT / floor).rglob("*.py"):
            assert (module.parent / "__init__.py").exists(), f"{module.parent} has no __init__.py"


def imported_floors(path: Path) -> set[str]:
    """The floors that a module imports from, at the top or inside functions, relative, absolute or by a string."""
    package = ["palaestra", *path.relative_to(ROOT).parent.parts]
    found = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = [*base, *(node.module or "").split(".")] if node.module else base
            names = [module] if len(module) > 1 else [[*module, alias.name] for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            match = re.fullmatch(r"palaestra\.(\w+)[\w.]*(:\w+)?", node.value)
            names = [["palaestra", match[1]]] if match else []
        else:
            continue
        found |= {name[1] for name in names if name[0] == "palaestra" and len(name) > 1}
    return found & set(FLOORS)


@pytest.mark.parametrize("floor", MAY_IMPORT)
def test_imports_run_in_one_direction(floor):
    for path in (ROOT / floor).rglob("*.py"):
        uphill = imported_floors(path) - MAY_IMPORT[floor]
        if floor in ("envs", "models") and uphill == {"assets"}:
            continue  # data
        assert not uphill, f"{path.relative_to(ROOT)} imports from {uphill}"


def test_importing_palaestra_is_light_and_registers_the_ids():
    code = (
        "import sys, palaestra, gymnasium;"
        "assert 'palaestra/BallIntercept-v0' in gymnasium.registry;"
        "print([m for m in ('torch', 'mujoco', 'robosuite', 'sqlalchemy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_gymnasium_alone_finds_our_environments():
    code = (
        "import gymnasium; env = gymnasium.make('palaestra:palaestra/BallIntercept-v0');"
        "env.reset(seed=0); print(env.spec.id)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "palaestra/BallIntercept-v0"


def test_every_exported_name_loads():
    import palaestra

    for name in palaestra.__all__:
        assert getattr(palaestra, name) is not None


def test_bad_names_are_attribute_errors():
    import palaestra

    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        palaestra.nonsense  # noqa: B018
