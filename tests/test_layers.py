"""How the parts depend on each other: downwards only. And what every Lua script says about itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from lake_spark.index import scripts

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "lake_spark"
LUA = ROOT / "lua"

# From the bottom up. Parts of one line may use those of the lines before it, and themselves.
VALUES = {"errors", "model", "names", "options", "tally", "trace"}
PARTS = {"index", "storage", "segment", "merge", "cache"}
OPERATIONS = {"client", "log", "embedded"}
SURFACES = {"spark", "cli"}
ALLOWED: dict[str, set[str]] = {
    **dict.fromkeys(VALUES, VALUES),
    **{name: VALUES | {name} for name in PARTS},
    **dict.fromkeys(OPERATIONS, VALUES | PARTS | OPERATIONS),
    **dict.fromkeys(SURFACES, VALUES | PARTS | OPERATIONS | SURFACES),
}

MODULES = sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    """The part of the library that a file belongs to; '' for the package itself."""
    first = path.relative_to(PACKAGE).parts[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


def imports_of(path: Path) -> Iterator[str]:
    """The full names of the modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports are written in full"
            assert node.module
            # `from lake_spark import names` means a module as much as `import lake_spark.names` does.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", MODULES, ids=shown)
def test_dependencies_point_downwards(path: Path) -> None:
    part = part_of(path)
    if part == "":
        return
    assert part in ALLOWED, f"say in {Path(__file__).name} on which line {part} stands"
    for name in imports_of(path):
        top, _, rest = name.partition(".")
        if top == "lake_spark":
            used = rest.partition(".")[0]
            assert used in ALLOWED[part], f"{shown(path)} imports {name}: {part} stands below {used}, or beside it"


def test_no_module_waits_for_itself() -> None:
    """Imports at the top of modules have no cycles, so that any module can be imported first."""
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in MODULES}

    def needs(path: Path) -> Iterator[str]:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("lake_spark"):
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    yield full if full in names else node.module

    graph = {name: set(needs(path)) - {name} for name, path in names.items()}
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " → ".join((*way, name))
        if name not in done:
            for needed in graph[name]:
                visit(needed, (*way, name))
            done.add(name)

    for name in graph:
        visit(name, ())


@pytest.mark.parametrize("path", MODULES, ids=shown)
def test_only_the_index_and_the_cache_talk_to_redis(path: Path) -> None:
    if part_of(path) == "index" or path == PACKAGE / "cache" / "redis.py":
        return
    assert "redis" not in {name.partition(".")[0] for name in imports_of(path)}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr in ("client", "call", "run", "run_many"):
            owner = node.value
            name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
            assert not name.endswith("connection"), f"{shown(path)}:{node.lineno} asks Redis: that belongs in index/"


@pytest.mark.parametrize("path", MODULES, ids=shown)
def test_only_the_data_source_needs_spark(path: Path) -> None:
    if part_of(path) != "spark":
        assert not {"pyspark", "py4j"} & {name.partition(".")[0] for name in imports_of(path)}


@pytest.mark.parametrize("path", MODULES, ids=shown)
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), f"{shown(path)} has no docstring"


# Lua

SCRIPTS = sorted(LUA.glob("*.lua"))
LIBRARIES = sorted((LUA / "lib").glob("*.lua"))
# Calls whose arguments are keys, in the scripts and in the libraries.
KEY_ARGUMENT = re.compile(r"""redis\.call\(\s*'(?P<command>[A-Z]+)'\s*(?:,\s*(?P<key>[^,)]+))?""")
KEYLESS = {"TIME"}
# Where a key may come from: KEYS, a table of them, or a parameter that is one.
KEY = re.compile(r"KEYS\[[^\]]+\]|shard\.\w+|key|\w+_key")
INCLUDE = re.compile(r"^--@include (.*)$", re.MULTILINE)


def header_of(path: Path) -> dict[str, str]:
    """The sections of the comment that a script begins with."""
    lines = []
    for line in path.read_text().splitlines():
        if not line.startswith("--") or line.startswith("--@"):
            break
        lines.append(line.removeprefix("--").removeprefix(" "))
    text = "\n".join(lines)
    found = re.findall(
        r"^(KEYS|ARGV|Reply|Guarantees):?[ ]+(.+?)(?=^(?:KEYS|ARGV|Reply|Guarantees)|\Z)", text, re.M | re.S
    )
    return {"": lines[0] if lines else "", **{name: " ".join(words.split()) for name, words in found}}


@pytest.mark.parametrize("path", SCRIPTS, ids=shown)
def test_a_script_begins_with_its_contract(path: Path) -> None:
    header = header_of(path)
    assert header[""].endswith("."), "first what it does, in a sentence"
    assert list(header) == ["", "KEYS", "ARGV", "Reply", "Guarantees"]
    assert all(header.values())


@pytest.mark.parametrize("path", LIBRARIES, ids=shown)
def test_a_library_begins_with_what_it_is(path: Path) -> None:
    assert path.read_text().startswith("-- ")


@pytest.mark.parametrize("path", SCRIPTS, ids=shown)
def test_a_script_uses_the_keys_and_arguments_it_names(path: Path) -> None:
    text = path.read_text()
    header = header_of(path)
    for kind in ("KEYS", "ARGV"):
        named, more, _ = header[kind].partition(", then for each")
        numbers = [int(each) for each in re.findall(r"(?:^|  ?)([0-9]+)…? ", named)]
        assert numbers == list(range(1, len(numbers) + 1)), f"{kind} are numbered in order: {header[kind]}"
        used = {int(each) for each in re.findall(kind + r"\[([0-9]+)\]", text)}
        unbounded = bool(more) or "…" in named
        assert used <= set(numbers), f"{kind} {sorted(used - set(numbers))} are not in the header"
        if not unbounded:
            assert not re.search(kind + r"\[[^0-9\]]", text), f"{kind} are computed, and the header has a fixed number"


@pytest.mark.parametrize("path", [*SCRIPTS, *LIBRARIES], ids=shown)
def test_a_script_touches_only_the_keys_it_was_given(path: Path) -> None:
    text = path.read_text()
    calls = list(KEY_ARGUMENT.finditer(text))
    assert len(calls) == len(re.findall(r"redis\.p?call", text)), "every call is written with its command and its key"
    for call in calls:
        key = (call["key"] or "").strip()
        if call["command"] in KEYLESS:
            assert not key
        elif not KEY.fullmatch(key):
            # A field of a table that was filled from KEYS.
            table, _, field = key.partition(".")
            assert re.search(rf"\b{field} = KEYS\[", text), f"{call[0]}: {table} has its {field} from elsewhere"


def test_one_script_derives_a_key() -> None:
    """The high-water mark fences writes of catalogs that it learns from the shard's registry."""
    # Functions of the libraries, with the place of the key among their arguments.
    places = {"fence": 1, "merge_hash": 0, "last_sequence": 0, "allocator": 0}
    derived = []
    for path in [*SCRIPTS, *LIBRARIES]:
        for call in re.finditer(r"(?<!function )\b(\w+)\(([^\n]*)", path.read_text()):
            if call[1] in places:
                key = call[2].split(",")[places[call[1]]].strip()
                if not KEY.fullmatch(key):
                    derived.append((path.name, key))
    assert derived == [("high_water_mark.lua", "ARGV[2] .. b64")]


@pytest.mark.parametrize("path", [*SCRIPTS, *LIBRARIES], ids=shown)
def test_every_include_is_there(path: Path) -> None:
    included = INCLUDE.findall(path.read_text())
    assert len(set(included)) == len(included)
    assert set(included) <= {library.stem for library in LIBRARIES}


def test_every_library_is_included_somewhere() -> None:
    included = {name for path in SCRIPTS for name in INCLUDE.findall(path.read_text())}
    assert included == {library.stem for library in LIBRARIES}


def loaded() -> dict[str, scripts.Script]:
    return {each.name: each for each in vars(scripts).values() if isinstance(each, scripts.Script)}


def test_every_script_is_loaded_whole() -> None:
    assert sorted(loaded()) == [path.stem for path in SCRIPTS]
    for script in loaded().values():
        assert "--@include" not in script.source


def test_redis_compiles_every_script_and_knows_it_by_our_digest(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        for script in loaded().values():
            assert client.script_load(script.source) == script.sha, script.name
