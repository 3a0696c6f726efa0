"""The house itself: what may be imported where, what the tree may not name, what must be documented."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("proxy", "policies", "exporters")

DOORS = {
    "httptools": ("proxy.wire.reader", "proxy.wire.upstream"),
    "aiohttp": (
        "proxy.admin",
        "proxy.demo",
        "proxy.app",
        "exporters.webhooks",
    ),
    "opentelemetry": ("exporters.otel",),
    "requests": ("exporters.otel.over_http", "exporters.otel.answers"),
    "urllib3": ("exporters.otel.answers",),
    "pydantic": ("proxy.config", "policies"),
    "yaml": ("proxy.config",),
    "click": ("proxy.cli", "proxy.commands"),
}
"""Each foreign library and the only modules (with what lies below them) that may import it."""

LIGHT = ("httptools", "aiohttp", "opentelemetry", "pydantic", "orjson")
"""What importing the ports must not load."""

TEXT = frozenset(
    {
        ".py",
        ".toml",
        ".txt",
        ".md",
        ".yml",
        ".yaml",
        ".json",
        ".html",
        ".css",
        ".js",
        ".lua",
        ".c",
        ".conf",
        "",
    }
)


def modules() -> list[str]:
    """Every module of the three packages."""
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    dotted = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files]
    return sorted(name.removesuffix(".__init__") for name in dotted if not name.endswith("__main__"))


def source_of(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def imports_of(module: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source_of(module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def below(name: str, roots: tuple[str, ...]) -> bool:
    return any(name == root or name.startswith(f"{root}.") for root in roots)


def in_a_fresh_process(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.real  # half a minute; that there are no loops, which is what could go wrong, is held below
@pytest.mark.timeout(900)
def test_each_module_can_be_imported_alone() -> None:
    # One process, but for each module a fresh start: what another of ours imported before must not help it.
    # What is not ours is there from the start; only that keeps this short.
    foreign = {name for module in modules() for name in imports_of(module) if not below(name, PACKAGES)}
    code = f"""
import contextlib, importlib, os
for name in {sorted(foreign)!r}:
    with contextlib.suppress(ImportError):  # a name inside a module
        importlib.import_module(name)
for name in {modules()!r}:
    child = os.fork()
    if child == 0:
        try:
            __import__(name)
        except BaseException as error:
            print(f"{{name}}: {{error!r}}", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
    assert in_a_fresh_process(code) == ""


def test_the_ports_load_no_foreign_library() -> None:
    loaded = in_a_fresh_process("import sys, proxy.ports; print(*sorted(sys.modules), sep='\\n')").split()
    assert [name for name in loaded if name.partition(".")[0] in LIGHT] == []


def test_each_foreign_library_has_its_door() -> None:
    beside = [
        f"{module} imports {name}"
        for module in modules()
        for name in imports_of(module)
        for library, doors in DOORS.items()
        if below(name, (library,)) and not below(module, doors)
    ]
    assert beside == []


def test_no_module_imports_itself_by_a_detour() -> None:
    known = set(modules())
    graph = {module: {name for name in imports_of(module) if name in known - {module}} for module in known}
    for module, seen in graph.items():
        # `from package import module` names both; only the module itself is meant.
        graph[module] = {name for name in seen if not any(other.startswith(f"{name}.") for other in seen)}
    order = list(TopologicalSorter(graph).static_order())  # raises and names the loop, if there is one
    assert len(order) == len(known)


def test_policies_and_exporters_see_only_the_sockets_in_the_wall() -> None:
    allowed = ("proxy.model", "proxy.verdict", "proxy.ports")
    strays = [
        f"{module} imports {name}"
        for module in modules()
        if below(module, ("policies", "exporters"))
        for name in imports_of(module)
        if name.startswith("proxy.") and not below(name, allowed)
    ]
    assert strays == []


def test_the_start_of_the_command_is_timed() -> None:
    lines = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "proxy", "--version"],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=True,
    )
    slowest = max(int(found[1]) for found in re.finditer(r"import time:\s+\d+ \|\s+(\d+) \|", lines.stderr))
    print(f"imports of `looptap --version`: {slowest / 1000:.0f} ms")
    assert "looptap" in lines.stdout


def tracked() -> list[Path]:
    """The text files that git keeps."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    paths = [ROOT / name.decode() for name in listed.stdout.split(b"\0") if name]
    return [path for path in paths if path.suffix in TEXT and path.is_file()]


def test_the_tree_names_no_download_host_and_no_path_of_one_machine() -> None:
    hosts = ("pypi" + ".org", "pythonhosted" + ".org", "registry.npm" + "js.org", "proxy.golang" + ".org")
    hosts += ("crates" + ".io", "deb." + "debian.org", "registry." + "yarnpkg.com", "docker" + ".io")
    places = ("/" + "work/", "/" + "root/", "/home/" + "runner")
    found = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in tracked()
        if "recordings" not in path.parts
        for word in (*hosts, *places)
        if word in path.read_text(encoding="utf-8", errors="replace")
    ]
    assert found == []


def makefile_targets() -> list[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return re.findall(r"^([a-z-]+):", text, re.MULTILINE)


def test_each_make_target_says_what_it_does() -> None:
    listed = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, encoding="utf-8", timeout=30, check=True
    )
    assert re.findall(r"^  make ([a-z-]+)", listed.stdout, re.MULTILINE) == makefile_targets()


def test_the_readme_names_only_commands_that_exist() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = set(re.findall(r"\bmake ([a-z-]+)\b", "\n".join(code_of(readme))))
    assert targets <= set(makefile_targets())
    commands = set(re.findall(r"\blooptap ([a-z]+)\b", "\n".join(code_of(readme))))
    assert commands
    helped = subprocess.run(
        [sys.executable, "-m", "proxy", "--help"],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=True,
    )
    existing = set(re.findall(r"^  ([a-z]+)\b", helped.stdout, re.MULTILINE))
    assert commands <= existing


def code_of(markdown: str) -> list[str]:
    """What stands in code blocks and between backticks."""
    blocks = re.findall(r"```[a-z]*\n(.*?)```", markdown, re.DOTALL)
    return blocks + re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", markdown, flags=re.DOTALL))


@pytest.mark.parametrize("package", PACKAGES)
def test_each_module_says_what_lives_in_it(package: str) -> None:
    silent = [
        module
        for module in modules()
        if below(module, (package,))
        and not ast.get_docstring(ast.parse(source_of(module).read_text(encoding="utf-8")))
    ]
    assert silent == []


@pytest.mark.parametrize(
    "package",
    sorted(
        str(at.parent.relative_to(ROOT)) for name in PACKAGES for at in (ROOT / name).rglob("__init__.py")
    ),
)
def test_the_map_names_every_module(package: str) -> None:
    folder = ROOT / package
    named = set(
        re.findall(r"``([a-z_]+)``", ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or "")
    )
    there = {path.stem for path in folder.glob("*.py")} | {
        path.parent.name for path in folder.glob("*/__init__.py")
    }
    unnamed = {"__init__", "__main__", "app", "config", "core", "model", "ports", "verdict"}
    assert there - unnamed - named == set()
