"""Tables of the reference pages, generated from the program when the site is built, so that they are never outdated.

```{configuration}
```         every key of conf/ and harness/config/schema.py: type or choices, default, meaning
```{schema} result
```         every key of harness/schemas/result.schema.json; for `events`: a section for each kind
```{spec}
```         every key of spec.json, documented by the classes of harness/core/spec.py
```{columns}
```         every column of runs.csv and runs.parquet
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from sphinx.util.docutils import SphinxDirective

from analysis.report.data import runs
from harness.config import schema
from harness.core import spec as run_spec

PROJECT = Path(__file__).resolve().parent.parent.parent
CONF, SCHEMAS = PROJECT / "conf", PROJECT / "harness" / "schemas"
FENCE = "```"
KINDS = {runs.TEXT: "text", runs.REAL: "number", runs.COUNT: "whole number", runs.LOGICAL: "true, false"}
# Groups whose options depend on the choice.
OPTIONS = {"framework": schema.FRAMEWORK_OPTIONS, "strategy": schema.STRATEGY_OPTIONS}


def setup(app: Any) -> dict[str, Any]:
    app.add_directive("configuration", Configuration)
    app.add_directive("schema", Schema)
    app.add_directive("spec", Spec)
    app.add_directive("columns", Columns)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


class Configuration(SphinxDirective):
    has_content = True

    def run(self) -> list[Any]:
        for path in [*sorted(CONF.rglob("*.yaml")), *sorted((PROJECT / "harness" / "config").glob("*schema.py"))]:
            self.env.note_dependency(str(path))
        return self.parse_text_to_nodes(configuration(), allow_section_headings=True)


class Schema(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[Any]:
        name = self.arguments[0]
        path = SCHEMAS / f"{name}.schema.json"
        if not path.exists():
            raise self.error(f"there is no harness/schemas/{path.name}")
        self.env.note_dependency(str(path))
        document = json.loads(path.read_text(encoding="utf-8"))
        text = events(document) if name == "events" else keys_table(document)
        return self.parse_text_to_nodes(text, allow_section_headings=True)


class Spec(SphinxDirective):
    has_content = True

    def run(self) -> list[Any]:
        for path in sorted((PROJECT / "harness" / "core").rglob("*spec.py")):
            self.env.note_dependency(str(path))
        text = "\n".join([*spec_of(run_spec.RunSpec, "spec"), *spec_of(run_spec.Site, "site")])
        return self.parse_text_to_nodes(text, allow_section_headings=True)


class Columns(SphinxDirective):
    has_content = True

    def run(self) -> list[Any]:
        self.env.note_dependency(runs.__file__)
        rows = [[code(name), KINDS[column.kind], column.about] for name, column in runs.COLUMNS.items()]
        return self.parse_text_to_nodes(table(["column", "type", "meaning"], rows))


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def code(value: Any) -> str:
    return f"`{json.dumps(value) if not isinstance(value, str) else value}`"


# --- the configuration ------------------------------------------------------------------------------------------------


def configuration() -> str:
    """Tabulate every key: name, type or choices, default, meaning. First conf/config.yaml, then each group."""
    main = loaded(CONF / "config.yaml")
    groups = [field.name for field in dataclasses.fields(schema.Config) if (CONF / field.name).is_dir()]
    own = [found for found in keys(schema.Config) if found[0].split(".")[0] not in groups or found[0] in main[0]]
    parts = ["## Every run\n", "From `conf/config.yaml`.\n", rows_of(own, [main])]
    for group in groups:
        default = chosen(main[2], group)
        files = sorted((CONF / group).glob("*.yaml"), key=lambda file: (file.stem != (default or "slurm"), file.stem))
        parts += [f"## {group}\n", choices(group, sorted(files), default)]
        of_group = keys(typing.get_type_hints(schema.Config)[group], f"{group}.")
        found = [key for key in of_group if key[0] != f"{group}.options" and key[0] not in main[0]]
        parts.append(rows_of(found, [prefix(loaded(file), group) for file in files]))
        for name, options in OPTIONS.get(group, {}).items():
            if found := list(keys(options, f"{group}.options.")):
                file = prefix(loaded(CONF / group / f"{name}.yaml"), group)
                parts += [f"### {group}={name}: options\n", rows_of(found, [file])]
    files = sorted((CONF / "experiment").glob("*.yaml"))
    parts += ["## +experiment\n", choices("experiment", files, None)]
    return "\n".join(parts)


def choices(group: str, files: list[Path], default: str | None) -> str:
    rows = []
    for file in files:
        mark = " (default)" if file.stem == default else ""
        rows.append([f"`{'+' * (group == 'experiment')}{group}={file.stem}`{mark}", plain(heading(file))])
    return table(["choice", "meaning"], rows)


def rows_of(found: list[tuple[str, Any, str]], files: list[tuple[dict[str, Any], dict[str, str], Any]]) -> str:
    """Return table rows. files: (values, comments, document) of each; the first comment on a key is used."""
    rows = []
    for key, kind, of_schema in found:
        said = next((comments[key] for _, comments, _ in files if comments.get(key)), "")
        values = {json.dumps(values[key]) for values, _, _ in files if key in values}
        default = "by choice" if len(values) > 1 else f"`{[*values, of_schema][0]}`"
        rows.append([code(key), kind_text(kind), default, plain(said)])
    return table(["key", "type", "default", "meaning"], rows)


def keys(kind: Any, start: str = "") -> Iterator[tuple[str, Any, str]]:
    """Yield (dotted key, type, default as JSON) of a dataclass of harness/config/schema.py, including nested ones."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        of = hints[field.name]
        if dataclasses.is_dataclass(of):
            yield from keys(of, f"{start}{field.name}.")
        else:
            made = field.default if field.default is not dataclasses.MISSING else field.default_factory()
            yield f"{start}{field.name}", of, json.dumps(made.name if isinstance(made, enum.Enum) else made)


def plain(text: str) -> str:
    """Escape Markdown; text between backticks stays code."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(piece if piece[:1] == "`" else re.sub(r"([<*_\[\]\\])", r"\\\1", piece) for piece in pieces)


def kind_text(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return ", ".join(code(member.name) for member in kind)
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return " or ".join("`null`" if of is type(None) else kind_text(of) for of in typing.get_args(kind))
    if kind is Any:
        return "mapping"
    inner = ", ".join("any" if of is Any else kind_text(of) for of in typing.get_args(kind) if of is not Ellipsis)
    origin = typing.get_origin(kind) or kind
    return f"{origin.__name__}{f' of {inner}' if inner else ''}"


def chosen(document: dict[str, Any], group: str) -> str | None:
    """Return a group's default in conf/config.yaml; None if it depends on the machine."""
    names = [entry[group] for entry in document["defaults"] if isinstance(entry, dict) and group in entry]
    return names[0] if names and "$" not in names[0] else None


def heading(path: Path) -> str:
    """Return the comment at the top of a file, which describes the choice."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        if "@package" not in line and not line.startswith("#   "):
            lines.append(line.lstrip("# "))
    return " ".join(lines)


def prefix(file: tuple[dict[str, Any], dict[str, str], Any], group: str) -> tuple[dict[str, Any], dict[str, str], Any]:
    values, comments, document = file
    return {f"{group}.{k}": v for k, v in values.items()}, {f"{group}.{k}": v for k, v in comments.items()}, document


def loaded(path: Path) -> tuple[dict[str, Any], dict[str, str], Any]:
    """Return values and comments by dotted key, and the document. A comment follows its key or precedes its line."""
    text = path.read_text(encoding="utf-8")
    document = yaml.safe_load(text)
    values = dict(leaves(document))
    comments: dict[str, str] = {}
    stack: list[tuple[int, str]] = []
    before: list[str] = []
    # The comment at the top describes the file.
    body = re.sub(r"\A(#.*\n)+", "", text)
    for line in body.splitlines():
        if not line.strip():
            before = []
        if comment := re.match(r"\s*# (.*)", line):
            before.append(comment[1])
        if not (found := re.match(r"(\s*)([\w-]+):(.*)", line)):
            continue
        indent = len(found[1])
        stack = [*(entry for entry in stack if entry[0] < indent), (indent, found[2])]
        key = ".".join(name for _, name in stack)
        behind = re.search(r"\s# (.*)$", found[3])
        comments[key] = behind[1] if behind else " ".join(before)
        before = []
    return values, comments, document


def leaves(document: Any, start: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in (document or {}).items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{start}{key}.")
        yield f"{start}{key}", value


# --- spec.json --------------------------------------------------------------------------------------------------------


def spec_of(kind: Any, name: str) -> list[str]:
    """Document a class of harness/core/spec.py: its docstring, its keys, then its nested classes."""
    rows, inner = [], []
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        of = next(filter(dataclasses.is_dataclass, typing.get_args(hints[field.name])), hints[field.name])  # Optional
        if dataclasses.is_dataclass(of):
            inner += spec_of(of, f"{name}.{field.name}")
        else:
            needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            there = "always" if needed else "may be absent in older files"
            rows.append([code(f"{name}.{field.name}"), kind_text(of), there])
    doc = inspect.cleandoc(kind.__doc__)
    return [f"### {name}\n", f"{FENCE}text\n{doc}\n{FENCE}\n", table(["key", "type", "present"], rows), *inner]


# --- the schemas ------------------------------------------------------------------------------------------------------


def events(document: dict[str, Any]) -> str:
    """Document the keys of every line, then each kind of event in its own section."""
    parts = ["### Every line\n", keys_table(document)]
    for kind in document["oneOf"]:
        ev = kind["properties"]["ev"]
        said = ev.get("description", "")
        own = {**kind, "properties": {key: of for key, of in kind["properties"].items() if key != "ev"}}
        parts += [f"### {ev['const']}\n", f"{said[:1].upper()}{said[1:]}.\n" if said else "", keys_table(own)]
    return "\n".join(parts)


def keys_table(document: dict[str, Any]) -> str:
    return table(["key", "type", "meaning"], list(key_rows(document)))


def key_rows(document: dict[str, Any], start: str = "") -> Iterator[list[str]]:
    for key, of in document.get("properties", {}).items():
        optional = "" if key in document.get("required", []) else "may be absent"
        said = "; ".join(text for text in (of.get("description"), optional) if text)
        yield [code(start + key), json_kind(of), said]
        inside = of.get("items", {}) if "properties" not in of else of
        yield from key_rows(inside, f"{start}{key}{'[]' if inside is not of else ''}.")


def json_kind(of: dict[str, Any]) -> str:
    if "const" in of:
        return code(of["const"])
    if "enum" in of:
        return ", ".join(code(value) for value in of["enum"])
    kinds = of.get("type", "any")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    inner = of.get("items", {}).get("type") or (of.get("additionalProperties") or {} if kinds[0] == "object" else {})
    inner = inner.get("type") if isinstance(inner, dict) else inner
    return " or ".join("`null`" if kind == "null" else kind for kind in kinds) + (f" of {inner}" if inner else "")
